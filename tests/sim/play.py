"""One seed, one history: an engine, its users, its world, and what befalls them.

A history is a few lives of an engine on one folder. Each ends by itself, is closed in
the middle of its work, or dies with its disk. Then the engine is started twice more:
the first start has to recover everything, the second finds nothing to do, everything
comes to rest, and each session takes one more prompt.
"""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from random import Random
from typing import Final

import apsw
import attrs
import trio
from kit.aftermath import tapes
from kit.determinism import run_repeatably
from sim.cast import History, World
from sim.clients import FAVOURITES, Client
from sim.estate import OTHER_PROMPT, OTHER_SKILLS, PROMPTS, SKILLS
from sim.judge import judge
from sim.lane import Lane, Told
from sim.notes import Notes
from trio.testing import MockClock

from greenroom.actors.kernel import FixedClock, SeededIds
from greenroom.engine import Engine, SessionHandle, Windows, open_engine
from greenroom.protocol import (
    GreenroomError,
    SessionId,
    SkillRecord,
    SkillState,
    with_binding,
    with_skill,
)
from greenroom.storage import Store, open_reader, open_store, put_skill_state
from greenroom.testing import CrashDisk, CrashKind, crash_disk

EPOCH: Final = 1_767_225_600.0
SESSIONS: Final = 2
MAX_OPERATIONS: Final = 400
"""The latest operation of its disk that a life dies at."""
LIFE_SECONDS: Final = 10_000.0
"""How far apart lives are on the wall clock."""
SETTLE_SECONDS: Final = 9.0
"""How long what an engine finds at its start may take to begin."""
FULL_SECONDS: Final = 20.0
"""How long a full disk stays full."""
KINDS: Final[tuple[CrashKind, ...]] = ("stop", "tear", "lose", "lose", "full")
SMALL_WINDOW: Final = 2_000
"""Tokens of the other agent's model: histories are compacted for want of room."""
FAULTS: Final = (GreenroomError, apsw.Error, ExceptionGroup)
"""What an engine whose disk has crashed ends with, one way or the other."""


@attrs.frozen
class Life:
    """What one life of the engine is to be."""

    clients: int
    deeds: int
    """How much each of the clients does."""
    dies_at: int | None
    kind: CrashKind
    rests: bool
    """It is closed when everything is done, and not before."""
    pace: float
    favours: tuple[str, ...]


@attrs.frozen
class Verdict:
    """What came of one seed."""

    seed: int
    lines: tuple[str, ...]
    """The history, the tapes at its end included."""
    problems: tuple[str, ...]
    deaths: int
    effects: int
    turns: int


@attrs.define(eq=False)
class Story:
    """One history while it happens."""

    seed: int
    folder: Path
    history: History = attrs.field(factory=History)
    notes: Notes = attrs.field(factory=Notes)
    told: Told = attrs.field(factory=Told)
    world: World = attrs.field(init=False)
    lives: int = 0
    deaths: int = 0

    def __attrs_post_init__(self) -> None:
        self.world = World(self.chance("world"), self.history)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def chance(self, of: str) -> Random:
        """Return a stream of chance of its own; text seeds it alike everywhere."""
        return Random(f"{self.seed}/{of}/{self.lives}")

    def engine(self) -> AbstractAsyncContextManager[Engine]:
        """Open an engine as the only member of the folder."""
        return open_engine(
            state=self.state,
            provider=self.world.provider(),
            tools=self.world.tools(),
            builtin=False,
            environment={},
            clock=FixedClock(EPOCH + self.lives * LIFE_SECONDS),
            ids=SeededIds(self.seed * 16 + self.lives),
            threads=False,
            gc_thresholds=False,
            idle_seconds=30.0 if self.seed % 2 else None,
            windows=Windows({"another": SMALL_WINDOW}),
            hooks=[self.world.hook()],
        )


def make_template(folder: Path) -> Path:
    """Make a state with sessions in *folder*, to be copied; return its folder."""

    async def fill() -> None:
        async with open_engine(
            state=folder,
            builtin=False,
            clock=FixedClock(EPOCH - LIFE_SECONDS),
            ids=SeededIds(0),
            threads=False,
            gc_thresholds=False,
        ) as engine:
            await engine.agents.update("default", _agent("default"))
            other = await engine.agents.create("other", config=_agent("other"))
            sessions = [
                await engine.create_session(workspace="/") for _ in range(SESSIONS)
            ]
        with closing(open_store(folder)) as store:
            _select_skills(store, other, [session.id for session in sessions])

    # Its clock stands still: the same entries every time.
    trio.run(fill, clock=MockClock())
    return folder


