"""Clients of a session: they prompt, answer, cancel, look on and go away again.

Nobody waits for anything before the next thing is done, unless chance says so. What a
client is told is noted, and what it was told must hold in the end (`judge`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

import attrs
import trio
from sim.cast import History

from greenroom.actors.kernel import ActorExitedError
from greenroom.engine import (
    Deny,
    Engine,
    Grant,
    Other,
    Reply,
    SessionHandle,
    SlowWatcherError,
    TurnFailedError,
    TurnRefusedError,
    TurnResult,
)
from greenroom.protocol import (
    Answer,
    Event,
    GreenroomError,
    InteractionError,
    StatusChanged,
    StreamUpdated,
)

TYPED: Final = (TurnRefusedError, TurnFailedError, ActorExitedError, InteractionError)
"""What a client may be told while the disk works."""

CANCEL_SECONDS: Final = 5.0
PATIENCE: Final = 150
"""Rounds of answering and cancelling until everything must have come to rest."""

DEEDS: Final = {
    "prompt": 9,
    "again": 1,
    "answer": 8,
    "both answer": 3,
    "cancel": 1,
    "close": 1,
    "configure": 3,
    "compact": 2,
    "undo": 1,
    "queue": 4,
    "steer": 3,
    "follow": 2,
    "drop": 1,
    "leave": 1,
    "wait": 12,
    "step": 4,
}
ANSWERS: Final = (Grant(), Grant(), Deny("no"), Reply("a"), Other())
SETTINGS: Final = (
    {"permission_mode": "full_access"},
    {"permission_mode": "default"},
    {"max_rounds": 2},
    {"max_rounds": 50},
)


@attrs.define(eq=False)
class Notes:
    """What clients were told, over all lives."""

    turns: list[tuple[str, str, TurnResult]] = attrs.field(factory=list)
    """Session, command and result."""
    answers: list[tuple[str, str, Answer]] = attrs.field(factory=list)
    """Session, interaction and the answer that was taken."""
    watched: list[Watch] = attrs.field(factory=list)
    commands: int = 0


@attrs.define(eq=False)
class Watch:
    """What one who followed was told, from a cursor on."""

    session_id: str
    after: int
    events: list[Event] = attrs.field(factory=list)
    """The durable ones."""


@attrs.define(eq=False)
class Client:
    """One client of one session."""

    name: str
    session: SessionHandle
    engine: Engine
    chance: Random
    notes: Notes
    history: History
    is_dead: Callable[[], bool]
    nursery: trio.Nursery
    calls: list[trio.CancelScope] = attrs.field(factory=list)
    """Calls that have not come back."""
    watchers: list[trio.CancelScope] = attrs.field(factory=list)
    sent: list[str] = attrs.field(factory=list)

    async def live(self, deeds: int) -> None:
        """Do so many things, watching from the beginning."""
        self.nursery.start_soon(self._follow)
        for _ in range(deeds):
            (deed,) = self.chance.choices(tuple(DEEDS), tuple(DEEDS.values()))
            self.history.note(self.name, deed)
            await self._do(deed)

    async def _do(self, deed: str) -> None:
        match deed:
            case "prompt":
                self.notes.commands += 1
                self.sent.append(f"command {self.notes.commands}")
                self._start(self._prompt, self.sent[-1])
            case "again" if self.sent:
                self._start(self._prompt, self.chance.choice(self.sent))
            case "answer":
                self._start(self._answer)
            case "both answer":
                self._start(self._answer)
                self._start(self._answer)
            case "cancel":
                self._start(self._cancel)
            case "close":
                self._start(self.session.close)
            case "configure":
                # Several at once: they are written in a group with what a run writes.
                for _ in range(self.chance.randint(1, 4)):
                    self._start(self._configure)
            case "compact":
                self._start(self._compact)
            case "undo":
                self._start(self.session.undo_compaction)
            case "queue" | "steer":
                self._start(self._put, deed)
            case "follow":
                self.nursery.start_soon(self._follow)
            case "drop" if self.watchers:
                self.watchers.pop(0).cancel()
            case "leave" if self.calls:
                self.chance.choice(self.calls).cancel()
            case "wait":
                await trio.sleep(self.chance.random() * self.chance.choice((0.1, 1, 9)))
            case _:
                for _ in range(self.chance.randint(1, 6)):
                    await trio.lowlevel.checkpoint()

    def _start(self, fn: Callable[..., Awaitable[object]], *args: Any) -> None:
        scope = trio.CancelScope()
        self.calls.append(scope)
        self.nursery.start_soon(self._call, scope, fn, args)

    async def _call(self, scope: trio.CancelScope, fn: Any, args: Any) -> None:
        told = "left"
        try:
            with scope:
                told = f"{await fn(*args)}"
        except GreenroomError as exc:
            told = f"{type(exc).__name__} {getattr(exc, 'code', '')}"
            if not isinstance(exc, TYPED) and not self.is_dead():
                self.history.complain(f"{fn.__name__} raised {exc!r}")
        finally:
            self.calls.remove(scope)
            self.history.note(self.name, f"{fn.__name__}: {told}")

    #### Calls

    async def _prompt(self, command_id: str) -> str:
        turn = await self.session.prompt(f"go: {command_id}", command_id=command_id)
        self.notes.turns.append((self.session.id, command_id, turn))
        return f"{command_id} {turn.outcome} {turn.stop_reason}"

    async def _put(self, deed: str) -> str:
        self.notes.commands += 1
        command_id = f"command {self.notes.commands}"
        put = self.session.queue if deed == "queue" else self.session.steer
        return f"{await put(f'go: {command_id}', command_id=command_id)}"

    async def _answer(self) -> str:
        waiting = await self.session.interactions()
        if not waiting:
            return "nothing to answer"
        block = waiting[0] if self.chance.random() < 0.9 else waiting[-1]
        answer = self.chance.choice(ANSWERS)
        if self.chance.random() < 0.3:
            await trio.sleep(self.chance.random() * 0.1)
        await self.session.answer(block.id, answer)
        self.notes.answers.append((self.session.id, block.id, answer))
        return f"{block.id} {answer!r}"

    async def _cancel(self) -> str:
        started, run = trio.current_time(), self._run()
        await self.session.cancel()
        took = trio.current_time() - started
        if took > CANCEL_SECONDS:
            self.history.complain(f"law 6: a cancel took {took:.3f} s")
        if run is not None and run == self._run() and not self.is_dead():
            self.history.complain(f"law 6: run {run} goes on after its cancel")
        return f"{run} after {took:.6f}"

    def _run(self) -> str | None:
        loaded = self.session._sessions.loaded(self.session.id)
        if loaded is None or loaded.hub.state != "generating":
            return None
        return loaded.hub.run_id

    async def _configure(self) -> str:
        changes = self.chance.choice(SETTINGS)
        await self.session.configure(**changes)
        return str(changes)

    async def _compact(self) -> str:
        done = await self.session.compact()
        return f"{done.outcome} {done.why}"

    async def _follow(self) -> None:
        with trio.CancelScope() as scope:
            self.watchers.append(scope)
            try:
                async with self.session.follow() as feed:
                    assert feed.snapshot is not None
                    watch = Watch(self.session.id, feed.snapshot.seq)
                    self.notes.watched.append(watch)
                    async for event in feed:
                        self._see(watch, event)
            except (SlowWatcherError, GreenroomError) as exc:
                self.history.note(self.name, f"stopped watching: {exc!r}")

    def _see(self, watch: Watch, event: Event) -> None:
        if not isinstance(event, StreamUpdated | StatusChanged):
            watch.events.append(event)
            self.history.note(self.name, f"sees {type(event).__name__} {event.seq}")

    #### Rest

    async def come_to_rest(self) -> None:
        """Answer or cancel until nothing is left; every call must have come back."""
        for _ in range(PATIENCE):
            open_questions = await self.session.interactions()
            if not (self.calls or open_questions or self._run()):
                return
            if self.chance.random() < 0.25:
                self._start(self._cancel)
            elif open_questions or self._run():
                self._start(self._answer)
            else:
                # What was sent before an answer "other" waits for a message of the
                # user's own (INT-09).
                await self._do("prompt")
            await trio.sleep(1 + self.chance.random())
        self.history.complain(
            f"{self.name} never came to rest: {len(self.calls)} calls wait"
        )
