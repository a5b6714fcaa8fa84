"""Foreign code of a run, as tasks of the reaper: what does not end is left behind.

No nursery of a run waits for them, so a tool, or a check of one, that hears no cancel
never holds up the turn (the bounded cleanup of the kernel).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, final

import attrs
import trio

from greenroom.actors.kernel import Context
from greenroom.actors.tools import Tool

from ._batch import OperationHandle
from ._operation import RunOperation

SOFT_SECONDS: Final = 2.0
HARD_SECONDS: Final = 4.0
"""Budget of an operation's clean-up; inside the 5 s of a whole turn's cancel."""


T = TypeVar("T")


@final
@attrs.define(eq=False)
class ReaperOperations:
    """Runs operations, and what is asked about them, at the kernel's reaper."""

    ctx: Context[Any]

    def start(
        self, operation: RunOperation, tool: Tool, arguments: dict[str, Any]
    ) -> OperationHandle:
        """Start the operation's task."""
        name = f"op-{operation.id.request_seq},{operation.call.call_id}"
        return self.ctx.reaper.start(
            operation.perform, tool, arguments, name=name, parent=self.ctx.ref
        )

    async def ask(self, name: str, seconds: float, fn: Callable[[], Awaitable[T]]) -> T:
        """Return what *fn* brings; see `ForeignCode`."""
        handle = self.ctx.reaper.start(fn, name=name, parent=self.ctx.ref)
        try:
            with trio.fail_after(seconds):
                return (await handle.wait()).unwrap()
        finally:
            if not handle.done:
                await handle.stop(SOFT_SECONDS, HARD_SECONDS)

    async def stop(
        self, handles: Sequence[OperationHandle], waiting: Callable[[float], None]
    ) -> None:
        """End every operation within one budget, whose end *waiting* is told."""
        with self.ctx.cleanup(SOFT_SECONDS, HARD_SECONDS) as cleanup:
            waiting(cleanup.deadline)
            async with trio.open_nursery() as nursery:
                for handle in handles:
                    nursery.start_soon(handle.stop, SOFT_SECONDS, HARD_SECONDS)
