"""Members and grants: who may write which session.

A member is alive while it is not declared dead, its beat is good and its proof
file is locked. Whoever meets a dead owner declares the whole incarnation dead,
then takes the session it wanted; the others are taken as they are claimed. Every
change of owner moves the token.
"""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from greenroom.protocol import SessionId

from .._values import Grant, Held, Member, MemberLost, Owner
from ._append import find_session
from ._connection import one, rows, run
from ._folder import Proofs


def add_member(
    db: apsw.Connection, proofs: Proofs, node: str, addr: str, ttl: float, now: float
) -> Member:
    """Make a new incarnation, and remove members that are dead and own nothing."""
    _sweep(db, proofs)
    row = one(
        db,
        "INSERT INTO member (node, addr, ttl, expires) VALUES (?, ?, ?, ?)"
        " RETURNING id",
        node,
        addr,
        ttl,
        now + ttl,
    )
    assert row is not None
    proofs.hold(row[0])
    return Member(str(row[0]), node, addr, ttl)


def restore_member(
    db: apsw.Connection, proofs: Proofs, member: Member, now: float
) -> None:
    """Make *member* alive again, whose store was closed in between.

    What it owned then may have been taken: its tokens are worth what they are.
    """
    run(
        db,
        "INSERT INTO member (id, node, addr, ttl, expires) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET expires = excluded.expires, dead = 0",
        int(member.id),
        member.node,
        member.addr,
        member.ttl,
        now + member.ttl,
    )
    proofs.hold(int(member.id))


def renew(db: apsw.Connection, member: Member, now: float) -> MemberLost | None:
    """Make the beat of *member* good for its ttl from *now*."""
    run(
        db,
        "UPDATE member SET expires = ? WHERE id = ? AND dead = 0",
        now + member.ttl,
        int(member.id),
    )
    return None if db.changes() else MemberLost(member.id)


def remove_member(db: apsw.Connection, proofs: Proofs, member: Member) -> None:
    """Free all sessions of *member* and end it."""
    number = int(member.id)
    run(
        db,
        "UPDATE session SET owner = NULL, token = token + 1 WHERE owner = ?",
        number,
    )
    run(db, "DELETE FROM member WHERE id = ?", number)
    proofs.drop(number)


def is_alive(db: apsw.Connection, proofs: Proofs, member: int, now: float) -> bool:
    """Whether *member* may keep its sessions."""
    row = one(
        db, "SELECT expires > ? AND dead = 0 FROM member WHERE id = ?", now, member
    )
    return row is not None and row[0] == 1 and proofs.lives(member)


def take(
    db: apsw.Connection, proofs: Proofs, member: Member, scope: SessionId, now: float
) -> Grant | Held | MemberLost:
    """Give *scope* to *member*, unless another living member owns it."""
    number = int(member.id)
    alive = one(db, "SELECT 1 FROM member WHERE id = ? AND dead = 0", number)
    if alive is None:
        return MemberLost(member.id)
    run(db, "INSERT INTO session (name) VALUES (?) ON CONFLICT DO NOTHING", scope)
    row = one(
        db,
        "SELECT s.owner, m.node, m.addr FROM session s"
        " LEFT JOIN member m ON m.id = s.owner WHERE s.name = ?",
        scope,
    )
    assert row is not None
    owner, node, addr = row
    if owner is not None and owner != number:
        if is_alive(db, proofs, owner, now):
            return Held(scope, Owner(str(owner), node, addr))
        run(db, "UPDATE member SET dead = 1 WHERE id = ?", owner)
    return _grant(db, member, scope)


def claim_owed(
    db: apsw.Connection, proofs: Proofs, member: Member, limit: int, now: float
) -> list[Grant]:
    """Take sessions that owe work and have no living owner."""
    found = rows(
        db,
        "SELECT DISTINCT s.name, s.owner FROM command c"
        " JOIN session s ON s.id = c.session"
        " WHERE c.settled = 0 AND (s.owner IS NULL OR s.owner <> ?) ORDER BY s.name",
        int(member.id),
    )
    living = _living(db, proofs, {owner for _, owner in found}, now)
    free = [SessionId(name) for name, owner in found if owner not in living]
    taken = [take(db, proofs, member, scope, now) for scope in free[:limit]]
    return [grant for grant in taken if isinstance(grant, Grant)]


def give_back(db: apsw.Connection, grant: Grant) -> None:
    """Make the session free and move its token, if *grant* is still current."""
    run(
        db,
        "UPDATE session SET owner = NULL, token = token + 1"
        " WHERE name = ? AND token = ?",
        grant.scope,
        grant.token,
    )


def living_nodes(
    db: apsw.Connection, proofs: Proofs, *, but: Member | None = None
) -> list[str]:
    """Return the nodes of members whose process is alive, for display."""
    found = rows(db, "SELECT id, node FROM member WHERE dead = 0 ORDER BY id")
    known = None if but is None else int(but.id)
    return [node for id_, node in found if id_ != known and proofs.lives(id_)]


def _grant(db: apsw.Connection, member: Member, scope: SessionId) -> Grant:
    run(
        db,
        "UPDATE session SET owner = ?, token = token + 1 WHERE name = ?",
        int(member.id),
        scope,
    )
    session = find_session(db, scope)
    assert session is not None
    return Grant(scope, session.token, session.head, member.id)


def _living(
    db: apsw.Connection, proofs: Proofs, members: Iterable[int | None], now: float
) -> set[int]:
    return {
        member
        for member in members
        if member is not None and is_alive(db, proofs, member, now)
    }


def _sweep(db: apsw.Connection, proofs: Proofs) -> None:
    idle = rows(
        db,
        "SELECT id FROM member WHERE id NOT IN"
        " (SELECT owner FROM session WHERE owner IS NOT NULL)",
    )
    for (member,) in idle:
        if not proofs.lives(member):
            run(db, "DELETE FROM member WHERE id = ?", member)
            proofs.sweep(member)
