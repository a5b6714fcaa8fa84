"""A session's messages, read from their rows.

A message is a header and its blocks, each a row of its own. The header says how many
there are: where some are missing, and only there, the message is made from its facts
instead (PER-03). One statement gives the headers and one their blocks, however many
messages the session has.
"""

from __future__ import annotations

from typing import Final, Literal

import apsw
import msgspec

from greenroom.protocol import (
    Block,
    MessageId,
    MessageMetadata,
    MessageRecord,
    SessionId,
)

from .._errors import corrupt
from .._limits import MAX_ROWS, clamp
from .._projection import folded_revisions
from ._connection import Row, Value, mapped_errors, one, reading, rows
from ._reads import Connected, decoded

_BLOCKS = msgspec.json.Decoder(tuple[Block, ...])
_METADATA = msgspec.json.Decoder(MessageMetadata)
_NO_METADATA: Final = MessageMetadata()
_RECORD = msgspec.json.Decoder(MessageRecord)

_HEADER: Final = (
    "m.id, m.name, m.order_seq, m.role, m.status, m.metadata, m.created_at,"
    " m.updated_at, m.blocks"
)
_LAST: Final = (1 << 63) - 1


def messages(
    self: Connected,
    scope: SessionId,
    before: int | None = None,
    limit: int = 100,
    role: Literal["user", "assistant"] | None = None,
) -> list[MessageRecord]:
    """See `Reader.messages`."""
    only, values = ("", ()) if role is None else (" AND role = ?", (role,))
    where = f"retracted = 0 AND order_seq < ?{only} ORDER BY order_seq DESC LIMIT ?"
    last = _LAST if before is None else before
    return _messages(self, scope, where, last, *values, clamp(limit, MAX_ROWS))


def message(self: Connected, scope: SessionId, message_id: str) -> MessageRecord | None:
    """See `Reader.message`."""
    found = _messages(self, scope, "name = ? AND retracted = 0", message_id)
    return found[0] if found else None


def pending_messages(self: Connected, scope: SessionId) -> list[MessageRecord]:
    """See `Reader.pending_messages`."""
    return _messages(self, scope, "status = 'pending' AND retracted = 0")


def message_count(self: Connected, scope: SessionId) -> int:
    """See `Reader.message_count`."""
    sql = (
        "SELECT i.messages FROM session s JOIN session_info i ON i.session = s.id"
        " WHERE s.name = ?"
    )
    with mapped_errors():
        row = one(self.connection, sql, scope)
    return 0 if row is None else row[0]


def broken_messages(self: Connected, scope: SessionId) -> list[MessageId]:
    """See `Reader.broken_messages`."""
    sql = (
        "SELECT m.name FROM session s JOIN message m ON m.session = s.id"
        " WHERE s.name = ? AND m.blocks <>"
        " (SELECT count(*) FROM block b WHERE b.message = m.id) LIMIT ?"
    )
    with mapped_errors():
        found = rows(self.connection, sql, scope, MAX_ROWS)
    return [MessageId(name) for (name,) in found]


def cached_blocks(self: Connected, scope: SessionId, message_id: str) -> str | None:
    """See `Reader.cached_blocks`."""
    sql = (
        "SELECT c.blocks FROM session s JOIN cached_blocks c ON c.session = s.id"
        " WHERE s.name = ? AND c.message = ?"
    )
    with mapped_errors():
        row = one(self.connection, sql, scope, message_id)
    return None if row is None else row[0]


def message_of(db: apsw.Connection, header: Row, bodies: list[str]) -> MessageRecord:
    """Return the message in a row of `HEADER` and the bodies of its blocks."""
    number, name, order_seq, role, status, metadata, created_at, updated_at, blocks = (
        header
    )
    if len(bodies) != blocks:
        return _message_from_facts(db, number, name)
    try:
        return MessageRecord(
            id=name,
            order_seq=order_seq,
            role=role,
            status=status,
            blocks=_BLOCKS.decode(f"[{','.join(bodies)}]"),
            metadata=_NO_METADATA if metadata == "{}" else _METADATA.decode(metadata),
            created_at=created_at,
            updated_at=updated_at,
        )
    except (msgspec.DecodeError, RecursionError) as exc:
        raise corrupt(f"message {name!r}", exc) from exc


def message_row(db: apsw.Connection, number: int) -> MessageRecord:
    """Return the message whose header has that row id."""
    ((_, record),) = message_rows(db, [number])
    return record


def message_rows(
    db: apsw.Connection, numbers: list[int]
) -> list[tuple[int, MessageRecord]]:
    """Return the messages whose headers have those row ids, with them."""
    chosen = f"[{','.join(map(str, numbers))}]"
    among = "IN (SELECT value FROM json_each(?))"
    headers = rows(db, f"SELECT {_HEADER} FROM message m WHERE m.id {among}", chosen)
    sql = f"SELECT message, body FROM block WHERE message {among} ORDER BY 1, position"
    bodies = _by_message(rows(db, sql, chosen))
    return [(row[0], message_of(db, row, bodies.get(row[0], []))) for row in headers]


def _by_message(found: list[Row]) -> dict[int, list[str]]:
    bodies: dict[int, list[str]] = {}
    for number, body in found:
        bodies.setdefault(number, []).append(body)
    return bodies


def _messages(
    self: Connected, scope: SessionId, where: str, *values: Value
) -> list[MessageRecord]:
    db = self.connection
    session = "session = (SELECT id FROM session WHERE name = ?)"
    chosen = f"SELECT * FROM message WHERE {session} AND {where}"
    with reading(db):
        sql = f"SELECT {_HEADER} FROM ({chosen}) m ORDER BY m.order_seq"
        headers = rows(db, sql, scope, *values)
        sql = (
            f"SELECT b.message, b.body FROM ({chosen}) m JOIN block b"
            " ON b.message = m.id ORDER BY b.message, b.position"
        )
        bodies = _by_message(rows(db, sql, scope, *values))
        return [message_of(db, row, bodies.get(row[0], [])) for row in headers]


# No index leads here: it is the way for rows that somebody has lost.
def _message_from_facts(db: apsw.Connection, number: int, name: str) -> MessageRecord:
    sql = (
        "SELECT f.payload FROM fact f WHERE f.name = 'message/recorded'"
        " AND f.source_id = ?2 AND f.session ="
        " (SELECT session FROM message WHERE id = ?1) ORDER BY f.seq"
    )
    found = [
        decoded(_RECORD, text, "message", name)
        for (text,) in rows(db, sql, number, name)
    ]
    return folded_revisions(found)
