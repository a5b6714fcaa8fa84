"""The run of a call that was allowed: judged again, with fixed ends."""

from __future__ import annotations

import shutil
from typing import Any

import attrs
import pytest
import trio
from kit.rehearsal import Probe, calls_of, open_stage, replies, spy_on
from kit.run_ports import change_run_ports, turn_of
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.backend import DeferredJournalError
from greenroom.actors.tools import (
    Needs,
    PermissionRequired,
    ToolRefused,
    ToolRegistry,
    ToolResult,
)
from greenroom.engine import TurnFailedError
from greenroom.protocol import (
    MAX_TOOL_CALLS,
    TOO_MANY_CALLS,
    Deny,
    DispatchCommitted,
    Grant,
    InteractionError,
    JournalError,
    RunStarted,
    StatusChanged,
    ToolOutcome,
    record_run_id,
)
from greenroom.testing import Call, Halt, Say

ASK = [Call("probe", {"n": 1}), Halt("tool_use")]
DONE = [Say("done"), Halt()]


@attrs.define(eq=False)
class Paused:
    """A turn that waits for its first answer."""

    stage: Any
    asked: Any
    results: list[Any]


async def paused(stage, nursery):
    results = []

    async def prompt():
        try:
            results.append(await stage.session.prompt("go"))
        except TurnFailedError as exc:
            results.append(exc)

    nursery.start_soon(prompt)
    await wait_all_tasks_blocked()
    (asked,) = await stage.session.interactions()
    return Paused(stage, asked, results)


def deferred_records(stage):
    """The journal of the newest deferred run."""
    journal = stage.journal()
    runs = [r.run_id for r in journal if getattr(r, "run_kind", "") == "deferred_tool"]
    return [record for record in journal if record_run_id(record) == runs[-1]]


def kinds(records):
    return [type(record).__name__ for record in records]


WHOLE = ["RunStarted", "DispatchCommitted", "ToolOutcome", "RunTerminal"]


#### TOL-24: judged again, now


@pytest.mark.contract("TOL-24")
async def test_it_is_a_run_of_its_own_in_the_fixed_order(tmp_path):
    probe = Probe(permission="?")
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        async with trio.open_nursery() as nursery:
            turn = await paused(stage, nursery)
            await stage.session.answer(turn.asked.id, Grant())
        started, dispatch, outcome, terminal = deferred_records(stage)
        assert started.run_kind == "deferred_tool"
        assert dispatch.operation == probe.operations[0].id
        assert dispatch.operation.request_seq == 1
        assert outcome.operation == dispatch.operation
        assert terminal.stop_reason == "tool_result"
        runs = [r.run_id for r in stage.journal() if isinstance(r, RunStarted)]
        assert len(set(runs)) == len(runs) == 3
        # The result comes after the terminal.
        tape = stage.tape()
        ended = next(
            e.seq
            for e in tape
            if terminal.run_id in e.fact.payload
            and e.fact.name == "execution/run_terminal"
        )
        settled = next(e.seq for e in tape if e.fact.name == "tool/settled")
        assert settled > ended


def without_probe():
    return ToolRegistry().snapshot()


def disabled():
    registry = ToolRegistry()
    registry.contribute(Probe())
    return registry.snapshot(disabled=["probe"])


def redefined():
    registry = ToolRegistry()
    registry.contribute(Probe(refuse=ToolRefused("not for you any more")))
    return registry.snapshot()


@pytest.mark.contract("TOL-24")
@pytest.mark.parametrize(
    ("tools", "told"),
    [
        (without_probe, "there is no tool 'probe'"),
        (disabled, "the tool 'probe' is disabled"),
        (redefined, "not for you any more"),
    ],
)
async def test_what_was_taken_away_while_it_paused_refuses_it(tmp_path, tools, told):
    probe = Probe(permission="?")
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        async with trio.open_nursery() as nursery:
            turn = await paused(stage, nursery)
            change_run_ports(stage, tools=tools())
            await stage.session.answer(turn.asked.id, Grant())
        assert probe.operations == []
        assert kinds(deferred_records(stage)) == ["RunStarted", "RunTerminal"]
        (call,) = calls_of((await stage.session.messages())[1])
        assert told in (call.response or "")
        assert turn.results[0].text == "done"


