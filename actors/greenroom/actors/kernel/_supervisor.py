"""Supervisors: a nursery for the tasks of all actors below, and a restart policy.

A child's failure never travels through the nursery: it is captured in the child's
own task and becomes its exit reason. The supervisor reads of it as mail, one exit at
a time, in its own task; so two failures never race.

* A child is started again when its `Restart` says so, never when it was told to end,
  and never after an `InternalError`, which ends the system.
* It keeps its name and its place in the order until then, and is a new actor after.
* Actors further down may be restartable too: the nearest supervisor starts them again
  for their parent, one for one, and counts them as its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast, final

import attrs
import trio

from ._behaviour import TEMPORARY, Restart, Strategy, Supervise, terms_of
from ._cell import is_fatal
from ._errors import ActorError, RestartLimitError
from ._lanes import Ask
from ._life import close_children, end
from ._messages import CancelCause, Failed, Normal, Stop
from ._phase import CLOSING, EXITED

if TYPE_CHECKING:
    from ._cell import Cell
    from ._context import Context
    from ._messages import ExitReason


@final
@attrs.frozen
class ChildExited:
    """To a supervisor, from the kernel: start *cell* again."""

    cell: Cell


@final
class Supervisor:
    """The state of one incarnation of a supervisor."""

    __slots__ = (
        "_cell",
        "_failures",
        "_nursery",
        "_plan",
        "_renewing",
        "_waiting",
        "settled",
    )

    settled: trio.Event
    """Set when its children have ended, or were given up on."""

    def __init__(self, cell: Cell, plan: Supervise) -> None:
        self._cell = cell
        self._plan = plan
        self._nursery: trio.Nursery | None = None
        # Tasks to start when the nursery is open.
        self._waiting: list[tuple[str, Any, tuple[Any, ...]]] = []
        self._failures: list[tuple[float, BaseException]] = []
        # Children that are stopped in order to be started again.
        self._renewing: set[Cell] = set()
        self.settled = trio.Event()

    def condemn_if_killed(self, cell: Cell) -> None:
        """A child that is started while the supervisor is killed never runs."""
        cause = self._cell.cancel_cause
        if cause is not None:
            cell.condemn(cause.for_children(), self._cell.budget_at)
            cell.cancel_task(cause.for_children())

    def run(
        self, name: str, fn: Callable[..., Awaitable[object]], *args: object
    ) -> None:
        """Run ``fn(*args)``, which captures its own errors, as a task."""
        if self._nursery is None:
            self._waiting.append((name, fn, args))
        else:
            self._nursery.start_soon(fn, *args, name=name)

    async def live(self, ctx: Context[Any]) -> None:
        """The supervisor's behaviour."""
        failure = None
        async with trio.open_nursery() as self._nursery:
            try:
                for name, fn, args in self._waiting:
                    self._nursery.start_soon(fn, *args, name=name)
                self._waiting.clear()
                self._start_fixed()
                failure = await self._serve(ctx)
            except Exception as exc:
                # Raised below: the nursery would wrap it in a group.
                failure = exc
            finally:
                if self._cell.phase < CLOSING:
                    self._cell.phase = CLOSING
                if self._cell.cancel_cause is not None:
                    # Its children were cancelled with it, and most of them end in
                    # this batch of the loop: those need not be watched one by one.
                    await trio.lowlevel.cancel_shielded_checkpoint()
                await close_children(self._cell)
                self.settled.set()
        if failure is not None:
            raise failure

    # A handle may have started others already; in the order, the fixed come first.
    def _start_fixed(self) -> None:
        cell, fixed = self._cell, self._plan.children
        early = cell.children or {}
        if taken := early.keys() & {child.name for child in fixed}:
            raise ValueError(
                f"supervisor {cell.path!r} was given a child named {min(taken)!r} "
                "before it started its fixed one; wait_started(), or rename it"
            )
        cell.children = {}
        try:
            for child in fixed:
                terms = terms_of(child, ordered=True)
                cell.kernel.spawn(cell, child.name, None, terms)
        finally:
            cell.children.update(early)

    async def _serve(self, ctx: Context[Any]) -> RestartLimitError | None:
        async for message in ctx.mailbox:
            match message:
                case Stop():
                    return None
                case ChildExited(cell):
                    if (failure := await self._renew(cell)) is not None:
                        return failure
                case Ask():
                    ask = cast("Ask[Any]", message)
                    ask.reply.set_error(ActorError("a supervisor answers no requests"))
                case _:
                    pass
        return None

    #### Restarting

    def will_restart(self, cell: Cell, reason: ExitReason) -> bool:
        """Whether *cell*, which exits because of *reason*, is started again."""
        terms, parent = cell.terms, cell.parent
        if terms is None or parent is None or terms.restart is TEMPORARY:
            return False
        if parent.phase >= CLOSING or self._cell.phase >= CLOSING:
            return False
        if cell in self._renewing:
            return True
        match reason:
            case Failed(error):
                return not is_fatal(error)
            case Normal():
                return terms.restart is Restart.PERMANENT
            case _:
                return False

    def notice(self, cell: Cell) -> None:
        """*cell* has exited and is to be started again."""
        if cell not in self._renewing:
            self._cell.lanes.push(ChildExited(cell))

    async def _renew(self, cell: Cell) -> RestartLimitError | None:
        if not _is_in_place(cell):  # started again with another, or its parent ends
            cell.leave_parent()
            return None
        reason = cell.reason
        cause = reason.error if isinstance(reason, Failed) else cell.exited_error()
        if (failure := self._count(cause)) is not None:
            return failure
        group = self._affected(cell)
        self._renewing.update(group)
        try:
            for other in reversed(group):
                await end([other], CancelCause.PARENT, None)
        finally:
            self._renewing.difference_update(group)
        for one in group:
            self._start_again(one)
        return None

    def _affected(self, cell: Cell) -> list[Cell]:
        siblings = list((self._cell.children or {}).values())
        if cell.parent is not self._cell:
            return [cell]
        match self._plan.strategy:
            case Strategy.ONE_FOR_ONE:
                return [cell]
            case Strategy.ONE_FOR_ALL:
                return siblings
            case Strategy.REST_FOR_ONE:
                return siblings[siblings.index(cell) :]

    def _start_again(self, cell: Cell) -> None:
        if not _is_in_place(cell):
            return
        try:
            cell.kernel.renew(cell)
        except Exception as exc:
            # Its factory failed: one more failure of this child.
            cell.reason = Failed(exc)
            self.notice(cell)

    def _count(self, cause: BaseException) -> RestartLimitError | None:
        now = trio.current_time()
        since = now - self._plan.max_seconds
        self._failures = [one for one in self._failures if one[0] > since]
        self._failures.append((now, cause))
        if len(self._failures) <= self._plan.max_restarts:
            return None
        causes = [error for _, error in self._failures]
        return RestartLimitError(self._cell.path, causes)

    #### Killing

    def condemn_children(self, cause: CancelCause, budget_at: float) -> None:
        """Everything below is about to be cancelled with the supervisor's scope."""
        below = [(cause, child) for child in (self._cell.children or {}).values()]
        while below:
            cause, cell = below.pop()
            cell.condemn(cause, budget_at)
            if cell.hosted is not None:
                cell.cancel_task(cause)
            cause = cause.for_children()
            below += [(cause, child) for child in (cell.children or {}).values()]


def _is_in_place(cell: Cell) -> bool:
    parent = cell.parent
    return (
        parent is not None
        and parent.phase < CLOSING
        and (parent.children or {}).get(cell.name) is cell
        and cell.phase is EXITED
    )
