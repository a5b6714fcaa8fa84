"""The journal's place in a run: what comes before what, and what a failure stops."""

from __future__ import annotations

import attrs
import pytest
import trio
from kit.rehearsal import Probe, calls_of, open_stage, replies, spy_on
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, Hang, Say
from greenroom.actors.tools import Needs, PermissionRequired, ToolRefused, ToolResult
from greenroom.engine import TurnFailedError
from greenroom.protocol import (
    DispatchCommitted,
    JournalError,
    Notice,
    PreToolUse,
    RunStarted,
    RunTerminal,
    StreamCompleted,
    TextPart,
    ToolOutcome,
)

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]
PAIR = [Call("one", {"n": 1}), Call("two", {"n": 2}), Halt("tool_use")]


@attrs.define(eq=False)
class Listener:
    """Hears what hooks are told, at once."""

    notices: list[Notice] = attrs.field(factory=list)

    def observe(self, clock: object) -> Listener:
        return self

    def told(self, notice: Notice) -> None:
        self.notices.append(notice)

    def close(self) -> None:
        pass


def failing(kind, count=1):
    """Fail the first *count* commits of this kind."""
    left = [count]

    def fail(what):
        if what == kind and left[0]:
            left[0] -= 1
            return JournalError("persistence_failed", f"{kind} is not on disk")
        return None

    return fail


@pytest.mark.contract("RUN-08", "JRN-08")
@pytest.mark.parametrize("how", ["raises", "not created"])
async def test_a_run_that_could_not_start_has_done_nothing(tmp_path, how):
    probe = Probe()
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        spy = spy_on(stage)
        if how == "raises":
            spy.fail = failing("RunStarted")
        else:
            spy.inner = Uncreated(spy.inner)
        with pytest.raises(TurnFailedError, match="start"):
            await stage.session.prompt("go")
        assert stage.provider.requests == []
        assert stage.journal() == []
        # The provisional assistant message is gone, and what the user said is returned.
        assert await stage.session.messages() == []
        (row,) = await stage.session.inputs()
        assert (row.delivery, row.parts) == ("returned", (TextPart("go"),))


