"""Compaction: older turns are hidden behind a new boundary, and a text stands for them.

Plan, condense, judge, commit. Until the commit nothing has changed, so a cancellation
at any point before it leaves the session as it was (CTX-24). The commit is one append
of one anchor, which holds boundary and text, and only if the boundary on the tape is
still the one that the plan began with (CTX-28). The tape keeps every message: an anchor
moves what is shown, and another one moves it back.

A text is taken only if it makes the request smaller (CTX-23). What comes of a failure
depends on who asked: under pressure the turn can't go on otherwise, so the boundary
moves without a text, and the gap is told next time (CTX-22). Before a turn the same
holds where no text could be had in time; an answer that is none hides nothing. Nor does
any failure of a compaction that the user asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final, Literal, Protocol, final

import attrs
import msgspec

from greenroom.protocol import (
    Fact,
    FactKind,
    GreenroomError,
    MessageId,
    MessageRecord,
    SessionSettings,
    SourceType,
    Spent,
    make_payload,
)
from greenroom.protocol.context import (
    TRIGGER_NAMES,
    Boundary,
    CompactionPlan,
    GapReason,
    Outcome,
    Pair,
    Reconstruction,
    Trigger,
    accepts_summary,
    checkpoint_tokens,
    merged_gaps,
    pairs_of,
    plan_compaction,
    reconstruction_fact,
    record_tokens,
)
from greenroom.storage import MODEL_CALLED

from ._strategy import (
    Condensed,
    CondenseJob,
    ModelCall,
    Strategy,
    SummaryModel,
    unheard,
)

_LOG: Final = logging.getLogger("greenroom.context")

MAX_WHY: Final = 500


class BoundaryMovedError(GreenroomError):
    """The boundary is not where a compaction began any more; nothing was written."""

    code = "boundary_moved"
    hint = "nothing is lost; compact again if it is still needed"

    def __init__(self) -> None:
        super().__init__("the history was changed while it was being compacted")


class AnchorRecord(Protocol):
    """The tape that anchors go to."""

    async def append(
        self,
        facts: Sequence[Fact],
        settles: Sequence[str] = (),
        *,
        before: Callable[[Any], object] | None = None,
    ) -> None:
        """Write *facts* behind *before*, all in one transaction."""
        ...

    def append_soon(self, facts: Sequence[Fact]) -> None:
        """Write facts with the next group; a failure is reported, not raised."""
        ...


@attrs.frozen
class CompactionWork:
    """What there is to be compacted, and how much of it should stay."""

    trigger: Trigger
    settings: SessionSettings
    records: Sequence[MessageRecord]
    """Every finished message, oldest first; not the turn that is worked on."""
    boundary: Boundary | None
    """The one in force."""
    pairs_kept: int
    input_budget: int
    """Tokens that a request may have; 0: not known."""
    models: Sequence[SummaryModel] = ()
    pinned: MessageRecord | None = None
    """The message that stays in every request (CTX-32)."""
    focus: str = ""


@attrs.frozen
class Compacted:
    """What came of it."""

    outcome: Outcome
    why: str = ""
    """Why nothing, or no text: for people."""
    state: Reconstruction | None = None
    """What the new anchor holds; ``None``: there is none."""
    before: int = 0
    """Tokens, estimated: of what is hidden now and of the checkpoint before."""
    after: int = 0
    """Tokens, estimated: of the checkpoint that stands for it."""
    spent: Spent = attrs.field(factory=Spent)
    """What asking models took, whatever came of it."""

    def __str__(self) -> str:
        if self.state is None:
            return f"nothing was changed: {self.why or 'nothing is compacted'}"
        text = f"about {self.before:,} tokens became {self.after:,}"
        return f"compacted: {text}; nothing is lost"


def _for_nothing(_: ModelCall) -> Spent:
    return Spent()


@final
@attrs.frozen
class Compactor:
    """Compacts one session. Its owner sees to it that it is done once at a time."""

    strategy: Strategy
    record: AnchorRecord
    expect: Callable[[Any, int | None], object]
    """Given the store, in the transaction of the anchor, and the entry of the boundary
    that is expected; raises `BoundaryMovedError` when it is another one."""
    new_id: Callable[[], str]
    now: Callable[[], float]
    bill: Callable[[ModelCall], Spent] = _for_nothing
    """Charges whoever a request was made for, and returns with how much."""
    message_id: MessageId | None = None
    """The turn that it is part of; ``None``: the user has asked for it."""
    begins: Callable[[str, str], None] = unheard
    """Told of each request before it is sent: its provider and its model."""

    async def compact(self, work: CompactionWork) -> Compacted:
        """Hide what *work* has to hide, and say what came of it.

        May be cancelled; then nothing was written, but for the requests made so far.

        Raises:
            StorageError: the anchor was not written.
        """
        plan = plan_compaction(
            _pairs(work), work.trigger, work.pairs_kept, work.input_budget
        )
        if plan is None:
            return Compacted("unchanged", "there is nothing that could be hidden")
        attempt_id, bills = self.new_id(), list[Spent]()
        condensed = await self._condense(work, plan, attempt_id, bills)
        found = _judged(work, plan, condensed, attempt_id, self.now())
        found = attrs.evolve(found, spent=reduce(Spent.plus, bills, Spent()))
        if found.state is None:
            return found
        state = msgspec.structs.replace(
            found.state, tokens_before=found.before, tokens_after=found.after
        )
        found = attrs.evolve(found, state=state)
        return await self._commit(work, found, attempt_id)

    async def _condense(
        self,
        work: CompactionWork,
        plan: CompactionPlan,
        attempt_id: str,
        bills: list[Spent],
    ) -> Condensed:
        state = None if work.boundary is None else work.boundary.state

        def note(call: ModelCall) -> None:
            bills.append(self.bill(call))
            fact = model_call_fact(
                attempt_id,
                self.new_id(),
                work.trigger,
                call,
                bills[-1],
                message_id=self.message_id,
            )
            self.record.append_soon([fact])

        job = CondenseJob(
            trigger=work.trigger,
            settings=work.settings,
            records=_untold(work, plan),
            prior="" if state is None else state.summary,
            focus=work.focus,
            models=work.models,
            note=note,
            begins=self.begins,
        )
        try:
            return await self.strategy.condense(job)
        except Exception as exc:
            _LOG.warning("a history could not be condensed: %s", exc)
            return Condensed(fault="unavailable", why=f"{type(exc).__name__}: {exc}")

    async def _commit(
        self, work: CompactionWork, found: Compacted, attempt_id: str
    ) -> Compacted:
        assert found.state is not None
        name = TRIGGER_NAMES[work.trigger]
        fact = reconstruction_fact(name, found.state, revision=attempt_id)
        expected = None if work.boundary is None else work.boundary.entry
        try:
            await self.record.append(
                [fact], before=lambda store: self.expect(store, expected)
            )
        except BoundaryMovedError as exc:
            return Compacted("unchanged", str(exc), spent=found.spent)
        return found


def model_call_fact(
    attempt_id: str,
    call_id: str,
    trigger: Trigger,
    call: ModelCall,
    spent: Spent,
    *,
    message_id: MessageId | None = None,
) -> Fact:
    """Return the record of one request that a compaction made (CTX-24).

    *message_id* is of the turn that has what it used in its own usage, if one has.
    """
    payload = {
        "compactionAttemptId": attempt_id,
        "trigger": trigger,
        "provider": call.provider,
        "model": call.model,
        "status": call.status,
        "stopReason": call.stop_reason,
        "usage": call.usage,
        "cost": None if "money" in spent.unknown else spent.money,
        "messageId": message_id,
    }
    return Fact(
        kind=FactKind.EVENT,
        name=MODEL_CALLED,
        source_type=SourceType.RUNTIME_EVENT,
        source_id=call_id,
        payload=make_payload(payload),
    )


#### What is hidden, and what is worth it


def _pairs(work: CompactionWork) -> tuple[Pair, ...]:
    settings, cursor = work.settings, _cursor(work)
    shown = (record for record in work.records if record.order_seq >= cursor)
    return pairs_of(
        shown, lambda each: record_tokens(each, settings.provider, settings.model)
    )


def _cursor(work: CompactionWork) -> int:
    return 1 if work.boundary is None else work.boundary.cursor


def _untold(work: CompactionWork, plan: CompactionPlan) -> tuple[MessageRecord, ...]:
    # What is hidden now, and what was hidden before without a text (CTX-22).
    cursor, gaps = _cursor(work), _gaps(work)
    return tuple(
        record
        for record in work.records
        if cursor <= record.order_seq < plan.cursor
        or any(low <= record.order_seq <= high for low, high in gaps)
    )


def _gaps(work: CompactionWork) -> tuple[tuple[int, int], ...]:
    boundary = work.boundary
    return boundary.state.gaps if boundary is not None and boundary.cursor > 1 else ()


def _judged(
    work: CompactionWork,
    plan: CompactionPlan,
    condensed: Condensed,
    attempt_id: str,
    now: float,
) -> Compacted:
    name = TRIGGER_NAMES[work.trigger]
    old = None if work.boundary is None else work.boundary.state
    before = 0
    if work.boundary is not None:
        before = checkpoint_tokens(work.boundary.name, old)
    hidden = plan.hidden_tokens - _pinned_tokens(work, plan)
    state = Reconstruction(
        cursor_order_seq=plan.cursor,
        summary=condensed.text,
        attempt_id=attempt_id,
        summary_updated_at=now,
        through_order_seq=work.records[-1].order_seq,
    )
    why, reason = condensed.why[:MAX_WHY], None
    if condensed.fault is None:
        after = checkpoint_tokens(name, state)
        if condensed.text and accepts_summary(after, before, hidden):
            return Compacted("summarized", "", state, before + hidden, after)
        why, reason = "the summary is not smaller", "summary_rejected_larger"
    if not _hides_untold(work.trigger, condensed.fault):
        return Compacted("unchanged", why)
    reason = reason or "summary_unavailable"
    state = _boundary_only(work, plan, old, reason, attempt_id)
    after = checkpoint_tokens(name, state)
    if not accepts_summary(after, before, hidden):
        return Compacted("unchanged", why)
    return Compacted("boundary_only", why, state, before + hidden, after)


def _hides_untold(
    trigger: Trigger, fault: Literal["unavailable", "rejected"] | None
) -> bool:
    match trigger:
        case "manual":
            return False
        case "context_pressure":
            return True
        case "auto" | "resume":
            return fault == "unavailable"


def _boundary_only(
    work: CompactionWork,
    plan: CompactionPlan,
    old: Reconstruction | None,
    reason: GapReason,
    attempt_id: str,
) -> Reconstruction:
    return Reconstruction(
        cursor_order_seq=plan.cursor,
        summary="" if old is None else old.summary,
        reason=reason,
        gaps=merged_gaps(_gaps(work), plan.hidden[0].first, plan.hidden[-1].last),
        attempt_id=attempt_id,
        summary_updated_at=None,
        through_order_seq=work.records[-1].order_seq,
    )


def _pinned_tokens(work: CompactionWork, plan: CompactionPlan) -> int:
    pinned = work.pinned
    if pinned is None or not plan.hidden[0].first <= pinned.order_seq < plan.cursor:
        return 0
    return record_tokens(pinned, work.settings.provider, work.settings.model)
