"""A fork: another session that begins with what was said in one, up to a message.

Only messages that were sent are copied, in order and numbered anew, under identities of
their own, with files of their own; the source is read and never written (SES-23). The
new tape is written in batches and gets its settings last: until then it is in no list,
so that a kill leaves something for the next sweep and nothing for anybody to open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, final

import attrs
import msgspec
import trio

from greenroom.actors.agents import AgentManager
from greenroom.actors.sessions import SessionNotFoundError, Sessions
from greenroom.protocol import (
    AgentConfig,
    Fact,
    GreenroomError,
    MessageId,
    MessageRecord,
    SessionId,
    SessionSettings,
    fork_title,
    forked_message,
    revisions,
)
from greenroom.storage import (
    Grant,
    Piece,
    Reader,
    SessionRow,
    Store,
    Tape,
    filter_selection,
    forked_fact,
    message_fact,
    settings_fact,
    start_fact,
)

from ._files import removes_folder
from ._kept_files import with_own_files

PAGE: Final = 100
"""Messages that are copied at once."""

BATCH_FACTS: Final = 200
BATCH_BYTES: Final = 4 << 20


class MessageNotFoundError(GreenroomError):
    """There is no such message in the session."""

    code = "message_not_found"
    hint = "read the session's messages to see their ids"

    def __init__(self, session_id: str, message_id: str) -> None:
        super().__init__(
            f"session {session_id[:80]!r} has no message {message_id[:80]!r}"
        )


class RoundNotFoundError(GreenroomError):
    """The message has no such round, or is not finished, or none is named."""

    code = "round_not_found"
    hint = "name a finished answer, and one of its rounds, counted from 1"

    def __init__(self, message_id: str | None, number: int) -> None:
        problem = f"message {(message_id or '')[:80]!r} has no finished round {number}"
        if message_id is None:
            problem = "rounds are those of a message, and none is named"
        super().__init__(problem)


@final
@attrs.frozen
class _Last:
    order_seq: int | None
    """The place of the last message that is copied; ``None``: all are."""
    rounds: int | None
    """How many rounds of that message are copied; ``None``: all are."""


@final
@attrs.define(eq=False)
class Forks:
    """Makes forks."""

    _sessions: Sessions
    _agents: AgentManager

    async def fork(
        self,
        session_id: SessionId,
        through: MessageId | None = None,
        rounds: int | None = None,
    ) -> SessionId:
        """Return a new session with what was sent up to *through*; all when ``None``.

        With *rounds* only the first so many of that message are copied.
        It is of the same agent, whose gate it goes through, and has the settings of
        the source with another title. Cancelled or failed, it leaves nothing.

        Raises:
            SessionNotFoundError, MessageNotFoundError, RoundNotFoundError: there is
                none.
            AgentNotFoundError, AgentUnavailableError, AgentRefusedError: the agent is
                gone, can't be run, or is disabled.
            BeingDeletedError: the session or its agent is being deleted.
            StorageError: it can't be written.
        """
        with self._sessions.gates.operation(session_id):
            row, last = await self._sessions.world.readers.read(
                lambda reader: _source(reader, session_id, through, rounds)
            )
            chosen = await self._agents.select(row.settings.agent_id)
            with self._agents.gates.operation(chosen.agent.id):
                return await self._copy(row, through, last, chosen.config)

    async def _copy(
        self,
        row: SessionRow,
        through: MessageId | None,
        last: _Last,
        config: AgentConfig,
    ) -> SessionId:
        ids = self._sessions.world.ids
        made, incarnation = SessionId(ids.uuid()), ids.uuid()
        grant: Grant = await self._sessions.acquire(made)
        tape = Tape(grant)
        title = fork_title(row.settings.title)
        settings = msgspec.structs.replace(row.settings, title=title)
        try:
            first = [start_fact(incarnation), forked_fact(row.id, through)]
            await self._append(tape, first)
            await self._copy_messages(tape, row.id, last)
            await self._finish(tape, settings, incarnation, row.id, config)
        except BaseException:
            await self._sessions.undo(tape)
            await self._remove_files(made)
            raise
        await self._sessions.release(grant)
        return made

    async def _copy_messages(self, tape: Tape, source: SessionId, last: _Last) -> None:
        world, order = self._sessions.world, 0
        read, made = world.readers.read, world.scratch / tape.scope
        for before in await read(
            lambda reader: _cursors(reader, source, last.order_seq)
        ):
            page = await read(
                lambda reader, before=before: reader.messages(source, before, PAGE)
            )
            sent = [record for record in page if record.status == "sent"]
            facts: list[Fact] = []
            for record in await with_own_files(sent, world.scratch / source, made):
                order += 1
                is_last = record.order_seq == last.order_seq
                facts += self._facts(record, order, last.rounds if is_last else None)
            for batch in _batches(facts):
                await self._append(tape, batch)

    async def _remove_files(self, made: SessionId) -> None:
        # What can't go belongs to no session: the next sweep finds it.
        with trio.CancelScope(shield=True), suppress(OSError):
            await removes_folder(self._sessions.world.scratch)(made)

    def _facts(
        self, record: MessageRecord, order: int, rounds: int | None
    ) -> list[Fact]:
        made = MessageId(self._sessions.world.ids.uuid())
        copy = forked_message(record, made, order, rounds)
        return [message_fact(part) for part in revisions(copy, copy.blocks)]

    async def _finish(
        self,
        tape: Tape,
        settings: SessionSettings,
        incarnation: str,
        source: SessionId,
        config: AgentConfig,
    ) -> None:
        def before(store: Store) -> None:
            self._agents.require(store, settings.agent_id)
            filter_selection(
                store,
                tape.scope,
                settings.agent_id,
                config.enabled_skill_names,
                of=source,
            )

        fact = settings_fact(settings, revision=incarnation)
        await self._append(tape, [fact], before)

    async def _append(
        self,
        tape: Tape,
        facts: Sequence[Fact],
        before: Callable[[Store], None] | None = None,
    ) -> None:
        world = self._sessions.world
        piece = tape.append_piece(facts, now=world.clock.now())

        def run(store: Store) -> Any:  # noqa: ANN401 - the piece's value
            if before is not None:
                before(store)
            return piece.run(store)

        await world.writer.submit(Piece(run, piece.aborted))


def _source(
    reader: Reader,
    session_id: SessionId,
    through: MessageId | None,
    rounds: int | None,
) -> tuple[SessionRow, _Last]:
    row = reader.session(session_id)
    if row is None:
        raise SessionNotFoundError(session_id)
    if through is None:
        if rounds is not None:
            raise RoundNotFoundError(None, rounds)
        return row, _Last(None, None)
    message = reader.message(session_id, through)
    if message is None:
        raise MessageNotFoundError(session_id, through)
    if rounds is not None:
        known = {block.round for block in message.blocks}
        if message.status != "sent" or rounds < 1 or rounds not in known:
            raise RoundNotFoundError(through, rounds)
    return row, _Last(message.order_seq, rounds)


def _cursors(
    reader: Reader, session_id: SessionId, last: int | None
) -> list[int | None]:
    # Pages go from new to old; a fork is written from old to new.
    before = None if last is None else last + 1
    found: list[int | None] = []
    while page := reader.messages(session_id, before, PAGE):
        found.append(before)
        before = page[0].order_seq
    return found[::-1]


def _batches(facts: Sequence[Fact]) -> Iterator[list[Fact]]:
    batch: list[Fact] = []
    size = 0
    for fact in facts:
        size += len(fact.payload)
        if batch and (len(batch) == BATCH_FACTS or size > BATCH_BYTES):
            yield batch
            batch, size = [], len(fact.payload)
        batch.append(fact)
    if batch:
        yield batch
