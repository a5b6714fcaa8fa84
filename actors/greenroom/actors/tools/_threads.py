"""Plain functions that are tools, or part of one: they run in worker threads.

On cancel the thread is abandoned and its result is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar, final

import attrs
import trio

from greenroom.protocol import Diff, Location, OperationId, PlanEntry, ToolTarget

from ._port import Operation, ToolContext

R = TypeVar("R")

_MAX_THREADS: Final = 16
# Apart from trio's own limiter: functions that were abandoned keep their threads
# until they return, and must not starve the engine of threads.
_threads = trio.lowlevel.RunVar[trio.CapacityLimiter]("greenroom_tool_threads")


async def in_thread(function: Callable[[], R]) -> R:
    """Call *function* in a worker thread; 16 at most at a time."""
    return await trio.to_thread.run_sync(
        function, abandon_on_cancel=True, limiter=_limiter()
    )


def _limiter() -> trio.CapacityLimiter:
    try:
        return _threads.get()
    except LookupError:
        limiter = trio.CapacityLimiter(_MAX_THREADS)
        _threads.set(limiter)
        return limiter


@final
@attrs.frozen(eq=False)
class BlockingOperation:
    """An `Operation` for a plain function, whose thread it makes wait."""

    _operation: Operation

    @property
    def id(self) -> OperationId:
        """See `Operation.id`."""
        return self._operation.id

    @property
    def idempotency_key(self) -> str:
        """See `Operation.idempotency_key`."""
        return self._operation.idempotency_key

    @property
    def granted(self) -> bool:
        """See `Operation.granted`."""
        return self._operation.granted

    @property
    def context(self) -> ToolContext:
        """See `Operation.context`."""
        return self._operation.context

    def dispatch(self, target: ToolTarget | None = None) -> None:
        """See `Operation.dispatch`.

        In a thread that was abandoned meanwhile it raises, like every method here.
        """
        trio.from_thread.check_cancelled()
        trio.from_thread.run(self._operation.dispatch, target)

    def progress(self, text: str) -> None:
        """See `Operation.progress`."""
        trio.from_thread.check_cancelled()
        trio.from_thread.run_sync(self._operation.progress, text)

    def report(
        self,
        *,
        title: str | None = None,
        locations: Sequence[Location] = (),
        diffs: Sequence[Diff] = (),
    ) -> None:
        """See `Operation.report`."""
        trio.from_thread.check_cancelled()
        trio.from_thread.run_sync(
            lambda: self._operation.report(
                title=title, locations=locations, diffs=diffs
            )
        )

    def update_plan(self, entries: tuple[PlanEntry, ...]) -> int:
        """See `Operation.update_plan`."""
        trio.from_thread.check_cancelled()
        return trio.from_thread.run(self._operation.update_plan, entries)
