"""What clients are bound to, in SQLite."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from greenroom.protocol import SessionId

from .._bindings import Binding
from .._values import Member
from ._agents import Connected
from ._connection import mapped_errors, one, rows, run
from ._folder import Proofs


def bindings(
    self: Connected, *, client: str | None = None, session: str | None = None
) -> list[Binding]:
    """See `BindingReader.bindings`."""
    sql = (
        "SELECT client, session, member, bound_at FROM binding"
        " WHERE (?1 IS NULL OR client = ?1) AND (?2 IS NULL OR session = ?2)"
        " ORDER BY client, session"
    )
    with mapped_errors():
        found = rows(self.connection, sql, client, session)
    return [
        Binding(client_id, SessionId(scope), str(member), at)
        for client_id, scope, member, at in found
    ]


def bind(
    db: apsw.Connection, member: Member, client_id: str, scope: SessionId, now: float
) -> None:
    """See `BindingWriter.bind`."""
    run(
        db,
        "INSERT INTO binding VALUES (?, ?, ?, ?) ON CONFLICT (client, session)"
        " DO UPDATE SET member = excluded.member, bound_at = excluded.bound_at"
        " WHERE member <> excluded.member",
        client_id,
        scope,
        int(member.id),
        now,
    )


def unbind(
    db: apsw.Connection, member: Member, client_id: str, scopes: Sequence[SessionId]
) -> None:
    """See `BindingWriter.unbind`."""
    for scope in scopes:
        run(
            db,
            "DELETE FROM binding WHERE client = ? AND session = ? AND member = ?",
            client_id,
            scope,
            int(member.id),
        )


def unbind_all(
    db: apsw.Connection, *, member: int | None = None, scope: SessionId | None = None
) -> int:
    """Forget the bindings of a member, or those to a session."""
    run(db, "DELETE FROM binding WHERE member = ? OR session = ?", member, scope)
    return db.changes()


def drop_stale(db: apsw.Connection, proofs: Proofs) -> int:
    """See `BindingWriter.drop_stale_bindings`."""
    members = rows(db, "SELECT DISTINCT member FROM binding")
    return sum(
        unbind_all(db, member=member)
        for (member,) in members
        if not _lives(db, proofs, member)
    )


def _lives(db: apsw.Connection, proofs: Proofs, member: int) -> bool:
    known = one(db, "SELECT 1 FROM member WHERE id = ? AND dead = 0", member)
    return known is not None and proofs.lives(member)
