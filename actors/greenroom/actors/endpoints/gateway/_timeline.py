"""What was done in a session, entry by entry, for whoever looks at it. Pure.

Entries are untrusted: one that can't be read tells nothing, and stops nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from greenroom.protocol import (
    EXECUTION_PREFIX,
    DispatchCommitted,
    JournalError,
    MessageId,
    RunId,
    RunStarted,
    RunTerminal,
    TapeEntry,
    ToolOutcome,
    Usage,
    journal_record,
)
from greenroom.protocol.context import boundary_of
from greenroom.protocol.gateway import JournalEntry

_REASON_CHARS: Final = 500


class _View(msgspec.Struct, rename="camel"):
    message_id: MessageId | None = None
    request_seq: int | None = None


class _Attempt(msgspec.Struct, rename="camel"):
    message_id: MessageId | None = None
    logical_round: int | None = None
    request_seq: int | None = None
    physical_attempt: int | None = None
    provider: str | None = None
    model: str | None = None
    status: str | None = None
    stop_reason: str | None = None
    error_code: str | None = None
    retry_delay_ms: float | None = None
    usage: Usage | None = None


class _Recovered(msgspec.Struct, rename="camel"):
    run_id: RunId
    run_class: str
    reason: str | None = None


class _Retracted(msgspec.Struct, rename="camel"):
    message_id: MessageId


def journal_entry(entry: TapeEntry) -> JournalEntry | None:
    """Return what *entry* tells of what was done; most tell nothing."""
    try:
        told = _told(entry)
    except (msgspec.DecodeError, JournalError, RecursionError):
        return None
    if told is None:
        return None
    return JournalEntry(seq=entry.seq, at=entry.created_at, **told)


def _told(entry: TapeEntry) -> Mapping[str, Any] | None:
    fact = entry.fact
    if fact.name.startswith(EXECUTION_PREFIX):
        return _executed(entry)
    match fact.name:
        case "view/assembled":
            view = msgspec.json.decode(fact.payload, type=_View)
            return {"kind": "request", **msgspec.structs.asdict(view)}
        case "provider/attempt_completed":
            return _attempt(entry)
        case "recovery/run_acknowledged":
            run = msgspec.json.decode(fact.payload, type=_Recovered)
            return {
                "kind": "recovery",
                "run_id": run.run_id,
                "status": run.run_class,
                "reason": run.reason and run.reason[:_REASON_CHARS],
            }
        case "message/retracted":
            gone = msgspec.json.decode(fact.payload, type=_Retracted)
            return {"kind": "retraction", "message_id": gone.message_id}
        case _:
            return _compaction(entry)


def _executed(entry: TapeEntry) -> Mapping[str, Any]:
    record = journal_record(entry.fact)
    match record:
        case RunStarted():
            return {
                "kind": "run_started",
                "run_id": record.run_id,
                "message_id": record.message_id,
                "run_kind": record.run_kind,
            }
        case RunTerminal():
            return {
                "kind": "run_ended",
                "run_id": record.run_id,
                "status": record.outcome,
                "reason": record.stop_reason[:_REASON_CHARS],
            }
        case DispatchCommitted(operation=operation):
            return {
                "kind": "dispatch",
                "run_id": operation.run_id,
                "message_id": record.message_id,
                "request_seq": operation.request_seq,
                "call_id": operation.provider_tool_call_id,
                "tool": record.tool_name,
            }
        case ToolOutcome(operation=operation):
            return {
                "kind": "outcome",
                "run_id": operation.run_id,
                "request_seq": operation.request_seq,
                "call_id": operation.provider_tool_call_id,
                "is_error": record.is_error,
            }


def _attempt(entry: TapeEntry) -> Mapping[str, Any]:
    attempt = msgspec.json.decode(entry.fact.payload, type=_Attempt)
    delay = attempt.retry_delay_ms
    return {
        "kind": "attempt",
        "run_id": RunId(entry.fact.source_id),
        "message_id": attempt.message_id,
        "round": attempt.logical_round,
        "request_seq": attempt.request_seq,
        "attempt": attempt.physical_attempt,
        "provider": attempt.provider,
        "model": attempt.model,
        "status": attempt.status,
        "reason": attempt.error_code or attempt.stop_reason,
        "retry_delay": None if delay is None else delay / 1_000,
        "usage": attempt.usage,
    }


def _compaction(entry: TapeEntry) -> Mapping[str, Any] | None:
    boundary = boundary_of(entry)
    if boundary is None:
        return None
    state = boundary.state
    return {
        "kind": "compaction",
        "status": "summarized" if state.summary else "boundary_only",
        "reason": (state.reason or boundary.name)[:_REASON_CHARS],
        "tokens_before": state.tokens_before,
        "tokens_after": state.tokens_after,
    }
