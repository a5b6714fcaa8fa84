"""The end of a run, in its one order (RUN-23).

Stamp the message → commit the terminal → finalise the message → tell watchers. At
most one terminal is ever tried (RUN-09); what fails after it never leads to a second
(RUN-11): recovery mends the message at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, final

import attrs
import msgspec

from greenroom.actors.backend import (
    RunPlan,
    RunPorts,
    RunResult,
    append_revisions,
    known_cost,
)
from greenroom.protocol import (
    ActionBlock,
    Block,
    Change,
    Counters,
    Draft,
    ErrorBlock,
    Fault,
    GreenroomError,
    InteractionEnd,
    InternalError,
    MessageMetadata,
    MessageRecord,
    MessageStatus,
    ProgressSnapshot,
    ReasoningBlock,
    RecoveryLatch,
    RunTerminal,
    StorageError,
    Terminal,
    TextBlock,
    ToolCallBlock,
    Usage,
    add_usage,
    end_of_run,
    fit_block,
    loose_ends,
    revisions,
    safe_text,
    sha256_hex,
    usage_of,
    with_usage,
)

from ._batch import NOT_EXECUTED
from ._hook_events import permission_requests, run_end

_LOG: Final = logging.getLogger("greenroom.runs")

MAX_ERROR_CHARS: Final = 4_000

LIMITS: Final = ("max_tool_calls", "no_progress")
"""Reasons to stop that leave a plan unfinished: its reason is ``max_steps``."""

LOOSE_END: Final = "unsettled_block"
"""Why a run ends that was to pause with a block that is still open (INT-11)."""


class CommittedProjectionError(GreenroomError):
    """The run has its terminal, but its message could not be finalised (RUN-11).

    The next start of the engine mends the message.
    """

    code = "committed_projection_error"


@final
@attrs.define(eq=False)
class Progress:
    """What a run has spent so far; stamped into the message's metadata."""

    started_at: float
    counters: Counters = attrs.field(factory=Counters)
    tool_calls: int = 0
    guard: ProgressSnapshot | None = None
    usage: Usage | None = None
    first_output_at: float | None = None
    reasoning: tuple[float, float] | None = None
    """When the first thought came, and the last."""
    recovery: RecoveryLatch = attrs.field(factory=RecoveryLatch)
    price: Callable[[Usage], float | None] = lambda _: None
    cost: float = 0.0
    unpriced: bool = False
    """Some usage has no known price, so that the whole has no known cost."""

    def spend(self, usage: Usage) -> None:
        """Count the usage of one exchange."""
        self.bill(usage, known_cost(lambda: self.price(usage)))

    def bill(self, usage: Usage | None, cost: float | None) -> None:
        """Count what a request for the turn used, and cost; ``None``: not known."""
        self.usage = add_usage(self.usage, usage)
        if cost is None:
            self.unpriced = True
        else:
            self.cost += cost

    def think(self, now: float) -> None:
        """Note that the model thought at *now*."""
        self.reasoning = (now if self.reasoning is None else self.reasoning[0], now)


