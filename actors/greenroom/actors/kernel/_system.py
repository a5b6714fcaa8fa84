"""The system: the root supervisor, the host, the timers and the reaper.

They live in a trio system task, not in the caller's nursery, so that leaving
`open_system` takes a bounded time whatever a task below does. What could not be ended
is reported; `trio.run` returns when that ends too.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any, ClassVar, Final, TypeVar, final

import trio

from ._behaviour import (
    DEFAULT_CAPACITY,
    DEFAULT_SHUTDOWN,
    SPAWNED,
    Behaviour,
    ChildSpec,
    Hosted,
    Restart,
    Strategy,
    Supervise,
    spawn_terms,
    terms_of,
)
from ._cell import Cell
from ._clock import Clock, Ids, SystemClock, SystemIds
from ._host import Host
from ._kernel import Crash, Kernel, ReportHook, log, log_exit
from ._life import end, failure_in, live
from ._messages import CancelCause, ExitReason
from ._phase import EXITED
from ._reaper import AbandonedHook, Reaper, log_abandoned
from ._ref import Ref
from ._spawn import make_cell, renew, spawn
from ._supervisor import Supervisor
from ._timers import Timers
from ._tree import ActorInfo, actor_infos, operation_info

C = TypeVar("C")

# Python's own make spawning and cancelling many tasks twice as slow.
GC_THRESHOLDS: Final = (50_000, 20, 100)
# The task of the system ends at once when nothing was abandoned.
END_SECONDS: Final = 1.0


@final
class SupervisorHandle:
    """A supervisor in the tree, in whatever incarnation it is."""

    __slots__ = ("_name", "_parent")

    def __init__(self, parent: Cell, name: str) -> None:
        self._parent = parent
        self._name = name

    def __repr__(self) -> str:
        return f"<SupervisorHandle {self._cell.path!r}>"

    @property
    def ref(self) -> Ref[Any]:
        """The reference of the present incarnation. Raises `KeyError` after its end."""
        return self._cell.ref

    def start_child(self, child: ChildSpec) -> Ref[Any]:
        """Start a child; the supervisor starts it again as *child* says.

        Children started so are stopped together, before the fixed ones. Use
        `Ref.wait_started` to learn whether an asynchronous set-up worked.
        """
        cell = self._cell
        terms = terms_of(child, ordered=False)
        return cell.kernel.spawn(cell, child.name, None, terms).ref

    def spawn(
        self,
        name: str,
        behaviour: Behaviour[C],
        *,
        capacity: int = DEFAULT_CAPACITY,
        restart: Restart = Restart.TEMPORARY,
        shutdown: float = DEFAULT_SHUTDOWN,
    ) -> Ref[C]:
        """Start a child of this supervisor, as `Context.spawn` does."""
        terms = spawn_terms(behaviour, capacity, restart, shutdown, watch=False)
        cell = self._cell
        return cell.kernel.spawn(cell, name, behaviour, terms).ref

    async def stop_child(
        self, name: str, cause: CancelCause = CancelCause.PARENT
    ) -> ExitReason | None:
        """End the child called *name* for good: stop, bounded wait, cancel.

        Returns its exit reason, or ``None`` when there is no such child. Cancelling
        the caller kills the child.
        """
        child = (self._cell.children or {}).get(name)
        if child is None:
            await trio.lowlevel.checkpoint()
            return None
        return await stop_cell(child, cause)

    def child(self, name: str) -> Ref[Any] | None:
        """The published child called *name*, in its present incarnation."""
        return self._cell.published_child(name)

    @property
    def _cell(self) -> Cell:
        return (self._parent.children or {})[self._name]


async def stop_cell(cell: Cell, cause: CancelCause) -> ExitReason | None:
    if cell.phase is EXITED:  # it waits to be started again, and won't be
        cell.leave_parent()
        await trio.lowlevel.checkpoint()
        return cell.reason
    try:
        await end([cell], cause, None)
    except BaseException:
        cell.cancel(cause)
        raise
    return cell.reason


@final
class System:
    """A running system of actors. From `open_system`."""

    __slots__ = ("_ended", "_kernel", "_root", "_supervisor")

    def __init__(self, kernel: Kernel, root: Cell, supervisor: Supervisor) -> None:
        self._kernel = kernel
        self._root = root
        self._supervisor = supervisor
        kernel.system = self
        self._ended = trio.Event()

    def __repr__(self) -> str:
        return f"<System {len(self._root.children or ())} children>"

    @property
    def clock(self) -> Clock:
        """Where the system's time comes from."""
        return self._kernel.clock

    @property
    def ids(self) -> Ids:
        """Where the system's ids and chance come from."""
        return self._kernel.ids

    @property
    def reaper(self) -> Reaper:
        """Where operations that may have to be abandoned are started."""
        return self._kernel.reaper

    def spawn(
        self,
        name: str,
        behaviour: Behaviour[C],
        *,
        capacity: int = DEFAULT_CAPACITY,
        restart: Restart = Restart.TEMPORARY,
        shutdown: float = DEFAULT_SHUTDOWN,
    ) -> Ref[C]:
        """Start an actor below the root, as `Context.spawn` does below an actor."""
        terms = spawn_terms(behaviour, capacity, restart, shutdown, watch=False)
        return self._kernel.spawn(self._root, name, behaviour, terms).ref

    def host(
        self, name: str, behaviour: Hosted[C], *, capacity: int = DEFAULT_CAPACITY
    ) -> Ref[C]:
        """Start a hosted actor below the root: `spawn`, with the type said."""
        return self.spawn(name, behaviour, capacity=capacity)

    def start_child(self, child: ChildSpec) -> Ref[Any]:
        """Start a child of the root, which starts it again as *child* says.

        At the end such children are stopped one by one, in reverse order of start.
        """
        terms = terms_of(child, ordered=True)
        return self._kernel.spawn(self._root, child.name, None, terms).ref

    def supervisor(
        self,
        name: str,
        strategy: Strategy = Strategy.ONE_FOR_ONE,
        *,
        children: tuple[ChildSpec, ...] = (),
        max_restarts: int = 3,
        max_seconds: float = 5.0,
        restart: Restart = Restart.PERMANENT,
        shutdown: float = DEFAULT_SHUTDOWN,
    ) -> SupervisorHandle:
        """Start a supervisor below the root."""
        plan = Supervise(children, strategy, max_restarts, max_seconds)
        self.start_child(ChildSpec(name, lambda: plan, restart, shutdown))
        return SupervisorHandle(self._root, name)

    def child(self, name: str) -> Ref[Any] | None:
        """The published child of the root called *name*."""
        return self._root.published_child(name)

    async def stop_child(
        self, name: str, cause: CancelCause = CancelCause.PARENT
    ) -> ExitReason | None:
        """End a child of the root for good, as `SupervisorHandle.stop_child`."""
        child = (self._root.children or {}).get(name)
        if child is None:
            await trio.lowlevel.checkpoint()
            return None
        return await stop_cell(child, cause)

    def tree(self) -> tuple[ActorInfo, ...]:
        """Every actor, parents before children, then the operations that run."""
        operations = map(operation_info, self._kernel.reaper.operations)
        return (*actor_infos(self._root), *operations)

    def fail(self, error: BaseException) -> None:
        """End the system because of *error*, which `open_system` raises then."""
        self._kernel.crash(error)

    async def shutdown(self) -> None:
        """End the system: children in reverse order, each within its bounds.

        Shielded and bounded; may be called again. `open_system` calls it on leaving.
        """
        with trio.CancelScope(shield=True):
            self._root.stop(CancelCause.SHUTDOWN)
            await self._supervisor.settled.wait()
            await self._kernel.reaper.finish()
            with trio.move_on_after(END_SECONDS):
                await self._ended.wait()
        if not self._ended.is_set():
            log.error("the actor system ended, and left tasks behind that did not")

    async def run(self, opened: trio.Event) -> None:
        """The kernel's: the task of the system. It raises nothing."""
        try:
            async with trio.open_nursery() as operations:
                self._kernel.reaper.open(operations)
                async with trio.open_nursery() as services:
                    services.start_soon(self._kernel.host.run)
                    services.start_soon(self._kernel.timers.run)
                    opened.set()
                    await live(self._root, self._supervisor.live)
                    services.cancel_scope.cancel()
        except BaseException as exc:
            # Cancelled only when the loop itself ends, with the system still open.
            if (error := failure_in(exc)) is not None:
                self._kernel.crash(error)
        finally:
            self._supervisor.settled.set()
            self._ended.set()


