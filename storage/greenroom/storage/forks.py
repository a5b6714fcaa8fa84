"""Forks of a tape: a try beside a session, merged into it or thrown away (TAP-14).

A fork is a tape of its own, ``parent::fork::id``, that begins where its parent is. What
was written on it is copied to the parent by a merge, in one transaction; a receipt on
the parent's tape makes merging again the same merge. A discarded fork is gone for good:
its id is neither merged nor used again.

Facts of the journal are never copied: what ran on the fork, ran there. A message that
the parent does not have gets the next place in the parent's transcript.

(The fork of a *session*, which is another session for its user, is not here: SES-23.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from greenroom.protocol import (
    Fact,
    FactKind,
    MessageRecord,
    SessionId,
    SourceType,
    StorageError,
    TapeEntry,
    canonical_json,
)

from ._errors import FencedError
from ._store import Piece, Reader, Store
from ._values import MAX_FACTS, Appended, Grant, Held, Member
from .names import (
    FORK_DISCARD,
    FORK_MERGE,
    FORK_START,
    MESSAGE_RECORDED,
    SESSION_START,
    start_fact,
)
from .tape import Tape

MAX_DELTA: Final = 100_000
"""Entries of one fork that can be merged."""

MAX_DELTA_BYTES: Final = 256 << 20

_SEPARATOR: Final = "::fork::"
_ID: Final = re.compile("[A-Za-z0-9_-]{1,64}")
_PAGE: Final = 500
_NOT_COPIED: Final = (SESSION_START, FORK_START)

T = TypeVar("T", bound=msgspec.Struct)


class ForkStart(msgspec.Struct, frozen=True, rename="camel"):
    """Payload of ``fork/start``: where its parent was."""

    parent_session_id: SessionId
    parent_head_entry_id: int


class ForkMerged(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Payload of ``fork/merge``, the receipt of a merge."""

    fork_id: str
    fork_session_id: SessionId
    merged_count: int
    fork_head_entry_id: int


