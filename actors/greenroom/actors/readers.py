"""Readers: a few read connections, each used by one short read at a time.

A read runs in a worker thread, so a slow disk never stops the loop. It is not
interrupted by cancellation: it is short by contract, and its connection is given
back before the caller goes on.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar, final

import attrs
import trio

from greenroom.protocol import StorageError
from greenroom.storage import Reader

MAX_READERS: Final = 3
"""Connections; further reads wait in line."""

CLOSE_SECONDS: Final = 5.0
"""How long closing waits for reads; what a disk holds longer is left behind."""

_LOG: Final = logging.getLogger("greenroom.store")

T = TypeVar("T")


@final
@attrs.define(eq=False)
class Readers:
    """Run reads beside the writer; made by `open_readers`."""

    _open: Callable[[], Reader]
    _limiter: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(MAX_READERS)
    )
    _idle: list[Reader] = attrs.field(factory=list[Reader])
    """Connections that no read uses; opened when first needed."""
    _is_closed: bool = False

    async def read(self, fn: Callable[[Reader], T]) -> T:
        """Return *fn* of a reader; *fn* keeps nothing of it.

        Raises:
            StorageError: the readers are closed; or whatever *fn* raised.
        """
        return await trio.to_thread.run_sync(self._read, fn, limiter=self._limiter)

    def _read(self, fn: Callable[[Reader], T]) -> T:
        # At most MAX_READERS threads are here at a time. list.pop and append are
        # atomic, so no connection is ever given to two of them.
        if self._is_closed:
            raise StorageError("the readers are closed", hint="open the engine again")
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = self._open()
        try:
            return fn(reader)
        finally:
            if self._is_closed:
                reader.close()
            else:
                self._idle.append(reader)

    @asynccontextmanager
    async def suspended(self) -> AsyncGenerator[None]:
        """Hold reads back while the block runs, with no connection open.

        Waits for those that are being done; later ones wait in line for the end.
        """
        places = [object() for _ in range(MAX_READERS)]
        held: list[object] = []
        try:
            for place in places:
                await self._limiter.acquire_on_behalf_of(place)
                held.append(place)
            while self._idle:
                self._idle.pop().close()
            yield
        finally:
            for place in held:
                self._limiter.release_on_behalf_of(place)

    async def _close(self) -> None:
        self._is_closed = True
        places: list[object] = []
        with trio.move_on_after(CLOSE_SECONDS) as bound:
            while len(places) < MAX_READERS:
                place = object()
                await self._limiter.acquire_on_behalf_of(place)
                places.append(place)
        if bound.cancelled_caught:
            left = MAX_READERS - len(places)
            _LOG.warning("%d reads did not end in %g s", left, CLOSE_SECONDS)
        while self._idle:
            self._idle.pop().close()
        # Whoever waits in line, or comes later, is refused instead of left waiting.
        for place in places:
            self._limiter.release_on_behalf_of(place)


@final
@attrs.frozen
class InlineReaders:
    """Readers without threads: each read is done on the loop at once.

    For a store in memory, and for tests on a mock clock, which can't see a thread.
    """

    _reader: Reader

    async def read(self, fn: Callable[[Reader], T]) -> T:
        """See `Readers.read`."""
        await trio.lowlevel.checkpoint()
        return fn(self._reader)


@asynccontextmanager
async def open_readers(open_reader: Callable[[], Reader]) -> AsyncGenerator[Readers]:
    """Open readers as they are needed, and close them after their last read."""
    readers = Readers(open_reader)
    try:
        yield readers
    finally:
        with trio.CancelScope(shield=True):
            await readers._close()  # pyright: ignore[reportPrivateUsage]
