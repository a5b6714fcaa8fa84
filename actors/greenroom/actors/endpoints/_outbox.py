"""What is still to be sent to a peer, bounded.

Putting never waits, so nothing that a session does depends on who reads. A peer that
lets too much pile up is given up: that is its loss, not the session's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import attrs
import trio

MAX_UNSENT_BYTES: Final = 16 * 1024 * 1024
"""Room for a few of the largest messages that are ever sent."""


@final
@attrs.define(eq=False)
class Outbox:
    """Bytes in the order they were put; one task sends them."""

    on_full: Callable[[], None]
    """Called once, when the peer has let more than `limit` pile up."""
    limit: int = MAX_UNSENT_BYTES
    _parts: list[bytes] = attrs.field(factory=list[bytes], init=False)
    _size: int = attrs.field(default=0, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)

    def put(self, data: bytes) -> None:
        """Have *data* sent; after `close` it is dropped."""
        if self._closed or not data:
            return
        self._parts.append(data)
        self._size += len(data)
        self._changed.set()
        if self._size > self.limit:
            self._closed = True
            self._parts.clear()
            self.on_full()

    def close(self) -> None:
        """Take nothing more; what was put is still sent."""
        self._closed = True
        self._changed.set()

    async def send_to(self, stream: trio.abc.SendStream) -> None:
        """Send what is put, until it is closed and empty.

        Raises:
            trio.BrokenResourceError: the peer is gone.
        """
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            while self._parts:
                parts, self._parts = self._parts, []
                data = b"".join(parts)
                await stream.send_all(data)
                self._size -= len(data)
            if self._closed:
                return