@asynccontextmanager
async def open_system(
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    report: ReportHook = log_exit,
    reaper_report: AbandonedHook = log_abandoned,
    gc_thresholds: bool = True,
) -> AsyncGenerator[System]:
    """Run a system of actors while the block runs.

    On leaving, for whatever reason, the children are stopped in reverse order, each
    within its bounds, and the caller waits for a bounded time.

    Raises in the block, by cancelling it, and on leaving: `RestartLimitError` when the
    root supervisor gave up, and whatever is no case for a supervisor: `InternalError`,
    `KeyboardInterrupt`.

    Args:
        clock: Where the time comes from.
        ids: Where ids and chance come from.
        report: Called, on the loop's thread, with each failure of an actor and each
            exit that left tells unread. What it raises is logged.
        reaper_report: Called with each operation that was abandoned. As above.
        gc_thresholds: Set the garbage collector's thresholds to (50000, 20, 100) while
            a system is open, for the whole process; the default ones make starting
            and cancelling many actors twice as slow.
    """
    kernel = Kernel(
        clock or SystemClock(),
        ids or SystemIds(),
        report,
        Host(),
        Timers(),
        Reaper(reaper_report, crash := Crash()),
        spawn,
        renew,
        crash,
    )
    system = _make_system(kernel)
    thresholds = _Thresholds() if gc_thresholds else None
    opened = trio.Event()
    trio.lowlevel.spawn_system_task(
        system.run, opened, name="greenroom system", context=copy_context()
    )
    try:
        with crash.body:
            await opened.wait()
            yield system
    finally:
        await system.shutdown()
        if thresholds is not None:
            thresholds.restore()
        if crash.error is not None:
            raise crash.error


def _make_system(kernel: Kernel) -> System:
    root, _ = make_cell(kernel, None, "", Supervise(), SPAWNED)
    assert root.supervises is not None
    return System(kernel, root, root.supervises)


@final
class _Thresholds:
    """Holds the collector's thresholds while any system of the process is open."""

    _holders: ClassVar[int] = 0
    _before: ClassVar[tuple[int, int, int]] = (700, 10, 10)
    # Systems may run in several threads.
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        with _Thresholds._lock:
            if _Thresholds._holders == 0:
                _Thresholds._before = gc.get_threshold()
                gc.set_threshold(*GC_THRESHOLDS)
            _Thresholds._holders += 1

    def restore(self) -> None:
        with _Thresholds._lock:
            _Thresholds._holders -= 1
            if _Thresholds._holders == 0:
                gc.set_threshold(*_Thresholds._before)
