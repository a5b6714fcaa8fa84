from __future__ import annotations

import uuid

import pytest
import trio
from kit.rehearsal import Probe, calls_of, open_stage, replies
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.providers import (
    Call,
    End,
    Fail,
    Halt,
    Hang,
    Raise,
    Say,
    Think,
    Use,
)
from greenroom.actors.tools import ToolRefused
from greenroom.engine import TurnRefusedError
from greenroom.protocol import (
    AssistantMessage,
    DispatchCommitted,
    RunStarted,
    RunTerminal,
    TextBlock,
    ToolMessage,
    ToolOutcome,
    Usage,
)

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]


async def test_a_plain_answer_completes_and_is_on_the_tape(tmp_path):
    script = replies([Say("hello"), Use(10, 4), Halt()])
    async with open_stage(tmp_path, script) as stage:
        turn = await stage.session.prompt("hi")
        assert (turn.outcome, turn.stop_reason, turn.text) == (
            "completed",
            "complete",
            "hello",
        )
        assert turn.usage == Usage(input=10, output=4, total=14)
        started, terminal = stage.journal()
        assert isinstance(started, RunStarted)
        assert terminal == RunTerminal(
            run_id=started.run_id, outcome="completed", stop_reason="complete"
        )
        user, answer = await stage.session.messages()
        assert (user.role, user.status) == ("user", "sent")
        assert answer == turn.message


async def test_a_tool_round_goes_dispatch_effect_outcome_result(tmp_path):
    probe = Probe()
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        turn = await stage.session.prompt("go")
        assert turn.text == "done"
        _, dispatch, outcome, _ = stage.journal()
        assert isinstance(dispatch, DispatchCommitted)
        assert isinstance(outcome, ToolOutcome)
        assert dispatch.operation == outcome.operation == probe.operations[0].id
        _, call, result = stage.provider.requests[1].messages
        assert isinstance(call, AssistantMessage)
        assert isinstance(result, ToolMessage)
        assert result.text == "result of probe 1"


@pytest.mark.contract("RUN-07")
async def test_the_order_of_a_turn_on_the_tape(tmp_path):
    async with open_stage(tmp_path, replies(ASK, DONE), Probe()) as stage:
        await stage.session.prompt("go")
        assert stage.names() == [
            "session/start",
            "session/configured",
            "input/recorded",  # claimed: its turn is prepared
            "message/recorded",  # the user's
            "input/recorded",  # delivered
            "message/recorded",  # the assistant's, pending
            "execution/run_started",
            "view/assembled",
            "provider/attempt_completed",
            "execution/dispatch_committed",
            "execution/tool_outcome",
            "message/recorded",  # with the result of the call
            "tool/called",
            "tool/settled",
            "view/assembled",
            "provider/attempt_completed",
            "execution/run_terminal",
            "message/recorded",  # final
        ]


@pytest.mark.contract("TOL-01")
async def test_one_call_id_in_two_rounds_and_two_turns_is_three_operations(tmp_path):
    same = [Call("probe", {}, id="same"), Halt("tool_use")]
    probe = Probe()
    script = replies(same, same, DONE, same, DONE)
    async with open_stage(tmp_path, script, probe) as stage:
        await stage.session.prompt("one")
        await stage.session.prompt("two")
        journal = stage.journal()
        dispatched = [r.operation for r in journal if isinstance(r, DispatchCommitted)]
        outcomes = [r.operation for r in journal if isinstance(r, ToolOutcome)]
        assert len(set(dispatched)) == 3
        assert outcomes == dispatched
        assert len({op.idempotency_key for op in probe.operations}) == 3
        sent = [
            call.id
            for message in stage.provider.requests[-1].messages
            if isinstance(message, AssistantMessage)
            for call in message.calls
        ]
        assert len(set(sent)) == len(sent) == 3


async def test_two_calls_with_one_id_in_a_batch_are_two_operations(tmp_path):
    twice = [Call("probe", {"n": 1}, id="x"), Call("probe", {"n": 2}, id="x")]
    probe = Probe()
    script = replies([*twice, Halt("tool_use")], DONE)
    async with open_stage(tmp_path, script, probe) as stage:
        turn = await stage.session.prompt("go")
        assert probe.calls == [{"n": 1}, {"n": 2}]
        assert [c.response for c in calls_of(turn.message)] == [
            "result of probe 1",
            "result of probe 2",
        ]


