"""A session's messages, read from their rows.

A message is a header and its blocks, each a row of its own. The header says how many
there are: where some are missing, and only there, the message is made from its facts
instead (PER-03). One statement gives the headers and their blocks' bodies, joined,
however many messages the session has.
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

COLUMNS: Final = (
    "m.id, m.name, m.order_seq, m.role, m.status, m.metadata, m.created_at,"
    " m.updated_at, m.blocks, (SELECT group_concat(b.body, ',' ORDER BY b.position)"
    " FROM block b WHERE b.message = m.id)"
)
"""What `message_of` makes a message of, of a ``message m``."""

_LAST: Final = (1 << 63) - 1


def messages(
    self: Connected,
    scope: SessionId,
    before: int | None = None,
    limit: int = 100,
    role: Literal["user", "assistant"] | None = None,
) -> list[MessageRecord]:
    """See `Reader.messages`."""
    only, values = ("", ()) if role is None else (" AND m.role = ?", (role,))
    where = f"m.order_seq < ?{only} ORDER BY m.order_seq DESC LIMIT ?"
    last = _LAST if before is None else before
    newest = _messages(self, scope, where, last, *values, clamp(limit, MAX_ROWS))
    return newest[::-1]


def message(self: Connected, scope: SessionId, message_id: str) -> MessageRecord | None:
    """See `Reader.message`."""
    found = _messages(self, scope, "m.name = ?", message_id)
    return found[0] if found else None


def retracted_messages(
    self: Connected, scope: SessionId
) -> list[tuple[MessageId, int]]:
    """See `Reader.retracted_messages`."""
    sql = (
        "SELECT m.name, m.order_seq FROM session s JOIN message m ON m.session = s.id"
        " WHERE s.name = ? AND m.retracted = 1 ORDER BY m.order_seq, m.name"
    )
    with mapped_errors():
        found = rows(self.connection, sql, scope)
    return [(MessageId(name), order) for name, order in found]


def pending_messages(self: Connected, scope: SessionId) -> list[MessageRecord]:
    """See `Reader.pending_messages`."""
    return _messages(self, scope, "m.status = 'pending' ORDER BY m.order_seq")


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


def message_of(db: apsw.Connection, row: Row) -> MessageRecord:
    """Return the message in a row that begins with `COLUMNS`."""
    number, name, order_seq, role, status, metadata, created_at, updated_at = row[:8]
    count, bodies = row[8:10]
    try:
        blocks = () if bodies is None else _BLOCKS.decode(f"[{bodies}]")
        if len(blocks) != count:
            return _message_from_facts(db, number, name)
        return MessageRecord(
            id=name,
            order_seq=order_seq,
            role=role,
            status=status,
            blocks=blocks,
            metadata=_NO_METADATA if metadata == "{}" else _METADATA.decode(metadata),
            created_at=created_at,
            updated_at=updated_at,
        )
    except (msgspec.DecodeError, RecursionError) as exc:
        raise corrupt(f"message {name!r}", exc) from exc


def _messages(
    self: Connected, scope: SessionId, where: str, *values: Value
) -> list[MessageRecord]:
    db = self.connection
    sql = (
        f"SELECT {COLUMNS} FROM message m WHERE m.retracted = 0"
        f" AND m.session = (SELECT id FROM session WHERE name = ?) AND {where}"
    )
    with reading(db):
        return [message_of(db, row) for row in rows(db, sql, scope, *values)]


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
