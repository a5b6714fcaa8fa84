"""How often a provider is asked: one queue for all that ask it (TRY-20).

A gate belongs to a provider in an engine and is shared by every session that uses it.
Each physical attempt enters it again, in the order of arrival. Who is cancelled leaves,
and those behind move up: their times are told anew. At most one run of a session
waits here at a time, so the queue is as long as there are working sessions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, final

import attrs
import trio

DEFAULT_QPS: Final = 0.1

MAX_INTERVAL_SECONDS: Final = 86_400.0


def _is_rate(_: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not (math.isfinite(value) and value > 0 and 1 / value <= MAX_INTERVAL_SECONDS):
        raise ValueError(
            f"{attribute.name} must be a number of requests per second, "
            f"at least one in a day, got {value!r}"
        )


@final
@attrs.frozen
class RateLimit:
    """How many requests a second a provider may be sent."""

    qps: float = attrs.field(default=DEFAULT_QPS, validator=_is_rate)

    @property
    def interval(self) -> float:
        """Seconds from one request to the next, at least."""
        return 1 / self.qps


@final
@attrs.define(eq=False, repr=False)
class RateGate:
    """Lets one attempt through at a time, an interval apart; without a limit, all."""

    limit: RateLimit | None = None
    _queue: list[trio.Event] = attrs.field(factory=list[trio.Event], init=False)
    """Who waits, first come first; each event is set when its place has changed."""
    _free_at: float = attrs.field(default=-math.inf, init=False)
    """When the next one may pass, in the clock of `trio.current_time`."""

    def __repr__(self) -> str:
        rate = "open" if self.limit is None else f"{self.limit.qps:g} per second"
        return f"<RateGate {rate}, {len(self._queue)} waiting>"

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._queue)

    async def enter(self, waiting: Callable[[float], None]) -> None:
        """Return when it is this attempt's turn.

        *waiting* is told when that will be, in trio's time, and told again when it
        comes sooner. It must not raise. Does not checkpoint when nobody has to wait.
        """
        if self.limit is None:
            return
        if self._queue or trio.current_time() < self._free_at:
            await self._wait(self.limit.interval, waiting)
        # Nothing is awaited between the last look and this.
        self._free_at = trio.current_time() + self.limit.interval

    async def _wait(self, interval: float, waiting: Callable[[float], None]) -> None:
        mine = trio.Event()
        self._queue.append(mine)
        try:
            while (place := self._queue.index(mine)) or (
                trio.current_time() < self._free_at
            ):
                until = self._free_at + place * interval
                waiting(until)
                # Only the first in the queue is woken by the time.
                with trio.move_on_at(math.inf if place else until):
                    await mine.wait()
                mine = self._renewed(mine)
        finally:
            self._queue.remove(mine)
            for other in self._queue:
                other.set()

    def _renewed(self, mine: trio.Event) -> trio.Event:
        fresh = trio.Event()
        self._queue[self._queue.index(mine)] = fresh
        return fresh
