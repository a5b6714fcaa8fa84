"""Bodies of pieces that give a session to another agent, or take it away in steps.

Each runs as one piece, so that it is one transaction: what it judges is what it
changes, whichever engine works beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Literal

import attrs
import msgspec

from greenroom.protocol import (
    SessionId,
    SessionSettings,
    SkillState,
    StorageError,
    TapeEntry,
    catalogue_of,
)

from ._agents import AgentReader
from ._errors import FencedError
from ._store import Appended, Fenced, Grant, Held, Member, MemberLost, Store
from .names import bootstrap_facts, settings_fact
from .skills import read_skill_state

Unfinished = Literal["active", "pending-input"]
"""Why a session can't change hands: a turn is not over, or input waits (DEL-10)."""


@attrs.frozen
class Assigned:
    """A session that was given other settings, and the entry that says so."""

    settings: SessionSettings
    entry: TapeEntry


_PENDING: Final = "sessions.pendingDeletions"
_RECORDS: Final = msgspec.json.Decoder(dict[SessionId, tuple[str, ...]])


def take_session(
    store: Store, member: Member, scope: SessionId, now: float
) -> Grant | Held:
    """Take a session that is not loaded here; `Held` if somebody works with it.

    Raises:
        StorageError: this process was declared dead.
    """
    owner = store.locate(scope)
    if owner is not None and owner.member_id == member.id:
        # A second grant would fence the session that is loaded here.
        return Held(scope, owner)
    grant = store.acquire(member, scope, now=now)
    if isinstance(grant, MemberLost):
        raise StorageError(
            "this process was declared dead and may own nothing any more",
            hint="start it again; nothing was changed",
        )
    return grant


def unfinished(store: Store, grant: Grant) -> Unfinished | None:
    """Return what a session still has to do; ``None`` for one at rest.

    Input that can't be looked at counts as input that waits.
    """

    def commands_wait() -> bool:
        commands = store.inbox(grant, 1)
        return isinstance(commands, Fenced) or bool(commands)

    return _unfinished(store, grant.scope, commands_wait)


def assess_session(
    store: Store, member: Member, scope: SessionId, now: float
) -> Unfinished | None:
    """Return what a session still has to do, whoever owns it.

    One that another engine works with counts as active.
    """
    grant = take_session(store, member, scope, now)
    if isinstance(grant, Held):
        if grant.owner.member_id != member.id:
            return "active"
        return _unfinished(store, scope, lambda: scope in store.owed(member))
    rest = unfinished(store, grant)
    store.release(grant, now=now)
    return rest


def _unfinished(
    store: Store, scope: SessionId, commands_wait: Callable[[], bool]
) -> Unfinished | None:
    row = store.session(scope)
    if row is not None and row.has_open_interaction:
        return "active"
    if store.pending_messages(scope) or store.open_runs(scope):
        return "active"
    try:
        waits = commands_wait() or store.pending_inputs(scope).rows
    except StorageError:
        return "pending-input"
    return "pending-input" if waits else None


def assign_session(
    store: Store,
    member: Member,
    scope: SessionId,
    judge: Callable[[SessionSettings, Unfinished | None], SessionSettings],
    keep: Callable[[Store], object],
    *,
    revision: str,
    now: float,
) -> Assigned | Held | None:
    """Give a session that is not loaded new settings; ``None`` if there is none.

    *judge* returns them, or refuses by raising; *keep* writes what goes with them. No
    actor is there to tell whoever watches: the caller does.
    """
    row = store.session(scope)
    if row is None:
        return None
    grant = take_session(store, member, scope, now)
    if isinstance(grant, Held):
        return grant
    settings = judge(row.settings, unfinished(store, grant))
    keep(store)
    fact = settings_fact(settings, revision=revision)
    done = store.append(grant, grant.head, [fact], now=now)
    if not isinstance(done, Appended):
        raise FencedError(scope, grant.token)
    store.release(grant, now=now)
    entry = TapeEntry(
        session_id=scope,
        seq=done.head,
        token=grant.token,
        fact=fact,
        created_at=now,
    )
    return Assigned(settings, entry)


def filter_selection(
    store: Store,
    scope: SessionId,
    agent_id: str,
    allowed: Collection[str] | None,
    *,
    of: SessionId | None = None,
) -> None:
    """Let *scope* select what it, or the session *of*, did of what the agent has."""
    state = read_skill_state(store)
    catalogue = _catalogue(state, agent_id, allowed)
    chosen = store.skill_selection(scope if of is None else of)
    store.put_skill_selection(scope, [name for name in chosen if name in catalogue])


def _catalogue(
    state: SkillState, agent_id: str, allowed: Collection[str] | None
) -> frozenset[str]:
    return catalogue_of(state, state.skills.keys(), agent_id, allowed)


#### Deletion


def pending_deletions(reader: AgentReader) -> dict[SessionId, tuple[str, ...]]:
    """Return the sessions whose deletion has begun, with the stages that are left."""
    text = reader.app_setting(_PENDING)
    try:
        return {} if text is None else _RECORDS.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}


def note_deletion(
    store: Store, scope: SessionId, left: Collection[str], now: float
) -> None:
    """Keep which stages of a deletion are left; none: it is done and forgotten."""
    records = pending_deletions(store)
    if left:
        records[scope] = tuple(left)
    elif records.pop(scope, None) is None:
        return
    text = msgspec.json.encode(records).decode() if records else None
    store.put_app_setting(_PENDING, text, now=now)


def clear_session(
    store: Store,
    grant: Grant,
    head: int,
    settings: SessionSettings,
    revision: str,
    now: float,
) -> int:
    """Forget all that was said in a session but that it is there; return its head."""
    facts = bootstrap_facts(revision, settings)
    done = store.reset(grant, head, facts, now=now)
    if not isinstance(done, Appended):
        raise FencedError(grant.scope, grant.token)
    return done.head


def drop_session(
    store: Store, grant: Grant, head: int, left: Collection[str], now: float
) -> None:
    """Forget that a session was there, and note what is *left* of it elsewhere."""
    if store.delete(grant, head) is not None:
        raise FencedError(grant.scope, grant.token)
    note_deletion(store, grant.scope, left, now)