@final
@attrs.define(eq=False)
class Settlement:
    """Writes the revisions of a run's message, and its terminal."""

    plan: RunPlan
    ports: RunPorts
    draft: Draft
    progress: Progress
    now: Callable[[], float]
    _attempted: Terminal | None = None

    async def record_round(self) -> None:
        """Make the round's blocks and its tool facts durable."""
        await self._record("pending", self.metadata())

    async def settle(self, terminal: Terminal) -> RunResult:
        """End the run with *terminal*.

        Raises:
            JournalError: the terminal is not on disk; the message is untouched.
            CommittedProjectionError: the terminal is on disk, the message is not.
            InternalError: another terminal was tried before.
        """
        if self._attempted not in (None, terminal):
            raise InternalError(
                f"can't settle as {terminal.stop_reason!r}: "
                f"{self._attempted and self._attempted.stop_reason!r} was tried"
            )
        self._attempted = terminal
        terminal = self._checked(terminal)
        self._close_blocks(terminal)
        metadata = self.metadata(terminal)
        if terminal.stop_reason in LIMITS:
            await self._end_plan()
        await self._commit(terminal)
        tell = self.ports.tell_hooks
        tell(run_end(self.plan, terminal, self.progress.usage))
        try:
            message = await self._record(terminal.message_status, metadata)
        except Exception as exc:
            raise CommittedProjectionError(
                f"run {self.plan.run_id} ended, but its message was not stored: {exc}"
            ) from exc
        if terminal.outcome == "paused":
            for request in permission_requests(self.plan, message.blocks):
                tell(request)
        return RunResult(terminal, message)

    @property
    def attempted(self) -> bool:
        """Whether a terminal was tried."""
        return self._attempted is not None

    async def _end_plan(self) -> None:
        try:
            await self.ports.record.end_plan()
        except StorageError as exc:
            # The plan is for show; the terminal is not.
            _LOG.warning("a plan of %s was not ended: %s", self.plan.run_id, exc)

    async def _commit(self, terminal: Terminal) -> None:
        fault = terminal.fault
        record = RunTerminal(
            run_id=self.plan.run_id,
            outcome=terminal.outcome,
            stop_reason=terminal.stop_reason,
            error_hash=None if fault is None else sha256_hex(fault.text),
        )
        await self.ports.record.commit(record)

    async def _record(
        self, status: MessageStatus, metadata: MessageMetadata
    ) -> MessageRecord:
        self._fit_blocks()
        changed = self.draft.take_changed()
        message = msgspec.structs.replace(
            self.plan.message,
            status=status,
            metadata=metadata,
            updated_at=self.now(),
        )
        try:
            await append_revisions(
                self.ports.record,
                revisions(message, changed),
                changed,
                self.draft.blocks,
            )
        except BaseException:
            self.draft.give_back(changed)
            raise
        return msgspec.structs.replace(message, blocks=self.draft.blocks)

    #### Blocks

    def _checked(self, terminal: Terminal) -> Terminal:
        # A pause with anything else unsettled would look finished and never be.
        # The new id joins open text; nothing streams any more.
        self.draft.new_id()
        loose = loose_ends(self.draft.blocks) if terminal.outcome == "paused" else ()
        if not loose:
            return terminal
        text = f"the turn can't pause: {loose[0].id} is {loose[0].status}"
        return Terminal("error", LOOSE_END, "error", Fault(LOOSE_END, text))

    def _fit_blocks(self) -> None:
        # What is too large for the tape is cut for everybody alike.
        for block in self.draft.unsaved:
            fitting = fit_block(block)
            if fitting is not block:
                self._changed(self.draft.replace(fitting))

    def _close_blocks(self, terminal: Terminal) -> None:
        end = None if terminal.message_status == "pending" else end_of_run(terminal)
        waiting = {action.tool_block_id for action in self.draft.unresolved}
        for block in self.draft.blocks:
            closed = _closed(block, end, waiting=block.id in waiting)
            if closed is not block:
                self._changed(self.draft.replace(closed))
        if terminal.fault is not None:
            error = ErrorBlock(
                id=self.draft.new_id(),
                code=terminal.fault.code,
                text=safe_text(terminal.fault.text)[:MAX_ERROR_CHARS],
                round=self.draft.round,
            )
            self._changed(self.draft.add(error))

    def _changed(self, change: Change) -> None:
        self.ports.watchers.change(self.plan.run_id, self.plan.message.id, change)

    #### Metadata

    def metadata(self, terminal: Terminal | None = None) -> MessageMetadata:
        """Return the message's metadata as it is now, ended with *terminal* (RUN-25).

        What is not known is absent.
        """
        progress = self.progress
        fault = None if terminal is None else terminal.fault
        text = None if fault is None else safe_text(fault.text)[:MAX_ERROR_CHARS]
        return msgspec.structs.replace(
            self._measured(self.plan.message.metadata),
            run_id=self.plan.run_id,
            run_outcome=None if terminal is None else terminal.outcome,
            run_stop_reason=None if terminal is None else terminal.stop_reason,
            error_code=None if fault is None else fault.code,
            error_text=text,
            provider_rounds=progress.counters.round,
            max_provider_rounds=self.plan.max_rounds,
            request_seq=progress.counters.request_seq,
            tool_calls=progress.tool_calls,
            no_progress_tool_loop=progress.guard,
            model=self.plan.settings.model,
            provider=self.plan.settings.provider,
        )

    def _measured(self, before: MessageMetadata) -> MessageMetadata:
        progress = self.progress
        usage = add_usage(usage_of(before), progress.usage)
        seconds = (before.generation_time or 0.0) + self.now() - progress.started_at
        thought = progress.reasoning
        first = progress.first_output_at
        return msgspec.structs.replace(
            with_usage(before, usage),
            cost=_sum_of_costs(before, progress),
            generation_time=seconds,
            first_token_time=before.first_token_time
            if before.first_token_time is not None or first is None
            else first - progress.started_at,
            reasoning_start_time=before.reasoning_start_time
            if before.reasoning_start_time is not None or thought is None
            else thought[0],
            reasoning_end_time=before.reasoning_end_time
            if thought is None
            else thought[1],
            tokens_per_second=usage.output / seconds
            if usage is not None and seconds > 0
            else None,
        )


# Unknown is not zero: one exchange without a price, or without usage that has one,
# makes the whole unknown.
def _sum_of_costs(before: MessageMetadata, progress: Progress) -> float | None:
    asked_before = before.request_seq > 0
    if progress.unpriced or (asked_before and before.cost is None):
        return None
    if progress.usage is None:
        return before.cost
    return (before.cost or 0.0) + progress.cost


# *end* is how what waits ends; ``None`` when the turn only pauses.
def _closed(block: Block, end: InteractionEnd | None, *, waiting: bool) -> Block:
    match block:
        case ActionBlock(status="pending") if end is not None:
            return msgspec.structs.replace(block, status="error", end=end)
        case ToolCallBlock() if waiting:
            return block if end is None else _without_result(block)
        case ToolCallBlock(response=None):
            return _without_result(block)
        case TextBlock(status="loading") | ReasoningBlock(status="loading"):
            return msgspec.structs.replace(block, status="error")
        case _:
            return block


def _without_result(block: ToolCallBlock) -> ToolCallBlock:
    return msgspec.structs.replace(block, status="error", response=NOT_EXECUTED)
