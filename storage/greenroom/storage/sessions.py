"""Changes of a session that nobody has loaded: its name, and whether it is put away.

Each takes the session, writes one fact and gives it back, in one piece. A session
that is loaded is its owner's, in this process too: the owner is returned, and nothing
is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from greenroom.protocol import Fact, SessionId, StorageError

from ._errors import RefusedFactError
from ._store import Store
from ._values import Appended, Grant, Held, Member, MemberLost, SessionRow
from .names import archived_fact, settings_fact

MAX_TITLE: Final = 200
"""Characters of a title that a user gives."""


def rename_session(
    store: Store,
    member: Member,
    scope: SessionId,
    title: str,
    *,
    revision: str,
    now: float,
) -> SessionRow | Held | None:
    """Give *scope* another title; ``None`` if there is no such session.

    *revision* tells this change from every other one of the session.

    Raises:
        RefusedFactError: the title is empty or too long.
    """
    title = " ".join(title.split())
    if not 1 <= len(title) <= MAX_TITLE:
        raise RefusedFactError(
            f"a title has 1 to {MAX_TITLE} characters, not {len(title)}"
        )

    def renamed(row: SessionRow) -> Fact:
        settings = msgspec.structs.replace(row.settings, title=title)
        return settings_fact(settings, revision=revision)

    return _changed(store, member, scope, renamed, now)


def archive_session(
    store: Store,
    member: Member,
    scope: SessionId,
    *,
    archived: bool,
    revision: str,
    now: float,
) -> SessionRow | Held | None:
    """Put *scope* away, or take it back; ``None`` if there is no such session.

    It keeps its place in the list and all that is in it. *revision* is as for
    `rename_session`.
    """

    def moved(row: SessionRow) -> Fact | None:
        is_so = (row.archived_at is not None) == archived
        return None if is_so else archived_fact(archived=archived, revision=revision)

    return _changed(store, member, scope, moved, now)


def _changed(
    store: Store,
    member: Member,
    scope: SessionId,
    change: Callable[[SessionRow], Fact | None],
    now: float,
) -> SessionRow | Held | None:
    row = store.session(scope)
    if row is None:
        return None
    owner = store.locate(scope)
    if owner is not None and owner.member_id == member.id:
        # A second grant would fence the session that is loaded here.
        return Held(scope, owner)
    grant = store.acquire(member, scope, now=now)
    if not isinstance(grant, Grant):
        return _refused(grant)
    fact = change(row)
    if fact is not None:
        done = store.append(grant, grant.head, [fact], now=now)
        assert isinstance(done, Appended), done
    store.release(grant, now=now)
    return store.session(scope)


def _refused(answer: Held | MemberLost) -> Held:
    if isinstance(answer, Held):
        return answer
    raise StorageError(
        "this process was declared dead and may own nothing any more",
        hint="start it again; nothing was changed",
    )