@pytest.mark.contract("TOL-24")
async def test_a_root_that_is_gone_refuses_it(tmp_path):
    write = [Call("write", {"path": "a", "content": "x"}), Halt("tool_use")]
    async with (
        open_stage(tmp_path, replies(write, DONE), builtin=True) as stage,
        stage.session.follow() as feed,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stage.session.prompt, "go")
        async for event in feed:
            if isinstance(event, StatusChanged) and event.waiting_for == "permission":
                break
        (asked,) = await stage.session.interactions()
        shutil.rmtree(tmp_path / "workspace")
        await stage.session.answer(asked.id, Grant())
        async for event in feed:
            if isinstance(event, StatusChanged) and event.state == "idle":
                break
        assert kinds(deferred_records(stage)) == ["RunStarted", "RunTerminal"]
        (call,) = calls_of((await stage.session.messages())[1])
        assert call.response == "the workspace is not there any more"
        assert not (tmp_path / "workspace").exists()


@pytest.mark.contract("TOL-24")
async def test_the_permission_mode_is_the_one_in_force_now(tmp_path):
    seen = []

    async def look(arguments, operation):
        seen.append((operation.context.permission_mode, operation.granted))
        await operation.dispatch()
        return ToolResult("ok")

    async with open_stage(
        tmp_path, replies(ASK, DONE), Probe(permission="?", body=look)
    ) as stage:
        async with trio.open_nursery() as nursery:
            turn = await paused(stage, nursery)
            await stage.session.configure(permission_mode="full_access")
            await stage.session.answer(turn.asked.id, Grant())
        assert seen == [("full_access", True)]


#### TOL-25: one end for each case


def asks_first(arguments, operation):
    raise PermissionRequired(Needs("more", "probe", "other"))


async def asks_late(arguments, operation):
    await operation.dispatch()
    raise PermissionRequired(Needs("more", "probe", "other"))


async def fails_first(arguments, operation):
    raise ValueError("no")


async def refuses_first(arguments, operation):
    raise ToolRefused("not now")


async def fails_late(arguments, operation):
    await operation.dispatch()
    raise ValueError("no")


async def succeeds(arguments, operation):
    await operation.dispatch()
    return ToolResult("fine")


async def says_error(arguments, operation):
    await operation.dispatch()
    return ToolResult("bad", is_error=True)


NOT_DISPATCHED = ["RunStarted", "RunTerminal"]


@pytest.mark.contract("TOL-25")
@pytest.mark.parametrize(
    ("body", "outcome", "reason", "facts", "is_error"),
    [
        (asks_late, "error", "post_dispatch_permission", WHOLE, True),
        (fails_first, "error", "pre_dispatch_error", NOT_DISPATCHED, None),
        (refuses_first, "error", "pre_dispatch_error", NOT_DISPATCHED, None),
        (fails_late, "completed", "tool_result", WHOLE, True),
        (succeeds, "completed", "tool_result", WHOLE, False),
        (says_error, "completed", "tool_result", WHOLE, True),
    ],
)
async def test_each_end_has_its_terminal_and_the_turn_goes_on_with_the_result(
    tmp_path, body, outcome, reason, facts, is_error
):
    probe = Probe(permission="?", body=body)
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        async with trio.open_nursery() as nursery:
            turn = await paused(stage, nursery)
            await stage.session.answer(turn.asked.id, Grant())
        records = deferred_records(stage)
        assert kinds(records) == facts
        assert (records[-1].outcome, records[-1].stop_reason) == (outcome, reason)
        known = [r.is_error for r in records if isinstance(r, ToolOutcome)]
        assert known == ([] if is_error is None else [is_error])
        assert turn.results[0].text == "done"
        (call,) = calls_of(turn.results[0].message)
        assert call.status == ("success" if is_error is False else "error")
        assert call.response


