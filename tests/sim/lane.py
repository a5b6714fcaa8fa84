"""The store's lane as the simulation has it: late, in groups, and overheard.

The engine's own writer has a thread, so commits take time and other tasks run
meanwhile. Here a task does the same on the simulated clock: what is submitted waits
for chance, is committed with whatever else waits, and is told a little later still.
Like the writer's, a piece that was taken can't be taken back by a cancel.

What is told as durable is noted: nothing of it may be missing after a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

import attrs
import outcome
import trio

from greenroom.engine import Engine
from greenroom.protocol import JournalRecord, StorageError, journal_fact
from greenroom.storage import (
    SESSION_CONFIGURED,
    Appended,
    Grant,
    Piece,
    Posted,
    Receipt,
    Settled,
)
from greenroom.testing import CrashDisk

MAX_PIECES: Final = 3_000
"""More than any life needs; the engine goes round in circles."""

Settling = Callable[[Settled], object]


class LivelockError(Exception):
    """The engine writes and writes."""


@attrs.define(eq=False)
class Told:
    """What was said to be durable, over all lives of a state folder."""

    facts: dict[tuple[str, str], str] = attrs.field(factory=dict)
    """Payloads by session and provenance key."""
    commands: list[tuple[str, str]] = attrs.field(factory=list)
    """Commands that were taken in: session and command."""
    listed: set[str] = attrs.field(factory=set)
    """Sessions that were made whole: there were settings."""

    def take(self, ear: Ear) -> None:
        """Add what *ear* heard, which is on disk now."""
        for scope in ear.forgotten:
            self.facts = {k: v for k, v in self.facts.items() if k[0] != scope}
            self.commands = [each for each in self.commands if each[0] != scope]
        self.facts |= ear.facts
        self.commands += ear.commands
        self.listed |= {scope for scope, key in ear.facts if SESSION_CONFIGURED in key}


@attrs.define(eq=False)
class Ear:
    """A store that notes what is written through it, until it is committed."""

    store: Any
    facts: dict[tuple[str, str], str] = attrs.field(factory=dict)
    commands: list[tuple[str, str]] = attrs.field(factory=list)
    forgotten: list[str] = attrs.field(factory=list)
    """Sessions whose tape was begun anew, or deleted."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def append(self, grant: Any, head: int, facts: Any, *args: Any, **rest: Any) -> Any:
        result = self.store.append(grant, head, facts, *args, **rest)
        self._hear(grant.scope, facts, result)
        return result

    def reset(self, grant: Grant, head: int, facts: Any, **rest: Any) -> Any:
        result = self.store.reset(grant, head, facts, **rest)
        if isinstance(result, Appended):
            self.forgotten.append(grant.scope)
            self._hear(grant.scope, facts, result)
        return result

    def delete(self, grant: Grant, head: int) -> Any:
        refused = self.store.delete(grant, head)
        if refused is None:
            self.forgotten.append(grant.scope)
        return refused

    def _hear(self, scope: str, facts: Any, result: Any) -> None:
        if isinstance(result, Appended):
            new = [f for f, made in zip(facts, result.created, strict=True) if made]
            self.facts |= {(scope, fact.key): fact.payload for fact in new}

    def commit(self, grant: Any, head: int, record: JournalRecord, **rest: Any) -> Any:
        result = self.store.commit(grant, head, record, **rest)
        if isinstance(result, Receipt):
            fact = journal_fact(record)
            self.facts[grant.scope, fact.key] = fact.payload
        return result

    def post(self, scope: str, command_id: str, body: str, **rest: Any) -> Any:
        result = self.store.post(scope, command_id, body, **rest)
        if isinstance(result, Posted):
            self.commands.append((scope, command_id))
        return result


@attrs.define(eq=False)
class Lane:
    """Commits pieces for one engine; `work` is its task."""

    chance: Random
    disk: CrashDisk
    told: Told
    failed: Callable[[], None]
    """Called when the disk has failed."""
    pace: float
    """Seconds that a commit takes at most."""
    _store: Any = None
    _jobs: list[tuple[Piece, Settling]] = attrs.field(factory=list)
    _parked: trio.lowlevel.Task | None = None
    _is_closed: bool = False
    _pieces: int = 0

    def serve(self, engine: Engine) -> Any:
        """Take over the writes of *engine*, which has no session yet.

        Returns its store, to be read only.
        """
        self._store = engine._world.writer._store  # type: ignore[attr-defined]
        engine._world = attrs.evolve(engine._world, writer=self)
        engine._sessions.world = engine._world
        return self._store

    #### What the engine sees: a PieceWriter

    async def submit(
        self, piece: Piece, told: Callable[[Any], object] | None = None
    ) -> Any:
        await trio.lowlevel.checkpoint_if_cancelled()
        task = trio.lowlevel.current_task()

        def resume(settled: Settled) -> None:
            if told is not None and settled.error is None:
                told(settled.value)
            trio.lowlevel.reschedule(task, _as_outcome(settled))

        self.submit_soon(piece, resume)
        return await trio.lowlevel.wait_task_rescheduled(_refuse_abort)

    def submit_soon(self, piece: Piece, settled: Settling) -> None:
        if self._is_closed:
            settled(Settled(error=StorageError("the lane is closed")))
            return
        self._jobs.append((piece, settled))
        if self._parked is not None:
            task, self._parked = self._parked, None
            trio.lowlevel.reschedule(task)

    #### Its task

    async def work(self) -> None:
        """Commit until cancelled; whoever waits is never left waiting."""
        try:
            while True:
                await self._commit_some()
        finally:
            self._is_closed = True
            closed = Settled(error=StorageError("the lane is closed"))
            for _, settled in self._jobs:
                settled(closed)

    async def _commit_some(self) -> None:
        if not self._jobs:
            await self._park()
        await self._linger()
        size = self.chance.randint(1, len(self._jobs))
        jobs = self._jobs[:size]
        self._pieces += size
        if self._pieces > MAX_PIECES:
            raise LivelockError(f"{self._pieces} pieces, and no end of it")
        results = self._commit([piece for piece, _ in jobs])
        await self._linger()
        del self._jobs[:size]
        for (_, settled), result in zip(jobs, results, strict=True):
            settled(result)

    def _commit(self, pieces: list[Piece]) -> list[Settled]:
        ears = [Ear(None) for _ in pieces]
        heard = [_heard(piece, ear) for piece, ear in zip(pieces, ears, strict=True)]
        results = self._store.run_group(heard)
        for ear, result in zip(ears, results, strict=True):
            if result.error is None:
                self.told.take(ear)
        if self.disk.crashed:
            self.failed()
        return results

    async def _linger(self) -> None:
        match self.chance.randrange(4):
            case 0 | 1:
                await trio.sleep(self.chance.random() * self.pace)
            case 2:
                for _ in range(self.chance.randrange(4)):
                    await trio.lowlevel.checkpoint()
            case _:
                pass

    async def _park(self) -> None:
        self._parked = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._parked = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


def _heard(piece: Piece, ear: Ear) -> Piece:
    def run(store: Any) -> Any:
        ear.store = store
        return piece.run(ear)  # type: ignore[arg-type]

    return Piece(run, piece.aborted, piece.journal)


def _as_outcome(settled: Settled) -> outcome.Outcome[Any]:
    if settled.error is None:
        return outcome.Value(settled.value)
    return outcome.Error(settled.error)


def _refuse_abort(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
