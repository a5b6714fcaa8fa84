"""Cancels and stops that come when a run has its result already."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import attrs
import pytest
import trio
from kit.rehearsal import Probe, Stage, calls_of, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.kernel import CancelCause
from greenroom.actors.providers import Call, Halt, Say
from greenroom.actors.sessions import CancelTurn
from greenroom.engine import Deny, Grant, SessionClosedError, TurnRefusedError
from greenroom.protocol import RunTerminal, StatusChanged

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]
TWO = [Call("probe", {"n": 1}), Call("probe", {"n": 2}), Halt("tool_use")]


@attrs.define(eq=False)
class HeldTerminals:
    """A record that holds the terminal of a run at a gate."""

    inner: Any
    reached: trio.Event = attrs.field(factory=trio.Event)
    gate: trio.Event = attrs.field(factory=trio.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def commit(self, record):
        if isinstance(record, RunTerminal):
            self.reached.set()
            await self.gate.wait()
        return await self.inner.commit(record)


def session_of(stage):
    loaded = stage.session._sessions.loaded(stage.session.id)
    assert loaded is not None
    return loaded


def hold_terminals(stage):
    session = session_of(stage).session
    held = HeldTerminals(session.ports.record)
    session.ports = attrs.evolve(session.ports, record=held)
    return held


def by_the_caller(stage):
    cancel = CancelTurn(CancelCause.PARENT)
    session_of(stage).ref.tell_control(cancel, key="test")


def by_the_user(stage):
    session_of(stage).ref.tell_control(CancelTurn(CancelCause.USER_STOP), key="test")


def by_the_engine(stage):
    session_of(stage).ref.stop(CancelCause.SHUTDOWN)


CANCELS: dict[str, Callable[[Stage], None]] = {
    "parent": by_the_caller,
    "user_stop": by_the_user,
    "shutdown": by_the_engine,
}


@pytest.mark.parametrize("cause", CANCELS)
async def test_after_a_cancel_nothing_is_asked_though_the_allowed_call_had_ended(
    tmp_path, cause
):
    probe = Probe(permission="?")
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        turns = []

        async def prompt():
            turns.append(await stage.session.prompt("go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            (asked,) = await stage.session.interactions()
            held = hold_terminals(stage)
            await stage.session.answer(asked.id, Grant())
            await held.reached.wait()
            CANCELS[cause](stage)
            await wait_all_tasks_blocked()
            held.gate.set()
        assert len(stage.provider.requests) == 1
        (turn,) = turns
        assert (turn.outcome, turn.stop_reason) == ("aborted", cause)
        assert turn.error
        assert turn.message.metadata.error_code
        (call,) = calls_of(turn.message)
        assert call.response == "result of probe 1"
        stored = (await stage.session.messages())[-1]
        assert stored.blocks == turn.message.blocks
        assert stored.metadata == turn.message.metadata


@pytest.mark.parametrize("cause", ["parent", "shutdown"])
async def test_a_question_that_is_left_survives_such_a_cancel(tmp_path, cause):
    probe = Probe(permission="?")
    async with open_stage(tmp_path, replies(TWO, DONE), probe) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ignore_the_end, stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            first, second = await stage.session.interactions()
            held = hold_terminals(stage)
            await stage.session.answer(first.id, Grant())
            await held.reached.wait()
            nursery.start_soon(ignore_the_end, stage.session.answer, second.id, Grant())
            await wait_all_tasks_blocked()
            CANCELS[cause](stage)
            await wait_all_tasks_blocked()
            held.gate.set()
            await wait_all_tasks_blocked()
            # The engine takes no answer while it closes; somebody else's may count.
            assert len(probe.calls) == (1 if cause == "shutdown" else 2)
        left = await stage.session.interactions()
        assert len(left) == (cause == "shutdown")
        for question in left:
            await stage.session.answer(question.id, Deny())


async def ignore_the_end(fn, *args):
    with suppress(SessionClosedError, TurnRefusedError):
        await fn(*args)


async def test_a_cancel_of_an_earlier_run_does_not_end_the_turn_that_goes_on(tmp_path):
    # The caller leaves; its question is answered by somebody else; the next run of the
    # turn ends by itself and nobody cancels that.
    probe = Probe(permission="?")
    async with open_stage(tmp_path, replies(TWO, DONE), probe) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            first, second = await stage.session.interactions()
            held = hold_terminals(stage)
            await stage.session.answer(first.id, Grant())
            await held.reached.wait()
            nursery.cancel_scope.cancel()
        held.gate.set()
        await wait_all_tasks_blocked()
        async with stage.session.follow() as feed:
            await stage.session.answer(second.id, Grant())
            async for event in feed:
                if isinstance(event, StatusChanged) and event.state == "idle":
                    break
        message = (await stage.session.messages())[-1]
        assert message.metadata.run_stop_reason == "complete"
        assert len(probe.calls) == 2


async def test_a_cancel_reaches_a_prompt_that_waits_in_the_mailbox(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        codes = []

        async def prompt():
            with pytest.raises(TurnRefusedError) as refused:
                await stage.session.prompt("go")
            codes.append(refused.value.code)

        loaded = session_of(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            while not loaded.session.unread:
                await trio.lowlevel.checkpoint()
            await stage.session.cancel()
        assert codes == ["withdrawn_command"]
        assert await stage.session.messages() == []
        assert (await stage.session.prompt("again")).text == "done"