class ForkDiscarded(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Payload of ``fork/discard``, the receipt of a discard."""

    fork_id: str
    fork_session_id: SessionId


class ForkRefusedError(StorageError):
    """The fork can't be begun, used or merged; nothing was written."""

    code = "fork_refused"
    hint = "begin another fork, with an id that was not used before"


def fork_scope(parent: SessionId, fork_id: str) -> SessionId:
    """Return the session id of a fork's tape.

    Raises:
        ForkRefusedError: *fork_id* is no id for a fork.
    """
    if not _ID.fullmatch(fork_id):
        raise ForkRefusedError(
            f"a fork's id has 1 to 64 letters, digits, '-' or '_', not {fork_id[:80]!r}"
        )
    return SessionId(f"{parent}{_SEPARATOR}{fork_id}")


def is_kept_fork(reader: Reader, scope: SessionId) -> bool:
    """Whether *scope* is a fork that may still be merged: its parent is there."""
    parent, separator, fork_id = scope.rpartition(_SEPARATOR)
    if not separator or reader.session(SessionId(parent)) is None:
        return False
    return _discarded(reader, SessionId(parent), fork_id) is None


def begin_fork(
    store: Store,
    member: Member,
    parent: SessionId,
    fork_id: str,
    *,
    incarnation: str,
    now: float,
) -> Grant | Held:
    """Return the right to write a fork's tape, begun at the parent's head.

    A fork that was begun before, and neither merged nor discarded, goes on. The body of
    a piece.

    Raises:
        ForkRefusedError: it was merged or discarded, or there is no such parent.
    """
    scope = fork_scope(parent, fork_id)
    _refuse_discarded(store, parent, fork_id)
    if merge_receipt(store, parent, fork_id) is not None:
        raise ForkRefusedError(f"fork {fork_id!r} was merged before")
    heads = dict(store.heads([parent]))
    if parent not in heads:
        raise ForkRefusedError(f"there is no session {parent[:80]!r} to be forked")
    grant = store.acquire(member, scope, now=now)
    if isinstance(grant, Held):
        return grant
    if not isinstance(grant, Grant):
        raise StorageError("this process was declared dead; start it again")
    if grant.head:
        return grant
    facts = (start_fact(incarnation), _start(parent, heads[parent]))
    done = store.append(grant, 0, facts, now=now)
    if not isinstance(done, Appended):
        raise FencedError(scope, grant.token)
    return Grant(scope, grant.token, done.head, grant.member_id)


def merge_piece(tape: Tape, fork_id: str, *, now: float) -> Piece:
    """Return the piece that copies a fork to its parent's *tape*; `ForkMerged`.

    All or nothing; a fork that was merged before is not merged again, and the receipt
    is the same.

    Raises (when run):
        ForkRefusedError: discarded, not there, not at rest, or too much.
    """
    batches = tape.batches_piece(
        lambda store: _merge(store, tape.scope, fork_id), now=now
    )

    def run(store: Store) -> ForkMerged:
        batches.run(store)
        receipt = merge_receipt(store, tape.scope, fork_id)
        assert receipt is not None
        return receipt

    return Piece(run, batches.aborted)


def discard_piece(tape: Tape, fork_id: str, *, now: float) -> Piece:
    """Return the piece that says on the parent's *tape* that a fork is gone for good.

    Again is the same; `delete_fork` is the other half.
    """
    scope = fork_scope(tape.scope, fork_id)
    gone = ForkDiscarded(fork_id=fork_id, fork_session_id=scope)
    return tape.append_piece([_receipt(FORK_DISCARD, fork_id, gone)], now=now)


def delete_fork(
    store: Store, member: Member, parent: SessionId, fork_id: str, *, now: float
) -> bool:
    """Delete the tape of a fork, as far as nobody holds it; the body of a piece.

    What is left of a discarded fork goes with the next sweep.
    """
    scope = fork_scope(parent, fork_id)
    if not store.heads([scope]):
        return True
    grant = store.acquire(member, scope, now=now)
    return isinstance(grant, Grant) and store.delete(grant, grant.head) is None


def merge_receipt(reader: Reader, parent: SessionId, fork_id: str) -> ForkMerged | None:
    """Return the receipt of a merge, if there was one."""
    return _find(reader, parent, FORK_MERGE, fork_id, ForkMerged)


def _discarded(reader: Reader, parent: SessionId, fork_id: str) -> ForkDiscarded | None:
    return _find(reader, parent, FORK_DISCARD, fork_id, ForkDiscarded)


def _refuse_discarded(reader: Reader, parent: SessionId, fork_id: str) -> None:
    if _discarded(reader, parent, fork_id) is not None:
        raise ForkRefusedError(f"fork {fork_id!r} was discarded, for good")


def _find(
    reader: Reader, parent: SessionId, name: str, fork_id: str, form: type[T]
) -> T | None:
    before: int | None = None
    while found := reader.named(parent, name, before=before, limit=_PAGE):
        for entry in found:
            if entry.fact.source_id == fork_id:
                return msgspec.json.decode(entry.fact.payload, type=form)
        before = found[-1].seq
    return None


#### Merging


def _merge(store: Store, parent: SessionId, fork_id: str) -> Iterator[Sequence[Fact]]:
    _refuse_discarded(store, parent, fork_id)
    if merge_receipt(store, parent, fork_id) is not None:
        return
    scope = fork_scope(parent, fork_id)
    _check_rest(store, scope, fork_id)
    delta = list(_delta(store, scope, fork_id))
    orders = _orders(store, parent, delta)
    copies = [_copy(fork_id, entry, orders) for entry in delta]
    for start in range(0, len(copies), MAX_FACTS):
        yield copies[start : start + MAX_FACTS]
    merged = ForkMerged(
        fork_id=fork_id,
        fork_session_id=scope,
        merged_count=len(copies),
        fork_head_entry_id=store.page(scope, 0, 1).head,
    )
    yield [_receipt(FORK_MERGE, fork_id, merged)]


def _check_rest(store: Store, scope: SessionId, fork_id: str) -> None:
    if not store.heads([scope]):
        raise ForkRefusedError(f"there is no fork {fork_id!r}")
    if store.pending_messages(scope) or store.open_runs(scope):
        raise ForkRefusedError(
            f"fork {fork_id!r} still works on a message",
            hint="end its turn, then merge it",
        )


def _delta(store: Store, scope: SessionId, fork_id: str) -> Iterator[TapeEntry]:
    after = size = 0
    while entries := store.page(scope, after, _PAGE, "tape").entries:
        for entry in entries:
            size += len(entry.fact.payload) + len(entry.fact.meta)
            if entry.fact.name not in _NOT_COPIED:
                yield entry
        after = entries[-1].seq
        if after > MAX_DELTA or size > MAX_DELTA_BYTES:
            raise ForkRefusedError(
                f"fork {fork_id!r} has more than {MAX_DELTA} entries or"
                f" {MAX_DELTA_BYTES >> 20} MiB",
                hint="discard it, and merge smaller ones",
            )


def _orders(
    store: Store, parent: SessionId, delta: Sequence[TapeEntry]
) -> dict[str, int]:
    # Where each message of the fork stands in the parent's transcript.
    newest = store.messages(parent, limit=1)
    order = newest[-1].order_seq if newest else 0
    orders: dict[str, int] = {}
    for entry in delta:
        name = entry.fact.source_id
        if entry.fact.name != MESSAGE_RECORDED or name in orders:
            continue
        known = store.message(parent, name)
        order += known is None
        orders[name] = order if known is None else known.order_seq
    return orders


def _copy(fork_id: str, entry: TapeEntry, orders: dict[str, int]) -> Fact:
    fact = entry.fact
    payload = fact.payload
    if fact.name == MESSAGE_RECORDED:
        record = msgspec.json.decode(payload, type=MessageRecord)
        moved = msgspec.structs.replace(record, order_seq=orders[record.id])
        payload = canonical_json(moved)
    key = f"fork:merge:{fork_id}:{entry.seq}"
    return msgspec.structs.replace(fact, payload=payload, provenance_key=key)


def _start(parent: SessionId, head: int) -> Fact:
    return Fact(
        kind=FactKind.ANCHOR,
        name=FORK_START,
        source_type=SourceType.FORK,
        source_id=parent,
        payload=canonical_json(ForkStart(parent, head)),
    )


def _receipt(name: str, fork_id: str, receipt: ForkMerged | ForkDiscarded) -> Fact:
    return Fact(
        kind=FactKind.EVENT,
        name=name,
        source_type=SourceType.FORK,
        source_id=fork_id,
        payload=canonical_json(receipt),
    )
