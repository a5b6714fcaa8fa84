"""When a strict fact may be written: the prerequisites of the journal (JRN-06).

Pure: what is on the tape is asked through *find*, inside the transaction that
writes. A violated prerequisite is ``conflicting_fact``: the run stops there, it is
never one call's own mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import assert_never

import msgspec

from greenroom.protocol import (
    DispatchCommitted,
    Fact,
    JournalError,
    JournalRecord,
    OperationId,
    RunId,
    RunStarted,
    RunTerminal,
    SessionId,
    ToolOutcome,
    record_run_id,
    sha256_hex,
)

_STARTED = msgspec.json.Decoder(RunStarted)

Find = Callable[[str], str | None]
"""Looks up the payload under a provenance key on the session's tape."""


def needed_keys(record: JournalRecord) -> tuple[str, ...]:
    """Return the keys that `check_prerequisites` asks for."""
    run_id = record_run_id(record)
    match record:
        case RunStarted():
            return ()
        case DispatchCommitted():
            return _started_key(run_id), _terminal_key(run_id)
        case ToolOutcome():
            return _dispatch_key(record.operation), _terminal_key(run_id)
        case RunTerminal():
            return (_started_key(run_id),)
        case _:
            assert_never(record)


def check_bootstrapped(scope: SessionId, head: int) -> None:
    """Refuse a strict fact on a tape that was never begun (JRN-06)."""
    if head == 0:
        raise JournalError("conflicting_fact", f"the tape of {scope!r} was never begun")


def is_repeat(record: JournalRecord, fact: Fact, existing: str | None) -> bool:
    """Whether *record*, as *fact*, is on the tape already (JRN-07).

    Raises:
        JournalError: ``conflicting_fact``; *existing*, the payload under its key, is
            another.
    """
    if existing is not None and existing != fact.payload:
        raise _conflict(record, "another one is on the tape under its key")
    return existing is not None


def check_prerequisites(record: JournalRecord, find: Find) -> None:
    """Refuse *record* unless everything that must precede it does (JRN-06).

    That a run belongs to one session alone is checked at its start.

    Raises:
        JournalError: ``conflicting_fact``.
    """
    match record:
        case RunStarted():
            pass
        case DispatchCommitted():
            _refuse_after_terminal(record, find)
            if _started(record, find).message_id != record.message_id:
                raise _conflict(record, "its message is not the run's")
        case ToolOutcome():
            _refuse_after_terminal(record, find)
            if find(_dispatch_key(record.operation)) is None:
                raise _conflict(record, "the operation was not dispatched")
        case RunTerminal():
            _started(record, find)
        case _:
            assert_never(record)


def refuse_elsewhere(record: RunStarted) -> JournalError:
    """Return the error that the run of *record* belongs to another session."""
    return _conflict(record, "the run belongs to another session")


def _refuse_after_terminal(record: DispatchCommitted | ToolOutcome, find: Find) -> None:
    if find(_terminal_key(record_run_id(record))) is not None:
        raise _conflict(record, "the run has ended")


def _started(record: DispatchCommitted | RunTerminal, find: Find) -> RunStarted:
    payload = find(_started_key(record_run_id(record)))
    if payload is None:
        raise _conflict(record, "the run did not start")
    try:
        return _STARTED.decode(payload)
    except msgspec.DecodeError as exc:
        raise _conflict(record, f"the run's start is damaged: {exc}") from exc


@lru_cache(maxsize=1_024)
def _run_hash(run_id: RunId) -> str:
    return sha256_hex(run_id)


def _started_key(run_id: RunId) -> str:
    return f"execution:v1:run:{_run_hash(run_id)}:started"


def _terminal_key(run_id: RunId) -> str:
    return f"execution:v1:run:{_run_hash(run_id)}:terminal"


def _dispatch_key(operation: OperationId) -> str:
    return f"execution:v1:operation:{operation.hash}:dispatch"


def _conflict(record: JournalRecord, problem: str) -> JournalError:
    name = type(record).__name__
    return JournalError(
        "conflicting_fact", f"{name} of run {record_run_id(record)!r}: {problem}"
    )
