"""Things that are kept open in the run while somebody outside reads from them.

A reader takes what there is in one crossing. What it does not take waits in the run,
under the bounds that hold there: a slow reader outside is a slow reader inside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
)
from functools import partial
from typing import Any, Generic, TypeVar, final

import attrs
import trio

from ._slot import Slot
from ._thread import Crossing, EngineClosedError, Portal

S = TypeVar("S")
E = TypeVar("E")


@final
class Held(Generic[S, E]):
    """What an asynchronous context manager gives, kept open in the run."""

    def __init__(
        self,
        portal: Portal[Any],
        opening: Callable[[], AbstractAsyncContextManager[S]],
        take: Callable[[S], Awaitable[Sequence[E]]],
    ) -> None:
        self._portal = portal
        self._opening = opening
        self._take = take
        self.opened: Slot[tuple[S, Reading[E]]] = Slot()
        """What was opened, and how to read from it; or why it could not be."""
        self._crossing = portal.submit(self._keep)
        self._crossing.slot.on_done(self._ended)

    def close(self) -> None:
        """Close it, if it is open; returns at once."""
        self._crossing.cancel()

    async def _keep(self) -> None:
        async with self._opening() as thing:
            reading = Reading(self._portal, partial(self._take, thing))
            with self._portal.at_end(reading.drain):
                self.opened.set_value((thing, reading))
                await trio.sleep_forever()

    def _ended(self) -> None:
        self.opened.set_error(self._crossing.slot.error or EngineClosedError())
        if self.opened.error is None:
            _, reading = self.opened.result()
            reading.rest.set_value([])


@final
@attrs.define(eq=False)
class Reading(Generic[E]):
    """What was taken and not handed out, and what is under way."""

    _portal: Portal[Any]
    _take: Callable[[], Awaitable[Sequence[E]]]
    """Returns what there is, at least one; an empty sequence at the end."""
    ready: deque[E] = attrs.field(factory=deque[E], init=False)
    rest: Slot[list[E]] = attrs.field(factory=Slot[list[E]], init=False)
    """What was there when the run ended; settled by then."""
    _taking: Crossing[Sequence[E]] | None = attrs.field(default=None, init=False)
    _cut_off: bool = attrs.field(default=False, init=False)
    """The run takes no more calls."""
    _alone: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def under_way(self) -> Slot[Any]:
        """Return what is taken next; the same until `adopt`.

        A reader that is cancelled leaves it, so that nothing is lost.
        """
        if self._cut_off:
            return self.rest
        # Kept before it is begun: a thread that is interrupted between finds it again.
        if self._taking is None:
            self._taking = self._portal.prepare(self._take_alone)
        self._portal.begin(self._taking)
        return self._taking.slot

    def adopt(self) -> bool:
        """Take what has come; ``False``: that was the end.

        Raises:
            SlowWatcherError: and whatever else the taking raised.
        """
        if self._cut_off:
            return self._adopt_rest()
        taking, self._taking = self._taking, None
        assert taking is not None
        try:
            self.ready.extend(taking.slot.result())
        except EngineClosedError:
            self._cut_off = True
            return True
        if not self.ready and self.rest.done:
            return self._adopt_rest()
        return bool(self.ready)

    def stop(self) -> None:
        """Cancel what is under way."""
        if self._taking is not None:
            self._taking.cancel()

    async def drain(self) -> None:
        """Take the rest; in the run, when what is read from has ended."""
        rest: list[E] = []
        async with self._alone:
            try:
                while more := await self._take():
                    rest.extend(more)
            except Exception as exc:
                self.rest.set_error(exc)
            else:
                self.rest.set_value(rest)

    def _adopt_rest(self) -> bool:
        rest, self.rest = self.rest, Slot[list[E]]()
        self.rest.set_value([])
        self._cut_off = True
        self.ready.extend(rest.result())
        return bool(self.ready)

    async def _take_alone(self) -> Sequence[E]:
        async with self._alone:
            return await self._take()


@asynccontextmanager
async def as_async(manager: AbstractContextManager[S]) -> AsyncGenerator[S]:
    """Open a context manager that is not asynchronous, in the run."""
    with manager as thing:
        yield thing


async def received(channel: trio.MemoryReceiveChannel[E]) -> list[E]:
    """Take the next of a channel; none when it has ended."""
    try:
        return [await channel.receive()]
    except trio.EndOfChannel:
        return []
