"""What is done after a crash, before anything runs: report, acknowledge, mend.

In each session: the journal, then the input that waits, then the transcript (JRN-22).
Only sessions that nobody living owns are touched. Each is acquired, its open runs are
classified (`greenroom.protocol`), acknowledged so that no report repeats, and its
unfinished messages become errors that keep their output. Nothing is executed. A second
recovery finds nothing to do.

A read that fails raises: an engine must not start on state it can't read (JRN-17).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import attrs
import msgspec

from greenroom.protocol import (
    Block,
    Fact,
    MessageRecord,
    RecoveryDetail,
    RunVerdict,
    SessionId,
    classify_run,
    interrupted,
    is_kept_pending,
    recovery_details,
    revisions,
)

from ._input_recovery import input_recovery_facts
from ._projection import merged
from ._store import Store
from ._values import MAX_FACTS, Appended, Grant, Member, OpenRun
from .names import RunAcknowledged, acknowledged_fact, message_fact

_BLOCKS = msgspec.json.Decoder(tuple[Block, ...])


@attrs.frozen
class RecoveryReport:
    """What a recovery found and did."""

    details: tuple[RecoveryDetail, ...]
    """The worst first, at most 100 (JRN-20)."""
    runs: int
    """Runs that were open, reported or not."""
    sessions: tuple[SessionId, ...]
    """Sessions where something was written."""
    messages: int
    """Messages that became errors."""


@attrs.frozen
class SessionRecovery:
    """What was found and done in one session."""

    verdicts: tuple[RunVerdict, ...]
    messages: int
    head: int | None
    """Where the tape ends now; ``None`` if the session was lost meanwhile."""
    inputs: int = 0
    """Facts that settled what waited for its turn (PIN-14)."""


def recover(store: Store, member: Member, now: float) -> RecoveryReport:
    """Recover every session that nobody living owns; give all back afterwards.

    Raises:
        StorageError: something can't be read or written.
    """
    done: dict[SessionId, SessionRecovery] = {}
    for scope in store.owed_by_dead():
        grant = store.acquire(member, scope, now=now)
        if isinstance(grant, Grant):
            done[scope] = recover_session(store, grant, now)
            store.release(grant, now=now)
    verdicts = [verdict for found in done.values() for verdict in found.verdicts]
    return RecoveryReport(
        details=recovery_details(verdicts),
        runs=len(verdicts),
        sessions=tuple(
            s for s, f in done.items() if f.verdicts or f.messages or f.inputs
        ),
        messages=sum(found.messages for found in done.values()),
    )


def recover_session(store: Store, grant: Grant, now: float) -> SessionRecovery:
    """Recover one session that was just acquired, before anything else writes to it.

    The owner goes on with the returned head. Without open runs and unfinished
    messages nothing is written.
    """
    scope = grant.scope
    verdicts = tuple(_verdict(store, run) for run in store.open_runs(scope))
    inputs = input_recovery_facts(store, scope, now)
    mended = _mended(store, scope, verdicts, now)
    head: int | None = grant.head
    for facts in (
        list(map(_acknowledgement, verdicts)),
        inputs,
        list(map(message_fact, chain(*mended))),
    ):
        head = _append(store, grant, head, facts, now)
    return SessionRecovery(verdicts, len(mended), head, inputs=len(inputs))


def _verdict(store: Store, run: OpenRun) -> RunVerdict:
    elsewhere = store.is_elsewhere(run.session_id, run.run_id)
    return classify_run(run.session_id, run.run_id, run.entries, elsewhere=elsewhere)


def _acknowledgement(verdict: RunVerdict) -> Fact:
    run = RunAcknowledged(
        run_id=verdict.run_id, run_class=verdict.run_class, reason=verdict.reason
    )
    return acknowledged_fact(run)


def _append(
    store: Store, grant: Grant, head: int | None, facts: Sequence[Fact], now: float
) -> int | None:
    if head is None:
        return None
    for start in range(0, len(facts), MAX_FACTS):
        batch = facts[start : start + MAX_FACTS]
        result = store.append(grant, head, batch, now=now)
        if not isinstance(result, Appended):
            return None
        head = result.head
    return head


#### Messages


def _mended(
    store: Store, scope: SessionId, verdicts: Sequence[RunVerdict], now: float
) -> list[list[MessageRecord]]:
    mended: list[list[MessageRecord]] = []
    for record in store.pending_messages(scope):
        of_message = [v for v in verdicts if _concerns(v, record)]
        if not is_kept_pending(record, of_message):
            known = of_message or _closed_run(store, scope, record)
            mended.append(_interrupted(store, scope, record, known, now))
    return mended


def _concerns(verdict: RunVerdict, record: MessageRecord) -> bool:
    if not verdict.message_ids:
        # Its facts can't be read, so it may have been the run of any of them.
        return True
    return record.id in verdict.message_ids or record.metadata.run_id == verdict.run_id


def _closed_run(
    store: Store, scope: SessionId, record: MessageRecord
) -> list[RunVerdict]:
    # Its terminal was the last thing written: what its calls did is known.
    run_id = record.metadata.run_id
    entries = () if run_id is None else store.run_entries(scope, run_id)
    return [classify_run(scope, run_id, entries)] if run_id and entries else []


def _interrupted(
    store: Store,
    scope: SessionId,
    record: MessageRecord,
    verdicts: Sequence[RunVerdict],
    now: float,
) -> list[MessageRecord]:
    # As revisions: what the tape has already is not written again.
    mended = interrupted(record, _cached(store, scope, record), verdicts, now)
    known = {block.id: block for block in record.blocks}
    changed = [block for block in mended.blocks if known.get(block.id) != block]
    return revisions(mended, changed)


def _cached(store: Store, scope: SessionId, record: MessageRecord) -> tuple[Block, ...]:
    text = store.cached_blocks(scope, record.id)
    if text is None:
        return record.blocks
    try:
        unsaved = msgspec.structs.replace(record, blocks=_BLOCKS.decode(text))
    except (msgspec.DecodeError, RecursionError):
        return record.blocks
    return merged(record, unsaved).blocks
