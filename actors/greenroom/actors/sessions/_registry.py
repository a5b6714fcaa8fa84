"""The sessions that are loaded, and how one is.

At most one actor for each session in this process (SES-03): concurrent opens join the
same loading. Loading takes the session's grant first, so that nobody else writes it;
reads that only look never load anything (SES-05).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import attrs
import msgspec
import trio

from greenroom.actors.context import (
    Beginning,
    SessionViews,
)
from greenroom.actors.gates import Gates
from greenroom.actors.kernel import CancelCause, Ref
from greenroom.actors.logs import of_session
from greenroom.actors.providers import Provider
from greenroom.actors.tools import ToolContext
from greenroom.protocol import (
    MessageRecord,
    Parts,
    RunId,
    SessionId,
    SessionLoaded,
    SessionSettings,
    SessionUnloaded,
    StorageError,
    revisions,
    tool_layer_mode,
)
from greenroom.storage import (
    FencedError,
    Grant,
    Held,
    MemberLost,
    Piece,
    SessionRecovery,
    Tape,
    bootstrap_facts,
    message_fact,
    recover_session,
)

from ._actor import SessionActor
from ._attachments import Attachments, image_reasons
from ._earlier import Earlier, ReadBefore, read_earlier
from ._history import History
from ._hub import Hub
from ._record import SessionRecord
from ._session import Session
from ._stored import open_turn, read_session
from ._turn import SessionPorts, Turn
from ._turns import give_up, merged, unresolved
from ._waiting import Waiting
from ._watchdog import Watchdog
from ._world import SessionHeldError, SessionNotFoundError, SessionWorld

_LOG: Final = logging.getLogger("greenroom.sessions")

STOP_SECONDS: Final = 5.0
"""How long the stop of a session, or of its turn, is waited for."""

DELETED_WHILE_PAUSED: Final = "not executed: the session was deleted"


def _let() -> None:
    pass


@attrs.frozen
class Loaded:
    """A session in this process."""

    ref: Ref[Any]
    session: Session
    hub: Hub


@final
@attrs.define(eq=False)
class Sessions:
    """Opens sessions and knows the loaded ones."""

    world: SessionWorld
    start: Callable[[str, SessionActor | Watchdog], Ref[Any]]
    """Starts a session actor under the sessions' supervisor."""
    _loaded: dict[SessionId, Loaded] = attrs.field(
        factory=dict[SessionId, Loaded], init=False
    )
    _opening: dict[SessionId, trio.Event] = attrs.field(
        factory=dict[SessionId, trio.Event], init=False
    )
    _hubs: dict[SessionId, Hub] = attrs.field(factory=dict[SessionId, Hub], init=False)
    gates: Gates = attrs.field(factory=lambda: Gates("session"), init=False)
    """One for each session's id, shut while it is deleted (DEL-02)."""
    check_open: Callable[[], None] = attrs.field(default=_let, init=False)
    """Raises while no session may be made or loaded."""
    _version: int = attrs.field(default=0, init=False)
    """The highest status version of the hubs that were forgotten."""
    watchdog: Watchdog = attrs.field(init=False)
    """Of the preparations of turns (SES-20)."""

    def __attrs_post_init__(self) -> None:
        self.watchdog = Watchdog(self.world.clock.monotonic)
        self.watchdog.start(self.start)

    def loaded(self, session_id: SessionId) -> Loaded | None:
        """Return the session if it is loaded; never loads it."""
        found = self._loaded.get(session_id)
        if found is not None and found.ref.exited:
            self._forget(session_id)
            return None
        return found

    @property
    def all_loaded(self) -> list[Loaded]:
        """Every session that is loaded."""
        found = map(self.loaded, list(self._loaded))
        return [loaded for loaded in found if loaded is not None]

    @property
    def opening(self) -> list[SessionId]:
        """The sessions that are being loaded."""
        return list(self._opening)

    def hub(self, session_id: SessionId) -> Hub:
        """Return the session's hub, loaded or not.

        Its versions go on above those of every hub that was forgotten, in this process
        and in those before it, so that a client never takes news for old (SES-22).
        """
        hub = self._hubs.get(session_id)
        if hub is None:
            # Nothing of a status is stored. A clock in milliseconds runs ahead of
            # whatever counts changes of a status, and is a safe integer everywhere.
            begun = max(self._version, int(self.world.clock.now() * 1_000))
            hub = self._hubs[session_id] = Hub(session_id, version=begun)
        return hub

    def release_hub(self, session_id: SessionId) -> None:
        """Forget a hub that nobody watches and no actor uses."""
        if self.loaded(session_id) is None:
            self._forget_hub(session_id)

    def end_hub(self, session_id: SessionId) -> None:
        """End what watches a session that is gone."""
        hub = self._hubs.get(session_id)
        if hub is not None:
            hub.close()
            self.release_hub(session_id)

    async def create(self, settings: SessionSettings) -> Loaded:
        """Make a session: its tape, its first facts, its actor."""
        self.check_open()
        session_id = SessionId(self.world.ids.uuid())
        grant = await self.acquire(session_id)
        incarnation = self.world.ids.uuid()
        facts = bootstrap_facts(incarnation, settings)
        record = self._record(grant, grant.head)
        try:
            await record.append(
                facts, before=lambda store: self.world.require(store, settings.agent_id)
            )
        except BaseException:
            self._forget_hub(session_id)
            await self.undo(record.tape)
            raise
        begun = Beginning(incarnation)
        history = History([], chosen=self.world.view_policy)
        return self._start(record, settings, history, None, begun, Waiting())

    async def open(self, session_id: SessionId) -> Loaded:
        """Return the session's actor, loading it if it is not.

        Raises:
            SessionNotFoundError: there is none.
            SessionHeldError: another engine owns it.
            BeingDeletedError: it is being deleted.
        """
        self.check_open()
        with self.gates.operation(session_id):
            while True:
                found = self.loaded(session_id)
                if found is not None and not found.session.leaving:
                    return found
                if found is not None:
                    await found.ref.wait_exited()
                    continue
                opening = self._opening.get(session_id)
                if opening is None:
                    return await self._open(session_id)
                await opening.wait()

    async def close(self, session_id: SessionId) -> None:
        """Stop and unload the session if it is loaded, in 5 s at most (SES-09)."""
        found = self.loaded(session_id)
        if found is not None:
            found.ref.stop(CancelCause.USER_STOP)
            with trio.move_on_after(STOP_SECONDS):
                await found.ref.wait_exited()

    async def end_interactions(self, grant: Grant, head: int) -> int:
        """End what waits for an answer in a session that goes, and return its head.

        Whoever watches is told, though no actor is there any more (INT-14).

        Raises:
            StorageError: nothing was written.
        """
        # Behind it there may be what the user said to its turn.
        newest = await self.world.readers.read(
            lambda reader: reader.messages(grant.scope, None, 1, "assistant")
        )
        if not newest or not unresolved(newest[0]):
            return head
        message = msgspec.structs.replace(newest[0], updated_at=self.world.clock.now())
        changed = give_up(message, DELETED_WHILE_PAUSED, "deleted")
        record = self._record(grant, head)
        ended = revisions(merged(message, changed), changed)
        await record.append([message_fact(each) for each in ended])
        return record.tape.head

    async def until_opened(self, session_id: SessionId) -> None:
        """Return when nobody loads the session any more."""
        await trio.lowlevel.checkpoint()
        while (opening := self._opening.get(session_id)) is not None:
            await opening.wait()

    async def _open(self, session_id: SessionId) -> Loaded:
        done = self._opening[session_id] = trio.Event()
        try:
            return await self._load(session_id)
        finally:
            # Who waited looks again: at the loaded session, or tries on its own.
            del self._opening[session_id]
            done.set()

    async def _load(self, session_id: SessionId) -> Loaded:
        found = await self.world.readers.read(lambda r: r.session(session_id))
        if found is None:
            raise SessionNotFoundError(session_id)
        await self.world.admit(found.settings.agent_id)
        grant = await self.acquire(session_id)
        try:
            head = await self._recover(grant)
            row, newest, plan, begun, waiting = await self.world.readers.read(
                lambda reader: read_session(reader, session_id)
            )
            record = self._record(grant, head)
            await self._reconcile(record, row.settings, newest)
        except BaseException:
            await self.release(grant)
            raise
        record.plan = plan
        turn = open_turn(newest)
        history = History(
            newest,
            self._read_before(session_id),
            boundary=begun.boundary,
            chosen=self.world.view_policy,
            pressed=begun.pressed,
        )
        return self._start(record, row.settings, history, turn, begun, waiting)

    def _read_before(self, session_id: SessionId) -> ReadBefore:
        async def read(order: int | None) -> Earlier:
            return await self.world.readers.read(
                lambda reader: read_earlier(reader, session_id, order)
            )

        return read

    async def _reconcile(
        self,
        record: SessionRecord,
        settings: SessionSettings,
        newest: list[MessageRecord],
    ) -> None:
        # Only of the newest message: what came before, the model has read as it was.
        world, context = self.world, self._context(record)
        if not newest:
            return
        known = await world.backend.reconcile(
            newest[-1],
            world.tools(),
            lambda run_id: context(settings, run_id),
            world.system.reaper,
            world.clock.now(),
        )
        if known is not None:
            await record.append(known.facts)
            newest[-1] = known.message

    def _start(
        self,
        record: SessionRecord,
        settings: SessionSettings,
        history: History,
        turn: Turn | None,
        begun: Beginning,
        waiting: Waiting,
    ) -> Loaded:
        world = self.world
        session_id = record.session_id
        ports = SessionPorts(
            record,
            world.backend,
            world.providers,
            world.tools,
            self._context(record),
            lambda: self._forget(session_id),
            gates=world.gates,
            cost=world.cost,
            views=SessionViews(
                session_id,
                begun.incarnation,
                world.windows,
                world.clock.now,
                world.view_policy,
            ),
            tell_hooks=world.tell_hooks,
            prepare=world.prepare,
            contribute=world.contribute,
            compaction=world.compaction,
            turn_settled=world.turn_settled,
            preparing=partial(self.watchdog.at, session_id),
            attachments=_attachments(world.providers),
        )
        session = Session(
            session_id,
            settings,
            history,
            ports,
            record.hub,
            turn,
            waiting.inputs,
            list(waiting.steered),
            idle_seconds=world.idle_seconds,
        )
        if turn is None and record.hub.state == "generating":
            # It was looked at when it waited for an answer, and does no more.
            record.hub.status("idle")
        ref = self.start(session_id, SessionActor(session))
        loaded = Loaded(ref, session, record.hub)
        self._loaded[session_id] = loaded
        world.tell_hooks(SessionLoaded(session_id=session_id))
        return loaded

    def _record(self, grant: Grant, head: int) -> SessionRecord:
        world, hub = self.world, self.hub(grant.scope)
        tape = Tape(grant, head)
        return SessionRecord(grant.scope, tape, world.writer, hub, world.clock)

    def _context(
        self, record: SessionRecord
    ) -> Callable[[SessionSettings, RunId], ToolContext]:
        world = self.world

        def make(settings: SessionSettings, run_id: RunId) -> ToolContext:
            return ToolContext(
                session_id=record.session_id,
                run_id=run_id,
                workspace=Path(settings.workspace),
                permission_mode=tool_layer_mode(settings.permission_mode),
                scratch=world.scratch / record.session_id,
                environment=world.environment,
                inline_chars=world.inline_chars,
            )

        return make

    async def acquire(self, session_id: SessionId) -> Grant:
        """Take the session, be it loaded here, which its actor then lost.

        Raises:
            SessionHeldError: another engine owns it.
            StorageError: this engine was declared dead.
        """
        member, now = self.world.member, self.world.clock.now()
        got: Grant | Held | MemberLost = await self.world.writer.submit(
            Piece(lambda store: store.acquire(member, session_id, now=now))
        )
        match got:
            case Held(owner=owner):
                raise SessionHeldError(session_id, owner)
            case MemberLost():
                raise StorageError(
                    "this engine was declared dead and may own nothing any more",
                    hint="close it and open a new one; nothing that was told is lost",
                )
            case Grant():
                return got

    async def _recover(self, grant: Grant) -> int:
        # What a crash left of this very session; most of the time nothing.
        now = self.world.clock.now()
        found: SessionRecovery = await self.world.writer.submit(
            Piece(lambda store: recover_session(store, grant, now))
        )
        if found.head is None:
            raise FencedError(grant.scope, grant.token)
        return found.head

    async def undo(self, tape: Tape) -> None:
        """Forget a session that could not be made whole, whatever cancels this."""
        try:
            with trio.CancelScope(shield=True):
                await self.world.writer.submit(tape.delete_piece())
        except StorageError as exc:
            # It is in no list; the next sweep finds it.
            whose = of_session(tape.scope)
            _LOG.warning("session %s was not undone: %s", tape.scope, exc, extra=whose)

    async def release(self, grant: Grant) -> None:
        """Give a session back, whatever cancels this; a failure is logged."""
        now = self.world.clock.now()
        piece = Piece(lambda store: store.release(grant, now=now))
        try:
            with trio.CancelScope(shield=True):
                await self.world.writer.submit(piece)
        except StorageError as exc:
            _LOG.warning(
                "session %s was not released: %s",
                grant.scope,
                exc,
                extra=of_session(grant.scope),
            )

    def _forget(self, session_id: SessionId) -> None:
        if self._loaded.pop(session_id, None) is not None:
            self.world.tell_hooks(SessionUnloaded(session_id=session_id))
        self._forget_hub(session_id)

    def _forget_hub(self, session_id: SessionId) -> None:
        hub = self._hubs.get(session_id)
        if hub is not None and not hub.watched:
            self._version = max(self._version, hub.version)
            del self._hubs[session_id]


def _attachments(providers: Mapping[str, Provider]) -> Attachments:
    def reasons(parts: Parts, settings: SessionSettings) -> tuple[str, ...]:
        return image_reasons(parts, providers.get(settings.provider), settings)

    return reasons
