"""A queued turn with one tool call, killed after each of its durable writes (JRN-24).

The table says what a restart leaves, by the last thing that was on the tape. The disk
dies at its operations one after the other, so that every prefix of the writes is met.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import attrs
import pytest
import trio
from kit.aftermath import problems, repeated, tapes, undispatched, unended_runs
from kit.rehearsal import calls_of
from trio.testing import wait_all_tasks_blocked

from greenroom.engine import ToolResult
from greenroom.protocol import GreenroomError, TapeEntry
from greenroom.testing import (
    Call,
    Halt,
    RecordingTool,
    RehearsalProvider,
    Say,
    crash_disk,
    open_test_engine,
)

CALL = [Say("I do it."), Call("probe", {"n": 1}), Halt("tool_use")]
DONE = [Say("done"), Halt()]
FAULTS = (GreenroomError, apsw.Error, BaseExceptionGroup)


@attrs.frozen
class State:
    """What a session has of a queued input after a restart."""

    rows: tuple[str, ...]
    """The delivery state of what waits."""
    said: bool
    """The user's message is in the transcript."""
    answer: str | None
    """The status of the assistant's message."""
    call: str | None = None
    """What its call is said to have come to."""


NOTHING = State((), False, None)
WAITS = State(("waiting",), False, None)
CUT = State((), True, "error")

EXPECTED = {
    # Its command may be in the inbox: then it is taken in, and has its turn.
    "nothing": {NOTHING, State((), True, "sent")},
    "accepted": {WAITS},
    "claimed": {WAITS},
    # Nothing has begun: what was said is taken back, and waits again.
    "said": {WAITS},
    "replied": {CUT},
    # What streamed in is known, if its cache was written: the call was not executed.
    "run_started": {CUT, attrs.evolve(CUT, call="error")},
    "dispatched": {attrs.evolve(CUT, call="in doubt")},
    # That it ran is known; what it brought is no success without its text.
    "outcome": {attrs.evolve(CUT, call="error"), attrs.evolve(CUT, call="success")},
    "round": {attrs.evolve(CUT, call="success")},
    "terminal": {attrs.evolve(CUT, call="success")},
    "answered": {State((), True, "sent", "success")},
    "settled": {State((), True, "sent", "success")},
}
"""What a restart leaves, by the last of the numbered writes that is on the disk."""


def last_write(tape: Sequence[TapeEntry]) -> str:
    """Return which of the numbered writes was the last."""
    reached = "nothing"
    for entry in tape:
        reached = _write_of(entry, reached) or reached
    return reached


def _write_of(entry: TapeEntry, before: str) -> str | None:
    fact = entry.fact
    match fact.name:
        case "input/recorded" if '"state":"claimed"' in fact.payload:
            return "claimed"
        case "input/recorded" if '"state":"consumed"' in fact.payload:
            return "settled"
        case "input/recorded":
            return "accepted"
        case "message/recorded" if '"role":"assistant"' in fact.payload:
            if '"status":"sent"' in fact.payload:
                return "answered"
            return "replied" if before == "said" else "round"
        case "message/recorded":
            return "said"
        case "execution/run_started":
            return "run_started"
        case "execution/dispatch_committed":
            return "dispatched"
        case "execution/tool_outcome":
            return "outcome"
        case "execution/run_terminal":
            return "terminal"
        case _:
            return None


@attrs.define(eq=False)
class Play:
    folder: Path
    effects: list[str] = attrs.field(factory=list)
    session: str = ""
    accepted: bool = False
    engines: int = 0

    def engine(self, *script: Any) -> Any:
        self.engines += 1
        tool = RecordingTool(body=self._effect)
        provider = RehearsalProvider([*script, *[DONE] * 5])
        return open_test_engine(self.folder, provider, tool, seed=self.engines)

    async def _effect(self, arguments: Any, operation: Any) -> ToolResult:
        await operation.dispatch()
        self.effects.append(operation.idempotency_key)
        return ToolResult("done")


async def create(play: Play) -> None:
    async with play.engine() as engine:
        play.session = (await engine.create_session(workspace=play.folder)).id


async def queued_turn(play: Play) -> None:
    async with play.engine(CALL) as engine:
        session = await engine.open_session(play.session)
        await session.queue("go", command_id="go")
        play.accepted = True
        await wait_all_tasks_blocked()


async def look(play: Play) -> State:
    """Start again, once, and say what the session has."""
    async with play.engine() as engine:
        session = await engine.open_session(play.session)
        await wait_all_tasks_blocked()
        found = State(
            tuple(row.delivery for row in await session.inputs()),
            any(m.role == "user" for m in await session.messages()),
            None,
        )
        for message in await session.messages():
            if message.role == "assistant":
                found = attrs.evolve(found, answer=message.status)
                for call in calls_of(message):
                    status = "in doubt" if call.in_doubt else call.status
                    found = attrs.evolve(found, call=status)
        # It is let in now, where it was not; and nothing is done twice.
        await session.release_inputs()
        await wait_all_tasks_blocked()
        said = [m for m in await session.messages() if m.role == "user"]
        assert len(said) == (found != NOTHING)
    return found


def killed_at(folder: Path, at: int) -> tuple[str, State] | None:
    """Kill a queued turn at an operation of its disk; ``None``: it came to its end."""
    play = Play(folder)
    folder.mkdir()
    trio.run(create, play)
    with crash_disk(at, "lose", seed=at) as disk:
        try:
            trio.run(queued_turn, play)
        except FAULTS:
            assert disk.crashed
    disk.restore()
    reached = last_write(tapes(folder / "state")[play.session])
    state = trio.run(look, play)
    assert not play.accepted or state != NOTHING
    check(play)
    shutil.rmtree(folder)
    return (reached, state) if disk.crashed else None


def check(play: Play) -> None:
    state = play.folder / "state"
    assert problems(state) == []
    tape = tapes(state)[play.session]
    assert repeated(play.effects) == []
    assert undispatched(play.effects, tape) == set()
    assert unended_runs(tape) == set()


def killed(folder: Path, stride: int) -> dict[str, set[State]]:
    """Kill it at every so many operations; return what was met."""
    met: dict[str, set[State]] = {}
    at = 1
    while (found := killed_at(folder / f"{at}", at)) is not None:
        reached, state = found
        assert state in EXPECTED[reached], (at, reached, state)
        met.setdefault(reached, set()).add(state)
        at += stride
    return met


def test_a_queued_turn_that_is_killed_is_left_as_the_table_says(tmp_path):
    met = killed(tmp_path, 7)
    assert {"nothing", "replied", "dispatched"} <= met.keys()


@pytest.mark.sweep
@pytest.mark.contract("JRN-24")
def test_a_queued_turn_is_left_as_the_table_says_after_each_write(tmp_path):
    assert killed(tmp_path, 1).keys() == EXPECTED.keys()