@pytest.mark.contract("TOL-25")
async def test_a_call_that_asks_before_its_dispatch_can_be_answered_again(tmp_path):
    times = []

    async def body(arguments, operation):
        times.append(len(times))
        if len(times) == 1:
            asks_first(arguments, operation)
        return await succeeds(arguments, operation)

    probe = Probe(permission="?", body=body)
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        async with trio.open_nursery() as nursery:
            turn = await paused(stage, nursery)
            await stage.session.answer(turn.asked.id, Grant())
            await wait_all_tasks_blocked()
            records = deferred_records(stage)
            assert kinds(records) == NOT_DISPATCHED
            assert records[-1].outcome == "paused"
            assert records[-1].stop_reason == "interaction"
            (again,) = await stage.session.interactions()
            assert again.origin == "post-call-permission"
            await stage.session.answer(again.id, Grant())
        assert len(times) == 2
        assert turn.results[0].text == "done"


@pytest.mark.contract("TOL-25")
async def test_an_abort_keeps_the_outcome_of_a_result_that_came_back(tmp_path):
    """The tool returns while it is being cancelled: what it did is known."""

    async def body(arguments, operation):
        await operation.dispatch()
        try:
            await trio.sleep_forever()
        finally:
            return ToolResult("was done")  # noqa: B012

    probe = Probe(permission="?", body=body)
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        async with trio.open_nursery() as nursery:
            turn = await paused(stage, nursery)
            await stage.session.answer(turn.asked.id, Grant())
            await wait_all_tasks_blocked()
            await stage.session.cancel()
        records = deferred_records(stage)
        assert kinds(records) == WHOLE
        assert (records[-1].outcome, records[-1].stop_reason) == (
            "aborted",
            "user_stop",
        )
        assert not records[2].is_error
        assert turn.results[0].outcome == "aborted"
        assert len(stage.provider.requests) == 1


#### TOL-08: the limit of calls


@pytest.mark.contract("TOL-08")
async def test_a_call_counts_when_it_starts_even_if_it_then_raises(tmp_path):
    calls = [
        Call("raises"), Call("refused"), Call("nobody"), Call("probe", "{"),
        Call("idle"), Halt("tool_use"),
    ]  # fmt: skip
    cut = [Call("idle"), Halt("max_tokens")]
    tools = [
        Probe(name="raises", body=fails_first),
        Probe(name="refused", refuse=ToolRefused("no")),
        Probe(),
        Probe(name="idle"),
    ]
    async with open_stage(tmp_path, replies(calls, cut, DONE), *tools) as stage:
        turn = await stage.session.prompt("go")
        assert turn.message.metadata.tool_calls == 2


@pytest.mark.contract("TOL-08")
async def test_a_denied_call_counts_nothing(tmp_path):
    async with open_stage(tmp_path, replies(ASK, DONE), Probe(permission="?")) as stage:
        async with trio.open_nursery() as nursery:
            turn = await paused(stage, nursery)
            await stage.session.answer(turn.asked.id, Deny())
        assert turn.results[0].message.metadata.tool_calls == 0


@pytest.mark.contract("TOL-08")
@pytest.mark.parametrize(("before", "runs"), [(126, True), (127, False)])
async def test_the_129th_call_is_skipped_though_it_was_allowed(tmp_path, before, runs):
    begun = []

    async def asks(arguments, operation):
        # It starts, asks, and is started again by the answer.
        if not operation.granted:
            asks_first(arguments, operation)
        begun.append(operation.id)
        return await succeeds(arguments, operation)

    probe, quick = Probe(body=asks), Probe(name="quick", result="ok")
    many = [Call("quick", {"n": n}) for n in range(before)]
    async with open_stage(
        tmp_path, replies([*many, *ASK], DONE), probe, quick
    ) as stage:
        async with trio.open_nursery() as nursery:
            turn = await paused(stage, nursery)
            await stage.session.answer(turn.asked.id, Grant())
        message = turn.results[0].message
        assert message.metadata.tool_calls == MAX_TOOL_CALLS
        call = calls_of(message)[-1]
        assert len(begun) == runs
        assert (call.response == TOO_MANY_CALLS) == (not runs)
        dispatched = [r for r in deferred_records(stage) if "Dispatch" in str(type(r))]
        assert len(dispatched) == runs


#### TOL-26: a strict fact that fails


