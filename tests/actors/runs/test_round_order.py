"""The body of a round, step by step, and who decides when two things are true."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager

import attrs
import pytest
import trio
from kit.rehearsal import Probe, calls_of, open_stage, replies
from kit.run_ports import Window, change_run_ports, turn_of
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.backend import Refreshed
from greenroom.actors.kernel import CancelCause
from greenroom.actors.tools import Question, ToolRegistry, ToolResult
from greenroom.protocol import (
    MAX_TOOL_CALLS,
    OUTPUT_CUT,
    BatchEnded,
    Begun,
    Fault,
    ItemId,
    QuestionOption,
    RoundEnded,
    RunMachine,
    RunTerminal,
    StorageError,
    ToolCallBlock,
)
from greenroom.testing import Call, Halt, Hang, RehearsalProvider, Say, Use

DONE = [Say("done"), Use(2, 2), Halt()]
ASK = [Say("I look."), Call("probe", {"n": 1}), Use(3, 1), Halt("tool_use")]


@attrs.define(eq=False)
class Ledger:
    """A session's record that notes every write of a run."""

    inner: object
    log: list
    fail: object = None

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def append(self, facts, settles=()):
        names = [fact.name for fact in facts]
        if self.fail is not None and self.fail(names):  # pyright: ignore[reportCallIssue]
            self.log.append("flush failed")
            raise StorageError("the disk is busy")
        await self.inner.append(facts, settles)  # pyright: ignore[reportAttributeAccessIssue]
        self.log.append(" ".join(names))

    def append_soon(self, facts):
        self.inner.append_soon(facts)  # pyright: ignore[reportAttributeAccessIssue]
        self.log += [fact.name for fact in facts]

    def cache_soon(self, message_id, blocks):
        self.inner.cache_soon(message_id, blocks)  # pyright: ignore[reportAttributeAccessIssue]
        self.log.append("blocks")

    async def commit(self, record):
        created = await self.inner.commit(record)  # pyright: ignore[reportAttributeAccessIssue]
        self.log.append(type(record).__name__)
        return created


def ledger_on(stage, log, fail=None):
    loaded = stage.session._sessions.loaded(stage.session.id)
    record = Ledger(loaded.session.ports.record, log, fail)
    change_run_ports(stage, record=record)


def logged_stage(tmp_path, rounds, log, *tools, **settings):
    script = iter(rounds)

    def reply(request):
        log.append("request")
        return next(script)

    provider = RehearsalProvider(reply)
    return open_stage(tmp_path, [], *tools, provider=provider, **settings)


class HangsAfterItsStop:
    """A provider whose connection stays open when everything was said."""

    def __init__(self, script):
        self.inner = RehearsalProvider(script)
        self.requests = self.inner.requests
        self.id, self.replayable = self.inner.id, True
        self.max_told_ms = self.inner.max_told_ms

    @asynccontextmanager
    async def stream(self, request, **kwargs):
        async with self.inner.stream(request, **kwargs) as events:

            async def all_of_it():
                async for event in events:
                    yield event
                await trio.sleep_forever()

            async with aclosing(all_of_it()) as told:
                yield told


ROUND = [
    "request",
    "provider/attempt_completed",
    "blocks",
    "DispatchCommitted",
    "effect",
    "ToolOutcome",
    "message/recorded tool/called tool/settled",
]


@pytest.mark.contract("TOL-02")
async def test_a_round_goes_through_its_steps_in_the_fixed_order(tmp_path):
    log = []

    async def body(arguments, operation):
        await operation.dispatch()
        draft = turn_of(stage).active.draft
        # The round is stamped, and holds its own calls alone.
        seen.append((draft.round, len(draft.completed_calls)))
        log.append("effect")
        return ToolResult("ok")

    seen = []

    async def refresh():
        log.append("refresh")

    async with logged_stage(tmp_path, [ASK, ASK, DONE], log, Probe(body=body)) as stage:
        ledger_on(stage, log)
        change_run_ports(stage, refresh=refresh)
        turn = await stage.session.prompt("go")
    assert log == [
        "RunStarted",
        *ROUND,
        "refresh",
        *ROUND,
        "refresh",
        "request",
        "provider/attempt_completed",
        "RunTerminal",
        "message/recorded",
    ]
    assert seen == [(1, 1), (2, 1)]
    assert [call.round for call in calls_of(turn.message)] == [1, 2]
    metadata = turn.message.metadata
    assert (metadata.input_tokens, metadata.output_tokens) == (8, 4)


