"""What a crash left behind: open runs classified, their messages made right.

Pure. Entries come from a disk that may be damaged: whatever is wrong with them is a
reason here, never an exception. Nothing is executed again and nothing is retried;
what is in doubt is said to be in doubt (JRN-19, JRN-20).

Of a run that started and has no terminal:

- *not_dispatched*: no tool call had an effect;
- *completed*: every call that may have had one has its outcome;
- *indeterminate*: of at least one call it isn't known;
- *corruption*: the journal contradicts itself; nothing is concluded from it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, Literal, assert_never, get_args

import attrs
import msgspec

from ._errors import JournalError
from ._facts import TapeEntry
from ._ids import ItemId, MessageId, OperationId, RunId, SessionId
from ._journal import (
    DispatchCommitted,
    JournalRecord,
    RunStarted,
    RunTerminal,
    ToolOutcome,
    journal_record,
    record_run_id,
)
from ._messages import ActionBlock, Block, ErrorBlock, MessageRecord, ToolCallBlock

RunClass = Literal["corruption", "indeterminate", "completed", "not_dispatched"]
"""In the order of a report."""

CorruptionReason = Literal[
    "malformed_fact",
    "run_identity_reused_across_sessions",
    "missing_run_started",
    "fact_before_run_started",
    "duplicate_fact",
    "message_identity_mismatch",
    "outcome_without_dispatch",
    "outcome_before_dispatch",
    "fact_after_run_terminal",
]
"""In the order in which one is chosen when there are several."""

INTERRUPTED: Final = "session_interrupted"
MAX_DETAILS: Final = 100
MAX_DETAIL_CHARACTERS: Final = 2_048

_CLASSES: Final[tuple[RunClass, ...]] = get_args(RunClass)
_REASONS: Final[tuple[CorruptionReason, ...]] = get_args(CorruptionReason)
_NOT_EXECUTED: Final = "not executed: the session was interrupted before this call"
_IN_DOUBT: Final = (
    "the session was interrupted; it is not known whether this call ran."
    " Look at its effects before calling it again"
)
_LOST: Final = "the call ran ({}), but the session was interrupted and its result lost"


@attrs.frozen
class RunVerdict:
    """What is known of a run from its journal."""

    session_id: SessionId
    run_id: RunId
    run_class: RunClass
    reason: CorruptionReason | None = None
    """Exactly if the class is ``corruption``."""
    message_ids: frozenset[MessageId] = frozenset()
    """Messages that the run's facts name."""
    outcomes: dict[tuple[int, str], bool | None] = attrs.field(
        factory=dict[tuple[int, str], "bool | None"]
    )
    """Of each dispatched call, by request and provider's id: whether it failed;
    ``None`` when that isn't known."""
    deferred: bool = False
    """The run was of one granted call; its request has the number 1 (TOL-24)."""


