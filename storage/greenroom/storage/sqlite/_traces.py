"""Traces of provider attempts, and how far the requests of a message got.

Traces are primary data beside the tape: losing them leaves every message whole. Only
the newest of a session are kept.
"""

from __future__ import annotations

from typing import Final

import apsw

from greenroom.protocol import AttemptTrace, MessageId, RunId, SessionId, TapeEntry

from .._limits import MAX_ROWS, MAX_TRACES, clamp
from ._connection import Row, mapped_errors, one, rows, run
from ._reads import FACT, Connected, entry_of

_COLUMNS: Final = (
    "t.run_id, t.message, t.round, t.request_seq, t.attempt, t.provider, t.model,"
    " t.at, t.payload, t.truncated"
)
_OF_SESSION: Final = (
    f"SELECT {_COLUMNS} FROM session s JOIN attempt_trace t ON t.session = s.id"
    " WHERE s.name = ?1"
)
_LAST_REQUEST: Final = """
SELECT max(seq) FROM (
    SELECT max(f.payload ->> '$.requestSeq') AS seq
    FROM session s JOIN fact f ON f.session = s.id
    WHERE s.name = ?1
    AND f.name IN ('view/assembled', 'provider/attempt_completed')
    AND f.payload ->> '$.messageId' = ?2
    AND typeof(f.payload ->> '$.requestSeq') = 'integer'
    UNION ALL
    SELECT max(t.request_seq)
    FROM session s JOIN attempt_trace t ON t.session = s.id
    WHERE s.name = ?1 AND t.message = ?2
)
"""


def insert_trace(db: apsw.Connection, session: int, trace: AttemptTrace) -> None:
    """Keep *trace*, unless it is there, and drop those that are too many."""
    run(
        db,
        "INSERT INTO attempt_trace (session, run_id, message, round, request_seq,"
        " attempt, provider, model, at, payload, truncated)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        session,
        trace.run_id,
        trace.message_id,
        trace.logical_round,
        trace.request_seq,
        trace.physical_attempt,
        trace.provider,
        trace.model,
        trace.created_at,
        trace.payload,
        trace.truncated,
    )
    run(
        db,
        "DELETE FROM attempt_trace WHERE session = ?1 AND id <= ("
        "SELECT id FROM attempt_trace WHERE session = ?1"
        " ORDER BY id DESC LIMIT 1 OFFSET ?2)",
        session,
        MAX_TRACES,
    )


def forget_traces(db: apsw.Connection, before: float) -> int:
    """Drop traces that were made before *before*; return how many."""
    run(db, "DELETE FROM attempt_trace WHERE at < ?", before)
    return db.changes()


def count_traces(self: Connected, before: float) -> int:
    """See `Reader.count_traces`."""
    sql = "SELECT count(*) FROM attempt_trace WHERE at < ?"
    with mapped_errors():
        row = one(self.connection, sql, before)
    return 0 if row is None else row[0]


def traces(
    self: Connected,
    scope: SessionId,
    message_id: str | None = None,
    limit: int = MAX_TRACES,
) -> list[AttemptTrace]:
    """See `Reader.traces`."""
    sql = f"{_OF_SESSION} AND coalesce(?2, t.message) = t.message"
    with mapped_errors():
        found = rows(
            self.connection,
            f"{sql} ORDER BY t.id DESC LIMIT ?3",
            scope,
            message_id,
            clamp(limit, MAX_ROWS),
        )
    return [_trace_of(row) for row in reversed(found)]


def request_trace(
    self: Connected, scope: SessionId, message_id: str, request_seq: int
) -> AttemptTrace | None:
    """See `Reader.request_trace`."""
    sql = (
        f"{_OF_SESSION} AND t.message = ?2 AND t.request_seq = ?3"
        " ORDER BY t.attempt DESC, t.id DESC LIMIT 1"
    )
    with mapped_errors():
        row = one(self.connection, sql, scope, message_id, request_seq)
    return None if row is None else _trace_of(row)


def last_request(self: Connected, scope: SessionId, message_id: str) -> int:
    """See `Reader.last_request`."""
    with mapped_errors():
        row = one(self.connection, _LAST_REQUEST, scope, message_id)
    return 0 if row is None or row[0] is None else row[0]


def request_entries(
    self: Connected, scope: SessionId, message_id: str, request_seq: int
) -> list[TapeEntry]:
    """See `Reader.request_entries`."""
    sql = (
        f"SELECT {FACT} FROM session s JOIN fact f INDEXED BY fact_request"
        " ON f.session = s.id"
        " AND f.name IN ('view/assembled', 'provider/attempt_completed')"
        " WHERE s.name = ? AND f.payload ->> '$.messageId' = ?"
        " AND f.payload ->> '$.requestSeq' = ? ORDER BY f.seq LIMIT ?"
    )
    with mapped_errors():
        found = rows(self.connection, sql, scope, message_id, request_seq, MAX_TRACES)
    return [entry_of(scope, row) for row in found]


def _trace_of(row: Row) -> AttemptTrace:
    return AttemptTrace(
        run_id=RunId(row[0]),
        message_id=MessageId(row[1]),
        logical_round=row[2],
        request_seq=row[3],
        physical_attempt=row[4],
        provider=row[5],
        model=row[6],
        created_at=row[7],
        payload=row[8],
        truncated=bool(row[9]),
    )
