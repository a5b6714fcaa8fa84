"""The reaper: operations that may outlive the actor that started them.

An operation is foreign code (a tool, a plug-in callback, a process). Its task is in
the reaper's nursery from the start, and whoever started it holds a handle, so no
actor's nursery ever waits for it. What does not end by its hard bound is reported as
abandoned and left behind; the actor goes on.

Nothing in trio can end a task that swallows its cancellation. Such a task never holds
up an actor or the end of the system; but `trio.run` itself returns only when it does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVarTuple, Unpack, final

import attrs
import outcome
import trio

from ._cell import CLEANUP_HARD, CLEANUP_SOFT, is_fatal
from ._cleanup import cleanup_deadline
from ._errors import OperationAbandonedError, OperationCancelledError
from ._kernel import Crash, log
from ._lanes import Sleeper
from ._life import MOMENT, failure_in
from ._messages import CancelCause
from ._ref import cell_of

if TYPE_CHECKING:
    from ._ref import Ref

Ts = TypeVarTuple("Ts")

LEAVE_SECONDS: Final = 2.0
"""How long the end of the system waits for operations that were left behind."""


@final
class Left(Enum):
    """What `Operation.stop` returns when the operation did not end in time."""

    ABANDONED = "abandoned"


ABANDONED: Final = Left.ABANDONED


@final
@attrs.frozen
class AbandonedOperation:
    """What the reaper reports of an operation that it gave up on."""

    path: str
    cause: CancelCause | None
    seconds: float
    """How long ago it was cancelled."""


AbandonedHook = Callable[[AbandonedOperation], None]


def log_abandoned(report: AbandonedOperation) -> None:
    """The reaper's report hook by default."""
    log.error(
        "operation %r did not end within %.1f s of its cancel (%s) and was left behind",
        report.path,
        report.seconds,
        report.cause,
    )


@final
class Operation:
    """The handle of one operation."""

    __slots__ = (
        "_outcome",
        "_overdue_at",
        "_parent",
        "_reaper",
        "_scope",
        "_waiting",
        "abandoned",
        "cancel_cause",
        "cancelled_at",
        "name",
        "since",
    )

    def __init__(self, reaper: Reaper, name: str, parent: Ref[Any] | None) -> None:
        self._reaper = reaper
        self._parent = parent
        self._outcome: outcome.Outcome[Any] | None = None
        self._overdue_at = inf
        self._scope = trio.CancelScope()
        self._waiting: dict[Sleeper, None] = {}
        self.name = name
        self.abandoned = False
        self.cancel_cause: CancelCause | None = None
        self.cancelled_at = 0.0
        self.since = trio.current_time()

    def __repr__(self) -> str:
        return f"<Operation {self.path!r} {self.state}>"

    @property
    def path(self) -> str:
        """Where it is in the tree: below the actor it works for."""
        above = "reaper" if self._parent is None else self._parent.path
        return f"{above}/{self.name}"

    @property
    def state(self) -> str:
        """In one word, for the tree."""
        if self.abandoned:
            return "abandoned"
        if self.done:
            return "done"
        if self.cancel_cause is None:
            return "running"
        return "stopping" if trio.current_time() < self._overdue_at else "overdue"

    @property
    def done(self) -> bool:
        """Whether it has an outcome. An abandoned one has, and may run on."""
        return self._outcome is not None

    async def wait(self) -> outcome.Outcome[Any]:
        """Wait for the outcome. Cancelling the waiter leaves the operation alone.

        `OperationCancelledError` when it ended by being cancelled,
        `OperationAbandonedError` when it was given up on.
        """
        if self._outcome is None:
            sleeper = Sleeper(trio.lowlevel.current_task())
            self._waiting[sleeper] = None

            def abort(_: object) -> trio.lowlevel.Abort:
                del self._waiting[sleeper]
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
        else:
            await trio.lowlevel.checkpoint()
        assert self._outcome is not None
        return self._outcome

    def cancel(self, cause: CancelCause) -> None:
        """Cancel it; the first cause wins. Nothing waits."""
        if self.cancel_cause is None and not self.done:
            self.cancel_cause = cause
            self.cancelled_at = trio.current_time()
        self._scope.cancel(cause)

    async def stop(
        self,
        soft: float = CLEANUP_SOFT,
        hard: float = CLEANUP_HARD,
        *,
        cause: CancelCause = CancelCause.PARENT,
    ) -> outcome.Outcome[Any] | Left:
        """Cancel it and wait for its end until *hard* seconds have passed.

        Shielded, and bounded by the cleanup around the caller and by what the actor
        it works for has left as well. After *soft* seconds the tree shows it as
        overdue. What has not ended by the bound is reported and left behind.
        """
        now = trio.current_time()
        until = max(min(now + hard, self._limit()), now + MOMENT)
        self._overdue_at = now + soft
        self.cancel(cause)
        with trio.CancelScope(shield=True, deadline=until):
            await self.wait()
        if self._outcome is None:
            self.abandon()
        assert self._outcome is not None
        return ABANDONED if self.abandoned else self._outcome

    def _limit(self) -> float:
        limit = inf if self._parent is None else cell_of(self._parent).budget_at
        around = cleanup_deadline()
        return limit if around is None else min(limit, around)

    #### The reaper's

    async def run(
        self, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...]
    ) -> None:
        """Run the operation as a task of its own, and keep its outcome."""
        result: outcome.Outcome[Any] | None = None
        # Cancelled before it ran: nothing of it may happen.
        if self.cancel_cause is None:
            try:
                with self._scope:
                    result = outcome.Value(await fn(*args))
            except BaseException as exc:
                if (error := failure_in(exc)) is not None:
                    result = outcome.Error(error)
        if result is None:
            cause = self.cancel_cause or CancelCause.PROCESS_EXIT
            result = outcome.Error(OperationCancelledError(self.path, cause))
        self._reaper.ended(self, result)
        self.settle(result)

    def abandon(self) -> None:
        """Give up on it, and say so."""
        self.abandoned = True
        self._reaper.left(self)
        self.settle(outcome.Error(OperationAbandonedError(self.path)))

    def settle(self, result: outcome.Outcome[Any]) -> None:
        """Keep the first outcome and wake those who wait for it."""
        if self._outcome is not None:
            return
        self._outcome = result
        waiting, self._waiting = self._waiting, {}
        for sleeper in waiting:
            sleeper.wake()


