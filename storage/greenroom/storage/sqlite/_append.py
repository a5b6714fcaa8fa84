"""Writing to a tape: facts, strict facts, settlements, and what goes with them.

Functions over a connection that is inside a transaction or savepoint; whoever
opened it undoes everything when one of these raises.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import apsw
import attrs
import msgspec

from greenroom.protocol import (
    Fact,
    JournalError,
    JournalRecord,
    RunStarted,
    RunTerminal,
    SessionId,
    TapeEntry,
    journal_fact,
)

from .._admission import check_start
from .._errors import conflicting_fact, unknown_command
from .._journal_rules import (
    check_bootstrapped,
    check_prerequisites,
    is_repeat,
    needed_keys,
    refuse_elsewhere,
)
from .._limits import REMEMBERED
from .._values import Appended, Fenced, Grant, HeadMoved, Receipt
from ..names import is_strict
from ._connection import one, rows, run, storage_error
from ._projections import close_run, forget, open_run, project
from ._reads import entry_of
from ._search import forget_words

_FIND = (
    "SELECT f.seq, f.token, f.kind, f.name, f.source_type, f.source_id,"
    " f.source_seq, f.payload, f.meta, f.provenance_key, f.at FROM fact f"
    " WHERE f.session = ? AND f.digest = ?"
)
_FIND_PAYLOADS: Final = tuple(
    "SELECT digest, payload FROM fact WHERE session = ?"
    f" AND digest IN ({', '.join('?' * count)})"
    for count in range(4)
)
_INSERT = (
    "INSERT INTO fact (session, seq, token, stream, kind, name, source_type,"
    " source_id, source_seq, digest, provenance_key, payload, meta, at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (session, digest) DO NOTHING"
)


@attrs.frozen
class Hot:
    """The hot row of a session."""

    id: int
    head: int
    token: int


def find_session(db: apsw.Connection, scope: SessionId) -> Hot | None:
    """Return the hot row of *scope*, if it was ever acquired or posted to."""
    row = one(db, "SELECT id, head, token FROM session WHERE name = ?", scope)
    return None if row is None else Hot(*row)


def authorise(
    db: apsw.Connection, grant: Grant, expected_head: int
) -> Hot | Fenced | HeadMoved:
    """Return the session that *grant* may write now; token first, then head."""
    session = find_session(db, grant.scope)
    if session is None or session.token != grant.token:
        return Fenced(grant.scope, grant.token)
    if session.head != expected_head:
        return HeadMoved(grant.scope, session.head)
    return session


def append_facts(
    db: apsw.Connection,
    grant: Grant,
    session: Hot,
    facts: Sequence[Fact],
    now: float,
) -> Appended:
    """Write *facts* after the head; what exists already is not written again."""
    check_start(session.head, facts)
    head = session.head
    seqs: list[int] = []
    created: list[bool] = []
    for fact in facts:
        seq = _insert(db, grant, session.id, head + 1, fact, now)
        created.append(seq > head)
        seqs.append(seq)
        head = max(head, seq)
    if head != session.head:
        _move_head(db, session.id, head)
    return Appended(head, tuple(seqs), tuple(created))


def commit_record(
    db: apsw.Connection,
    grant: Grant,
    session: Hot,
    record: JournalRecord,
    now: float,
) -> Receipt:
    """Write one strict fact after the head, its prerequisites checked (JRN-06)."""
    fact = journal_fact(record)
    check_bootstrapped(grant.scope, session.head)
    found = _find_all(db, session.id, (fact.key, *needed_keys(record)))
    if is_repeat(record, fact, found.get(fact.key)):
        existing = find_entry(db, grant.scope, session.id, fact.key)
        assert existing is not None
        return Receipt(existing.seq, session.head, created=False)
    check_prerequisites(record, found.get)
    if isinstance(record, RunStarted):
        _check_run_is_new(db, record, session.id)
    head = session.head + 1
    _insert_row(db, grant, session.id, head, fact, now)
    _index_run(db, session.id, head, record)
    _move_head(db, session.id, head)
    return Receipt(head, head, created=True)


def find_entry(
    db: apsw.Connection, scope: SessionId, session: int, key: str
) -> TapeEntry | None:
    """Return the entry under provenance *key*."""
    row = one(db, _FIND, session, _digest(key))
    return None if row is None else entry_of(scope, row)


def _find_all(db: apsw.Connection, session: int, keys: Sequence[str]) -> dict[str, str]:
    key_of = {_digest(key): key for key in keys}
    found = rows(db, _FIND_PAYLOADS[len(keys)], session, *key_of)
    return {key_of[digest]: payload for digest, payload in found}


def _check_run_is_new(db: apsw.Connection, record: RunStarted, session: int) -> None:
    sql = (
        "SELECT 1 FROM fact WHERE name = 'execution/run_started'"
        " AND source_id = ? AND session <> ?"
    )
    if one(db, sql, record.run_id, session) is not None:
        raise refuse_elsewhere(record)


def settle(db: apsw.Connection, session: int, command_ids: Sequence[str]) -> None:
    """Mark commands as finished."""
    for command_id in command_ids:
        run(
            db,
            "UPDATE command SET settled = 1 WHERE session = ? AND command_id = ?",
            session,
            command_id,
        )
        if db.changes() == 0:
            raise unknown_command(command_id)


def remember(
    db: apsw.Connection, session: int, append_id: str, result: Appended
) -> None:
    """Keep *result* for whoever asks with the same *append_id* again."""
    text = msgspec.json.encode(attrs.astuple(result)).decode()
    run(
        db,
        "INSERT INTO append_result (session, append_id, result) VALUES (?, ?, ?)",
        session,
        append_id,
        text,
    )
    run(
        db,
        "DELETE FROM append_result WHERE session = ?1 AND pos NOT IN"
        " (SELECT pos FROM append_result WHERE session = ?1"
        " ORDER BY pos DESC LIMIT ?2)",
        session,
        REMEMBERED,
    )


def remembered(
    db: apsw.Connection, scope: SessionId, append_id: str
) -> Appended | None:
    """Return what the append with *append_id* returned, if it is known."""
    row = one(
        db,
        "SELECT a.result FROM session s JOIN append_result a ON a.session = s.id"
        " WHERE s.name = ? AND a.append_id = ?",
        scope,
        append_id,
    )
    if row is None:
        return None
    head, seqs, created = msgspec.json.decode(row[0])
    return Appended(head, tuple(seqs), tuple(created))


def clear(db: apsw.Connection, session: int) -> None:
    """Remove everything of *session* but its commands and hot row; its head is 0."""
    run(db, "INSERT INTO lifecycle VALUES (?)", session)
    forget(db, session)
    forget_words(db, session)
    for table in ("fact", "append_result", "cached_blocks", "attempt_trace"):
        run(db, f"DELETE FROM {table} WHERE session = ?", session)
    run(db, "UPDATE session SET head = 0, indexed = 0 WHERE id = ?", session)
    run(db, "DELETE FROM lifecycle WHERE session = ?", session)


def rebuild(db: apsw.Connection, scope: SessionId, session: int) -> None:
    """Derive the projections of *session* from its facts again."""
    forget(db, session)
    forget_words(db, session)
    run(db, "UPDATE session SET indexed = 0 WHERE id = ?", session)
    after = 0
    sql = _FIND.replace("f.digest = ?", "f.seq > ? ORDER BY f.seq LIMIT 256")
    while found := rows(db, sql, session, after):
        for row in found:
            project(db, session, entry_of(scope, row))
        after = found[-1][0]


def _insert(
    db: apsw.Connection,
    grant: Grant,
    session: int,
    seq: int,
    fact: Fact,
    now: float,
) -> int:
    if _insert_row(db, grant, session, seq, fact, now):
        project(db, session, _entry(grant, seq, fact, now))
        return seq
    entry = find_entry(db, grant.scope, session, fact.key)
    assert entry is not None
    if is_strict(fact.name) and entry.fact.payload != fact.payload:
        raise conflicting_fact(fact)
    return entry.seq


def _insert_row(
    db: apsw.Connection,
    grant: Grant,
    session: int,
    seq: int,
    fact: Fact,
    now: float,
) -> bool:
    run(
        db,
        _INSERT,
        session,
        seq,
        grant.token,
        fact.is_execution,
        fact.kind,
        fact.name,
        fact.source_type,
        fact.source_id,
        fact.source_seq,
        _digest(fact.key),
        fact.provenance_key,
        fact.payload,
        fact.meta,
        now,
    )
    return db.changes() == 1


def _entry(grant: Grant, seq: int, fact: Fact, now: float) -> TapeEntry:
    return TapeEntry(
        session_id=grant.scope, seq=seq, token=grant.token, fact=fact, created_at=now
    )


def _index_run(
    db: apsw.Connection, session: int, seq: int, record: JournalRecord
) -> None:
    try:
        match record:
            case RunStarted():
                open_run(db, session, record.run_id, seq)
            case RunTerminal():
                close_run(db, session, record.run_id)
            case _:
                pass  # The run is in the index since its start.
    except apsw.Error as exc:
        raise JournalError(
            "projection_failed",
            f"the index of open runs can't be kept: {storage_error(exc)}",
        ) from exc


def _move_head(db: apsw.Connection, session: int, head: int) -> None:
    run(db, "UPDATE session SET head = ? WHERE id = ?", head, session)


# A run's own keys are asked for by every commit of it.
@lru_cache(maxsize=4_096)
def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()[:16]
