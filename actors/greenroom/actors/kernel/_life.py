"""What waits in an actor's life: its task, and the end of its children."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any, Final, cast, final

import attrs
import trio

from ._cell import CLEANUP_HARD, CLEANUP_SOFT, Cell
from ._context import Context
from ._messages import CancelCause, ExitReason
from ._phase import EXITED

SETTLING: Final = 0.9
"""What a child gets of its parent's time, so that it can settle before the bound."""
MOMENT: Final = 0.05
"""What a child gets, between cancel and abandon, of a parent without time left."""

Work = Callable[[Context[Any]], Awaitable[None]]


async def live(cell: Cell, work: Work) -> None:
    """Run *work* as the task of *cell*, then end the cell or give it to the host."""
    error = None
    # A supervisor runs even then, because tasks of its children may wait for it.
    runs = cell.cancel_cause is None or cell.supervises is not None
    if runs and cell.ctx is not None:
        scope = cell.scope = cell.scope or trio.CancelScope()
        if cell.cancel_cause is not None:
            scope.cancel(cell.cancel_cause)
        try:
            with scope:
                await work(cell.ctx)
        except BaseException as exc:
            error = failure_in(exc)
            if error is None and cell.cancel_cause is None:
                # Nobody cancels an actor without a cause but the end of the loop.
                cell.cancel_cause = CancelCause.PROCESS_EXIT
    cell.scope = None
    if cell.phase is EXITED:  # it was abandoned
        return
    if error is None and cell.hosted is not None and not _is_over(cell):
        cell.kernel.host.enqueue(cell)
        return
    reason = cell.reason_for(error)
    tells_left = cell.close(reason)
    if cell.children:
        await close_children(cell)
    cell.finish(reason, tells_left)


def _is_over(cell: Cell) -> bool:
    return cell.turn is not None or cell.asked_to_end is not None


def failure_in(exc: BaseException) -> BaseException | None:
    """What is left of *exc* without cancellation, which is no failure."""
    if type(exc) is trio.Cancelled:  # final, and `isinstance` takes ten times as long
        return None
    if isinstance(exc, GeneratorExit):
        raise exc
    if isinstance(exc, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", exc)
        return group.split(trio.Cancelled)[1]
    return exc


async def finish_later(cell: Cell, reason: ExitReason, tells_left: int) -> None:
    """End the children of a hosted actor that has ended, then the actor."""
    await close_children(cell)
    cell.finish(reason, tells_left)


#### The end of children


async def close_children(cell: Cell) -> None:
    """End all children, the youngest first, each within its bounds.

    Children started one by one for good (a supervisor's fixed ones, the system's)
    are ended one by one; the others, in between, together.
    """
    cause = cell.cancel_cause or cell.stop_cause or CancelCause.PARENT
    while group := _youngest(cell):
        await end(group, cause.for_children(), cell)


def _youngest(cell: Cell) -> list[Cell]:
    group: list[Cell] = []
    for child in reversed(list((cell.children or {}).values())):
        if child.phase is EXITED:  # it waited to be started again
            child.leave_parent()
        elif child.terms is not None and child.terms.ordered:
            return group or [child]
        else:
            group.append(child)
    return group


async def end(cells: Sequence[Cell], cause: CancelCause, owner: Cell | None) -> None:
    """Stop *cells*, cancel those that take too long, abandon those that stay.

    On behalf of *owner* it can't be cancelled, and stays within its budget.
    """
    now = trio.current_time()
    ends = [End.begin(cell, cause, now) for cell in cells]
    countdown = Countdown()
    for cell in cells:
        countdown.count(cell)
    while ends := [one for one in ends if one.cell.phase is not EXITED]:
        now = trio.current_time()
        for one in ends:
            one.step(now, inf if owner is None else owner.budget_at - now)
        scope = trio.CancelScope(shield=owner is not None)
        scope.deadline = min(one.next_at for one in ends)
        if owner is not None:
            owner.closing = scope
        with scope:
            await countdown.wait()
    if owner is not None:
        owner.closing = None


@final
@attrs.define(eq=False)
class End:
    """How one actor is being ended."""

    cell: Cell
    cause: CancelCause
    polite_until: float
    """When it is cancelled."""
    abandon_at: float = inf
    """When it is given up on."""
    at_least_until: float = 0.0
    """Not before: even without time left, a child gets a moment to notice."""

    @classmethod
    def begin(cls, cell: Cell, cause: CancelCause, now: float) -> End:
        if cell.cancel_cause is not None:  # it is being killed already
            return cls(cell, cause, now, at_least_until=now + MOMENT)
        cell.stop(cause)
        shutdown = 0.0 if cell.terms is None else cell.terms.shutdown
        return cls(cell, cause, now + shutdown, at_least_until=now + MOMENT)

    @property
    def next_at(self) -> float:
        if self.cell.cancel_cause is None:
            return min(self.polite_until, self.abandon_at)
        return self.abandon_at

    def step(self, now: float, left: float) -> None:
        """Do what is due at *now*, when the owner has *left* seconds left."""
        cell = self.cell
        share = CLEANUP_SOFT / CLEANUP_HARD
        self.polite_until = min(self.polite_until, now + max(left, 0.0) * share)
        due = max(self.polite_until, now) + CLEANUP_HARD
        bound = min(self.abandon_at, due, now + left)
        self.abandon_at = max(bound, self.at_least_until)
        granted = now + (self.abandon_at - now) * SETTLING
        if now >= self.abandon_at:
            cell.abandon()
        elif now >= self.polite_until and cell.cancel_cause is None:
            cell.cancel(self.cause, granted - now)
        else:
            cell.limit(granted)


@final
class Countdown:
    """Wakes one task when the last of several actors has exited."""

    __slots__ = ("_left", "_task")

    def __init__(self) -> None:
        self._left = 0
        self._task: trio.lowlevel.Task | None = None

    def count(self, cell: Cell) -> None:
        if cell.phase is not EXITED:
            self._left += 1
            cell.wait_for(self, EXITED)

    def wake(self) -> None:
        self._left -= 1
        if self._left == 0 and self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)

    async def wait(self) -> None:
        if self._left:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
