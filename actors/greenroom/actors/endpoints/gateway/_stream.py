"""The stream under a WebSocket: what was read of it comes first, one sends for all.

trio-websocket does the handshake, reads, answers pings and closes; what it sends goes
through the outbox of the connection, in order with everything else.
"""

from __future__ import annotations

from typing import Final, final

import attrs
import trio

from greenroom.protocol.gateway import Opcode

from ._frames import FrameOutbox

CLOSE_SECONDS: Final = 2.0
"""How long the last frames may take, when a connection ends."""

_CLOSE_FRAME: Final = 0x80 | Opcode.CLOSE


@final
@attrs.define(eq=False)
class WebSocketStream(trio.abc.Stream):
    """A connection of which the head was read already."""

    inner: trio.abc.Stream
    outbox: FrameOutbox
    _unread: bytes
    heard_at: float
    """When something was received for the last time."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what comes next; see `trio.abc.ReceiveStream`."""
        if self._unread:
            size = max_bytes or len(self._unread)
            data, self._unread = self._unread[:size], self._unread[size:]
            await trio.lowlevel.checkpoint()
            return data
        data = bytes(await self.inner.receive_some(max_bytes))
        self.heard_at = trio.current_time()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Have *data* sent: one whole frame, or the answer to the handshake.

        It waits for nothing: the outbox is bounded.
        """
        await trio.lowlevel.checkpoint()
        frame = bytes(data)
        if frame and frame[0] == _CLOSE_FRAME:
            self.outbox.put_last(frame)
        else:
            self.outbox.put(frame)

    async def wait_send_all_might_not_block(self) -> None:
        """Return at once; see `send_all`."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Send what waits, within `CLOSE_SECONDS`, and close the connection."""
        self.outbox.seal()
        try:
            with trio.move_on_after(CLOSE_SECONDS):
                await self.outbox.empty()
        finally:
            await trio.aclose_forcefully(self.inner)