def _agent(agent_id: str) -> dict[str, object]:
    model = "default" if agent_id == "default" else "another"
    return {
        "systemPrompt": PROMPTS.get(agent_id, OTHER_PROMPT),
        "defaultModel": {"provider": "rehearsal", "model": model},
    }


def _select_skills(store: Store, other: str, sessions: list[SessionId]) -> None:
    state = SkillState()
    for name in sorted(SKILLS["default"]):
        state = with_skill(state, SkillRecord(name=name, path=name, source="x"))
        state = with_binding(state, "default", name, assigned=True)
        if name in OTHER_SKILLS:
            state = with_binding(state, other, name, assigned=True)
    put_skill_state(store, state, 0.0)
    for session in sessions:
        store.put_skill_selection(session, sorted(SKILLS["default"]))


def play(
    seed: int,
    template: Path,
    folder: Path,
    favours: tuple[str, ...] = (),
    *,
    history: bool = False,
) -> Verdict:
    """Play *seed* in *folder*, which must not exist, and return what came of it.

    What is in *favours* happens more often: deeds of clients, ``fault`` of the model,
    ``death``; without any, what chance favours. With *history* the tapes are told.
    """
    story = Story(seed, folder)
    shutil.copytree(template, story.state)
    lines: list[str] = []
    try:
        for life in _plan(story.chance("plan"), favours):
            _live(story, life)
        _finish(story)
        if history:
            lines = _written(story.state)
    except Exception as exc:
        story.history.complain("".join(traceback.format_exception(exc)))
    finally:
        shutil.rmtree(folder)
    return Verdict(
        seed,
        (*story.history.lines, *lines),
        tuple(story.history.problems),
        story.deaths,
        len(story.world.effects),
        len(story.notes.turns),
    )


def _plan(chance: Random, favours: tuple[str, ...]) -> list[Life]:
    return [_life(chance, favours) for _ in range(chance.choice((1, 1, 1, 2, 2, 3)))]


def _life(chance: Random, favours: tuple[str, ...]) -> Life:
    dies = chance.random() < 0.5 or "death" in favours
    # An early death is one in the recovery of the life before.
    latest = chance.choice((40, MAX_OPERATIONS, MAX_OPERATIONS))
    return Life(
        # What is looked for happens to somebody in every life.
        clients=chance.randint(2 if favours else 1, 3),
        deeds=chance.randint(9 if favours else 3, 15 if favours else 12),
        dies_at=chance.randint(1, latest) if dies else None,
        kind=chance.choice(KINDS),
        rests=chance.random() < 0.6,
        pace=chance.choice((0.001, 0.02, 0.2)),
        favours=favours or tuple(chance.sample((*FAVOURITES, "fault"), 2)),
    )


#### One life


def _live(story: Story, life: Life) -> None:
    story.lives += 1
    story.history.lines.append(f"LIFE {story.lives} {life}")
    story.world.faulty = "fault" in life.favours
    seed = story.seed * 16 + story.lives
    with crash_disk(life.dies_at, life.kind, seed=seed) as disk:
        try:
            run_repeatably(seed, _life_of, story, life, disk)
        except FAULTS as exc:
            if not disk.crashed:
                raise
            story.history.lines.append(f"the engine ended with {exc!r}")
    disk.restore()
    if life.dies_at is not None and disk.operations >= life.dies_at:
        story.deaths += 1
        story.history.lines.append("DEATH")


async def _life_of(story: Story, life: Life, disk: CrashDisk) -> None:
    async with trio.open_nursery() as nursery:
        end = trio.CancelScope()
        chance = story.chance("lane")
        filled = trio.Event()
        failed = filled.set if disk.kind == "full" else end.cancel
        lane = Lane(chance, disk, story.told, failed, life.pace)
        nursery.start_soon(lane.work)
        nursery.start_soon(_make_room, disk, filled)
        async with story.engine() as engine:
            story.world.reader = lane.serve(engine)
            with end:
                await _be_busy(story, life, engine, lambda: disk.crashed)
        nursery.cancel_scope.cancel()


