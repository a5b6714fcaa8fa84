"""Selections of Skills and memories of agents, in SQLite.

The reads are bound as methods; the writes run inside a write of `SqliteStore`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import apsw
import msgspec

from greenroom.protocol import Chunk, IngestMark, MessageId, Recollection, SessionId

from .._limits import clamp
from .._skill_rules import MAX_RECALLED, MAX_RECOLLECTIONS
from .._words import index_words, query_words
from ._agents import Connected
from ._connection import Row, mapped_errors, one, reading, rows, run

_NAMES = msgspec.json.Decoder(tuple[str, ...])
_COLUMNS: Final = "r.id, r.agent, r.session, r.order_seq, r.at, r.text"


#### Selections


def skill_selection(self: Connected, scope: SessionId) -> tuple[str, ...]:
    """See `SkillReader.skill_selection`."""
    sql = "SELECT names FROM skill_selection WHERE session = ?"
    with mapped_errors():
        row = one(self.connection, sql, scope)
    return () if row is None else _NAMES.decode(row[0])


def skill_selections(self: Connected) -> list[tuple[SessionId, tuple[str, ...]]]:
    """See `SkillReader.skill_selections`."""
    sql = "SELECT session, names FROM skill_selection ORDER BY session"
    with mapped_errors():
        found = rows(self.connection, sql)
    return [(SessionId(scope), _NAMES.decode(names)) for scope, names in found]


def put_skill_selection(
    db: apsw.Connection, scope: SessionId, names: tuple[str, ...]
) -> None:
    """See `SkillWriter.put_skill_selection`."""
    if not names:
        run(db, "DELETE FROM skill_selection WHERE session = ?", scope)
        return
    text = msgspec.json.encode(names).decode()
    run(db, "INSERT OR REPLACE INTO skill_selection VALUES (?, ?)", scope, text)


#### Memories


def recollections(
    self: Connected, agent_id: str, limit: int = 100, before: int | None = None
) -> list[Recollection]:
    """See `SkillReader.recollections`."""
    sql = (
        f"SELECT {_COLUMNS} FROM recollection r WHERE r.agent = ?"
        " AND (?2 IS NULL OR r.id < ?2) ORDER BY r.id DESC LIMIT ?3"
    )
    with mapped_errors():
        found = rows(
            self.connection, sql, agent_id, before, clamp(limit, MAX_RECOLLECTIONS)
        )
    return [_recollection(row) for row in found]


def recall(
    self: Connected, agent_id: str, query: str, limit: int = 8
) -> list[Recollection]:
    """See `SkillReader.recall`."""
    words = query_words(query)
    if not words:
        return []
    match = " OR ".join(f'"{word}"' for word in words)
    sql = (
        f"SELECT {_COLUMNS} FROM recollection_index w"
        " JOIN recollection r ON r.id = w.rowid"
        " WHERE recollection_index MATCH ? AND r.agent = ?"
        " ORDER BY w.rank, r.id DESC LIMIT ?"
    )
    with mapped_errors():
        found = rows(self.connection, sql, match, agent_id, clamp(limit, MAX_RECALLED))
    return [_recollection(row) for row in found]


def ingest_mark(self: Connected, agent_id: str, scope: SessionId) -> IngestMark:
    """See `SkillReader.ingest_mark`."""
    with reading(self.connection):
        return _mark(self.connection, agent_id, scope)


def _mark(db: apsw.Connection, agent_id: str, scope: SessionId) -> IngestMark:
    sql = "SELECT cursor FROM ingest_cursor WHERE agent = ? AND session = ?"
    cursor = one(db, sql, agent_id, scope)
    # Both only ever grow, so their sum changes whenever one of them does.
    sql = "SELECT coalesce(sum(epoch), 0) FROM ingest_epoch WHERE name IN (?, ?)"
    epoch = one(db, sql, f"agent:{agent_id}", f"session:{scope}")
    return IngestMark(
        0 if cursor is None else cursor[0], 0 if epoch is None else epoch[0]
    )


def keep_recollections(
    db: apsw.Connection,
    agent_id: str,
    scope: SessionId,
    mark: IngestMark,
    cursor: int,
    chunks: Sequence[Chunk],
    now: float,
) -> bool:
    """See `SkillWriter.keep_recollections`."""
    if _mark(db, agent_id, scope) != mark:
        return False
    for chunk in chunks:
        run(
            db,
            "INSERT INTO recollection (agent, session, order_seq, at, text, words)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            agent_id,
            scope,
            chunk.order_seq,
            now,
            chunk.text,
            index_words(chunk.text),
        )
    sql = "INSERT OR REPLACE INTO ingest_cursor VALUES (?, ?, ?)"
    run(db, sql, agent_id, scope, cursor)
    return True


def forget_recollections(
    db: apsw.Connection, agent_id: str, recollection_id: int | None
) -> int:
    """See `SkillWriter.forget_recollections`."""
    sql = "FROM recollection WHERE agent = ?1 AND (?2 IS NULL OR id = ?2)"
    count = one(db, f"SELECT count(*) {sql}", agent_id, recollection_id)
    run(db, f"DELETE {sql}", agent_id, recollection_id)
    if recollection_id is None:
        next_epoch(db, f"agent:{agent_id}")
    return 0 if count is None else count[0]


def forget_session(db: apsw.Connection, scope: SessionId) -> None:
    """Begin again with a session that is cleared; what was remembered of it stays."""
    run(db, "DELETE FROM ingest_cursor WHERE session = ?", scope)
    next_epoch(db, f"session:{scope}")


def forget_places(
    db: apsw.Connection, scope: SessionId, session: int, gone: Sequence[MessageId]
) -> None:
    """Begin again at the first place of the messages that are *gone*."""
    sql = "SELECT order_seq FROM message WHERE session = ? AND name = ?"
    found = (one(db, sql, session, message_id) for message_id in gone)
    places = [row[0] for row in found if row is not None]
    if places:
        sql = "UPDATE ingest_cursor SET cursor = min(cursor, ?) WHERE session = ?"
        run(db, sql, min(places) - 1, scope)
        next_epoch(db, f"session:{scope}")


def next_epoch(db: apsw.Connection, name: str) -> None:
    """Let nothing be kept that was begun before."""
    run(
        db,
        "INSERT INTO ingest_epoch VALUES (?, 1)"
        " ON CONFLICT (name) DO UPDATE SET epoch = epoch + 1",
        name,
    )


def _recollection(row: Row) -> Recollection:
    return Recollection(
        id=row[0],
        agent_id=row[1],
        session_id=SessionId(row[2]),
        order_seq=row[3],
        at=row[4],
        text=row[5],
    )
