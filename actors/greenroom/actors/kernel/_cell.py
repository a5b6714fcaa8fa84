"""The life of one actor: what it is, how it begins, is cancelled, and exits.

A cell is what references and contexts point to. Everything here is synchronous; what
waits (the actor's task, stopping its children) is in `_life`. The invariants:

* ``phase`` only grows. Mail is accepted before `Phase.CLOSING` and never after.
* ``cancel_cause`` is set before the scope is cancelled and never changes.
* ``reason`` is set once, in `finish`, after all children have a reason, and exactly
  then watchers, waiting tasks, the parent and the supervisor learn of it.
* The children of an actor are its logical children; their tasks live in the nursery
  of the nearest supervisor above them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, cast, final

import trio

from greenroom.protocol import InternalError

from ._behaviour import Hosted, Terms
from ._errors import ActorExitedError
from ._kernel import ExitReport, Kernel, log
from ._lanes import Lanes, Sleeper, Waker
from ._messages import (
    EXITED_NORMALLY,
    STARTED,
    Abandoned,
    CancelCause,
    Exited,
    ExitReason,
    Failed,
    Stop,
    Stopped,
)
from ._phase import CLOSING, EXITED, LIVE, NEW, Phase
from ._ref import Ref

if TYPE_CHECKING:
    from ._cleanup import Cleanup
    from ._context import Context
    from ._supervisor import Supervisor
    from ._timers import Timer

CLEANUP_SOFT: Final = 2.0
CLEANUP_HARD: Final = 5.0
"""The bound of a whole turn's cancel: all cleanup under one kill ends by then."""


STOPS: Final = {cause: Stop(cause) for cause in CancelCause}
STOPPED: Final = {cause: Stopped(cause) for cause in CancelCause}


