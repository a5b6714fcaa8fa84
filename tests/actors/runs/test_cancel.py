from __future__ import annotations

import pytest
import trio
from kit.rehearsal import Probe, calls_of, open_stage, replies, spy_on
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.providers import Call, Fail, Halt, Hang, RateLimit, Say
from greenroom.actors.tools import ToolResult
from greenroom.protocol import (
    DispatchCommitted,
    ErrorBlock,
    RunStarted,
    RunTerminal,
    ToolOutcome,
)

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]


class Held:
    """Prompts in the background and cancels once everything waits."""

    def __init__(self, stage):
        self.stage = stage
        self.result = None

    async def prompt(self):
        self.result = await self.stage.session.prompt("go")


async def cancel_when_blocked(stage):
    held = Held(stage)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.prompt)
        await wait_all_tasks_blocked()
        before = len(stage.provider.requests)
        started = trio.current_time()
        await stage.session.cancel()
        assert trio.current_time() - started <= 5.0
        await wait_all_tasks_blocked()
        assert len(stage.provider.requests) == before
    assert held.result is not None
    return held.result


def terminals(stage):
    return [r for r in stage.journal() if isinstance(r, RunTerminal)]


PHASES = {
    "connect": ([[Hang()]], Probe()),
    "text": ([[Say("half"), Hang()]], Probe()),
    "call announced": ([[Call("probe", {}, cut=True), Hang()]], Probe()),
    "retry wait": ([[Fail("busy", status=503)], DONE], Probe()),
    "tool": ([ASK, DONE], Probe()),
    "permission": ([ASK, DONE], Probe(permission="do it")),
}


@pytest.mark.contract("RUN-14")
@pytest.mark.parametrize("phase", PHASES)
async def test_cancel_ends_every_phase_in_bounds_with_one_terminal(tmp_path, phase):
    rounds, probe = PHASES[phase]
    probe = Probe(permission=probe.permission, gate=None)
    if phase == "tool":
        probe.gate = trio.Event()
    async with open_stage(tmp_path, replies(*rounds), probe) as stage:
        result = await cancel_when_blocked(stage)
        assert (result.outcome, result.stop_reason) == ("aborted", "user_stop")
        assert result.message.status == "error"
        assert len(terminals(stage)) == 1
        assert stage.provider.active == 0
        for call in calls_of(result.message):
            assert call.status == "error"
            assert call.response
        script_left = await stage.session.prompt("again")
        assert script_left.outcome in ("completed", "error", "paused")


@pytest.mark.contract("RUN-14")
async def test_cancel_at_the_rate_gate_sends_nothing(tmp_path, mock_clock: MockClock):
    script = replies(DONE, DONE)
    async with open_stage(tmp_path, script, rate_limit=RateLimit()) as stage:
        await stage.session.prompt("first")
        result = await cancel_when_blocked(stage)
        assert (result.outcome, result.stop_reason) == ("aborted", "user_stop")
        assert [t.outcome for t in terminals(stage)] == ["completed", "aborted"]
        # The gate is free for the next one, an interval after the one that passed.
        mock_clock.autojump_threshold = 0
        assert (await stage.session.prompt("again")).text == "done"
        assert trio.current_time() == pytest.approx(10)


async def test_cancel_of_a_paused_turn_settles_the_open_question(tmp_path):
    probe = Probe(permission="do it")
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        result = await cancel_when_blocked(stage)
        assert result.stop_reason == "user_stop"
        assert await stage.session.interactions() == ()
        assert probe.calls == []
        # The paused run had its terminal; the cancel adds none.
        (only,) = terminals(stage)
        assert (only.outcome, only.stop_reason) == ("paused", "interaction")