def failing(what, stage):
    """Fail the next commit of this kind: the deferred run's."""
    failed = []

    def fail(kind):
        if kind == what and not failed:
            failed.append(kind)
            return JournalError("persistence_failed", f"{kind} is not on disk")
        return None

    spy_on(stage).fail = fail


@pytest.mark.contract("TOL-26")
@pytest.mark.parametrize("what", ["RunStarted", "DispatchCommitted"])
async def test_before_the_dispatch_the_error_is_told_and_the_approval_is_open_again(
    tmp_path, what
):
    probe = Probe(permission="?")
    async with (
        open_stage(tmp_path, replies(ASK, DONE), probe) as stage,
        stage.session.follow() as feed,
    ):
        async with trio.open_nursery() as nursery:
            turn = await paused(stage, nursery)
            failing(what, stage)
            with pytest.raises(DeferredJournalError, match="not on disk") as told:
                await stage.session.answer(turn.asked.id, Grant())
            assert not told.value.dispatch_committed
            assert not told.value.outcome_committed
            assert probe.calls == []
            await wait_all_tasks_blocked()
            (again,) = await stage.session.interactions()
            assert again.id == turn.asked.id
            assert turn.results == []
            states = [
                e.state for e in await _seen(feed) if isinstance(e, StatusChanged)
            ]
            assert states[-1] == "idle"
            # Nothing is tried again by itself; the same approval can be given again.
            assert not [r for r in stage.journal() if isinstance(r, DispatchCommitted)]
            await stage.session.answer(again.id, Grant())
        assert probe.calls == [{"n": 1}]
        assert turn.results[0].text == "done"


async def _seen(feed):
    events = []
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def read():
                async for event in feed:
                    events.append(event)  # noqa: PERF401 - it is cancelled

            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            scope.cancel()
    return events


@pytest.mark.contract("TOL-26")
async def test_the_open_approval_is_there_after_a_restart_too(tmp_path):
    probe = Probe(permission="?")
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        async with trio.open_nursery() as nursery:
            turn = await paused(stage, nursery)
            failing("DispatchCommitted", stage)
            with pytest.raises(DeferredJournalError):
                await stage.session.answer(turn.asked.id, Grant())
            nursery.cancel_scope.cancel()
        session_id = stage.session.id
    async with open_stage(
        tmp_path, replies(DONE), probe, session_id=session_id
    ) as stage:
        (again,) = await stage.session.interactions()
        await stage.session.answer(again.id, Grant())
        assert probe.calls == [{"n": 1}]
        await wait_all_tasks_blocked()
        assert (await stage.session.messages())[-1].status == "sent"


@pytest.mark.contract("TOL-26")
@pytest.mark.parametrize(
    ("what", "outcome_committed"), [("ToolOutcome", False), ("RunTerminal", True)]
)
async def test_behind_the_dispatch_the_message_is_parked_with_all_its_questions(
    tmp_path, what, outcome_committed
):
    two = [Call("probe", {"n": 1}), Call("probe", {"n": 2}), Halt("tool_use")]
    actives = []

    async def body(arguments, operation):
        await operation.dispatch()
        actives.append(turn_of(stage).active)
        return ToolResult("result of probe")

    probe = Probe(permission="?", body=body)
    async with open_stage(tmp_path, replies(two, DONE), probe) as stage:
        async with trio.open_nursery() as nursery:
            results = []

            async def prompt():
                try:
                    results.append((await stage.session.prompt("go")).stop_reason)
                except TurnFailedError as exc:
                    results.append(exc)

            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            first, second = await stage.session.interactions()
            failing(what, stage)
            await stage.session.answer(first.id, Grant())
        (active,) = actives
        assert active.failure.dispatch_committed
        assert active.failure.outcome_committed == outcome_committed
        assert len(actives) == 1
        assert len(results) == 1
        for asked in (first, second):
            with pytest.raises(InteractionError):
                await stage.session.answer(asked.id, Grant())
        assert len(actives) == 1
        message = (await stage.session.messages())[1]
        assert message.status == "error"
        assert await stage.session.interactions() == ()
        calls = calls_of(message)
        assert all(call.status == "error" for call in calls)
        assert "result of probe" not in repr(message)
        assert "not executed" not in (calls[0].response or "")
        assert "not executed" in (calls[1].response or "")
