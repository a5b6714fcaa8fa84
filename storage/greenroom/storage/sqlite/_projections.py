"""Projections in rows: what an appended fact changes beside the tape.

Called inside the append's savepoint, in the order of the facts. Decisions are
`_projection`'s; here they become rows. Payloads were checked before (`_admission`).
"""

from __future__ import annotations

from collections.abc import Callable

import apsw
import attrs
import msgspec

from greenroom.protocol import (
    JOURNAL_NAMES,
    Block,
    MessageMetadata,
    MessageRecord,
    PendingInput,
    SessionSettings,
    TapeEntry,
)

from .. import names
from .._errors import order_taken
from .._projection import (
    Mark,
    Totals,
    after_call,
    after_revision,
    mark_of,
    retracted,
    supersedes,
    waits,
)
from .._words import folded
from ._connection import one, run

_RECORD = msgspec.json.Decoder(MessageRecord)
_SETTINGS = msgspec.json.Decoder(SessionSettings)
_ARCHIVED = msgspec.json.Decoder(names.Archived)
_RETRACTED = msgspec.json.Decoder(names.Retracted)
_CALLED = msgspec.json.Decoder(names.ModelCalled)
_INPUT = msgspec.json.Decoder(PendingInput)
_ENCODER = msgspec.json.Encoder()

TABLES = ("session_info", "message", "open_run", "pending_input")
"""What `forget` empties and `project` fills again; block rows go with messages."""


def project(db: apsw.Connection, session: int, entry: TapeEntry) -> None:
    """Bring the projections of *session* up to *entry*, its newest."""
    fact, at = entry.fact, entry.created_at
    if entry.seq == 1:
        run(
            db,
            "INSERT INTO session_info (session, name, created_at, updated_at)"
            " VALUES (?, ?, ?, ?)",
            session,
            entry.session_id,
            at,
            at,
        )
    match fact.name:
        case names.MESSAGE_RECORDED:
            _record_message(db, session, _RECORD.decode(fact.payload), at)
        case names.MESSAGE_RETRACTED:
            _retract_message(db, session, _RETRACTED.decode(fact.payload).message_id)
        case names.SESSION_CONFIGURED:
            _configure(db, session, fact.payload, at)
        case names.SESSION_ARCHIVED:
            archived = _ARCHIVED.decode(fact.payload).archived
            sql = "UPDATE session_info SET archived_at = ? WHERE session = ?"
            run(db, sql, at if archived else None, session)
        case names.PLAN_UPDATED:
            sql = "UPDATE session_info SET plan = ?, updated_at = ? WHERE session = ?"
            run(db, sql, fact.payload, at, session)
        case names.MODEL_CALLED:
            call = _CALLED.decode(fact.payload)
            _move(db, session, lambda totals: after_call(totals, call), None)
        case names.INPUT_RECORDED:
            _record_input(db, session, _INPUT.decode(fact.payload))
        case names.RUN_ACKNOWLEDGED:
            close_run(db, session, fact.source_id)
        case _:
            _project_journal(db, session, entry)


def _record_input(db: apsw.Connection, session: int, row: PendingInput) -> None:
    if row.state == "consumed":
        sql = "DELETE FROM pending_input WHERE session = ? AND name = ?"
        run(db, sql, session, row.id)
        return
    said = None if row.parts is None else _ENCODER.encode(row.parts).decode()
    body = _ENCODER.encode(msgspec.structs.replace(row, parts=None)).decode()
    run(
        db,
        "INSERT INTO pending_input (session, name, body, parts)"
        " VALUES (?1, ?2, ?3, coalesce(?4, '[]'))"
        " ON CONFLICT (session, name) DO UPDATE"
        " SET body = excluded.body, parts = coalesce(?4, parts)",
        session,
        row.id,
        body,
        said,
    )


def forget(db: apsw.Connection, session: int) -> None:
    """Remove every projection of *session* but its search rows."""
    run(
        db,
        "DELETE FROM block WHERE message IN (SELECT id FROM message WHERE session = ?)",
        session,
    )
    for table in TABLES:
        run(db, f"DELETE FROM {table} WHERE session = ?", session)


def close_run(db: apsw.Connection, session: int, run_id: str) -> None:
    """Make the run known as resolved."""
    run(db, "DELETE FROM open_run WHERE session = ? AND run_id = ?", session, run_id)


def open_run(db: apsw.Connection, session: int, run_id: str, seq: int) -> None:
    """Make the run known as unresolved, from *seq* on."""
    sql = "INSERT OR IGNORE INTO open_run VALUES (?, ?, ?)"
    run(db, sql, session, run_id, seq)


def _project_journal(db: apsw.Connection, session: int, entry: TapeEntry) -> None:
    fact = entry.fact
    if fact.name == "execution/run_terminal":
        close_run(db, session, fact.source_id)
    elif fact.name in JOURNAL_NAMES:
        open_run(db, session, fact.source_id, entry.seq)


