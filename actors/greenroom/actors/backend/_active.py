"""A run while it goes on, as a session sees it; and how it can fail to be one."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import attrs

from greenroom.protocol import (
    Draft,
    GreenroomError,
    JournalError,
    MessageRecord,
    Terminal,
    Usage,
    add_usage,
)

from ._ports import RunPlan

Bill = tuple[Usage | None, float | None]
"""What requests used, and cost in US dollars; ``None`` where it is not known."""


@attrs.frozen
class RunResult:
    """How a run ended, and the message as it is on the tape."""

    terminal: Terminal
    message: MessageRecord


class DeferredJournalError(JournalError):
    """A strict fact of a granted call failed; nothing is tried again (TOL-26).

    Before the dispatch nothing has happened, and the approval is open again.
    """

    def __init__(
        self, cause: Exception, *, dispatch_committed: bool, outcome_committed: bool
    ) -> None:
        so_far = (
            "the call was not run, and its approval is open again"
            if not dispatch_committed
            else "the call ran and its outcome is recorded"
            if outcome_committed
            else "the call may have run, and what became of it is not recorded"
        )
        super().__init__(getattr(cause, "code", "journal_error"), f"{cause}; {so_far}")
        self.dispatch_committed = dispatch_committed
        self.outcome_committed = outcome_committed


class RunNotStartedError(GreenroomError):
    """The start fact is not durable, so nothing was run (RUN-08)."""

    code = "run_not_started"


@final
@attrs.define(eq=False)
class ActiveRun:
    """What a session can see of a run that goes on, and its result after it."""

    plan: RunPlan
    draft: Draft
    registered: bool = False
    """The start fact is durable (JRN-08)."""
    result: RunResult | None = None
    failure: DeferredJournalError | None = None
    """Which strict fact of a deferred run failed."""
    on_dispatch: Callable[[], None] = attrs.field(default=lambda: None)
    """Called when the dispatch of a deferred call is durable."""

    is_prepared: bool = attrs.field(default=False, init=False)
    """The view is that of a turn which was prepared; else the run begins it."""
    early: Bill | None = attrs.field(default=None, init=False)
    """What was billed in all before there was a run to count it."""
    bill: Callable[[Usage | None, float | None], None] = attrs.field(
        default=attrs.Factory(lambda self: self._bill_early, takes_self=True),
        init=False,
    )
    """Takes what a request that was made for the turn used, and cost in US dollars;
    ``None`` where it is not known. The run sets it."""

    @classmethod
    def of(cls, plan: RunPlan) -> ActiveRun:
        """Return a run that is to do *plan* and has not begun."""
        return cls(plan, Draft.resume(plan.message.id, plan.message.blocks))

    def _bill_early(self, usage: Usage | None, cost: float | None) -> None:
        used, paid = (None, 0.0) if self.early is None else self.early
        total = None if cost is None or paid is None else paid + cost
        self.early = add_usage(used, usage), total
