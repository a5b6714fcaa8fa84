"""Clients of a session: they prompt, answer, cancel, look on and go away again.

What they do with input that waits is in `inputs`, with whole sessions in `lifecycle`.

Nobody waits for anything before the next thing is done, unless chance says so. What a
client is told is noted, and what it was told must hold in the end (`judge`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

import attrs
import trio
from sim import inputs, lifecycle
from sim.cast import History
from sim.notes import Notes, Watch

from greenroom.actors.sessions import RewindRefusedError
from greenroom.engine import (
    BeingDeletedError,
    Budget,
    Deny,
    Engine,
    Grant,
    InputRefusedError,
    MessageNotFoundError,
    Other,
    Reply,
    SessionClosedError,
    SessionHandle,
    SessionHeldError,
    SessionNotFoundError,
    SlowWatcherError,
    StillUsedError,
    TransferRefusedError,
    TurnFailedError,
    TurnRefusedError,
)
from greenroom.protocol import (
    ActionBlock,
    Answer,
    Event,
    GreenroomError,
    InteractionError,
    StatusChanged,
    StreamUpdated,
)

TYPED: Final = (
    TurnRefusedError,
    TurnFailedError,
    SessionClosedError,
    InteractionError,
    InputRefusedError,
    RewindRefusedError,
    TransferRefusedError,
    MessageNotFoundError,
    SessionNotFoundError,
    BeingDeletedError,
    StillUsedError,
    SessionHeldError,
)
"""What a client may be told while the disk works."""

CANCEL_SECONDS: Final = 5.0
PATIENCE: Final = 150
"""Rounds of answering and cancelling until everything must have come to rest."""

DEEDS: Final = {
    "prompt": 9,
    "again": 2,
    "queue": 6,
    "steer": 5,
    "change": 6,
    "release": 1,
    "answer": 8,
    "both answer": 3,
    "cancel": 1,
    "close": 1,
    "configure": 3,
    "compact": 2,
    "undo": 1,
    "fork": 1,
    "move": 2,
    "archive": 1,
    "rewind": 2,
    "clear": 1,
    "delete": 1,
    "follow": 2,
    "drop": 1,
    "leave": 1,
    "wait": 14,
    "step": 5,
}
FAVOURITES: Final = (
    "queue",
    "steer",
    "change",
    "cancel",
    "configure",
    "compact",
    "undo",
    "fork",
    "move",
    "rewind",
    "delete",
)
"""What all clients of a life may do more often: what meets rarely meets then."""
FAVOUR: Final = 6
ANSWERS: Final = (Grant(), Grant(), Deny("no"), Reply("a"), Other())
BUDGET_ANSWERS: Final = (Reply("raise"), Reply("raise"), Reply("stop"), Other())
SETTINGS: Final = (
    {"permission_mode": "full_access"},
    {"permission_mode": "default"},
    {"max_rounds": 2},
    {"max_rounds": 50},
    {"turn_budget": Budget(tokens=9)},
    {"session_budget": Budget(tokens=40)},
    {"turn_budget": None, "session_budget": None},
)
SIMPLE: Final = {
    "change": inputs.change,
    "release": inputs.release,
    "fork": lifecycle.fork,
    "move": lifecycle.move,
    "archive": lifecycle.archive,
    "rewind": lifecycle.rewind,
    "clear": lifecycle.clear,
    "delete": lifecycle.delete,
}
"""Deeds that are calls with nothing to be told."""
BETWEEN: Final = (lifecycle.rewind, lifecycle.rewind, lifecycle.clear)
"""What may come while a compaction goes on."""


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
    visited: list[SessionHandle] = attrs.field(factory=list)
    """Where there may be calls of this client."""
    favours: tuple[str, ...] = ()
    """Deeds that are done more often than others."""
    sent: list[tuple[str, str, str]] = attrs.field(factory=list)
    """Where each command was sent, how, and its id."""

    def __attrs_post_init__(self) -> None:
        self.visited.append(self.session)

    @property
    def _weights(self) -> list[int]:
        return [
            weight * FAVOUR if deed in self.favours else weight
            for deed, weight in DEEDS.items()
        ]

    def go_to(self, session: SessionHandle) -> None:
        """Work with another session from now on."""
        self.session = session
        self.visited.append(session)

    async def live(self, deeds: int) -> None:
        """Do so many things, watching from the beginning."""
        self.nursery.start_soon(self._follow)
        for _ in range(deeds):
            (deed,) = self.chance.choices(tuple(DEEDS), self._weights)
            self.history.note(self.name, deed)
            await self._do(deed)

    async def _do(self, deed: str) -> None:
        match deed:
            case "prompt" | "queue" | "steer":
                self.sent.append((self.session.id, deed, self.notes.command()))
                self._send(*self.sent[-1][1:])
            case "again" if here := [s for s in self.sent if s[0] == self.session.id]:
                self._send(*self.chance.choice(here)[1:])
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
                if self.chance.random() < 0.5:
                    self._start(self._come_between)
            case "undo":
                self._start(self.session.undo_compaction)
            case "follow":
                self.nursery.start_soon(self._follow)
            case "drop" if self.watchers:
                self.watchers.pop(0).cancel()
            case "leave" if self.calls:
                self.chance.choice(self.calls).cancel()
            case _ if deed in SIMPLE:
                self._start(SIMPLE[deed], self)
            case "wait":
                await trio.sleep(self.chance.random() * self.chance.choice((0.1, 1, 9)))
            case _:
                for _ in range(self.chance.randint(1, 6)):
                    await trio.lowlevel.checkpoint()

    def _send(self, how: str, command_id: str) -> None:
        if how == "prompt":
            self._start(self._prompt, command_id)
        else:
            self._start(inputs.put, self, how, command_id)

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
        session = self.session
        turn = await session.prompt(f"go: {command_id}", command_id=command_id)
        self.notes.turns.append((session.id, command_id, turn))
        return f"{command_id} {turn.outcome} {turn.stop_reason}"

    async def _answer(self) -> str:
        session = self.session
        waiting = await session.interactions()
        if not waiting:
            return "nothing to answer"
        block = waiting[0] if self.chance.random() < 0.9 else waiting[-1]
        answer = self._choose_answer(block)
        if self.chance.random() < 0.3:
            await trio.sleep(self.chance.random() * 0.1)
        await session.answer(block.id, answer)
        self.notes.answers.append((session.id, block.id, answer))
        return f"{block.id} {answer!r}"

    def _choose_answer(self, block: ActionBlock) -> Answer:
        is_budget = block.origin == "budget" and self.chance.random() < 0.8
        return self.chance.choice(BUDGET_ANSWERS if is_budget else ANSWERS)

    async def _cancel(self) -> str:
        session = self.session
        started, run = trio.current_time(), self._run(session)
        await session.cancel()
        took = trio.current_time() - started
        if took > CANCEL_SECONDS:
            self.history.complain(f"law 6: a cancel took {took:.3f} s")
        if run is not None and run == self._run(session) and not self.is_dead():
            self.history.complain(f"law 6: run {run} goes on after its cancel")
        return f"{run} after {took:.6f}"

    def _run(self, session: SessionHandle) -> str | None:
        loaded = session._sessions.loaded(session.id)
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

    async def _come_between(self) -> str:
        await trio.sleep(self.chance.random() * 2)
        return await self.chance.choice(BETWEEN)(self)

    async def _follow(self) -> None:
        with trio.CancelScope() as scope:
            self.watchers.append(scope)
            try:
                session = self.session
                async with session.follow() as feed:
                    assert feed.snapshot is not None
                    watch = Watch(session.id, feed.snapshot.seq)
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

    async def _is_busy(self, session: SessionHandle) -> bool:
        return bool(await session.interactions() or self._run(session))

    async def come_to_rest(self) -> None:
        """Answer or cancel until nothing is left; every call must have come back."""
        for _ in range(PATIENCE):
            busy = [session for session in self.visited if await self._is_busy(session)]
            if not (self.calls or busy):
                return
            self.session = self.chance.choice(busy or self.visited)
            if self.chance.random() < 0.25:
                self._start(self._cancel)
            elif busy:
                self._start(self._answer)
            else:
                # What was sent before an answer "other" waits for a message of the
                # user's own (INT-09).
                await self._do("prompt")
            await trio.sleep(1 + self.chance.random())
        self.history.complain(
            f"{self.name} never came to rest: {len(self.calls)} calls wait"
        )
