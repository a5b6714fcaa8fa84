"""A run with a permission, a tool and two rounds, crashed everywhere on its disk.

For each operation and each way to crash: what was told to be durable is there, the
store agrees with its tapes, a second recovery finds nothing to do, no effect happens
twice or without its dispatch fact, and the session takes the next prompt.

A short form with a stride runs always; ``-m sweep`` runs every operation.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import attrs
import pytest
import trio
from kit.aftermath import (
    Told,
    false_successes,
    go_on,
    granted_turn,
    lost,
    problems,
    repeated,
    tapes,
    undispatched,
    unended_runs,
    watch,
)

from greenroom.engine import Engine, ToolResult
from greenroom.protocol import GreenroomError, ToolOutcome, command_of
from greenroom.testing import (
    Call,
    CrashKind,
    Halt,
    RecordingTool,
    RehearsalProvider,
    Say,
    crash_disk,
    open_test_engine,
)

CALL = [Say("I do it."), Call("probe", {"n": 1}), Halt("tool_use")]
DONE = [Say("done"), Halt()]
KINDS: tuple[CrashKind, ...] = ("stop", "tear", "lose")
FAULTS = (GreenroomError, apsw.Error, BaseExceptionGroup)
"""What an engine whose disk has crashed ends with, one way or the other."""


@attrs.define(eq=False)
class Play:
    """One folder and what happened in it, as its process knew."""

    folder: Path
    told: Told = attrs.field(factory=Told)
    effects: list[str] = attrs.field(factory=list)
    engines: int = 0

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def engine(self, *script):
        self.engines += 1
        tool = RecordingTool(permission="may it?", body=self._effect)
        provider = RehearsalProvider(list(script) + [DONE] * 5)
        return open_test_engine(self.folder, provider, tool, seed=self.engines)

    async def _effect(self, arguments, operation):
        await operation.dispatch()
        self.effects.append(operation.idempotency_key)
        return ToolResult("done")


async def whole_run(play: Play) -> None:
    async with play.engine(CALL) as engine:
        session = await engine.create_session(workspace=play.folder)
        watch(session, play.told)
        await granted_turn(session, "go")


def crashed(play: Play, work, at: int, kind: CrashKind, seed: int = 0) -> bool:
    """Do *work* on a disk that crashes at *at*; whether it came so far."""
    with crash_disk(at, kind, seed=seed) as disk:
        try:
            trio.run(work, play)
        except FAULTS:
            assert disk.crashed
    disk.restore()
    return disk.crashed


def operations(work, play: Play) -> int:
    with crash_disk() as disk:
        trio.run(work, play)
    return disk.operations


#### Coming back


async def come_back(play: Play) -> None:
    """Open engines on what is left, and hold them to the law."""
    async with play.engine():
        pass
    after = tapes(play.state)
    check_tapes(play, after)
    async with play.engine() as engine:
        assert (engine.recovered.runs, engine.recovered.sessions) == (0, ())
        assert tapes(play.state) == after, "the second recovery wrote"
        await take_next_prompt(play, engine)
    check_tapes(play, tapes(play.state))
    assert repeated(play.effects) == []


def check_tapes(play: Play, found: dict) -> None:
    assert problems(play.state) == []
    tape = found.get(play.told.session, [])
    assert lost(play.told, tape) == []
    assert undispatched(play.effects, tape) == set()
    for each in found.values():
        assert unended_runs(each) == set()
        # An input that its turn did not settle would be dropped when it came again.
        assert "input/withdrawn" not in [entry.fact.name for entry in each]


async def take_next_prompt(play: Play, engine: Engine) -> None:
    rows = await engine.sessions()
    assert play.told.session in (None, *(row.id for row in rows))
    for row in rows:
        assert (await go_on(engine, row.id)).outcome == "completed"
        messages = await engine.session(row.id).messages()
        assert [m.id for m in messages if m.status == "pending"] == []
        assert false_successes(messages, "done") == []
        roles = [message.role for message in messages]
        assert roles.count("assistant") <= roles.count("user"), "a turn came twice"
        if play.told.command is not None:
            # Under another id, where its first message was taken back unanswered.
            said = [command_of(m) for m in messages if m.role == "user"]
            assert said.count(play.told.command) == 1


def sweep(
    folder: Path, work, kind: CrashKind, points, prepare=None, seed: int = 0
) -> int:
    """Crash *work* at each of *points* in a new folder; return how many."""
    for done, at in enumerate(points):
        play = Play(folder / f"{kind}-{at}")
        play.folder.mkdir()
        if prepare is not None:
            prepare(play)
        try:
            reached = crashed(play, work, at, kind, seed + at)
            trio.run(come_back, play)
        except BaseException as exc:
            exc.add_note(f"crash: {kind} at operation {at}, seed {seed + at}")
            raise
        shutil.rmtree(play.folder)
        if not reached:
            return done
    return len(points)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_survives_a_crash_of_its_disk(tmp_path, kind):
    # A prime stride, so that all phases of a commit are met.
    points = range(1 + KINDS.index(kind), 10_000, 29)
    assert sweep(tmp_path, whole_run, kind, points) > 10


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_survives_a_crash_at_every_operation(tmp_path, kind):
    assert sweep(tmp_path, whole_run, kind, range(1, 10_000)) > 300


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(10_000, 60_000, 10_000))
def test_a_run_survives_whatever_the_machine_loses(tmp_path, seed):
    points = range(1, 10_000, 3)
    assert sweep(tmp_path, whole_run, "lose", points, seed=seed) > 100


#### Crashed while recovering


def in_doubt(play: Play) -> None:
    """Leave a run that has dispatched and has no outcome."""

    def crash_before_outcome(record: object) -> None:
        if isinstance(record, ToolOutcome):
            disk.crash()

    async def work(play: Play) -> None:
        async with play.engine(CALL) as engine:
            session = await engine.create_session(workspace=play.folder)
            watch(session, play.told)
            play.told.before_commit = crash_before_outcome
            await granted_turn(session, "go")

    with crash_disk() as disk, pytest.raises(FAULTS):
        trio.run(work, play)
    assert len(play.effects) == 1


async def recover_and_go_on(play: Play) -> None:
    async with play.engine() as engine:
        assert len(engine.recovered.details) <= 1
        for row in await engine.sessions():
            await go_on(engine, row.id)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recovery_survives_a_crash_of_its_disk(tmp_path, kind):
    points = range(1 + KINDS.index(kind), 10_000, 29)
    assert sweep(tmp_path, recover_and_go_on, kind, points, in_doubt) > 3


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_a_recovery_survives_a_crash_at_every_operation(tmp_path, kind):
    points = range(1, 10_000)
    assert sweep(tmp_path, recover_and_go_on, kind, points, in_doubt) > 100


def test_without_a_crash_there_is_nothing_to_recover(tmp_path):
    play = Play(tmp_path)
    assert operations(whole_run, play) > 300
    assert len(play.effects) == 1
    trio.run(come_back, play)


#### A full disk


@pytest.mark.parametrize("writes", range(0, 250, 19))
async def test_a_disk_that_is_full_for_a_while_stops_one_turn_only(tmp_path, writes):
    play = Play(tmp_path)
    with crash_disk(kind="full") as disk:
        async with play.engine(CALL) as engine:
            session = await engine.create_session(workspace=play.folder)
            watch(session, play.told)
            disk.at = disk.operations + writes + 1
            try:
                outcome = (await granted_turn(session, "go")).outcome
            except (GreenroomError, BaseExceptionGroup):
                outcome = "raised"
            assert disk.crashed == (outcome != "completed")
            disk.make_room()
            assert (await go_on(engine, session.id)).outcome == "completed"
    check_tapes(play, tapes(play.state))
    assert repeated(play.effects) == []