@pytest.mark.contract("TOL-02")
async def test_a_flush_that_fails_is_a_warning_and_the_next_one_holds_it(
    tmp_path, caplog
):
    log, failed = [], []

    def fail(names):
        if "tool/settled" in names and not failed:
            failed.append(1)
            return True
        return False

    async with logged_stage(tmp_path, [ASK, ASK, DONE], log, Probe()) as stage:
        ledger_on(stage, log, fail)
        turn = await stage.session.prompt("go")
        assert turn.stop_reason == "complete"
        stored = calls_of((await stage.session.messages())[1])
        assert all((c.response or "").startswith("result of probe 1") for c in stored)
    assert "flush failed" in log
    assert (
        log.count("message/recorded tool/called tool/settled tool/called tool/settled")
        == 1
    )
    assert "was not stored" in caplog.text


@pytest.mark.contract("TOL-02")
async def test_an_aborted_stream_keeps_its_usage(tmp_path):
    script = replies([Say("half"), Use(7, 3), Hang()])
    async with open_stage(tmp_path, script) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            await stage.session.cancel()
        metadata = (await stage.session.messages())[1].metadata
        assert metadata.run_outcome == "aborted"
        assert (metadata.input_tokens, metadata.output_tokens) == (7, 3)


@pytest.mark.contract("TOL-02")
async def test_an_abort_during_a_cut_batch_still_settles_that_batch(tmp_path):
    cut = [Call("probe", {"n": 1}), Call("probe", {"n": 2}, cut=True)]
    probe = Probe()
    provider = HangsAfterItsStop(replies([*cut, Halt("max_tokens")]))
    async with open_stage(tmp_path, [], probe, provider=provider) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            await stage.session.cancel()
        message = (await stage.session.messages())[1]
        assert message.metadata.run_stop_reason == "user_stop"
        assert [call.response for call in calls_of(message)] == [OUTPUT_CUT] * 2
        assert probe.operations == []


@pytest.mark.contract("TOL-02")
async def test_an_abort_comes_before_the_calls_of_a_whole_batch(tmp_path):
    probe = Probe()
    provider = HangsAfterItsStop(replies([Call("probe", {"n": 1}), Halt("tool_use")]))
    async with open_stage(tmp_path, [], probe, provider=provider) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            await stage.session.cancel()
        (call,) = calls_of((await stage.session.messages())[1])
        assert "not executed" in (call.response or "")
        assert probe.operations == []


@pytest.mark.contract("TOL-02")
async def test_the_limit_is_looked_at_before_any_call_of_the_batch(tmp_path):
    half = [Call("probe", {"n": n}) for n in range(65)]
    log = []
    async with logged_stage(
        tmp_path, [[*half, Halt("tool_use")]] * 2, log, Probe()
    ) as stage:
        ledger_on(stage, log)
        turn = await stage.session.prompt("go")
        assert turn.stop_reason == "max_tool_calls"
    assert log.count("DispatchCommitted") == 65
    second = log[len(log) - 1 - log[::-1].index("request") :]
    assert "DispatchCommitted" not in second
    assert MAX_TOOL_CALLS < 130


#### After the batch: the earlier condition decides (TOL-04)

FATAL = Fault("tool_error", "nothing fits")


def after_batch(**conditions):
    machine = RunMachine()
    for event in (Begun(), RoundEnded("tool_use", (ItemId("m.0"),))):
        machine, _ = machine.after(event)
    _, command = machine.after(BatchEnded(started=1, **conditions))
    terminal = getattr(command, "terminal", None)
    return "continue" if terminal is None else terminal.stop_reason


IN_ORDER = [
    ({"fatal": FATAL}, "tool_error"),
    ({"paused": True}, "interaction"),
    ({"stuck": True}, "no_progress"),
    ({"steered": True}, "pending_input"),
    ({}, "continue"),
]


