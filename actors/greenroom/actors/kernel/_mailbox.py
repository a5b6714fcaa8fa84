"""How a task actor reads its mail.

`async for message in ctx.mailbox` hands out one message at a time, control first
even when it arrives while a batch is in hand. `receive_batch` takes everything.

A reader yields to the scheduler once for each list it takes, and after 32 messages
or 1 ms; between messages it only looks whether it is cancelled. That is what makes
mail cheap: a step through trio costs as much as twenty messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, final

import trio

from ._clock import perf_counter
from ._messages import STARTED
from ._phase import LIVE, NEW, STARTING

if TYPE_CHECKING:
    from ._cell import Cell

M = TypeVar("M")

BATCH_MESSAGES: Final = 32
BATCH_SECONDS: Final = 0.001


@final
class Mailbox(Generic[M]):
    """The reading end of a task actor's mail. One task reads at a time.

    Iterating never ends on its own: an actor ends by returning, usually when it
    reads `Stop`. Mail that is not read when it returns is counted and reported.
    """

    __slots__ = ("_cell", "_lanes", "_quota", "_task", "_until")

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._lanes = cell.lanes
        self._quota = 0
        self._until = 0.0
        self._task: trio.lowlevel.Task | None = None

    def __repr__(self) -> str:
        work, control = self._lanes.depth()
        return f"<Mailbox {self._cell.path!r} {work} work, {control} control>"

    def __aiter__(self) -> Mailbox[M]:
        return self

    async def __anext__(self) -> M:
        lanes = self._lanes
        if (
            self._quota > 0
            and (lanes.hand or lanes.urgent)
            and perf_counter() < self._until
        ):
            self._quota -= 1
            await trio.lowlevel.checkpoint_if_cancelled()
            message = lanes.next()
        elif self._cell.phase < LIVE and self._is_first():
            await trio.lowlevel.checkpoint_if_cancelled()
            message = STARTED
        else:
            await self._wait_for_mail()
            message = lanes.next()
            if lanes.hand or lanes.urgent:
                self._quota = BATCH_MESSAGES - 1
                self._until = perf_counter() + BATCH_SECONDS
        lanes.current = type(message)
        return cast("M", message)

    async def receive_batch(self) -> list[M]:
        """Wait for mail and take all of it, control first.

        Always a checkpoint. Control that arrives later is in the next batch. The
        first batch is `Started` alone.
        """
        if self._cell.phase < LIVE and self._is_first():
            await trio.lowlevel.checkpoint_if_cancelled()
            return [cast("M", STARTED)]
        await self._wait_for_mail()
        batch = self._lanes.next_batch()
        self._lanes.current = type(batch[0])
        return cast("list[M]", batch)

    def receive_nowait_batch(self) -> list[M]:
        """Take all mail that waits, control first; an empty list when none does."""
        if self._cell.phase < LIVE and self._is_first():
            return [cast("M", STARTED)]
        return cast("list[M]", self._lanes.next_batch())

    # An actor has handled `Started` when it asks for more.
    def _is_first(self) -> bool:
        cell = self._cell
        if cell.phase is NEW:
            cell.phase = STARTING
            cell.lanes.current = type(STARTED)
            return True
        cell.publish()
        return False

    # Yields once, by parking or else by a checkpoint: the list that is taken next
    # must not be handed out by an actor that never lets others run.
    async def _wait_for_mail(self) -> None:
        lanes = self._lanes
        has_mail = lanes.has_mail()
        if has_mail:
            await trio.lowlevel.checkpoint()
            # An ask may have been taken back while we yielded.
            has_mail = lanes.has_mail()
        while not has_mail:
            if self._task is not None:
                raise RuntimeError(
                    f"another task reads the mailbox of {self._cell.path!r}; "
                    "one task reads, others are told by it"
                )
            self._task = trio.lowlevel.current_task()
            lanes.rest(self)
            await trio.lowlevel.wait_task_rescheduled(self._abort)
            has_mail = lanes.has_mail()

    def wake(self) -> None:
        """The kernel's: mail has come."""
        task, self._task = self._task, None
        assert task is not None
        trio.lowlevel.reschedule(task)

    def _abort(self, _: Callable[[], Any]) -> trio.lowlevel.Abort:
        self._task = None
        self._lanes.reader = None
        return trio.lowlevel.Abort.SUCCEEDED