@final
class Cell:
    """One actor. The fields belong to the kernel."""

    __slots__ = (
        "budget_at",
        "cancel_cause",
        "children",
        "cleanups",
        "closing",
        "ctx",
        "ending",
        "hosted",
        "kernel",
        "lanes",
        "name",
        "nursery_of",
        "parent",
        "phase",
        "reason",
        "restarts",
        "scope",
        "since",
        "status",
        "stop_cause",
        "supervises",
        "terms",
        "timers",
        "turn",
        "waiting",
        "watchers",
    )

    def __init__(
        self, kernel: Kernel, parent: Cell | None, name: str, terms: Terms
    ) -> None:
        self.kernel = kernel
        self.parent = parent
        self.name = name
        # None after the exit, unless it waits to be started again.
        self.terms: Terms | None = terms
        self.lanes = Lanes(terms.capacity)
        self.phase = NEW
        self.reason: ExitReason | None = None
        # The reason it will exit with once its children have: set at `CLOSING`.
        self.ending: ExitReason | None = None
        self.cancel_cause: CancelCause | None = None
        self.stop_cause: CancelCause | None = None
        # All its cleanup must end by then; lowered by whoever stops or cancels it.
        self.budget_at = inf
        # The cleanups that are open now.
        self.cleanups: set[Cleanup] | None = None
        # The scope of its task while it runs, and of its wait for its children.
        self.scope: trio.CancelScope | None = None
        self.closing: trio.CancelScope | None = None
        # A hosted actor's behaviour; None for an actor that has a task for life.
        self.hosted: Hosted[Any] | None = None
        # What to do when the message being handled is done with: end, or a task.
        self.turn: Literal[True] | Callable[[Any], Awaitable[None]] | None = None
        self.children: dict[str, Cell] | None = None
        self.watchers: dict[Ref[Any], None] | None = None
        self.waiting: dict[Waker, Phase] | None = None
        self.timers: dict[object, Timer] | None = None
        self.status: tuple[str, float | None] | None = None
        self.since = trio.current_time()
        self.restarts = 0
        self.supervises: Supervisor | None = None
        # The supervisor whose nursery holds its task. The root has none.
        self.nursery_of: Supervisor | None = None
        if parent is not None:
            self.nursery_of = parent.supervises or parent.nursery_of
        # Set by whoever makes the cell; None again after the exit.
        self.ctx: Context[Any] | None = None

    @property
    def path(self) -> str:
        names = [self.name]
        parent = self.parent
        while parent is not None and parent.parent is not None:
            names.append(parent.name)
            parent = parent.parent
        return "/".join(reversed(names))

    @property
    def ref(self) -> Ref[Any]:
        return Ref(self) if self.ctx is None else self.ctx.ref

    def exited_error(self) -> ActorExitedError:
        return ActorExitedError(self.path, self.reason or self.ending)

    #### Waking and waiting

    def wake(self) -> None:
        """Mail has come for a hosted actor at rest."""
        self.kernel.host.enqueue(self)

    def publish(self) -> None:
        if self.phase < LIVE:
            self.phase = LIVE
            self._announce()

    def set_up(self) -> None:
        """The asynchronous set-up is done: published, and `Started` comes first."""
        # Nothing was taken yet, so this is the next message.
        self.lanes.urgent = [STARTED]
        self.publish()

    def wait_for(self, waker: Waker, phase: Phase) -> None:
        """Wake *waker* once, when the actor has reached *phase* or exited."""
        if self.waiting is None:
            self.waiting = {}
        self.waiting[waker] = phase

    def _announce(self) -> None:
        if self.waiting is None:
            return
        for waker, phase in list(self.waiting.items()):
            if phase <= self.phase:
                del self.waiting[waker]
                waker.wake()

    async def _wait_for(self, phase: Phase) -> None:
        if self.phase >= phase:
            await trio.lowlevel.checkpoint()
            return
        sleeper = Sleeper(trio.lowlevel.current_task())
        self.wait_for(sleeper, phase)

        def abort(_: object) -> trio.lowlevel.Abort:
            if self.waiting is not None:
                self.waiting.pop(sleeper, None)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def wait_exited(self) -> ExitReason:
        await self._wait_for(EXITED)
        assert self.reason is not None
        return self.reason

    async def wait_started(self) -> None:
        await self._wait_for(LIVE)
        if self.phase >= CLOSING:
            raise self.exited_error()

    def watch(self, watcher: Ref[Any]) -> None:
        if self.reason is not None:
            tell_exit(watcher, self.ref, self.reason)
            return
        watchers = self.watchers
        if watchers is None:
            watchers = self.watchers = {}
        elif len(watchers) >= 16 and len(watchers) & (len(watchers) - 1) == 0:
            # At each doubling, so that watchers that exited cost nothing to keep.
            watchers = {ref: None for ref in watchers if not ref.exited}
            self.watchers = watchers
        watchers[watcher] = None

    def published_child(self, name: str) -> Ref[Any] | None:
        child = (self.children or {}).get(name)
        if child is None or not LIVE <= child.phase < CLOSING:
            return None
        return child.ref

    #### Ending

    def stop(self, cause: CancelCause) -> None:
        if self.phase >= CLOSING:
            return
        # One `Stop` is queued at a time; the first cause wins until it is read.
        if self.stop_cause is None or not self.lanes.holds(Stop):
            self.stop_cause = cause
            self.lanes.push(STOPS[cause])

    def cancel(self, cause: CancelCause, within: float | None = None) -> None:
        if self.phase is EXITED:
            return
        bound = CLEANUP_HARD if within is None else within
        self.condemn(cause, trio.current_time() + bound)
        if self.supervises is not None:
            self.supervises.condemn_children(cause.for_children(), self.budget_at)
        self.cancel_task(cause)

    def cancel_task(self, cause: CancelCause) -> None:
        if self.scope is not None:
            self.scope.cancel(cause)
        elif self.hosted is not None:
            # The host looks at `turn` before and after each message.
            self.turn = True
            self.lanes.wake()

    def condemn(self, cause: CancelCause, budget_at: float) -> None:
        """Record *cause* and the bound; the scope is cancelled by the caller."""
        if self.cancel_cause is None:
            self.cancel_cause = cause
        self.limit(budget_at)

    def limit(self, budget_at: float) -> None:
        """All cleanup of this actor ends by *budget_at*, or sooner if it had to."""
        if budget_at >= self.budget_at:
            return
        self.budget_at = budget_at
        for cleanup in self.cleanups or ():
            cleanup.limit(budget_at)
        if self.closing is not None:
            # Wakes the wait for its children, which then looks at the new bound.
            self.closing.cancel()

    def reason_for(self, error: BaseException | None) -> ExitReason:
        """The exit reason of a behaviour that ended, with *error* or without."""
        if error is not None:
            return Failed(error)
        cause = self.asked_to_end
        return EXITED_NORMALLY if cause is None else STOPPED[cause]

    @property
    def asked_to_end(self) -> CancelCause | None:
        """Why it was cancelled, or the cause of the `Stop` it has read."""
        if self.cancel_cause is not None:
            return self.cancel_cause
        if self.stop_cause is not None and not self.lanes.holds(Stop):
            return self.stop_cause
        return None

    def close(self, reason: ExitReason) -> int:
        """Refuse mail from now on. Returns how many tells are left unread."""
        self.phase = CLOSING
        self.ending = reason
        if self.timers is not None:
            self.kernel.timers.drop(self)
        return self.lanes.close(self.exited_error)

    def finish(self, reason: ExitReason, tells_left: int) -> None:
        """Exit, exactly once: an actor that was abandoned finishes no second time."""
        if self.phase is EXITED:
            return
        supervisor = self.nursery_of
        restarts = supervisor is not None and supervisor.will_restart(self, reason)
        self.phase = EXITED
        self.reason = reason
        if tells_left or isinstance(reason, Failed):
            report = ExitReport(self.path, reason, tells_left, restarts)
            self.kernel.report_exit(report)
        if self.watchers is not None:
            self._tell_watchers(self.watchers, reason)
        if isinstance(reason, Failed) and (
            self.parent is None or is_fatal(reason.error)
        ):
            self.kernel.crash(reason.error)
        if restarts and supervisor is not None:
            supervisor.notice(self)
        else:
            self.leave_parent()
        self._announce()
        if not restarts:
            self.terms = None
        # Breaks the cycle cell - context, so that exited actors are freed at once.
        self.ctx = self.hosted = self.turn = self.waiting = self.supervises = None

    def leave_parent(self) -> None:
        """Give the name free."""
        siblings = self.parent.children if self.parent is not None else None
        if siblings is not None and siblings.get(self.name) is self:
            del siblings[self.name]

    def abandon(self) -> None:
        """Give up on a task that outlived its bounds; it is reported and left."""
        if self.phase is EXITED:
            return
        log.error(
            "actor %r did not end within its bounds; its parent goes on without it",
            self.path,
        )
        self.cancel(CancelCause.PARENT, 0.0)
        left = self.close(Abandoned()) if self.phase < CLOSING else 0
        for child in list((self.children or {}).values()):
            child.cancel(CancelCause.PARENT)
        self.finish(Abandoned(), left)

    def _tell_watchers(
        self, watchers: dict[Ref[Any], None], reason: ExitReason
    ) -> None:
        self.watchers = None
        for watcher in watchers:
            tell_exit(watcher, self.ref, reason)


def tell_exit(watcher: Ref[Any], ref: Ref[Any], reason: ExitReason) -> None:
    watcher.tell_control(Exited(ref, reason), key=("greenroom.exited", ref))


def is_fatal(error: BaseException) -> bool:
    """Whether *error* is a bug of ours, or no error of a program at all."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return any(is_fatal(inner) for inner in group.exceptions)
    return isinstance(error, InternalError) or not isinstance(error, Exception)
