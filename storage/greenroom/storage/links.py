"""Linked tapes: what a finished child left is read in its own tape, up to one place.

A parent records that a child has ended as one fact that names the child's tape as it
was then: its identity and its head. No entry of the child is copied (TAP-12). Whoever
reads a linked tape sees it as it was at the link: what came later is hidden, and a tape
that is not the same any more is refused (TAP-13).

A tape says whose child it is in its first entry. Tapes without that mark are from
before it; for these alone older links, and merges of forks, are taken as links.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, TypeVar

import attrs
import msgspec

from greenroom.protocol import (
    Fact,
    FactKind,
    RunId,
    SessionId,
    SourceType,
    StorageError,
    TapeEntry,
    canonical_json,
    sha256_hex,
)

from ._store import Reader
from .names import FORK_MERGE, TAPE_LINKED

MAX_TASK_TITLE: Final = 500
MAX_RESULT_SUMMARY: Final = 2_000

MAX_LINKS: Final = 10_000
"""Links of one parent that are looked at, the newest."""

_PAGE: Final = 500

T = TypeVar("T", bound=msgspec.Struct)
TaskOutcome = Literal["completed", "error", "cancelled"]


class TapeLink(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Payload of ``subagent/tape_linked``, version 2; written whole."""

    version: Literal[2] = 2
    child_session_id: SessionId
    child_head_entry_id: int
    """The last entry that is seen through the link."""
    child_entry_count: int
    child_tape_identity: str
    """SHA-256 of the child's first entry; a cleared child has another."""
    run_id: RunId
    task_id: str
    slot_id: str
    task_title: str
    outcome: TaskOutcome
    result_summary: str


class _OlderLink(msgspec.Struct, frozen=True, rename="camel"):
    # Version 1, before a tape had an identity.
    child_session_id: SessionId
    child_head_entry_id: int


class _Merge(msgspec.Struct, frozen=True, rename="camel"):
    fork_session_id: SessionId
    fork_head_entry_id: int


class _StartMeta(msgspec.Struct, frozen=True, rename="camel"):
    parent_session_id: SessionId | None = None


@attrs.frozen
class LinkedTape:
    """A child's tape that its parent may read, up to *head*."""

    session_id: SessionId
    head: int


class TapeNotLinkedError(StorageError):
    """The tape can't be read from here."""

    code = "tape_not_linked"
    hint = "read the tape of a direct child that has ended and was not cleared since"

    def __init__(self, child: SessionId, why: str) -> None:
        super().__init__(f"the tape of session {child[:80]!r} can't be read: {why}")


def freeze_child(
    reader: Reader,
    child: SessionId,
    *,
    run_id: RunId,
    task_id: str,
    slot_id: str,
    task_title: str,
    outcome: TaskOutcome,
    result_summary: str,
) -> TapeLink:
    """Return the link to *child* as its tape is now; texts are cut to their bounds.

    Raises:
        TapeNotLinkedError: it has no tape.
    """
    page = reader.page(child, 0, 1)
    if not page.entries:
        raise TapeNotLinkedError(child, "there is none")
    return TapeLink(
        child_session_id=child,
        child_head_entry_id=page.head,
        child_entry_count=page.head,
        child_tape_identity=tape_identity(page.entries[0]),
        run_id=run_id,
        task_id=task_id,
        slot_id=slot_id,
        task_title=task_title[:MAX_TASK_TITLE],
        outcome=outcome,
        result_summary=result_summary[:MAX_RESULT_SUMMARY],
    )


def link_fact(link: TapeLink) -> Fact:
    """Return the one fact that its parent's tape gets for a child that has ended.

    The same again is the same fact; another head or outcome for the same task is a
    conflict, and the first stays (TAP-12).
    """
    task = (link.child_session_id, link.run_id, link.task_id, link.slot_id)
    return Fact(
        kind=FactKind.EVENT,
        name=TAPE_LINKED,
        source_type=SourceType.SUBAGENT,
        source_id=link.child_session_id,
        payload=canonical_json(link),
        provenance_key=f"subagent:tape-link:v1:{sha256_hex(canonical_json(task))}",
    )


