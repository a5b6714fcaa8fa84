"""The stream under a WebSocket: what was read of it comes first, one sends for all.

trio-websocket does the handshake, reads, answers pings and closes; what it sends goes
through the outbox of the connection, in order with everything else.
"""

from __future__ import annotations

from typing import Final, final

import attrs
import trio

from greenroom.protocol.gateway import CloseCode, Opcode

from ._frames import FrameOutbox

CLOSE_SECONDS: Final = 2.0
"""How long the last frames may take, when a connection ends."""

LINGER_SECONDS: Final = 1.0
"""How long a client that was refused may go on sending, so that it is told why: a
connection that is closed with bytes unread takes the last frame away from it."""

_READ_BYTES: Final = 65_536
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
    _refused: bool = attrs.field(default=False, init=False)
    """The library has closed because of what it read; it reads no more then."""
    _lingered: trio.Event | None = attrs.field(default=None, init=False)
    """Set when nothing more comes, or it was waited for long enough."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what comes next; see `trio.abc.ReceiveStream`."""
        if self._unread:
            size = max_bytes or len(self._unread)
            data, self._unread = self._unread[:size], self._unread[size:]
            await trio.lowlevel.checkpoint()
            return data
        if self._refused:
            await self._linger()
            return b""
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
            self._refused = int.from_bytes(frame[2:4], "big") == CloseCode.TOO_BIG
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
                if self._refused:
                    await self._linger()
        finally:
            await trio.aclose_forcefully(self.inner)

    async def _linger(self) -> None:
        # Reads to the end; the library and the connection may both come here.
        if self._lingered is not None:
            await self._lingered.wait()
            return
        self._lingered = trio.Event()
        try:
            with trio.move_on_after(LINGER_SECONDS):
                while await self.inner.receive_some(_READ_BYTES):
                    pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._lingered.set()
