# pyright: reportUnknownMemberType=false
"""Commands of sessions in rows: put once, handed out in order until settled."""

from __future__ import annotations

import apsw

from greenroom.protocol import SessionId

from .._errors import full_inbox
from .._limits import FORGOTTEN, clamp
from .._values import (
    MAX_OPEN_COMMANDS,
    Fenced,
    Grant,
    InboxCommand,
    Member,
    Posted,
    Seen,
)
from ._append import find_session
from ._connection import mapped_errors, one, reading, rows, run


def post(
    db: apsw.Connection, scope: SessionId, command_id: str, body: str, now: float
) -> Posted | Seen:
    """See `Store.post`; inside a write."""
    run(db, "INSERT INTO session (name) VALUES (?) ON CONFLICT DO NOTHING", scope)
    session = find_session(db, scope)
    assert session is not None
    sql = "SELECT body FROM command WHERE session = ? AND command_id = ?"
    known = one(db, sql, session.id, command_id)
    if known is not None:
        return Seen(same_body=known[0] in (body, FORGOTTEN))
    _check_room(db, session.id, scope)
    run(
        db,
        "INSERT INTO command (session, command_id, body, posted_at)"
        " VALUES (?, ?, ?, ?)",
        session.id,
        command_id,
        body,
        now,
    )
    return Posted()


def waiting(
    db: apsw.Connection, grant: Grant, limit: int
) -> list[InboxCommand] | Fenced:
    """See `Store.inbox`."""
    with reading(db):
        session = find_session(db, grant.scope)
        if session is None or session.token != grant.token:
            return Fenced(grant.scope, grant.token)
        found = rows(
            db,
            "SELECT command_id, body, posted_at FROM command"
            " WHERE session = ? AND settled = 0 ORDER BY pos LIMIT ?",
            session.id,
            clamp(limit, MAX_OPEN_COMMANDS),
        )
    return [InboxCommand(*row) for row in found]


def owed(db: apsw.Connection, member: Member) -> list[SessionId]:
    """See `Store.owed`."""
    sql = (
        "SELECT s.name FROM session s WHERE s.owner = ? AND EXISTS"
        " (SELECT 1 FROM command c WHERE c.session = s.id AND c.settled = 0)"
        " ORDER BY s.name"
    )
    with mapped_errors():
        return [SessionId(name) for (name,) in rows(db, sql, int(member.id))]


def empty(db: apsw.Connection, session: int) -> None:
    """Settle every command, and forget what it said; its id stays taken."""
    sql = "UPDATE command SET body = ?, settled = 1 WHERE session = ?"
    run(db, sql, FORGOTTEN, session)


def forget(db: apsw.Connection, session: int) -> None:
    """Remove every command."""
    run(db, "DELETE FROM command WHERE session = ?", session)


def _check_room(db: apsw.Connection, session: int, scope: SessionId) -> None:
    sql = "SELECT count(*) FROM command WHERE session = ? AND settled = 0"
    row = one(db, sql, session)
    if row is not None and row[0] >= MAX_OPEN_COMMANDS:
        raise full_inbox(scope, row[0])
