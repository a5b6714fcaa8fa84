"""A turn that is cancelled at every step of it, in every way.

A cancel takes effect between two steps of tasks, so an instrument that cancels before
the n-th step, for each n, has cancelled everywhere. The laws are checked at the end of
each stage; here is what a user sees: the run ends within its bound and says why,
nothing is sent once it knows of its cancel, and the next prompt works. The engine, too,
is ended at every step, and a second one goes on where the first one stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import attrs
import pytest
import trio
from kit.determinism import deterministic
from kit.rehearsal import Probe, Stage, journal_of, open_stage, replies
from trio.testing import MockClock

from greenroom.actors.kernel import CancelCause
from greenroom.actors.providers import Call, Fail, Halt, Say, Use
from greenroom.actors.sessions import CancelTurn
from greenroom.engine import (
    Deny,
    Grant,
    SessionClosedError,
    TurnFailedError,
    TurnRefusedError,
    TurnResult,
)
from greenroom.protocol import InteractionError, RunId, RunTerminal
from greenroom.testing import RehearsalProvider, open_test_engine

BOUND = 5.0
"""Seconds from a cancel to the terminal of its run (RUN-14)."""
EPOCH = 1_767_225_600.0
"""When the clock of a test engine begins."""
ENDED = (TurnRefusedError, TurnFailedError, SessionClosedError, InteractionError)
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
    look: Callable[[], object] = lambda: None
    """Called before every step from then on."""
    steps: int = 0
    acted_at: float | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if self.steps == self.step:
            self.acted_at = trio.current_time()
            self.act()
        if self.acted_at is not None:
            self.look()


@attrs.define(eq=False)
class Cancelled:
    """The run that a cancel met, and what had been sent when it was told."""

    stage: Stage
    run_id: RunId | None = None
    since: float = 0.0
    requests: int = 0

    def look(self) -> None:
        loaded = self.stage.session._sessions.loaded(self.stage.session.id)
        turn = None if loaded is None else loaded.session.turn
        if self.run_id is not None or turn is None or turn.cancelled is None:
            return
        if turn.active is not None:
            self.run_id = turn.active.plan.run_id
            self.since = trio.current_time()
            self.requests = len(self.stage.provider.requests)

    def check(self, reason: str) -> None:
        if self.run_id is None:
            return
        assert len(self.stage.provider.requests) == self.requests
        ends = [
            (entry, record)
            for entry, record in zip(*self._journal(), strict=True)
            if isinstance(record, RunTerminal) and record.run_id == self.run_id
        ]
        # One that was cancelled before its first step has neither start nor end.
        for entry, record in ends:
            assert entry.created_at - EPOCH - self.since < BOUND
            if record.outcome == "aborted":
                assert record.stop_reason == reason

    def _journal(self):
        entries = [entry for entry in self.stage.tape() if entry.fact.is_execution]
        return entries, journal_of(entries)


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


REASONS = {
    "stop": "user_stop",
    "leave": "parent",
    "close": "user_stop",
    "shutdown": "shutdown",
}


async def play(stage, step, way) -> tuple[int, list[TurnResult]]:
    """Play the turn, interrupted before *step*; return how many steps there were."""
    caller, cancelled = trio.CancelScope(), Cancelled(stage)
    instrument = AtStep(step, lambda: WAYS[way](stage, caller), cancelled.look)
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
    await trio.sleep(10)
    trio.lowlevel.remove_instrument(instrument)
    cancelled.check(REASONS[way])
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
    with deterministic(0):
        async with open_stage(tmp_path, SCRIPT, *tools()) as stage:
            steps, (turn,) = await play(stage, -1, "stop")
            assert turn.text == "done"
    return steps


async def cancel_at(tmp_path, step, way):
    folder = tmp_path / str(step)
    folder.mkdir()
    probes = tools()
    with deterministic(0):
        async with open_stage(folder, SCRIPT, *probes) as stage:
            _, turns = await play(stage, step, way)
            await check(stage, turns)
    check_effects(probes)


def check_effects(probes):
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


#### The engine ends


@attrs.define(eq=False)
class Ended:
    """An engine that was ended, and how long that took."""

    session_id: str = ""
    steps: int = 0
    seconds: float = 0.0
    turns: list[TurnResult] = attrs.field(factory=list)


async def end_engine_at(folder, step, way, probes) -> Ended:
    """Play the turn; before *step* the engine's block is left, or cancelled."""
    found, leave, scope = Ended(), trio.Event(), trio.CancelScope()
    instrument = AtStep(step, leave.set if way == "left" else scope.cancel)
    provider = RehearsalProvider(SCRIPT)

    async def prompt(session):
        with suppress(*ENDED):
            found.turns.append(await session.prompt("go", command_id="the turn"))
        leave.set()

    async def grant(session):
        while True:
            await trio.sleep(10)
            for question in await session.interactions():
                with suppress(*ENDED):
                    await session.answer(question.id, Grant())

    async with trio.open_nursery() as nursery:
        with scope:
            async with open_test_engine(folder, provider, *probes) as engine:
                session = await engine.create_session(workspace=folder)
                found.session_id = session.id
                trio.lowlevel.add_instrument(instrument)
                nursery.start_soon(prompt, session)
                nursery.start_soon(grant, session)
                await leave.wait()
        ended_at, asked = trio.current_time(), len(provider.requests)
        trio.lowlevel.remove_instrument(instrument)
        nursery.cancel_scope.cancel()
    found.steps = instrument.steps
    found.seconds = ended_at - (instrument.acted_at or ended_at)
    assert (len(provider.requests), provider.active) == (asked, 0)
    return found


async def end_and_go_on(tmp_path, step, way):
    folder, probes = tmp_path / f"{way}-{step}", tools()
    folder.mkdir()
    with deterministic(0):
        ended = await end_engine_at(folder, step, way, probes)
        assert ended.seconds < BOUND
        script = [NEXT] * 5
        async with open_stage(
            folder, script, *probes, session_id=ended.session_id
        ) as stage:
            # It settled itself: nothing was left to recover.
            assert stage.engine.recovered.runs == 0
            for turn in ended.turns:
                assert turn.message in await stage.session.messages()
            for question in await stage.session.interactions():
                await stage.session.answer(question.id, Deny())
            await trio.sleep(10)
            assert (await stage.session.prompt("next")).text == "next"
    check_effects(probes)
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("way", ["left", "cancelled"])
async def test_an_engine_ended_here_and_there_leaves_a_session_that_goes_on(
    tmp_path, autojump_clock: MockClock, way
):
    whole = await end_and_go_on(tmp_path, -1, way)
    assert [turn.text for turn in whole.turns] == ["done"]
    for step in range(5, whole.steps, 13):
        await end_and_go_on(tmp_path, step, way)


@pytest.mark.sweep
@pytest.mark.parametrize("way", ["left", "cancelled"])
async def test_an_engine_ended_at_any_step_leaves_a_session_that_goes_on(
    tmp_path, autojump_clock: MockClock, way
):
    whole = await end_and_go_on(tmp_path, -1, way)
    assert whole.steps > 50
    for step in range(1, whole.steps + 1):
        await end_and_go_on(tmp_path, step, way)
