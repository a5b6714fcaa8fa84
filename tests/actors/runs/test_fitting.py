"""Results that do not fit the model's window, after a batch and after a pause."""

from __future__ import annotations

import pytest
import trio
from kit.rehearsal import Probe, calls_of, open_stage, replies
from kit.run_ports import Window, change_run_ports
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.tools import Needs, ToolResult
from greenroom.protocol import (
    TOO_SMALL,
    AssistantMessage,
    Deny,
    Grant,
    GreenroomError,
    RunStarted,
    ToolMessage,
)
from greenroom.testing import Call, Halt, Say

DONE = [Say("done"), Halt()]
THREE = [Call("one"), Call("two"), Call("three"), Halt("tool_use")]
LONG = 3_000


def keeping(name, *, path=None, text="x" * LONG):
    """A tool whose result is a preview of a file that it wrote."""

    async def body(arguments, operation):
        await operation.dispatch()
        scratch = operation.context.scratch
        scratch.mkdir(parents=True, exist_ok=True)
        kept = path or scratch / f"{name}.txt"
        if path is None:
            kept.write_text("all of it")
        return ToolResult(text, kept=kept)

    return Probe(name=name, body=body)


def told(stage, request=1):
    messages = stage.provider.requests[request].messages
    return [m.text for m in messages if isinstance(m, ToolMessage)]


@pytest.mark.contract("TOL-17")
@pytest.mark.parametrize(
    ("room", "lengths", "kept"),
    [
        (9_000, [LONG, LONG, LONG], ["one", "three", "two"]),
        (8_999, [LONG, LONG, 501], ["one", "two"]),
        (6_500, [LONG, LONG, len(TOO_SMALL)], ["one", "two"]),
        (6_010, [LONG, LONG, 5], ["one", "two"]),
        (6_000, [LONG, LONG, 0], ["one", "two"]),
        (5_999, [LONG, 501, 0], ["one"]),
        (3_000, [LONG, 0, 0], ["one"]),
        (2_999, [501, 0, 0], []),
        (0, [0, 0, 0], []),
    ],
)
async def test_results_give_way_from_the_last_one_and_their_files_are_deleted(
    tmp_path, room, lengths, kept
):
    tools = [keeping(name) for name in ("one", "two", "three")]
    async with open_stage(tmp_path, replies(THREE, DONE), *tools) as stage:
        change_run_ports(stage, context_budget=Window(room))
        turn = await stage.session.prompt("go")
        assert turn.stop_reason == "complete"
        assert [len(text) for text in told(stage)] == lengths
        scratch = stage.state / "scratch" / stage.session.id
        assert sorted(path.stem for path in scratch.iterdir()) == kept
        status = [call.status for call in calls_of(turn.message)]
        short = {len(TOO_SMALL), 5, 0}
        assert status == ["error" if n in short else "success" for n in lengths]


@pytest.mark.contract("TOL-17")
async def test_when_nothing_fits_the_run_ends_as_a_tool_error(tmp_path):
    tools = [keeping(name) for name in ("one", "two", "three")]
    async with open_stage(tmp_path, replies(THREE, DONE), *tools) as stage:
        change_run_ports(stage, context_budget=Window(-1))
        turn = await stage.session.prompt("go")
        assert (turn.outcome, turn.stop_reason) == ("error", "tool_error")
        assert len(stage.provider.requests) == 1
        assert not [*(stage.state / "scratch" / stage.session.id).iterdir()]


async def test_a_file_that_is_not_the_run_s_own_is_never_deleted(tmp_path):
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    tools = [keeping("one", path=precious), Probe(name="two"), Probe(name="three")]
    async with open_stage(tmp_path, replies(THREE, DONE), *tools) as stage:
        change_run_ports(stage, context_budget=Window(0))
        await stage.session.prompt("go")
        assert precious.read_text() == "mine"


#### Commands go into a file only where there is no room


class Command:
    """A tool that executes, with much to say."""

    read_only = parallel_safe = False

    def __init__(self, text):
        self.text = text
        self.definition = Probe("run").definition

    async def precheck(self, arguments, context):
        return Needs(None, "run", "execute")

    async def run(self, arguments, operation):
        await operation.dispatch()
        return ToolResult(self.text)


RUN = [Call("run"), Halt("tool_use")]


@pytest.mark.contract("TOL-16")
@pytest.mark.parametrize(
    ("size", "room", "kept"),
    [(5_001, 5_001, False), (5_001, 5_000, True), (5_000, 4_999, False)],
)
async def test_output_of_a_command_is_kept_in_a_file_only_as_a_fallback(
    tmp_path, size, room, kept
):
    text = "a" * (size - 1) + "z"
    async with open_stage(tmp_path, replies(RUN, DONE), Command(text)) as stage:
        change_run_ports(stage, context_budget=Window(room))
        await stage.session.prompt("go")
        (result,) = told(stage)
        scratch = stage.state / "scratch" / stage.session.id
        files = [*scratch.iterdir()] if scratch.exists() else []
        assert bool(files) == kept
        if kept:
            (path,) = files
            assert path.read_text() == text
            assert f"kept in {path}" in result
            preview = result.partition("\n")[2]
            assert (
                preview.count("a") + preview.count("z") - preview.count("char") < 1_040
            )
            assert result.endswith("z")
        else:
            assert result == text or result == text[:500] + "…"