@pytest.mark.contract("RUN-05")
async def test_retries_never_change_the_number_of_rounds(
    tmp_path, autojump_clock: MockClock
):
    down = [Fail("overloaded", status=503)]
    async with open_stage(tmp_path, replies(down, down, DONE)) as stage:
        turn = await stage.session.prompt("go")
        assert turn.message.metadata.provider_rounds == 1
        assert turn.message.metadata.request_seq == 1
        assert len(stage.provider.requests) == 3
        assert stage.provider.requests[0] == stage.provider.requests[2]


@pytest.mark.contract("TRY-12")
async def test_nothing_is_sent_again_after_output_and_the_text_is_kept(tmp_path):
    script = replies([Say("half"), End()], DONE)
    async with open_stage(tmp_path, script) as stage:
        turn = await stage.session.prompt("go")
        assert len(stage.provider.requests) == 1
        assert (turn.outcome, turn.stop_reason) == ("error", "provider_error")
        assert turn.text == "half"
        assert turn.message.metadata.error_code == "premature_eof"


@pytest.mark.contract("RUN-06")
@pytest.mark.parametrize(
    ("limit", "requests"), [(1, 1), (2, 2), (0, 4), (-1, 4), ("x", 4), (None, 4)]
)
async def test_the_round_limit_runs_the_tools_and_then_ends(tmp_path, limit, requests):
    calls = [[Call("probe", {"n": n}), Halt("tool_use")] for n in range(3)]
    probe = Probe()
    script = replies(*calls, DONE)
    async with open_stage(tmp_path, script, probe, max_rounds=limit) as stage:
        turn = await stage.session.prompt("go")
        assert len(stage.provider.requests) == requests
        if limit in (1, 2):
            assert turn.stop_reason == "max_turns"
            assert str(limit) in (turn.error or "")
            assert len(probe.calls) == limit
        else:
            assert turn.outcome == "completed"


@pytest.mark.contract("RUN-01")
async def test_every_execution_has_its_own_uuid(tmp_path):
    ask = replies(ASK, DONE)
    async with open_stage(tmp_path, ask, Probe(permission="do it")) as stage:
        await answer_while_prompting(stage, "go")
        ids = [r.run_id for r in stage.journal() if isinstance(r, RunStarted)]
        kinds = [r.run_kind for r in stage.journal() if isinstance(r, RunStarted)]
        assert kinds == ["loop", "deferred_tool", "loop"]
        assert len(set(ids)) == 3
        assert all(str(uuid.UUID(run_id)) == run_id for run_id in ids)


async def answer_while_prompting(stage, text):
    from greenroom.protocol import Grant

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.session.prompt, text)
        await wait_all_tasks_blocked()
        (asked,) = await stage.session.interactions()
        await stage.session.answer(asked.id, Grant())


@pytest.mark.contract("TOL-13")
async def test_a_raising_tool_is_a_result_and_the_loop_goes_on(tmp_path):
    async def fail(arguments, operation):
        await operation.dispatch()
        raise RuntimeError("the disk is on fire")

    async with open_stage(tmp_path, replies(ASK, DONE), Probe(body=fail)) as stage:
        turn = await stage.session.prompt("go")
        assert turn.outcome == "completed"
        (call,) = calls_of(turn.message)
        assert call.status == "error"
        result = stage.provider.requests[1].messages[-1]
        assert isinstance(result, ToolMessage)
        assert "the disk is on fire" in result.text
        (outcome,) = [r for r in stage.journal() if isinstance(r, ToolOutcome)]
        assert outcome.is_error


@pytest.mark.contract("TOL-12")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("nobody", "{}"),
        ("probe", "[1]"),
        ("probe", '{"a":'),
        ("probe", '"text"'),
        ("refusing", "{}"),
        ("", "{}"),
    ],
)
async def test_a_refused_call_fails_alone_and_is_never_dispatched(
    tmp_path, name, arguments
):
    bad, good = Call(name, arguments, id="bad"), Call("probe", {"n": 7}, id="good")
    probe = Probe()
    refusing = Probe(name="refusing", refuse=ToolRefused("outside of the workspace"))
    script = replies([bad, good, Halt("tool_use")], DONE)
    async with open_stage(tmp_path, script, probe, refusing) as stage:
        turn = await stage.session.prompt("go")
        first, second = calls_of(turn.message)
        assert (first.status, second.status) == ("error", "success")
        dispatched = [r for r in stage.journal() if isinstance(r, DispatchCommitted)]
        assert [r.operation.provider_tool_call_id for r in dispatched] == ["good"]


