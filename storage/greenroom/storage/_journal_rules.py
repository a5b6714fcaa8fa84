"""When a strict fact may be written: the prerequisites of the journal (JRN-06).

Pure: what is on the tape is asked through *find*, inside the transaction that
writes. A violated prerequisite is ``conflicting_fact``: the run stops there, it is
never one call's own mistake.
"""

from __future__ import annotations

from collections.abc import Callable

from greenroom.protocol import (
    DispatchCommitted,
    Fact,
    JournalError,
    JournalRecord,
    OperationId,
    RunId,
    RunStarted,
    RunTerminal,
    ToolOutcome,
    journal_key,
    journal_record,
    record_run_id,
    sha256_hex,
)

Find = Callable[[str], Fact | None]
"""Looks a provenance key up on the session's tape."""


def is_repeat(record: JournalRecord, fact: Fact, find: Find) -> bool:
    """Whether *record*, as *fact*, is on the tape already (JRN-07).

    Raises:
        JournalError: ``conflicting_fact``; another payload is there under its key.
    """
    existing = find(journal_key(record))
    if existing is None:
        return False
    if existing != fact:
        raise _conflict(record, "another one is on the tape under its key")
    return True


def check_prerequisites(record: JournalRecord, find: Find, *, elsewhere: bool) -> None:
    """Refuse *record* unless everything that must precede it does (JRN-06).

    *elsewhere* says that another session has facts of the same run.

    Raises:
        JournalError: ``conflicting_fact``.
    """
    if elsewhere:
        raise _conflict(record, "the run belongs to another session")
    match record:
        case RunStarted():
            pass
        case DispatchCommitted():
            _refuse_after_terminal(record, find)
            if _started(record, find).message_id != record.message_id:
                raise _conflict(record, "its message is not the run's")
        case ToolOutcome():
            _refuse_after_terminal(record, find)
            _dispatched(record, find)
        case RunTerminal():
            _started(record, find)


def _refuse_after_terminal(record: DispatchCommitted | ToolOutcome, find: Find) -> None:
    if find(terminal_key(record_run_id(record))) is not None:
        raise _conflict(record, "the run has ended")


def _started(record: DispatchCommitted | RunTerminal, find: Find) -> RunStarted:
    found = _require(record, started_key(record_run_id(record)), find)
    if not isinstance(found, RunStarted):
        raise _conflict(record, "the run did not start")
    return found


def _dispatched(record: ToolOutcome, find: Find) -> None:
    found = _require(record, dispatch_key(record.operation), find)
    if not isinstance(found, DispatchCommitted):
        raise _conflict(record, "the operation was not dispatched")


def _require(record: JournalRecord, key: str, find: Find) -> JournalRecord | None:
    fact = find(key)
    if fact is None:
        return None
    try:
        return journal_record(fact)
    except JournalError as exc:
        raise _conflict(record, f"what precedes it is damaged: {exc}") from exc


def started_key(run_id: RunId) -> str:
    """Return the provenance key of a run's start (JRN-02)."""
    return f"execution:v1:run:{sha256_hex(run_id)}:started"


def terminal_key(run_id: RunId) -> str:
    """Return the provenance key of a run's terminal (JRN-02)."""
    return f"execution:v1:run:{sha256_hex(run_id)}:terminal"


def dispatch_key(operation: OperationId) -> str:
    """Return the provenance key of an operation's dispatch (JRN-02)."""
    return f"execution:v1:operation:{operation.hash}:dispatch"


def _conflict(record: JournalRecord, problem: str) -> JournalError:
    name = type(record).__name__
    return JournalError(
        "conflicting_fact", f"{name} of run {record_run_id(record)!r}: {problem}"
    )