@pytest.mark.contract("RUN-13")
async def test_only_the_run_writes_when_it_is_cancelled(tmp_path):
    probe = Probe(gate=trio.Event())
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        spy = spy_on(stage)
        held = Held(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(held.prompt)
            await probe.reached.wait()
            spy.log.clear()
            await stage.session.cancel()
        (started,) = [r for r in stage.journal() if isinstance(r, RunStarted)]
        run = f"run-{started.run_id}"
        assert spy.log == [("RunTerminal", run), ("message/recorded", run)]


@pytest.mark.contract("RUN-13")
async def test_a_cancel_with_no_run_closes_what_waits_for_the_user(tmp_path):
    script = replies(ASK, DONE)
    async with open_stage(tmp_path, script, Probe(permission="?")) as stage:
        result = await cancel_when_blocked(stage)
        call, action, error = result.message.blocks
        assert (call.status, action.status) == ("error", "error")
        assert isinstance(error, ErrorBlock)
        assert error.code == "user_canceled"
        metadata = result.message.metadata
        assert (metadata.run_outcome, metadata.run_stop_reason) == (
            "aborted",
            "user_stop",
        )
        # Idle again: the next input is taken.
        assert (await stage.session.prompt("go")).text == "done"


@pytest.mark.contract("JRN-23")
@pytest.mark.parametrize("known", [True, False])
async def test_a_cancelled_tool_keeps_its_outcome_only_if_it_is_known(tmp_path, known):
    reached = trio.Event()

    async def body(arguments, operation):
        await operation.dispatch()
        reached.set()
        with trio.CancelScope(shield=known):
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                raise
        return ToolResult("never")

    async def ready(arguments, operation):
        await operation.dispatch()
        reached.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            # Its effect is done and it knows: a result in spite of the cancel.
            return ToolResult("done all the same")

    probe = Probe(body=ready if known else body)
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        held = Held(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(held.prompt)
            await reached.wait()
            await stage.session.cancel()
        outcomes = [r for r in stage.journal() if isinstance(r, ToolOutcome)]
        dispatched = [r for r in stage.journal() if isinstance(r, DispatchCommitted)]
        assert len(dispatched) == 1
        assert len(outcomes) == known
        (call,) = calls_of(held.result.message)  # pyright: ignore[reportOptionalMemberAccess]
        assert call.status == "error"
        assert "done all the same" not in (call.response or "")


@pytest.mark.contract("JRN-23")
async def test_a_call_that_had_ended_keeps_its_result_when_another_is_cancelled(
    tmp_path,
):
    async def body(arguments, operation):
        await operation.dispatch()
        if arguments["n"] == 1:
            await trio.sleep_forever()
        return ToolResult(f"known {arguments['n']}", is_error=arguments["n"] == 3)

    probe = Probe(body=body, read_only=True, parallel_safe=True)
    three = [*(Call("probe", {"n": n}) for n in (1, 2, 3)), Halt("tool_use")]
    async with open_stage(
        tmp_path, replies(three, DONE), probe, permission_mode="full_access"
    ) as stage:
        result = await cancel_when_blocked(stage)
        first, second, third = calls_of(result.message)
        assert "not known" in (first.response or "")
        assert (second.response, second.status) == ("known 2", "success")
        assert (third.response, third.status) == ("known 3", "error")
        outcomes = [r for r in stage.journal() if isinstance(r, ToolOutcome)]
        assert len(outcomes) == 2


async def test_calls_that_had_not_begun_say_so_and_never_dispatch(tmp_path):
    gate = trio.Event()
    probe = Probe(gate=gate)
    two = [Call("probe", {"n": 1}), Call("probe", {"n": 2}), Halt("tool_use")]
    async with open_stage(tmp_path, replies(two, DONE), probe) as stage:
        result = await cancel_when_blocked(stage)
        first, second = calls_of(result.message)
        assert "not known" in (first.response or "")
        assert "not executed" in (second.response or "")
        assert probe.calls == [{"n": 1}]


async def test_a_tool_that_swallows_the_cancel_is_left_behind_in_time(
    tmp_path, autojump_clock: MockClock
):
    begun, release = trio.Event(), trio.Event()

    async def stubborn(arguments, operation):
        await operation.dispatch()
        begun.set()
        with trio.CancelScope(shield=True):
            await release.wait()
        return ToolResult("late")

    async with open_stage(tmp_path, replies(ASK, DONE), Probe(body=stubborn)) as stage:
        held = Held(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(held.prompt)
            await begun.wait()
            started = trio.current_time()
            await stage.session.cancel()
            assert trio.current_time() - started <= 5.0
        assert held.result.stop_reason == "user_stop"  # pyright: ignore[reportOptionalMemberAccess]
        release.set()
        await trio.sleep(1)
        # What it tells after the terminal is refused by the journal.
        assert not [r for r in stage.journal() if isinstance(r, ToolOutcome)]


async def test_a_cancelled_prompt_call_stops_its_turn(tmp_path):
    async with open_stage(tmp_path, replies([Say("a"), Hang()], DONE)) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert (await stage.session.prompt("next")).text == "done"
        first = (await stage.session.messages())[1]
        assert first.metadata.run_stop_reason == "parent"


async def test_cancel_of_an_idle_session_does_nothing_to_the_next_prompt(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.cancel()
        assert (await stage.session.prompt("go")).outcome == "completed"


async def test_leaving_the_engine_settles_the_run_as_shutdown(tmp_path):
    async with trio.open_nursery() as outside:  # noqa: SIM117 - leaves first
        async with open_stage(tmp_path, replies([Say("a"), Hang()])) as stage:
            held = Held(stage)
            outside.start_soon(held.prompt)
            await wait_all_tasks_blocked()
    (terminal,) = terminals(stage)
    assert (terminal.outcome, terminal.stop_reason) == ("aborted", "shutdown")
    assert held.result is not None
    assert held.result.message.metadata.error_code == "session_interrupted"
