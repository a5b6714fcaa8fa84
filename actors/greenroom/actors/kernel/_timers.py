"""The timers of all actors: one task and one heap."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from math import inf, isfinite
from typing import TYPE_CHECKING, final

import trio

from ._messages import DeadlineReached

if TYPE_CHECKING:
    from ._cell import Cell


@final
class Timer:
    """One timer of one actor. Dead once `cell` is ``None``."""

    __slots__ = ("cell", "message")

    def __init__(self, cell: Cell, key: Hashable) -> None:
        self.cell: Cell | None = cell
        self.message = DeadlineReached(key)


@final
class Timers:
    """Sends `DeadlineReached` when a timer goes off."""

    __slots__ = ("_dead", "_heap", "_next", "_scope")

    def __init__(self) -> None:
        # The number makes entries of one time compare, in the order they were set.
        self._heap: list[tuple[float, int, Timer]] = []
        self._next = 0
        self._dead = 0
        self._scope: trio.CancelScope | None = None

    def set(self, cell: Cell, seconds: float, key: Hashable) -> None:
        if not (isfinite(seconds) and seconds >= 0):
            raise ValueError(f"a deadline is 0 seconds or more, got {seconds!r}")
        self.cancel(cell, key)
        timer = Timer(cell, key)
        if cell.timers is None:
            cell.timers = {}
        cell.timers[key] = timer
        at = trio.current_time() + seconds
        heappush(self._heap, (at, self._next, timer))
        self._next += 1
        if self._scope is not None and at < self._scope.deadline:
            self._scope.deadline = at

    def cancel(self, cell: Cell, key: Hashable) -> None:
        timer = (cell.timers or {}).pop(key, None)
        if timer is not None:
            self._forget(timer)
        else:  # it may have gone off, and not been read
            message = DeadlineReached(key)
            cell.lanes.withdraw(message, _coalescing_key(message))

    def drop(self, cell: Cell) -> None:
        """Forget all timers of an actor that ends."""
        timers, cell.timers = cell.timers, None
        for timer in (timers or {}).values():
            self._forget(timer)

    # Dead entries stay in the heap until their time, or until they are the majority.
    def _forget(self, timer: Timer) -> None:
        timer.cell = None
        self._dead += 1
        if self._dead > 32 and self._dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].cell is not None]
            heapify(self._heap)
            self._dead = 0

    async def run(self) -> None:
        while True:
            self._fire()
            with trio.CancelScope() as self._scope:
                self._scope.deadline = self._heap[0][0] if self._heap else inf
                await trio.sleep_forever()
            self._scope = None

    def _fire(self) -> None:
        now = trio.current_time()
        while self._heap and self._heap[0][0] <= now:
            timer = heappop(self._heap)[2]
            cell, timer.cell = timer.cell, None
            if cell is None:
                self._dead -= 1
            else:
                message = timer.message
                (cell.timers or {}).pop(message.key, None)
                cell.lanes.push_once(message, _coalescing_key(message))


def _coalescing_key(message: DeadlineReached) -> Hashable:
    return ("greenroom.deadline", message.key)
