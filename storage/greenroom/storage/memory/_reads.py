"""Reads of the store in memory: functions that `MemoryStore` binds as methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import msgspec

from greenroom.protocol import (
    AttemptTrace,
    MessageId,
    MessageRecord,
    PendingInputs,
    Plan,
    RunId,
    SessionId,
    TapeEntry,
)

from .._limits import (
    MAX_ENTRIES,
    MAX_HITS,
    MAX_MESSAGE_HITS,
    MAX_ROWS,
    MAX_TRACES,
    clamp,
    within_page,
)
from .._values import MessageHit, OpenRun, Owner, Page, SessionRow
from .._words import folded, holds, query_words, said, snippet_of
from ..names import VIEW_ASSEMBLED, check_findable
from ._tables import Hot, Tables
from ._traces import (
    entries_of_request,
    kept_traces,
    last_request as _last_request,
    old_traces,
)


class Kept(Protocol):
    """What a read needs."""

    @property
    def tables(self) -> Tables:
        """All that is kept of sessions."""
        ...


def page(
    self: Kept,
    scope: SessionId,
    after: int,
    limit: int = 256,
    stream: str | None = None,
) -> Page:
    """See `Reader.page`."""
    head = self.tables.hot.get(scope, Hot()).head
    if head == 0:
        return Page((), 0)
    found: list[TapeEntry] = []
    entries = self.tables.sessions[scope].entries
    for seq in range(max(after, 0) + 1, head + 1):
        if stream in (None, entries[seq].fact.stream):
            found.append(entries[seq])
        if len(found) == clamp(limit, MAX_ENTRIES):
            break
    return Page(within_page(found), head)


def scopes(
    self: Kept, after: SessionId | None = None, limit: int = 256
) -> list[SessionId]:
    """See `Reader.scopes`."""
    names = sorted(s for s, hot in self.tables.hot.items() if hot.head)
    return [s for s in names if s > (after or "")][: clamp(limit, MAX_ENTRIES)]


def heads(self: Kept, scopes: Sequence[SessionId]) -> list[tuple[SessionId, int]]:
    """See `Reader.heads`."""
    found = [(scope, self.tables.hot.get(scope, Hot()).head) for scope in scopes]
    return [(scope, head) for scope, head in found if head]


def locate(self: Kept, scope: SessionId) -> Owner | None:
    """See `Reader.locate`."""
    owner = self.tables.hot.get(scope, Hot()).owner
    return None if owner is None else self.tables.owner(owner)


def search(
    self: Kept, query: str, *, scope_prefix: str = "", limit: int = 20
) -> list[tuple[SessionId, int]]:
    """See `Reader.search`."""
    words = query_words(query)
    if not words:
        return []
    hits = [
        entry
        for scope, session in self.tables.sessions.items()
        if scope.startswith(scope_prefix)
        for entry, text in session.searchable()
        if holds(text, words)
    ]
    hits.sort(key=lambda entry: (-entry.created_at, entry.session_id, -entry.seq))
    return [(hit.session_id, hit.seq) for hit in hits[: clamp(limit, MAX_HITS)]]


def search_tape(
    self: Kept,
    scope: SessionId,
    query: str,
    *,
    until: int | None = None,
    limit: int = 20,
) -> list[int]:
    """See `Reader.search_tape`."""
    words, session = query_words(query), self.tables.sessions.get(scope)
    if not words or session is None:
        return []
    hits = [
        entry.seq
        for entry, text in session.searchable()
        if (until is None or entry.seq <= until) and holds(text, words)
    ]
    return sorted(hits, reverse=True)[: clamp(limit, MAX_HITS)]


def named(
    self: Kept,
    scope: SessionId,
    name: str,
    *,
    before: int | None = None,
    limit: int = 20,
) -> list[TapeEntry]:
    """See `Reader.named`."""
    check_findable(name)
    session = self.tables.sessions.get(scope)
    entries = () if session is None else session.entries.values()
    found = [
        entry
        for entry in entries
        if entry.fact.name == name and (before is None or entry.seq < before)
    ]
    found.sort(key=lambda entry: entry.seq, reverse=True)
    return found[: clamp(limit, MAX_ROWS)]


def view_entry(self: Kept, view_id: str) -> TapeEntry | None:
    """See `Reader.view_entry`."""
    found = [
        entry
        for session in self.tables.sessions.values()
        for entry in session.entries.values()
        if entry.fact.name == VIEW_ASSEMBLED and _view_of(entry) == view_id
    ]
    return max(found, key=lambda entry: (entry.created_at, entry.seq), default=None)


class _View(msgspec.Struct, rename="camel"):
    view_id: str = ""


def _view_of(entry: TapeEntry) -> str:
    try:
        return msgspec.json.decode(entry.fact.payload, type=_View).view_id
    except msgspec.DecodeError:
        return ""


def search_messages(
    self: Kept, query: str, scope: SessionId | None = None, limit: int = 12
) -> list[MessageHit]:
    """See `Reader.search_messages`; the newest first."""
    words = query_words(query)
    hits = [
        _hit(row, record, words)
        for row in _listed(self, scope)
        for record in self.tables.replica(row.id).messages()
        if words and holds(said(record), words)
    ]
    hits.sort(key=lambda hit: hit.updated_at, reverse=True)
    return hits[: clamp(limit, MAX_MESSAGE_HITS)]


def sessions(
    self: Kept,
    limit: int = 100,
    before: tuple[float, SessionId] | None = None,
    *,
    agent: str | None = None,
    archived: bool | None = None,
    title: str = "",
) -> list[SessionRow]:
    """See `Reader.sessions`."""
    found = [
        row
        for row in _listed(self)
        if (before is None or (row.updated_at, row.id) < before)
        and agent in (None, row.settings.agent_id)
        and archived in (None, row.archived_at is not None)
        and folded(title) in folded(row.settings.title)
    ]
    found.sort(key=lambda row: (row.updated_at, row.id), reverse=True)
    return found[: clamp(limit, MAX_ROWS)]


def _listed(self: Kept, scope: SessionId | None = None) -> Iterator[SessionRow]:
    scopes = self.tables.sessions if scope is None else (scope,)
    return (
        row for row in (session(self, scope) for scope in scopes) if row is not None
    )


def session(self: Kept, scope: SessionId) -> SessionRow | None:
    """See `Reader.session`."""
    info = self.tables.replica(scope).info
    if info is None or info.settings is None:
        return None
    return SessionRow(
        id=scope,
        settings=info.settings,
        created_at=info.created_at,
        updated_at=info.updated_at,
        head=self.tables.hot[scope].head,
        message_count=info.totals.messages,
        input_tokens=info.totals.input_tokens,
        output_tokens=info.totals.output_tokens,
        has_open_interaction=info.totals.open > 0,
        archived_at=info.archived_at,
    )


def messages(
    self: Kept,
    scope: SessionId,
    before: int | None = None,
    limit: int = 100,
    role: Literal["user", "assistant"] | None = None,
) -> list[MessageRecord]:
    """See `Reader.messages`."""
    found = [
        m
        for m in self.tables.replica(scope).messages()
        if (before is None or m.order_seq < before) and role in (None, m.role)
    ]
    return found[-clamp(limit, MAX_ROWS) :]


def broken_messages(self: Kept, scope: SessionId) -> list[MessageId]:
    """See `Reader.broken_messages`; there are no rows to miss."""
    return []


def message(self: Kept, scope: SessionId, message_id: str) -> MessageRecord | None:
    """See `Reader.message`."""
    found = [m for m in self.tables.replica(scope).messages() if m.id == message_id]
    return found[0] if found else None


def retracted_messages(self: Kept, scope: SessionId) -> list[tuple[MessageId, int]]:
    """See `Reader.retracted_messages`."""
    return self.tables.replica(scope).retracted()


def pending_messages(self: Kept, scope: SessionId) -> list[MessageRecord]:
    """See `Reader.pending_messages`."""
    return [m for m in self.tables.replica(scope).messages() if m.status == "pending"]


def message_count(self: Kept, scope: SessionId) -> int:
    """See `Reader.message_count`."""
    info = self.tables.replica(scope).info
    return 0 if info is None else info.totals.messages


def pending_inputs(self: Kept, scope: SessionId) -> PendingInputs:
    """See `Reader.pending_inputs`."""
    return PendingInputs.of(self.tables.replica(scope).inputs.values())


def plan(self: Kept, scope: SessionId) -> Plan | None:
    """See `Reader.plan`."""
    info = self.tables.replica(scope).info
    return None if info is None else info.plan


def run_session(self: Kept, run_id: RunId) -> SessionId | None:
    """See `Reader.run_session`."""
    return next(
        (s for s in self.tables.sessions if self.tables.entries_of(s, run_id)),
        None,
    )


def owed_by_dead(self: Kept) -> list[SessionId]:
    """See `Reader.owed_by_dead`."""
    found = self.tables.hot.items()
    return sorted(scope for scope, hot in found if _is_orphan(self, scope, hot))


def _is_orphan(self: Kept, scope: SessionId, hot: Hot) -> bool:
    tables = self.tables
    if hot.owner is not None:
        return tables.is_gone(hot.owner)
    return tables.owes(scope) or bool(tables.replica(scope).open_runs)


def open_runs(self: Kept, scope: SessionId) -> list[OpenRun]:
    """See `Reader.open_runs`."""
    return [
        OpenRun(scope, RunId(run_id), self.tables.entries_of(scope, run_id))
        for run_id in sorted(self.tables.replica(scope).open_runs)
    ]


def run_entries(self: Kept, scope: SessionId, run_id: RunId) -> tuple[TapeEntry, ...]:
    """See `Reader.run_entries`."""
    known = scope in self.tables.sessions
    return self.tables.entries_of(scope, run_id) if known else ()


def is_elsewhere(self: Kept, scope: SessionId, run_id: RunId) -> bool:
    """See `Reader.is_elsewhere`."""
    tables = self.tables
    others = (other for other in tables.sessions if other != scope)
    return any(tables.entries_of(other, run_id) for other in others)


def cached_blocks(self: Kept, scope: SessionId, message_id: str) -> str | None:
    """See `Reader.cached_blocks`."""
    session = self.tables.sessions.get(scope)
    return None if session is None else session.cached.get(message_id)


def traces(
    self: Kept, scope: SessionId, message_id: str | None = None, limit: int = 100
) -> list[AttemptTrace]:
    """See `Reader.traces`."""
    return kept_traces(self.tables.sessions.get(scope), message_id, limit)


def count_traces(self: Kept, before: float) -> int:
    """See `Reader.count_traces`."""
    sessions = self.tables.sessions.values()
    return sum(len(old_traces(session, before)) for session in sessions)


def request_trace(
    self: Kept, scope: SessionId, message_id: str, request_seq: int
) -> AttemptTrace | None:
    """See `Reader.request_trace`."""
    kept = kept_traces(self.tables.sessions.get(scope), message_id, MAX_TRACES)
    of_request = [trace for trace in kept if trace.request_seq == request_seq]
    return max(of_request, key=lambda trace: trace.physical_attempt, default=None)


def request_entries(
    self: Kept, scope: SessionId, message_id: str, request_seq: int
) -> list[TapeEntry]:
    """See `Reader.request_entries`."""
    return entries_of_request(self.tables.sessions.get(scope), message_id, request_seq)


def last_request(self: Kept, scope: SessionId, message_id: str) -> int:
    """See `Reader.last_request`."""
    return _last_request(self.tables.sessions.get(scope), message_id)


def _hit(row: SessionRow, record: MessageRecord, words: list[str]) -> MessageHit:
    return MessageHit(
        session_id=row.id,
        message_id=record.id,
        order_seq=record.order_seq,
        role=record.role,
        title=row.settings.title,
        snippet=snippet_of(said(record), words),
        updated_at=record.updated_at,
    )
