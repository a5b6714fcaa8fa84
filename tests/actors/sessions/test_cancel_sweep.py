"""A turn that is cancelled at every step of it, in every way.

A cancel takes effect between two steps of tasks, so an instrument that cancels before
the n-th step, for each n, has cancelled everywhere. The laws are checked at the end of
each stage; here is what a user sees.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import attrs
import pytest
import trio
from kit.rehearsal import Probe, Stage, open_stage, replies
from trio._core import _run as trio_scheduler
from trio.testing import MockClock

from greenroom.actors.kernel import ActorExitedError, CancelCause
from greenroom.actors.providers import Call, Fail, Halt, Say, Use
from greenroom.actors.sessions import CancelTurn
from greenroom.engine import Deny, Grant, TurnFailedError, TurnRefusedError, TurnResult
from greenroom.protocol import InteractionError

ENDED = (TurnRefusedError, TurnFailedError, ActorExitedError, InteractionError)
BOTH = [Say("two"), Call("read", {"n": 1}), Call("read", {"n": 2}), Use(3, 1)]
ASK = [Call("asks", {"n": 3}), Use(3, 1), Halt("tool_use")]
SCRIPT = replies(
    [*BOTH, Halt("tool_use")],
    [Fail("busy", status=503, headers={"retry-after-ms": "1"})],
    ASK,
    [Say("done"), Use(3, 1), Halt()],
)
NEXT = [Say("next"), Halt()]


@attrs.define(eq=False)
class AtStep(trio.abc.Instrument):
    """Does something once, before the n-th step of any task from now."""

    step: int
    act: Callable[[], object]
    steps: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if self.steps == self.step:
            self.act()


def actor(stage):
    loaded = stage.session._sessions.loaded(stage.session.id)
    assert loaded is not None
    return loaded.ref


def stop(stage, caller):
    actor(stage).tell_control(CancelTurn(CancelCause.USER_STOP), key="cancel")


def leave(stage, caller):
    caller.cancel()


def close(stage, caller):
    actor(stage).stop(CancelCause.USER_STOP)


def shut_down(stage, caller):
    actor(stage).stop(CancelCause.SHUTDOWN)


WAYS: dict[str, Callable[[Stage, trio.CancelScope], object]] = {
    "stop": stop,
    "leave": leave,
    "close": close,
    "shutdown": shut_down,
}


async def play(stage, step, way) -> tuple[int, list[TurnResult]]:
    """Play the turn, interrupted before *step*; return how many steps there were."""
    caller = trio.CancelScope()
    instrument = AtStep(step, lambda: WAYS[way](stage, caller))
    turns: list[TurnResult] = []

    async def prompt():
        with caller, suppress(*ENDED):
            turns.append(await stage.session.prompt("go", command_id="the turn"))
        nursery.cancel_scope.cancel()

    trio.lowlevel.add_instrument(instrument)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(prompt)
        while True:
            # The clock jumps, so this comes round once everything waits.
            await trio.sleep(10)
            await grant_all(stage)
    trio.lowlevel.remove_instrument(instrument)
    return instrument.steps, turns


async def grant_all(stage):
    for question in await stage.session.interactions():
        with suppress(*ENDED):
            await stage.session.answer(question.id, Grant())


async def check(stage, turns):
    """What is so after any cancel."""
    asked = len(stage.provider.requests)
    await trio.sleep(10)
    assert len(stage.provider.requests) == asked
    assert stage.provider.active == 0
    questions = await stage.session.interactions()
    messages = await stage.session.messages()
    for message in messages:
        assert message.status != "pending" or questions
    for turn in turns:
        assert turn.message in messages
    stage.provider.script = lambda request: NEXT
    for question in questions:
        await stage.session.answer(question.id, Deny())
    await trio.sleep(10)
    assert (await stage.session.prompt("next")).text == "next"
    async with stage.session.follow() as feed:
        assert feed.snapshot is not None
        assert feed.snapshot.state == "idle"


def tools():
    read = Probe("read", read_only=True, parallel_safe=True)
    return read, Probe("asks", permission="may it?")


async def steps_of_a_turn(tmp_path):
    tmp_path.mkdir()
    trio_scheduler._r.seed(0)
    async with open_stage(tmp_path, SCRIPT, *tools()) as stage:
        steps, (turn,) = await play(stage, -1, "stop")
        assert turn.text == "done"
    return steps


async def cancel_at(tmp_path, step, way):
    folder = tmp_path / str(step)
    folder.mkdir()
    trio_scheduler._r.seed(0)
    probes = tools()
    async with open_stage(folder, SCRIPT, *probes) as stage:
        _, turns = await play(stage, step, way)
        await check(stage, turns)
    effects = [call["n"] for probe in probes for call in probe.calls]
    assert len(effects) == len(set(effects))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_a_turn_cancelled_here_and_there_leaves_a_session_that_works(
    tmp_path, autojump_clock: MockClock, way
):
    for step in range(7, await steps_of_a_turn(tmp_path / "whole"), 11):
        await cancel_at(tmp_path, step, way)


@pytest.mark.sweep
@pytest.mark.parametrize("way", WAYS)
async def test_a_turn_cancelled_at_any_step_leaves_a_session_that_works(
    tmp_path, autojump_clock: MockClock, way
):
    count = await steps_of_a_turn(tmp_path / "whole")
    assert count > 50
    for step in range(1, count + 1):
        await cancel_at(tmp_path, step, way)
