from __future__ import annotations

import pytest
import trio
from kit.rehearsal import Probe, calls_of, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, Say
from greenroom.actors.tools import ToolResult
from greenroom.protocol import Grant, Other, Reply, RunTerminal, ToolMessage

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]


def results_sent(request):
    return [m.text for m in request.messages if isinstance(m, ToolMessage)]


@pytest.mark.contract("TOL-20")
async def test_four_equal_batches_end_the_run_after_one_note(tmp_path):
    async with open_stage(tmp_path, replies(*[ASK] * 5), Probe()) as stage:
        turn = await stage.session.prompt("go")
        assert (turn.outcome, turn.stop_reason) == ("error", "no_progress")
        assert len(stage.provider.requests) == 4
        assert turn.message.metadata.tool_calls == 4
        noted = [c for c in calls_of(turn.message) if "agent_no_progress" in c.response]  # pyright: ignore[reportOperatorIssue]
        assert len(noted) == 1
        sent = results_sent(stage.provider.requests[3])
        assert ["agent_no_progress" in text for text in sent] == [False, True, False]


@pytest.mark.contract("TOL-20")
async def test_the_note_is_on_the_last_result_of_its_batch(tmp_path):
    pair = [Call("probe", {"n": 1}), Call("probe", {"n": 2}), Halt("tool_use")]
    async with open_stage(tmp_path, replies(pair, pair, DONE), Probe()) as stage:
        await stage.session.prompt("go")
        sent = results_sent(stage.provider.requests[2])
        assert ["agent_no_progress" in t for t in sent] == [False, False, False, True]


@pytest.mark.contract("TOL-21")
async def test_bare_acknowledgements_go_on_until_another_limit(tmp_path):
    polite = Probe(result="ok")
    script = replies(*[ASK] * 7, DONE)
    async with open_stage(tmp_path, script, polite) as stage:
        turn = await stage.session.prompt("go")
        assert turn.outcome == "completed"
        assert len(polite.calls) == 7


def counting():
    seen = []

    async def body(arguments, operation):
        await operation.dispatch()
        seen.append(arguments)
        return ToolResult(f"state {len(seen)}")

    return Probe(body=body), seen


@pytest.mark.contract("TOL-21")
@pytest.mark.parametrize("answer", [Reply("go on"), Reply("stop"), Other()])
async def test_equal_calls_with_new_results_lead_to_a_question_never_to_an_end(
    tmp_path, answer
):
    probe, seen = counting()
    async with open_stage(tmp_path, replies(*[ASK] * 9, DONE), probe) as stage:
        results = []

        async def prompt():
            results.append(await stage.session.prompt("go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            (asked,) = await stage.session.interactions()
            assert len(seen) == 8
            assert "8 times" in asked.detail
            await stage.session.answer(asked.id, answer)
        (turn,) = results
        goes_on = answer == Reply("go on")
        assert turn.outcome == "completed"
        assert turn.stop_reason == ("complete" if goes_on else "user_follow_up")
        assert len(seen) == (9 if goes_on else 8)
        eighth = calls_of(turn.message)[7].response or ""
        assert eighth.startswith("state 8")
        fourth = results_sent(stage.provider.requests[-1])[3]
        assert "agent_no_progress" in fourth


@pytest.mark.contract("TOL-22")
async def test_a_resumed_run_goes_on_counting_with_the_batch_that_paused(tmp_path):
    probe = Probe()
    async with open_stage(tmp_path, replies(*[ASK] * 5), probe) as stage:
        results = []

        async def prompt():
            results.append(await stage.session.prompt("go"))

        async def ask_third(arguments, operation):
            await operation.dispatch()
            if len(probe.operations) == 2:
                probe.permission = "now I ask"
            else:
                probe.permission = None
            return ToolResult("the same")

        probe.body = ask_third
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            (asked,) = await stage.session.interactions()
            message = (await stage.session.messages())[-1]
            snapshot = message.metadata.no_progress_tool_loop
            assert snapshot is not None
            assert snapshot.repeated_batch_count == 2
            probe.permission = None
            await stage.session.answer(asked.id, Grant())
        (turn,) = results
        assert turn.stop_reason == "no_progress"
        assert len(stage.provider.requests) == 4
        loops = [r for r in stage.journal() if isinstance(r, RunTerminal)]
        assert [r.stop_reason for r in loops] == [
            "interaction",
            "tool_result",
            "no_progress",
        ]


async def test_a_pause_comes_before_the_guard_and_the_guard_before_the_limit(tmp_path):
    # The fourth batch would be stopped for no progress, and is the last allowed.
    async with open_stage(
        tmp_path, replies(*[ASK] * 5), Probe(), max_rounds=4
    ) as stage:
        turn = await stage.session.prompt("go")
        assert turn.stop_reason == "no_progress"
    # The same with a question in it pauses instead.
    (tmp_path / "b").mkdir()
    probe = Probe()
    both = [Call("probe", {"n": 1}), Call("asks", {}), Halt("tool_use")]
    script = replies(both, both, both, both)
    asks = Probe(name="asks", permission="?")
    async with open_stage(tmp_path / "b", script, probe, asks) as stage:  # noqa: SIM117 - the stage is last to go
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            assert len(await stage.session.interactions()) == 1
            nursery.cancel_scope.cancel()


async def test_a_note_for_a_batch_that_paused_is_sent_with_the_next_request(tmp_path):
    probe = Probe(permission="?", result="the same")
    async with open_stage(tmp_path, replies(ASK, ASK, DONE), probe) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            for _ in range(2):
                await wait_all_tasks_blocked()
                (asked,) = await stage.session.interactions()
                await stage.session.answer(asked.id, Grant())
        message = (await stage.session.messages())[-1]
        stored = [call.response for call in calls_of(message)]
        assert results_sent(stage.provider.requests[-1]) == stored
        assert ["agent_no_progress" in (text or "") for text in stored] == [False, True]