@pytest.mark.contract("TOL-04")
@pytest.mark.parametrize("first", range(len(IN_ORDER)))
@pytest.mark.parametrize("second", range(len(IN_ORDER)))
def test_of_two_conditions_the_earlier_one_decides(first, second):
    conditions = IN_ORDER[first][0] | IN_ORDER[second][0]
    assert after_batch(**conditions) == IN_ORDER[min(first, second)][1]


@pytest.mark.contract("TOL-04")
async def test_a_pause_decides_before_no_progress_and_a_full_window_before_both(
    tmp_path,
):
    question = Question("which?", "", (QuestionOption("a"),))
    asks = Probe(name="asks", question=question)
    same = [Call("probe", {"n": 1}), Halt("tool_use")]
    both = [Call("probe", {"n": 1}), Call("asks"), Halt("tool_use")]
    async with open_stage(
        tmp_path, replies(same, same, same, both, DONE), Probe(), asks
    ) as stage:
        change_run_ports(stage, context_budget=Window(10_000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            assert len(await stage.session.interactions()) == 1
            await stage.session.cancel()


@pytest.mark.contract("TOL-04")
async def test_a_full_window_decides_before_a_loop_without_progress(tmp_path):
    same = [Call("probe", {"n": 1}), Halt("tool_use")]
    window = Window(1_000)
    times = []

    async def body(arguments, operation):
        await operation.dispatch()
        times.append(1)
        if len(times) == 4:
            window.room = -1
        return ToolResult("always the same")

    async with open_stage(tmp_path, replies(*[same] * 5), Probe(body=body)) as stage:
        change_run_ports(stage, context_budget=window)
        turn = await stage.session.prompt("go")
        assert (len(times), turn.stop_reason) == (4, "tool_error")


@pytest.mark.contract("TOL-04")
@pytest.mark.parametrize(
    ("rounds", "steered", "reason"),
    [(4, False, "no_progress"), (2, True, "user_stop")],
)
async def test_no_progress_decides_before_an_abort_and_that_before_waiting_input(
    tmp_path, rounds, steered, reason
):
    same = [Call("probe", {"n": 1}), Halt("tool_use")]
    times = []

    async def body(arguments, operation):
        await operation.dispatch()
        times.append(1)
        if len(times) == rounds:
            # The batch has its results when the cancel is heard.
            hooks.append(turn_of(stage).ref)
        return ToolResult("always the same")

    hooks = []

    class Watch:
        """Cancels at the moment in which the batch has settled."""

        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def change(self, run_id, message_id, change):
            self.inner.change(run_id, message_id, change)
            block = change.block
            if hooks and isinstance(block, ToolCallBlock) and block.response:
                hooks.pop().cancel(CancelCause.USER_STOP)

    async with open_stage(tmp_path, replies(*[same] * 6), Probe(body=body)) as stage:
        loaded = stage.session._sessions.loaded(stage.session.id)
        change_run_ports(
            stage,
            watchers=Watch(loaded.session.hub),  # pyright: ignore[reportOptionalMemberAccess]
            steer_waiting=lambda: steered and len(times) == rounds,
        )
        turn = await stage.session.prompt("go")
        assert len(times) == rounds
        terminals = [r for r in stage.journal() if isinstance(r, RunTerminal)]
        assert [t.stop_reason for t in terminals] == [reason]
        assert turn.stop_reason == reason


@pytest.mark.contract("TOL-04")
async def test_waiting_input_decides_before_a_refresh_and_that_before_the_next_round(
    tmp_path,
):
    calls, steer = [], []

    async def refresh():
        calls.append("refresh")
        registry = ToolRegistry()
        registry.contribute(Probe(name="other"))
        return Refreshed(registry.snapshot(), "new")

    async with open_stage(tmp_path, replies(ASK, ASK, DONE), Probe()) as stage:
        change_run_ports(stage, refresh=refresh, steer_waiting=lambda: bool(steer))
        steer.append(1)
        turn = await stage.session.prompt("go")
        assert (turn.stop_reason, calls) == ("pending_input", [])
        steer.clear()
        await stage.session.prompt("go")
        assert calls == ["refresh"]
        # The request that followed has what the refresh brought.
        assert [d.name for d in stage.provider.requests[-1].tools] == ["other"]