@final
class Reaper:
    """Starts operations and holds those that nobody waits for any more."""

    __slots__ = ("_closed", "_crash", "_empty", "_nursery", "_report", "operations")

    operations: dict[Operation, None]
    """Those whose tasks run, abandoned ones too, in the order they were started."""

    def __init__(self, report: AbandonedHook, crash: Crash) -> None:
        self._nursery: trio.Nursery | None = None
        self._report = report
        self._crash = crash
        self._closed = False
        # Set, once the system ends, when no task is left.
        self._empty: trio.Event | None = None
        self.operations = {}

    def start(
        self,
        fn: Callable[[Unpack[Ts]], Awaitable[Any]],
        *args: *Ts,
        name: str,
        parent: Ref[Any] | None = None,
    ) -> Operation:
        """Run ``fn(*args)`` as an operation, and return its handle.

        With *parent*, the actor it works for, the tree shows it there, and `stop` stays
        within what that actor has left. Raises `RuntimeError` when the system ends.
        """
        if self._closed or self._nursery is None:
            raise RuntimeError(f"operation {name!r} can't start: the system is ending")
        operation = Operation(self, name, parent)
        self.operations[operation] = None
        self._nursery.start_soon(operation.run, fn, args, name=name)
        return operation

    def open(self, nursery: trio.Nursery) -> None:
        """The kernel's: operations run in *nursery*."""
        self._nursery = nursery

    def ended(self, operation: Operation, result: outcome.Outcome[Any]) -> None:
        """The kernel's: the task of *operation* is over."""
        del self.operations[operation]
        if not self.operations and self._empty is not None:
            self._empty.set()
        if operation.abandoned:
            log.warning("operation %r ended after it was abandoned", operation.path)
        error = result.error if isinstance(result, outcome.Error) else None
        if error is not None and is_fatal(error):
            self._crash(error)

    def left(self, operation: Operation) -> None:
        """The kernel's: *operation* was given up on."""
        seconds = trio.current_time() - operation.cancelled_at
        cause = operation.cancel_cause or CancelCause.PARENT
        report = AbandonedOperation(operation.path, cause, seconds)
        try:
            self._report(report)
        except Exception:
            log.exception("the reaper's report hook failed for %r", operation.path)

    async def finish(self) -> None:
        """The kernel's: end all that is left, for a bounded time, and give up."""
        self._closed = True
        if self.operations:
            self._empty = trio.Event()
            for operation in self.operations:
                operation.cancel(CancelCause.SHUTDOWN)
            with trio.move_on_after(LEAVE_SECONDS):
                await self._empty.wait()
        for operation in list(self.operations):
            if not operation.done:
                operation.abandon()