@pytest.mark.contract("TOL-16")
async def test_only_output_of_commands_goes_into_a_file_as_a_fallback(tmp_path):
    probe = Probe(result="x" * 6_000)
    async with open_stage(tmp_path, replies([Call("probe"), RUN[1]], DONE), probe) as s:
        change_run_ports(s, context_budget=Window(5_999))
        await s.session.prompt("go")
        assert told(s) == ["x" * 500 + "…"]
        assert not (s.state / "scratch" / s.session.id).exists()


@pytest.mark.contract("TOL-16")
async def test_a_command_s_output_that_can_not_be_kept_is_an_error(tmp_path):
    text = "a" * 5_001
    async with open_stage(tmp_path, replies(RUN, DONE), Command(text)) as stage:
        change_run_ports(stage, context_budget=Window(2_000))
        (stage.state / "scratch").write_text("in the way")
        turn = await stage.session.prompt("go")
        (result,) = told(stage)
        assert "can't be kept in a file" in result
        assert "kept in /" not in result
        assert calls_of(turn.message)[0].status == "error"


#### A result that came after a pause


def big(n):
    async def body(arguments, operation):
        await operation.dispatch()
        return ToolResult("y" * n)

    return Probe(permission="?", body=body)


ASK = [Call("probe", {"n": 1}), Halt("tool_use")]


async def resumed(stage, room):
    """Grant the call; the run that goes on has a window of *room*."""
    results = []

    async def prompt():
        results.append(await stage.session.prompt("go"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(prompt)
        await wait_all_tasks_blocked()
        (asked,) = await stage.session.interactions()
        change_run_ports(stage, context_budget=Window(room))
        await stage.session.answer(asked.id, Grant())
    return results[0]


@pytest.mark.contract("INT-06")
@pytest.mark.parametrize(
    ("room", "expected"),
    [(LONG, "y" * LONG), (501, "y" * 500 + "…"), (100, TOO_SMALL), (10, "Error")],
)
async def test_a_resume_fits_the_result_that_the_answer_brought(
    tmp_path, room, expected
):
    async with open_stage(tmp_path, replies(ASK, DONE), big(LONG)) as stage:
        turn = await resumed(stage, room)
        assert turn.text == "done"
        assert told(stage) == [expected]
        (call,) = calls_of(turn.message)
        assert call.response == expected
        # Stored as it was sent: the next turn and a restart send the same.
        stored = calls_of((await stage.session.messages())[1])
        assert stored[0].response == expected


@pytest.mark.contract("INT-06")
async def test_a_resume_that_fits_nothing_ends_as_a_full_window(tmp_path):
    async with open_stage(tmp_path, replies(ASK, DONE), big(LONG)) as stage:
        turn = await resumed(stage, -1)
        assert (turn.outcome, turn.stop_reason) == ("error", "context_window")
        assert len(stage.provider.requests) == 1


@pytest.mark.contract("INT-06")
async def test_two_answers_resume_once_on_the_same_message_with_its_numbers(tmp_path):
    tools = Probe(name="plain"), Probe(permission="?")
    script = replies([Call("plain"), *ASK], DONE)
    async with open_stage(tmp_path, script, *tools) as stage:
        codes = []

        async def answer(action, given):
            try:
                await stage.session.answer(action.id, given)
                codes.append("taken")
            except GreenroomError as exc:
                codes.append(exc.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            (asked,) = await stage.session.interactions()
            nursery.start_soon(answer, asked, Deny())
            nursery.start_soon(answer, asked, Deny())
        assert sorted(codes) in (["already_answered", "taken"], ["taken", "turn_ended"])
        loops = [
            r
            for r in stage.journal()
            if isinstance(r, RunStarted) and r.run_kind == "loop"
        ]
        assert len(loops) == 2
        assert len({r.run_id for r in loops}) == 2
        assert len({r.message_id for r in loops}) == 1
        metadata = (await stage.session.messages())[1].metadata
        assert (metadata.provider_rounds, metadata.request_seq) == (2, 2)
        assert metadata.tool_calls == 1
        first, second = stage.provider.requests
        assert second.messages[: len(first.messages)] == first.messages
        origins = [
            entry.fact.payload.split('"requestOrigin":"')[1].split('"')[0]
            for entry in stage.tape()
            if entry.fact.name == "provider/attempt_completed"
        ]
        assert origins == ["chat", "resume"]
        assert isinstance(second.messages[-3], AssistantMessage)