class Uncreated:
    """A record whose every start was there before."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def commit(self, record):
        return False


@pytest.mark.contract("JRN-08")
async def test_the_start_is_durable_before_the_run_is_registered(tmp_path):
    async with open_stage(tmp_path, replies([Hang()])) as stage:
        spy, seen = spy_on(stage), []
        loaded = stage.session._sessions.loaded(stage.session.id)

        def registered(what):
            turn = loaded.session.turn  # pyright: ignore[reportOptionalMemberAccess]
            if what == "RunStarted":
                seen.append(turn.active.registered)  # pyright: ignore[reportOptionalMemberAccess]

        spy.before = registered
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            turn = loaded.session.turn  # pyright: ignore[reportOptionalMemberAccess]
            assert seen == [False]
            assert turn.active.registered  # pyright: ignore[reportOptionalMemberAccess]
            assert [type(r) for r in stage.journal()] == [RunStarted]
            await stage.session.cancel()


@pytest.mark.contract("JRN-09")
async def test_dispatch_comes_after_every_gate_and_before_the_effect(tmp_path):
    seen = []

    async def effect(arguments, operation):
        seen.append(("before", kinds(stage)))
        await operation.dispatch()
        seen.append(("effect", kinds(stage)))
        return ToolResult("ok")

    def kinds(stage):
        return [type(r).__name__ for r in stage.journal()]

    refusing = Probe(name="refusing", refuse=ToolRefused("no"))
    idle = Probe(name="idle", body=no_effect)
    asking = Probe(name="asking", permission="?")
    calls = [Call("nobody"), Call("refusing"), Call("probe", "[]"), Call("idle")]
    script = replies([*calls, Call("asking"), Call("probe", {}), Halt("tool_use")])
    tools = (Probe(body=effect), refusing, idle, asking)
    async with open_stage(tmp_path, script, *tools) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert seen == [
            ("before", ["RunStarted"]),
            ("effect", ["RunStarted", "DispatchCommitted"]),
        ]
        dispatched = [r for r in stage.journal() if isinstance(r, DispatchCommitted)]
        assert len(dispatched) == 1


async def no_effect(arguments, operation):
    return ToolResult("nothing was done")


@pytest.mark.contract("JRN-10")
async def test_an_outcome_that_is_not_durable_is_shown_to_nobody(tmp_path):
    hook = Listener()
    async with open_stage(
        tmp_path, replies(ASK, DONE), Probe(), telemetry=hook
    ) as stage:
        spy_on(stage).fail = failing("ToolOutcome")
        async with stage.session.follow() as feed:
            turn = await stage.session.prompt("go")
            stage.session._sessions.hub(stage.session.id).close()
            events = [event async for event in feed]
        assert turn.stop_reason == "journal_error"
        assert any(isinstance(notice, PreToolUse) for notice in hook.notices)
        assert "result of probe" not in repr(hook.notices)
        assert "result of probe" not in repr(events)
        assert "result of probe" not in repr(stage.tape())
        assert len(stage.provider.requests) == 1


@pytest.mark.contract("JRN-11")
async def test_a_terminal_that_is_not_durable_ends_nothing_for_anybody(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        spy_on(stage).fail = failing("RunTerminal", count=9)
        async with stage.session.follow() as feed:
            with pytest.raises(TurnFailedError):
                await stage.session.prompt("go")
            stage.session._sessions.hub(stage.session.id).close()
            events = [event async for event in feed]
        assert not any(isinstance(event, StreamCompleted) for event in events)
        assert not [r for r in stage.journal() if isinstance(r, RunTerminal)]


@pytest.mark.contract("JRN-11")
async def test_the_terminal_is_on_the_tape_before_anything_tells_of_it(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        async with stage.session.follow() as feed:
            await stage.session.prompt("go")
            async for event in feed:
                if isinstance(event, StreamCompleted):
                    told = event.seq
                    break
        tape = stage.tape()
        terminal = next(e.seq for e in tape if e.fact.name == "execution/run_terminal")
        assert terminal < told


@pytest.mark.contract("JRN-12")
@pytest.mark.parametrize("kind", ["DispatchCommitted", "ToolOutcome"])
@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_failed_strict_commit_stops_what_is_behind_it(
    tmp_path, kind, cancelled
):
    effects = []

    async def body(arguments, operation):
        await operation.dispatch()
        effects.append("effect")
        return ToolResult("ok")

    probe = Probe(body=body)
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        spy = spy_on(stage)
        fail = failing(kind)

        def fail_and_cancel(what):
            error = fail(what)
            if error is not None and cancelled:
                loaded = stage.session._sessions.loaded(stage.session.id)
                run = loaded.session.turn.ref  # pyright: ignore[reportOptionalMemberAccess]
                nursery.start_soon(cancel_soon, run)
            return error

        async def cancel_soon(run):
            await stage.session.cancel()

        spy.fail = fail_and_cancel
        async with trio.open_nursery() as nursery:
            turn = await stage.session.prompt("go")
        assert (turn.outcome, turn.stop_reason) == ("error", "journal_error")
        assert kind in (turn.error or "")
        assert effects == ([] if kind == "DispatchCommitted" else ["effect"])
        assert len(stage.provider.requests) == 1


@pytest.mark.contract("JRN-12")
async def test_an_invalid_fact_before_dispatch_fails_only_its_call(tmp_path):
    # A tool's name may be as long as the journal refuses: 512 characters is its bound.
    from greenroom.protocol import ToolTarget

    async def body(arguments, operation):
        await operation.dispatch(ToolTarget("x" * 2_000))
        raise AssertionError("unreachable")

    script = replies([Call("bad"), Call("probe", {"n": 1}), Halt("tool_use")], DONE)
    bad, probe = Probe(name="bad", body=body), Probe()
    async with open_stage(tmp_path, script, bad, probe) as stage:
        turn = await stage.session.prompt("go")
        assert turn.outcome == "completed"
        assert [c.status for c in calls_of(turn.message)] == ["error", "success"]


@pytest.mark.contract("JRN-13")
async def test_the_outcome_of_a_sibling_stays_when_one_commit_fails(tmp_path):
    one = Probe(name="one", read_only=True, parallel_safe=True)
    two = Probe(name="two", read_only=True, parallel_safe=True)
    async with open_stage(
        tmp_path, replies(PAIR, DONE), one, two, permission_mode="full_access"
    ) as stage:
        spy = spy_on(stage)
        outcomes = []

        def second_fails(what):
            if what == "ToolOutcome":
                outcomes.append(what)
                if len(outcomes) == 2:
                    return JournalError("persistence_failed", "no")
            return None

        spy.fail = second_fails
        turn = await stage.session.prompt("go")
        assert turn.stop_reason == "journal_error"
        assert len([r for r in stage.journal() if isinstance(r, ToolOutcome)]) == 1
        texts = "".join(entry.fact.payload for entry in stage.tape())
        assert "result of one" not in texts
        assert "result of two" not in texts


@pytest.mark.contract("JRN-14")
async def test_a_permission_asked_after_the_dispatch_is_an_error_outcome(tmp_path):
    async def late(arguments, operation):
        await operation.dispatch()
        raise PermissionRequired(Needs("?", "t", "other"))

    async with open_stage(tmp_path, replies(ASK, DONE), Probe(body=late)) as stage:
        turn = await stage.session.prompt("go")
        (outcome,) = [r for r in stage.journal() if isinstance(r, ToolOutcome)]
        assert outcome.is_error
        assert await stage.session.interactions() == ()
        (call,) = calls_of(turn.message)
        assert "after its dispatch" in (call.response or "")


@pytest.mark.contract("RUN-09")
async def test_a_run_is_settled_once_and_never_in_two_ways(tmp_path):
    from greenroom.actors.runs._settlement import Settlement
    from greenroom.protocol import InternalError, Terminal

    async with open_stage(tmp_path, replies([Say("a"), Hang()])) as stage:
        loaded = stage.session._sessions.loaded(stage.session.id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            active = loaded.session.turn.active  # pyright: ignore[reportOptionalMemberAccess]
            await stage.session.cancel()
        assert active is not None
        from greenroom.actors.backend import RunPorts
        from greenroom.actors.runs._settlement import Progress

        ports = RunPorts(
            stage.provider,
            None,  # pyright: ignore[reportArgumentType]
            loaded.session.ports.record,  # pyright: ignore[reportOptionalMemberAccess]
            loaded.hub,  # pyright: ignore[reportOptionalMemberAccess]
        )
        settlement = Settlement(
            active.plan, ports, active.draft, Progress(0.0), lambda: 0.0
        )
        assert active.result is not None
        same = active.result.terminal
        with pytest.raises(JournalError) as conflict:
            await settlement.settle(Terminal("completed", "complete", "sent"))
        assert conflict.value.code == "conflicting_fact"
        with pytest.raises(InternalError, match="was tried"):
            await settlement.settle(same)
        again = Settlement(active.plan, ports, active.draft, Progress(0.0), lambda: 0.0)
        assert (await again.settle(same)).terminal == same
        assert len([r for r in stage.journal() if isinstance(r, RunTerminal)]) == 1


async def test_a_run_and_a_terminal_that_both_fail_are_told_together(tmp_path):
    async with open_stage(tmp_path, replies(ASK, DONE), Probe()) as stage:
        spy = spy_on(stage)

        def fail(what):
            if what in ("ToolOutcome", "RunTerminal"):
                return JournalError("persistence_failed", what)
            return None

        spy.fail = fail
        with pytest.raises(TurnFailedError) as failed:
            await stage.session.prompt("go")
        group = failed.value.__cause__
        assert isinstance(group, ExceptionGroup)
        assert [str(exc) for exc in group.exceptions] == ["ToolOutcome", "RunTerminal"]
        assert group.subgroup(JournalError) is not None