def tape_identity(first: TapeEntry) -> str:
    """Return what tells a tape from every other, by its *first* entry."""
    return sha256_hex(canonical_json(first))


def linked_tape(reader: Reader, parent: SessionId, child: SessionId) -> LinkedTape:
    """Return the tape of *child* as *parent* may read it (TAP-13).

    Raises:
        TapeNotLinkedError: it is no direct child, or its tape is another by now.
    """
    page = reader.page(child, 0, 1)
    link = next(_links_to(reader, parent, child), None)
    if link is None:
        raise TapeNotLinkedError(child, f"session {parent[:80]!r} has no link to it")
    if not page.entries:
        raise TapeNotLinkedError(child, "there is none any more")
    marked_as = _parent_of(page.entries[0])
    if isinstance(link, TapeLink):
        if marked_as != parent:
            raise TapeNotLinkedError(child, "it is no direct child")
        if tape_identity(page.entries[0]) != link.child_tape_identity:
            raise TapeNotLinkedError(child, "it has begun anew since it was linked")
        frozen = link.child_head_entry_id
    else:
        if marked_as is not None:
            raise TapeNotLinkedError(child, "its link is older than its tape")
        frozen = link
    if page.head < frozen:
        raise TapeNotLinkedError(child, "it is shorter than when it was linked")
    return LinkedTape(child, frozen)


def linked_tapes(reader: Reader, parent: SessionId, limit: int) -> list[LinkedTape]:
    """Return up to *limit* tapes that *parent* may read, the newest link first."""
    found: dict[SessionId, None] = {}
    for name in (TAPE_LINKED, FORK_MERGE):
        for entry in _named(reader, parent, name):
            child = _child_of(entry)
            if child is not None:
                found.setdefault(child)
    readable: list[LinkedTape] = []
    for child in found:
        if len(readable) == limit:
            break
        try:
            readable.append(linked_tape(reader, parent, child))
        except TapeNotLinkedError:
            continue
    return readable


def _links_to(
    reader: Reader, parent: SessionId, child: SessionId
) -> Iterator[TapeLink | int]:
    # The newest first: the latest link of a child is the one that counts.
    for entry in _named(reader, parent, TAPE_LINKED):
        if _child_of(entry) != child:
            continue
        link = _decoded(entry, TapeLink)
        if link is not None:
            yield link
        elif (older := _decoded(entry, _OlderLink)) is not None:
            yield older.child_head_entry_id
    for entry in _named(reader, parent, FORK_MERGE):
        merge = _decoded(entry, _Merge)
        if merge is not None and merge.fork_session_id == child:
            yield merge.fork_head_entry_id


def _named(reader: Reader, scope: SessionId, name: str) -> Iterator[TapeEntry]:
    before: int | None = None
    for _ in range(MAX_LINKS // _PAGE):
        found = reader.named(scope, name, before=before, limit=_PAGE)
        yield from found
        if len(found) < _PAGE:
            return
        before = found[-1].seq


def _child_of(entry: TapeEntry) -> SessionId | None:
    if entry.fact.name == FORK_MERGE:
        merge = _decoded(entry, _Merge)
        return None if merge is None else merge.fork_session_id
    link = _decoded(entry, _OlderLink)
    return None if link is None else link.child_session_id


def _parent_of(first: TapeEntry) -> SessionId | None:
    try:
        meta = msgspec.json.decode(first.fact.meta, type=_StartMeta)
    except msgspec.DecodeError:
        return None
    return meta.parent_session_id


def _decoded(entry: TapeEntry, form: type[T]) -> T | None:
    try:
        return msgspec.json.decode(entry.fact.payload, type=form)
    except msgspec.DecodeError:
        return None
