"""Taking in what was said, behind the turns (SKL-08).

Told when a turn has settled, or a compaction was applied; one session after the other,
by one actor. Each task begins where the last one ended and is kept together with the
new place in one transaction, and only if nobody cleared the session or let the agent
forget meanwhile: then it is as if it had never begun. The end of the engine waits for
what was begun, and no longer than `DRAIN_SECONDS`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, final

import attrs
import trio

from greenroom.actors.kernel import (
    ActorExitedError,
    Clock,
    Context,
    MailboxFullError,
    Ref,
    Stop,
)
from greenroom.actors.logs import LogIds, bind_log_ids
from greenroom.protocol import (
    COOLDOWN_SECONDS,
    DRAIN_SECONDS,
    Chunk,
    IngestMark,
    MessageRecord,
    SessionId,
    SessionSettings,
    chunks_of,
    is_due,
)
from greenroom.storage import Piece, Reader

from ._contribution import describe
from ._ports import Configs, MemoryPort, PieceWriter, StoreReaders

_LOG: Final = logging.getLogger("greenroom.memory")

MAX_READ: Final = 500
"""Messages that one task looks at."""

MAX_COOLING: Final = 1_000
"""Sessions whose failure is remembered."""


class Spawn(Protocol):
    """Starts an actor below a supervisor."""

    def __call__(
        self,
        name: str,
        behaviour: Callable[[Context[Any]], Awaitable[None]],
        *,
        shutdown: float,
    ) -> Ref[Any]:
        """Start *behaviour*; at the end it has *shutdown* seconds."""
        ...


@attrs.frozen
class Ingest:
    """A session may have something new for its agent to remember."""

    session_id: SessionId
    agent_id: str


@final
@attrs.define(eq=False)
class Ingestion:
    """The actor that takes in, and the two observers that tell it."""

    port: MemoryPort
    configs: Configs
    readers: StoreReaders
    writer: PieceWriter
    clock: Clock
    _actor: Ref[Any] | None = attrs.field(default=None, init=False)
    _cooling: dict[SessionId, float] = attrs.field(
        factory=dict[SessionId, float], init=False
    )
    """Sessions that failed, and until when they are left alone; in trio's time."""
    _is_behind: bool = attrs.field(default=False, init=False)
    """Whether somebody was turned away since the last task; said once."""

    def start(self, spawn: Spawn) -> None:
        """Begin to take in."""
        self._actor = spawn("ingestion", self._behave, shutdown=DRAIN_SECONDS)

    def after_turn(self, session_id: SessionId, settings: SessionSettings) -> None:
        """Note that a turn has settled. Never waits, never raises."""
        self._tell(Ingest(session_id, settings.agent_id))

    def after_compaction(
        self, session_id: SessionId, settings: SessionSettings
    ) -> None:
        """Note that a compaction was applied. Never waits, never raises."""
        self._tell(Ingest(session_id, settings.agent_id))

    def _tell(self, ingest: Ingest) -> None:
        if self._actor is None:
            return
        try:
            self._actor.tell_nowait(ingest)
        except MailboxFullError:
            # The cursor stays where it is: the session's next turn takes it in.
            if not self._is_behind:
                _LOG.warning("memory is behind; some sessions wait for their next turn")
            self._is_behind = True
        except ActorExitedError:
            # The engine is closing.
            return

    #### The actor

    async def _behave(self, ctx: Context[Any]) -> None:
        async for message in ctx.mailbox:
            if isinstance(message, Stop):
                # What is left is taken in within the bound that the actor was given.
                await self._take_in_all(ctx.mailbox.receive_nowait_batch(), ctx)
                return
            self._is_behind = False
            await self._take_in_all([message], ctx)

    async def _take_in_all(self, messages: Sequence[object], ctx: Context[Any]) -> None:
        # The same session twice is one task.
        for ingest in dict.fromkeys(m for m in messages if isinstance(m, Ingest)):
            await self._take_in(ingest, ctx)

    async def _take_in(self, ingest: Ingest, ctx: Context[Any]) -> None:
        until = self._cooling.get(ingest.session_id)
        if until is not None and trio.current_time() < until:
            return
        bind_log_ids(LogIds(ingest.session_id))
        try:
            await self.take_in(ingest, ctx)
        except Exception as exc:
            _LOG.warning(
                "session %s was not taken in: %s", ingest.session_id, describe(exc)
            )
            self._cool(ingest.session_id)
        else:
            self._cooling.pop(ingest.session_id, None)

    def _cool(self, session_id: SessionId) -> None:
        while len(self._cooling) >= MAX_COOLING:
            del self._cooling[next(iter(self._cooling))]
        self._cooling[session_id] = trio.current_time() + COOLDOWN_SECONDS

    async def take_in(self, ingest: Ingest, ctx: Context[Any]) -> bool:
        """Do one task; whether something was kept."""
        agent_id, session_id = ingest.agent_id, ingest.session_id
        config = await self.configs.config(agent_id)
        if config is None or not config.memory_enabled:
            return False
        mark, records = await self.readers.read(
            lambda reader: _unread(reader, agent_id, session_id)
        )
        if not is_due(records):
            return False
        chunks = chunks_of(records)
        cursor = chunks[-1].order_seq if chunks else records[-1].order_seq
        kept = await self._extract(ingest, chunks, ctx) if chunks else ()
        now = self.clock.now()
        piece = Piece(
            lambda store: store.keep_recollections(
                agent_id, session_id, mark, cursor, kept, now=now
            )
        )
        return await self.writer.submit(piece)

    async def _extract(
        self, ingest: Ingest, chunks: Sequence[Chunk], ctx: Context[Any]
    ) -> Sequence[Chunk]:
        # At the reaper: an extraction that never ends holds up nobody at the end.
        operation = ctx.reaper.start(
            self.port.extract,
            ingest.agent_id,
            ingest.session_id,
            chunks,
            name="remember",
            parent=ctx.ref,
        )
        try:
            return (await operation.wait()).unwrap()
        finally:
            if not operation.done:
                await operation.stop(0.0, 0.0)


def _unread(
    reader: Reader, agent_id: str, session_id: SessionId
) -> tuple[IngestMark, list[MessageRecord]]:
    mark = reader.ingest_mark(agent_id, session_id)
    newest = reader.messages(session_id, limit=MAX_READ)
    claimed = reader.pending_inputs(session_id).claimed
    unsettled = () if claimed is None else claimed.message_ids
    # What is still being written, or may be taken back (PIN-11), ends the part that
    # can be taken in.
    found: list[MessageRecord] = []
    for record in newest:
        if record.status == "pending" or record.id in unsettled:
            break
        if record.order_seq > mark.cursor:
            found.append(record)
    return mark, found
