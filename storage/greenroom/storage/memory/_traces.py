"""Traces of provider attempts in memory; see `sqlite/_traces.py`."""

from __future__ import annotations

import msgspec

from greenroom.protocol import AttemptTrace, Fact, TapeEntry

from .._limits import MAX_ROWS, MAX_TRACES, clamp
from ..names import ATTEMPT_COMPLETED, VIEW_ASSEMBLED
from ._tables import Session
from ._undo import Undo


class _Request(msgspec.Struct, rename="camel"):
    message_id: str
    request_seq: int


def put_trace(session: Session, trace: AttemptTrace, undo: Undo) -> None:
    """Keep *trace*, unless it is there, and drop those that are too many."""
    if any(_identity(trace) == _identity(kept) for kept in session.traces.values()):
        return
    undo.put(session.traces, max(session.traces, default=0) + 1, trace)
    for old in sorted(session.traces)[:-MAX_TRACES]:
        undo.drop(session.traces, old)


def old_traces(session: Session, before: float) -> list[int]:
    """Return the numbers of traces that were made before *before*."""
    return [n for n, trace in session.traces.items() if trace.created_at < before]


def kept_traces(
    session: Session | None, message_id: str | None, limit: int
) -> list[AttemptTrace]:
    """Return the newest traces, oldest first."""
    kept = {} if session is None else session.traces
    found = [
        kept[number]
        for number in sorted(kept)
        if message_id in (None, kept[number].message_id)
    ]
    return found[-clamp(limit, MAX_ROWS) :]


def last_request(session: Session | None, message_id: str) -> int:
    """Return the highest request number of a message in facts and traces."""
    if session is None:
        return 0
    told = [_request_of(entry.fact, message_id) for entry in session.entries.values()]
    told += [
        trace.request_seq
        for trace in session.traces.values()
        if trace.message_id == message_id
    ]
    return max(told, default=0)


def entries_of_request(
    session: Session | None, message_id: str, request_seq: int
) -> list[TapeEntry]:
    """Return what the tape says of one request, in order."""
    if session is None or request_seq < 1:
        return []
    found = [
        entry
        for _, entry in sorted(session.entries.items())
        if _request_of(entry.fact, message_id) == request_seq
    ]
    return found[:MAX_TRACES]


def _request_of(fact: Fact, message_id: str) -> int:
    if fact.name not in (ATTEMPT_COMPLETED, VIEW_ASSEMBLED):
        return 0
    try:
        told = msgspec.json.decode(fact.payload, type=_Request)
    except msgspec.ValidationError:
        return 0
    return told.request_seq if told.message_id == message_id else 0


def _identity(trace: AttemptTrace) -> tuple[str, int, int]:
    return trace.run_id, trace.request_seq, trace.physical_attempt
