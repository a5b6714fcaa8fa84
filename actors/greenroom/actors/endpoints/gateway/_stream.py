"""The stream under a WebSocket: what was read of it comes first, one sends for all.

trio-websocket does the handshake, reads, answers pings and answers a goodbye; what it
sends goes through the outbox of the connection, in order with everything else. When it
closes the stream nothing happens yet: the connection knows why it ends, and says so in
the close frame that the library leaves out when what it read is no frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import attrs
import trio

from greenroom.protocol.gateway import CloseCode, Opcode, server_frame

from ._frames import FrameOutbox
from ._inflow import Inflow

CLOSE_SECONDS: Final = 2.0
"""How long the last frames may take, when a connection ends."""

LINGER_SECONDS: Final = 1.0
"""How long a client may go on sending that was told goodbye: a connection that is
closed with bytes unread takes the last frame away from it."""

_READ_BYTES: Final = 65_536
_MAX_REASON_BYTES: Final = 123
_CLOSE_FRAME: Final = 0x80 | Opcode.CLOSE
_ACCEPTED: Final = b"HTTP/1.1 101 "
_NO_FRAMES: Final = (CloseCode.PROTOCOL_ERROR, CloseCode.NOT_UTF8)


def _nobody(code: CloseCode, why: str) -> None:
    pass


@final
@attrs.define(eq=False)
class WebSocketStream(trio.abc.Stream):
    """A connection of which the head was read already."""

    inner: trio.abc.Stream
    outbox: FrameOutbox
    _head: bytes = attrs.field(repr=False)
    """What the library has not been handed of it."""
    _behind: bytes = attrs.field(repr=False)
    """What was read with it."""
    heard_at: float
    """When something was received for the last time."""
    inflow: Inflow = attrs.field(factory=Inflow)
    on_refused: Callable[[CloseCode, str], None] = _nobody
    """Called once, when the client has sent too much; the library is told that nothing
    more comes."""
    _upgrade: trio.Event | None = attrs.field(factory=trio.Event, init=False)
    """Set when the client is told that it is let in; ``None``: it was."""
    has_said_goodbye: bool = attrs.field(default=False, init=False)
    """A close frame is on its way."""
    _is_over: bool = attrs.field(default=False, init=False)
    """Nothing more comes."""

    @property
    def is_upgraded(self) -> bool:
        """Whether frames may be sent: the answer to the handshake is on its way."""
        return self._upgrade is None

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what comes next; see `trio.abc.ReceiveStream`."""
        if self._head:
            size = max_bytes or len(self._head)
            data, self._head = self._head[:size], self._head[size:]
            await trio.lowlevel.checkpoint()
            return data
        if self._upgrade is not None:
            await self._upgrade.wait()
        data, self._behind = self._behind, b""
        data = data or bytes(await self.inner.receive_some(max_bytes))
        self.heard_at = trio.current_time()
        self._is_over = not data
        refusal = self.inflow.take(data)
        if refusal is not None:
            self.on_refused(*refusal)
            return b""
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Have *data* sent: one whole frame, or the answer to the handshake.

        It waits for nothing: the outbox is bounded.
        """
        await trio.lowlevel.checkpoint()
        frame = bytes(data)
        if frame and frame[0] == _CLOSE_FRAME:
            self.has_said_goodbye = True
            self.outbox.put_last(frame)
            return
        self.outbox.put(frame)
        if self._upgrade is not None and frame.startswith(_ACCEPTED):
            self._upgrade.set()
            self._upgrade = None

    async def wait_send_all_might_not_block(self) -> None:
        """Return at once; see `send_all`."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Do nothing: `finish` does."""
        await trio.lowlevel.checkpoint()

    async def finish(self, code: int, why: str) -> None:
        """Say goodbye unless that was done, see the client out, close the connection.

        Nobody else may receive any more. It takes no longer than `CLOSE_SECONDS`.
        """
        if self.is_upgraded and not (self.has_said_goodbye or self._is_over):
            self.outbox.put_last(_goodbye(code, why))
        self.outbox.seal()
        try:
            with trio.move_on_after(CLOSE_SECONDS):
                await self.outbox.empty()
                await self._see_out(is_heard=code not in _NO_FRAMES)
        finally:
            await trio.aclose_forcefully(self.inner)

    async def _see_out(self, *, is_heard: bool) -> None:
        # Reads until the client has said goodbye, too. One that was refused is not
        # listened to: looking for that among all that it sends would cost.
        if self._is_over:
            return
        try:
            with trio.move_on_after(LINGER_SECONDS):
                while not self.inflow.has_closed:
                    data = bytes(await self.inner.receive_some(_READ_BYTES))
                    if not data:
                        break
                    is_heard = is_heard and self.inflow.take(data) is None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


def _goodbye(code: int, why: str) -> bytes:
    reason = why.encode()[:_MAX_REASON_BYTES].decode(errors="ignore").encode()
    return server_frame(code.to_bytes(2, "big") + reason, Opcode.CLOSE)