@pytest.mark.contract("TOL-03")
@pytest.mark.parametrize("stop", ["tool_use", "complete", "max_tokens", "error", None])
@pytest.mark.parametrize("calls", ["none", "partial", "whole"])
async def test_tools_run_only_for_a_tool_stop_with_a_whole_call(tmp_path, stop, calls):
    cues = {
        "none": [Say("text")],
        "partial": [Call("probe", '{"n":', cut=True)],
        "whole": [Call("probe", {"n": 1})],
    }[calls]
    probe = Probe()
    end = [End()] if stop is None else [Halt(stop)]
    script = replies([*cues, *end], DONE)
    async with open_stage(tmp_path, script, probe, replayable=False) as stage:
        turn = await stage.session.prompt("go")
        ran = stop == "tool_use" and calls == "whole"
        assert bool(probe.calls) == ran
        assert all(call.response is not None for call in calls_of(turn.message))


async def test_an_adapter_that_raises_is_an_error_terminal_and_the_session_goes_on(
    tmp_path,
):
    script = replies([Say("a"), Raise("bug")], DONE)
    async with open_stage(tmp_path, script) as stage:
        turn = await stage.session.prompt("go")
        assert (turn.outcome, turn.stop_reason) == ("error", "provider_error")
        assert "bug" in (turn.error or "")
        assert (await stage.session.prompt("again")).text == "done"


async def test_a_failure_and_a_later_stop_is_still_a_failure(tmp_path):
    script = replies([Use(8, 1), Say("part"), Fail("boom"), Halt()])
    async with open_stage(tmp_path, script) as stage:
        turn = await stage.session.prompt("go")
        assert (turn.outcome, turn.stop_reason) == ("error", "provider_error")
        assert turn.text == "part"
        assert turn.usage == Usage(input=8, output=1, total=9)
        assert turn.error == "boom"


@pytest.mark.contract("RUN-24")
async def test_usage_is_summed_and_kept_through_an_abort(tmp_path):
    rounds = [
        [Use(7, 1, cache_read=2, cache_write=1), *ASK],
        [Use(8, 2, cache_read=3), *ASK],
        [Use(10, 5, cache_write=2), Say("x"), Hang()],
    ]
    async with open_stage(tmp_path, rounds, Probe()) as stage:
        results = []

        async def prompt():
            results.append(await stage.session.prompt("go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            await stage.session.cancel()
        usage = results[0].usage
        assert usage == Usage(input=25, output=8, total=33, cache_read=5, cache_write=3)
        (_, stored) = await stage.session.messages()
        assert stored.metadata.total_tokens == 33


async def test_thinking_is_sent_back_with_its_options(tmp_path):
    rounds = replies(
        [Think("hm", {"signature": "s"}), Call("probe", {}), Halt("tool_use")], DONE
    )
    async with open_stage(tmp_path, rounds, Probe()) as stage:
        await stage.session.prompt("go")
        message = stage.provider.requests[1].messages[1]
        assert isinstance(message, AssistantMessage)
        assert message.reasoning[0].options == {"signature": "s"}


@pytest.mark.parametrize("text", ["", "   \n"])
async def test_an_empty_message_is_refused_and_nothing_is_written(tmp_path, text):
    async with open_stage(tmp_path, []) as stage:
        before = stage.names()
        with pytest.raises(TurnRefusedError, match="empty"):
            await stage.session.prompt(text)
        assert stage.names() == before


async def test_the_same_command_twice_is_one_turn(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        first = await stage.session.prompt("go", command_id="k")
        again = await stage.session.prompt("go", command_id="k")
        assert again == first
        assert len(stage.provider.requests) == 1
        with pytest.raises(TurnRefusedError, match="other input"):
            await stage.session.prompt("else", command_id="k")


async def test_partial_text_of_a_stopped_turn_reaches_the_model(tmp_path):
    async with open_stage(tmp_path, replies([Say("half"), Hang()], DONE)) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            await stage.session.cancel()
        await stage.session.prompt("continue")
        texts = [
            message.text
            for message in stage.provider.requests[-1].messages
            if isinstance(message, AssistantMessage)
        ]
        assert texts == ["half\n\n[this turn ended early: stopped by the user]"]


async def test_text_blocks_are_closed_at_the_end(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        turn = await stage.session.prompt("go")
        (block,) = turn.message.blocks
        assert isinstance(block, TextBlock)
        assert block.status == "success"