async def _make_room(disk: CrashDisk, filled: trio.Event) -> None:
    await filled.wait()
    await trio.sleep(FULL_SECONDS)
    disk.make_room()


async def _be_busy(
    story: Story, life: Life, engine: Engine, is_dead: Callable[[], bool]
) -> None:
    rows = sorted(await engine.sessions(), key=lambda row: row.id)
    ids = [row.id for row in rows]
    story.notes.first = story.notes.first or set(ids)
    if not ids:
        ids = [(await engine.create_session(workspace="/")).id]
    async with trio.open_nursery() as nursery:
        crowd = [
            Client(
                f"client-{number}",
                engine.session(ids[number % len(ids)]),
                engine,
                story.chance(f"client-{number}"),
                story.notes,
                story.history,
                is_dead,
                nursery,
                favours=life.favours,
            )
            for number in range(life.clients)
        ]
        async with trio.open_nursery() as busy:
            for client in crowd:
                busy.start_soon(client.live, life.deeds)
        if life.rests:
            for client in crowd:
                await client.come_to_rest()
        nursery.cancel_scope.cancel()


#### The end


def _finish(story: Story) -> None:
    story.lives += 1
    seed = story.seed * 16 + story.lives
    with crash_disk():
        run_repeatably(seed, _recover, story)
    with closing(open_reader(story.state)) as reader:
        before = dict(reader.heads(reader.scopes()))
    with crash_disk() as disk:
        run_repeatably(seed, _rest, story, disk, before)
    with closing(open_reader(story.state)) as reader:
        for problem in judge(
            reader, story.world, story.told, story.notes, died=story.deaths > 0
        ):
            story.history.complain(problem)


async def _recover(story: Story) -> None:
    async with story.engine() as engine:
        story.history.note("recovery", engine.recovered.details)


async def _rest(story: Story, disk: CrashDisk, before: dict[SessionId, int]) -> None:
    story.world.calm = True
    async with trio.open_nursery() as nursery:
        told = story.told
        lane = Lane(story.chance("lane"), disk, told, lambda: None, 0.001)
        nursery.start_soon(lane.work)
        async with story.engine() as engine:
            found, reader = engine.recovered, lane.serve(engine)
            wrote = dict(reader.heads(list(before))) != before
            if found.runs or found.messages or wrote:
                story.history.complain(f"law 12: the second start recovered {found}")
            story.world.reader = reader
            for row in sorted(await engine.sessions(), key=lambda row: row.id):
                await _take_next_prompt(story, engine, row.id)
        nursery.cancel_scope.cancel()
    if story.world.active:
        story.history.complain(f"{story.world.active} streams were left open")


async def _take_next_prompt(story: Story, engine: Engine, session_id: str) -> None:
    session = engine.session(session_id)
    async with trio.open_nursery() as nursery:
        client = Client(
            "last",
            session,
            engine,
            story.chance("last"),
            story.notes,
            story.history,
            lambda: False,
            nursery,
        )
        # Loaded, so that what waits in its inbox is worked on; without a limit, so
        # that nothing asks once more.
        await session.configure(turn_budget=None, session_budget=None)
        await trio.sleep(SETTLE_SECONDS)
        await client.come_to_rest()
        nursery.cancel_scope.cancel()
    # What an answer "other" had held back comes between the two (INT-09), or behind.
    for text in ("next", "last")[: 1 + story.seed % 2]:
        with trio.move_on_after(600) as scope:
            await _prompt(story, session, text)
        if scope.cancelled_caught:
            story.history.complain(f"the {text} prompt never ended")
    await trio.sleep(SETTLE_SECONDS)
    if rows := await session.inputs():
        story.history.complain(f"PIN-08: after the last turn there waits {rows}")


async def _prompt(story: Story, session: SessionHandle, text: str) -> None:
    try:
        turn = await session.prompt(text, command_id=text)
    except GreenroomError as exc:
        story.history.complain(f"the {text} prompt was refused: {exc!r}")
        return
    if (turn.outcome, turn.text) != ("completed", "fine"):
        story.history.complain(f"the {text} prompt ended {turn.outcome}: {turn.error}")


def _written(state: Path) -> list[str]:
    return [
        f"{scope} {entry.seq} {entry.fact.name} {entry.created_at} {entry.fact.payload}"
        for scope, tape in sorted(tapes(state).items())
        for entry in tape
    ]