def _configure(db: apsw.Connection, session: int, payload: str, at: float) -> None:
    settings = _SETTINGS.decode(payload)
    run(
        db,
        "UPDATE session_info SET settings = ?, agent = ?, title = ?, updated_at = ?"
        " WHERE session = ?",
        payload,
        settings.agent_id,
        folded(settings.title),
        at,
        session,
    )


#### Messages


def _record_message(
    db: apsw.Connection, session: int, record: MessageRecord, at: float
) -> None:
    run(
        db,
        "DELETE FROM cached_blocks WHERE session = ? AND message = ?",
        session,
        record.id,
    )
    old, new = _mark(db, session, record.id), mark_of(record)
    if not supersedes(new, old):
        return
    message = _write_header(db, session, record, new)
    _write_blocks(db, message, record.blocks)
    new = _counted(db, message, new)
    _count(db, session, old, new, at)


def _counted(db: apsw.Connection, message: int, mark: Mark) -> Mark:
    # The revision holds only some of the blocks; whether one waits, and how many there
    # are, is of all of them.
    row = one(
        db,
        "UPDATE message SET open = status = 'pending' AND EXISTS"
        " (SELECT 1 FROM block WHERE message = ?1 AND waits),"
        " blocks = (SELECT count(*) FROM block WHERE message = ?1) WHERE id = ?1"
        " RETURNING open",
        message,
    )
    assert row is not None
    return attrs.evolve(mark, open=bool(row[0]))


def _retract_message(db: apsw.Connection, session: int, message_id: str) -> None:
    old = _mark(db, session, message_id)
    if old is None or old.retracted:
        return
    run(
        db,
        "UPDATE message SET retracted = 1, open = 0 WHERE session = ? AND name = ?",
        session,
        message_id,
    )
    _count(db, session, old, retracted(old), None)


def _mark(db: apsw.Connection, session: int, message_id: str) -> Mark | None:
    row = one(
        db,
        "SELECT status, open, input_tokens, output_tokens, retracted"
        " FROM message WHERE session = ? AND name = ?",
        session,
        message_id,
    )
    if row is None:
        return None
    status, waits, input_tokens, output_tokens, gone = row
    return Mark(
        status != "pending", bool(waits), input_tokens, output_tokens, bool(gone)
    )


def _write_header(
    db: apsw.Connection, session: int, record: MessageRecord, mark: Mark
) -> int:
    try:
        row = one(
            db,
            "INSERT INTO message (session, name, order_seq, role, status, metadata,"
            " created_at, updated_at, open, input_tokens, output_tokens)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (session, name) DO UPDATE SET order_seq = excluded.order_seq,"
            " role = excluded.role, status = excluded.status,"
            " metadata = excluded.metadata, created_at = excluded.created_at,"
            " updated_at = excluded.updated_at,"
            " open = excluded.open,"
            " input_tokens = excluded.input_tokens,"
            " output_tokens = excluded.output_tokens RETURNING id",
            session,
            record.id,
            record.order_seq,
            record.role,
            record.status,
            _encode_metadata(record.metadata),
            record.created_at,
            record.updated_at,
            mark.open,
            mark.input_tokens,
            mark.output_tokens,
        )
    except apsw.ConstraintError as exc:
        raise order_taken(record.id, record.order_seq) from exc
    assert row is not None
    return row[0]


def _encode_metadata(metadata: MessageMetadata) -> str:
    return _ENCODER.encode(metadata).decode()


def _write_blocks(db: apsw.Connection, message: int, blocks: tuple[Block, ...]) -> None:
    for block in blocks:
        run(
            db,
            "INSERT INTO block SELECT ?1, coalesce("
            "(SELECT position FROM block WHERE message = ?1 AND name = ?2),"
            " (SELECT max(position) + 1 FROM block WHERE message = ?1), 0), ?2, ?3, ?4"
            " WHERE true ON CONFLICT (message, position) DO UPDATE"
            " SET waits = excluded.waits, body = excluded.body"
            " WHERE body <> excluded.body",
            message,
            block.id,
            waits(block),
            _ENCODER.encode(block).decode(),
        )


def _count(
    db: apsw.Connection, session: int, old: Mark | None, new: Mark, at: float | None
) -> None:
    _move(db, session, lambda totals: after_revision(totals, old, new), at)


def _move(
    db: apsw.Connection,
    session: int,
    change: Callable[[Totals], Totals],
    at: float | None,
) -> None:
    row = one(
        db,
        "SELECT messages, open, input_tokens, output_tokens FROM session_info"
        " WHERE session = ?",
        session,
    )
    assert row is not None
    totals = change(Totals(*row))
    run(
        db,
        "UPDATE session_info SET messages = ?, open = ?, input_tokens = ?,"
        " output_tokens = ?, updated_at = coalesce(?, updated_at) WHERE session = ?",
        totals.messages,
        totals.open,
        totals.input_tokens,
        totals.output_tokens,
        at,
        session,
    )
