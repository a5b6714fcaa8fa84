"""Calls that find, make, read and set sessions. None of the reads loads one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from greenroom.actors.lifecycle import MessageNotFoundError
from greenroom.actors.sessions import SessionNotFoundError, TurnRefusedError
from greenroom.protocol import MessageRecord, SessionId, SessionSettings, StatusChanged
from greenroom.protocol.gateway import (
    PAGE_BYTES,
    Attached,
    BlockSlice,
    Configure,
    CreateSession,
    ListSessions,
    MessagePage,
    OneMessage,
    OneSession,
    ReadBlock,
    ReadMessage,
    ReadMessages,
    SearchHit,
    SearchMessages,
    SearchResult,
    SessionItem,
    SessionKey,
    SessionList,
    SessionRef,
    Settings,
    attached,
    interactions_of,
    message_from,
    page_of,
    slice_of,
)
from greenroom.storage import Reader, SessionRow

from ._ports import EnginePort, Handler

_BATCH: Final = 20
"""Messages that are read at once: each may have a megabyte, or more."""

T = TypeVar("T")

_NAMES: Final = {
    field.encode_name: field.name for field in msgspec.structs.fields(SessionSettings)
}


def fill(rows: Iterable[T], budget: int = PAGE_BYTES) -> list[T]:
    """Return the first of *rows* that go into *budget* bytes as JSON, one at least."""
    kept: list[T] = []
    for row in rows:
        budget -= len(msgspec.json.encode(row))
        if kept and budget < 0:
            break
        kept.append(row)
    return kept


async def row_of(engine: EnginePort, session_id: str) -> SessionRow:
    """Return the row of a session.

    Raises:
        SessionNotFoundError: there is none.
    """
    row = await engine.read(lambda reader: reader.session(SessionId(session_id)))
    if row is None:
        raise SessionNotFoundError(session_id)
    return row


async def item_of(engine: EnginePort, session_id: str) -> OneSession:
    """Return a session as it is in the list.

    Raises:
        SessionNotFoundError: there is none.
    """
    row = await row_of(engine, session_id)
    return OneSession(_item(row, engine.status(row.id)))


def _item(row: SessionRow, status: StatusChanged | None) -> SessionItem:
    return SessionItem(
        id=row.id,
        settings=row.settings,
        head=row.head,
        created_at=row.created_at,
        updated_at=row.updated_at,
        message_count=row.message_count,
        archived_at=row.archived_at,
        state=row.state if status is None else status.state,
        status_version=0 if status is None else status.version,
        waiting_for=None if status is None else status.waiting_for,
        has_open_interaction=row.has_open_interaction,
        is_loaded=status is not None,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
    )


async def _list(engine: EnginePort, asked: ListSessions) -> SessionList:
    before = asked.before and (asked.before.updated_at, SessionId(asked.before.id))
    rows = await engine.read(
        lambda reader: reader.sessions(
            asked.limit,
            before,
            agent=asked.agent,
            archived=asked.archived,
            title=asked.title,
        )
    )
    items = fill(_item(row, engine.status(row.id)) for row in rows)
    if len(items) < asked.limit and len(items) == len(rows):
        return SessionList(tuple(items))
    last = items[-1]
    return SessionList(tuple(items), SessionKey(last.updated_at, last.id))


async def _get(engine: EnginePort, asked: SessionRef) -> OneSession:
    return await item_of(engine, asked.session_id)


async def _create(engine: EnginePort, asked: CreateSession) -> OneSession:
    made = await engine.create_session(**msgspec.structs.asdict(asked))
    return await item_of(engine, made.id)


async def _snapshot(engine: EnginePort, asked: SessionRef) -> Attached:
    async with engine.session(asked.session_id).follow() as follower:
        snapshot = follower.snapshot
    assert snapshot is not None, "without a cursor there is one"
    waiting = interactions_of(snapshot.session_id, snapshot.messages)
    return attached(snapshot, snapshot.seq, waiting)


async def _settings(engine: EnginePort, asked: SessionRef) -> Settings:
    return Settings((await row_of(engine, asked.session_id)).settings)


async def _configure(engine: EnginePort, asked: Configure) -> Settings:
    unknown = sorted(asked.changes.keys() - _NAMES.keys())
    if unknown:
        names = ", ".join(name[:80] for name in unknown[:10])
        raise TurnRefusedError("unknown_setting", f"no such setting: {names}")
    changes = {_NAMES[name]: value for name, value in asked.changes.items()}
    return Settings(await engine.session(asked.session_id).configure(**changes))


#### Reading what was said


async def _messages(engine: EnginePort, asked: ReadMessages) -> MessagePage:
    await row_of(engine, asked.session_id)
    session = engine.session(asked.session_id)
    rows: list[MessageRecord] = []
    before, size = asked.before, 0
    # One more than asked for, to know whether there is one.
    while (left := asked.limit + 1 - len(rows)) and size <= PAGE_BYTES:
        batch = await session.messages(before=before, limit=min(_BATCH, left))
        if not batch:
            break
        rows = [*batch, *rows]
        before = batch[0].order_seq
        size += sum(len(msgspec.json.encode(row)) for row in batch)
    shown = rows[-asked.limit :]
    return page_of(shown, older=len(shown) < len(rows))


async def _message(
    engine: EnginePort, session_id: str, message_id: str
) -> MessageRecord:
    scope = SessionId(session_id)
    found = await engine.read(lambda reader: _find_message(reader, scope, message_id))
    if found.status != "pending":
        return found
    # What is being said is not on disk yet.
    async with engine.session(session_id).follow() as follower:
        said = () if follower.snapshot is None else follower.snapshot.messages
    return next((message for message in said if message.id == message_id), found)


def _find_message(reader: Reader, scope: SessionId, message_id: str) -> MessageRecord:
    if reader.session(scope) is None:
        raise SessionNotFoundError(scope)
    message = reader.message(scope, message_id)
    if message is None:
        raise MessageNotFoundError(scope, message_id)
    return message


async def _one_message(engine: EnginePort, asked: ReadMessage) -> OneMessage:
    message = await _message(engine, asked.session_id, asked.message_id)
    return message_from(message, asked.offset)


async def _block(engine: EnginePort, asked: ReadBlock) -> BlockSlice:
    message = await _message(engine, asked.session_id, asked.message_id)
    found = slice_of(message, asked.block_id, asked.field, asked.offset, asked.limit)
    if found is None:
        where = f"{asked.message_id} block {asked.block_id} {asked.field}"
        raise MessageNotFoundError(asked.session_id, where)
    return found


async def _search(engine: EnginePort, asked: SearchMessages) -> SearchResult:
    hits = await engine.search(
        asked.query, session_id=asked.session_id, limit=asked.limit
    )
    return SearchResult(tuple(SearchHit(**msgspec.structs.asdict(hit)) for hit in hits))


SESSIONS: Final[Mapping[str, Handler]] = {
    "_greenroom/session/list": _list,
    "_greenroom/session/get": _get,
    "_greenroom/session/create": _create,
    "_greenroom/session/snapshot": _snapshot,
    "_greenroom/session/settings": _settings,
    "_greenroom/session/configure": _configure,
    "_greenroom/session/messages": _messages,
    "_greenroom/session/message": _one_message,
    "_greenroom/session/block": _block,
    "_greenroom/session/search": _search,
}