class RecoveryDetail(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """One line of a recovery report."""

    session_id: str
    run_id: str
    run_class: RunClass
    text: str
    """At most 2,048 characters, no control characters."""
    reason: CorruptionReason | None = None
    disposition: Literal["parked"] = "parked"
    automatic_retry: Literal[False] = False


#### Classification


def classify_run(
    session_id: SessionId,
    run_id: RunId,
    entries: Sequence[TapeEntry],
    *,
    elsewhere: bool = False,
) -> RunVerdict:
    """Return what the journal *entries* of a run say, in the order of the tape.

    *elsewhere* says that another session has facts of a run with this id.
    """
    records, damaged = _decoded(run_id, entries)
    reasons: set[CorruptionReason] = set(_contradictions(records))
    if damaged:
        reasons.add("malformed_fact")
    if elsewhere:
        reasons.add("run_identity_reused_across_sessions")
    reason = min(reasons, key=_REASONS.index, default=None)
    outcomes = _outcomes(records)
    return RunVerdict(
        session_id=session_id,
        run_id=run_id,
        run_class="corruption" if reason else _class_of(outcomes.values()),
        reason=reason,
        message_ids=frozenset(_message_ids(records)),
        outcomes=outcomes,
        deferred=any(
            isinstance(r, RunStarted) and r.run_kind == "deferred_tool" for r in records
        ),
    )


def _decoded(
    run_id: RunId, entries: Sequence[TapeEntry]
) -> tuple[list[JournalRecord], bool]:
    records: list[JournalRecord] = []
    damaged = False
    for entry in entries:
        try:
            record = journal_record(entry.fact)
        except (JournalError, RecursionError, ValueError, TypeError):
            damaged = True
            continue
        damaged |= record_run_id(record) != run_id
        records.append(record)
    return records, damaged


def _contradictions(records: list[JournalRecord]) -> Iterable[CorruptionReason]:
    yield from _start_contradictions(records)
    yield from _operation_contradictions(records)
    terminals = [i for i, r in enumerate(records) if isinstance(r, RunTerminal)]
    if len(terminals) > 1:
        yield "duplicate_fact"
    if terminals and terminals[0] != len(records) - 1:
        yield "fact_after_run_terminal"


def _start_contradictions(records: list[JournalRecord]) -> Iterable[CorruptionReason]:
    starts = [r for r in records if isinstance(r, RunStarted)]
    if not starts:
        yield "missing_run_started"
        return
    if len(starts) > 1:
        yield "duplicate_fact"
    if not isinstance(records[0], RunStarted):
        yield "fact_before_run_started"
    if any(message != starts[0].message_id for message in _message_ids(records)):
        yield "message_identity_mismatch"


def _operation_contradictions(
    records: list[JournalRecord],
) -> Iterable[CorruptionReason]:
    all_dispatched = {r.operation for r in records if isinstance(r, DispatchCommitted)}
    dispatched: set[Any] = set()
    settled: set[Any] = set()
    for record in records:
        if isinstance(record, DispatchCommitted):
            if record.operation in dispatched:
                yield "duplicate_fact"
            dispatched.add(record.operation)
        elif isinstance(record, ToolOutcome):
            if record.operation in settled:
                yield "duplicate_fact"
            settled.add(record.operation)
            if record.operation not in all_dispatched:
                yield "outcome_without_dispatch"
            elif record.operation not in dispatched:
                yield "outcome_before_dispatch"


def _outcomes(records: list[JournalRecord]) -> dict[tuple[int, str], bool | None]:
    found: dict[tuple[int, str], bool | None] = {}
    for record in records:
        if isinstance(record, DispatchCommitted):
            found.setdefault(_call(record), None)
        elif isinstance(record, ToolOutcome):
            found[_call(record)] = record.is_error
    return found


def _call(record: DispatchCommitted | ToolOutcome) -> tuple[int, str]:
    return record.operation.request_seq, record.operation.provider_tool_call_id


def _class_of(outcomes: Collection[bool | None]) -> RunClass:
    if not outcomes:
        return "not_dispatched"
    return "indeterminate" if None in outcomes else "completed"


def _message_ids(records: list[JournalRecord]) -> list[MessageId]:
    return [
        record.message_id
        for record in records
        if isinstance(record, RunStarted | DispatchCommitted)
    ]


#### The report


def recovery_details(verdicts: Iterable[RunVerdict]) -> tuple[RecoveryDetail, ...]:
    """Return the lines to report, the worst first, at most `MAX_DETAILS`."""
    ordered = sorted(
        verdicts,
        key=lambda v: (_CLASSES.index(v.run_class), v.session_id, v.run_id),
    )
    return tuple(_detail(verdict) for verdict in ordered[:MAX_DETAILS])


def _detail(verdict: RunVerdict) -> RecoveryDetail:
    return RecoveryDetail(
        session_id=clean_detail(verdict.session_id),
        run_id=clean_detail(verdict.run_id),
        run_class=verdict.run_class,
        text=clean_detail(_sentence(verdict)),
        reason=verdict.reason,
    )


def _sentence(verdict: RunVerdict) -> str:
    run = f"run {verdict.run_id} of session {verdict.session_id}"
    match verdict.run_class:
        case "corruption":
            return f"{run}: its journal contradicts itself ({verdict.reason})"
        case "indeterminate":
            calls = [c for (_, c), failed in verdict.outcomes.items() if failed is None]
            return f"{run}: it is not known whether these calls ran: {', '.join(calls)}"
        case "completed":
            return f"{run}: every call has its outcome, the run has no end"
        case "not_dispatched":
            return f"{run}: no call had an effect"
        case _:
            assert_never(verdict.run_class)


def clean_detail(text: str) -> str:
    """Return *text* without control characters, bounded to a detail's length."""
    kept = (c for c in text if unicodedata.category(c)[0] != "C")
    return "".join(kept)[:MAX_DETAIL_CHARACTERS]


#### Messages


def is_kept_pending(record: MessageRecord, verdicts: Iterable[RunVerdict]) -> bool:
    """Whether a pending message stays as it is after a crash (JRN-21, JRN-22).

    What the user wrote stays. An assistant's message stays only while it waits for
    an answer and no run of it may have had an effect.
    """
    if record.role != "assistant":
        return True
    if any(v.run_class != "not_dispatched" for v in verdicts):
        return False
    return any(
        isinstance(b, ActionBlock) and b.status == "pending" for b in record.blocks
    )


def interrupted(
    record: MessageRecord,
    blocks: Sequence[Block],
    verdicts: Sequence[RunVerdict],
    now: float,
) -> MessageRecord:
    """Return *record* as the error that an interrupted session leaves.

    *blocks* is the output known so far; it is kept. Every announced call gets one
    result, which says whether it ran, did not, or may have; *verdicts* are of the
    message's runs, open or not.
    """
    asked = {
        block.tool_block_id
        for block in blocks
        if isinstance(block, ActionBlock) and block.status == "pending"
    }
    ended = [_ended(block, verdicts, asked) for block in blocks]
    note = ErrorBlock(
        id=ItemId(f"{record.id}:{INTERRUPTED}"),
        code=INTERRUPTED,
        text="the session was interrupted before this answer was finished",
        round=record.metadata.provider_rounds,
    )
    return msgspec.structs.replace(
        record,
        status="error",
        blocks=(*(block for block in ended if block.id != note.id), note),
        metadata=msgspec.structs.replace(
            record.metadata,
            run_outcome="error",
            run_stop_reason=INTERRUPTED,
            error_code=INTERRUPTED,
            error_text=note.text,
        ),
        updated_at=now,
    )


def _ended(
    block: Block, verdicts: Sequence[RunVerdict], asked: Collection[ItemId]
) -> Block:
    if isinstance(block, ToolCallBlock) and block.id in asked and not block.response:
        # It waited for an answer, stored as a success without text (INT-02).
        return msgspec.structs.replace(
            block, status="error", response=_NOT_EXECUTED, note=_NOT_EXECUTED
        )
    if block.status not in ("pending", "loading"):
        return block
    if not isinstance(block, ToolCallBlock):
        return msgspec.structs.replace(block, status="error")
    told, doubt = _told(block, verdicts)
    response = block.response if block.response is not None else told
    return msgspec.structs.replace(
        block, status="error", response=response, note=told, in_doubt=doubt
    )


def _told(
    block: ToolCallBlock, verdicts: Sequence[RunVerdict]
) -> tuple[str, OperationId | None]:
    for verdict in verdicts:
        if verdict.run_class == "corruption":
            return _IN_DOUBT, None
        call = 1 if verdict.deferred else block.request_seq, block.call_id
        if call in verdict.outcomes:
            failed = verdict.outcomes[call]
            if failed is None:
                return _IN_DOUBT, OperationId(verdict.run_id, *call)
            how = "with an error" if failed else "without an error"
            return _LOST.format(how), None
    # Without a journal there is only the block to go by: it may have begun.
    known = bool(verdicts) or block.status == "pending"
    return _NOT_EXECUTED if known else _IN_DOUBT, None
