"""What one client sends, bounded by the heads of its frames.

The library that reads them hands over whole messages: of pings, of pongs and of the
pieces of a message nobody is told, however many there are. So the heads are looked at
before, which costs nothing beside what reading a frame does. What is in the frames, and
whether they are right, is the library's to judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

import attrs
import trio

from greenroom.protocol.gateway import MAX_FRAME_BYTES, CloseCode, Opcode

FRAMES_PER_SECOND: Final = 200.0
FRAME_BURST: Final = 1_000.0
"""Frames that a connection may send at once; then `FRAMES_PER_SECOND`. A client that
attaches to all that it may is within it."""

FREE_PIECE_BYTES: Final = 1_024
"""Further pieces of a message count as frames unless they are at least so long: they
are bounded as the message is, and some clients and proxies cut what is long."""

MAX_PIECES: Final = MAX_FRAME_BYTES // FREE_PIECE_BYTES
"""Of one message; each costs memory until the last is there, also an empty one."""

MAX_UNKNOWN_BYTES: Final = 64 << 10
"""What may come before it is known who the client is. A token is far shorter, and
whoever has none is not given the memory of a whole message."""

_CONTINUATION: Final = 0x0
_LAST: Final = 0x80
_MASKED: Final = 0x80
_LONG: Final = {126: 2, 127: 8}
"""How many bytes the size has that did not fit."""

Refusal = tuple[CloseCode, str]
"""With which code the connection is closed, and why."""


@attrs.frozen
class FrameHead:
    """What a frame says of itself."""

    opcode: int
    is_last: bool
    """No further piece of the message follows."""
    size: int
    """Bytes of the payload."""


@final
@attrs.define(eq=False)
class FrameHeads:
    """Finds where frames begin; what is no frame is taken for one."""

    _begun: bytes = attrs.field(default=b"", init=False)
    """A head that is not whole yet."""
    _to_skip: int = attrs.field(default=0, init=False)
    """Bytes of a payload that are still to come."""

    def feed(self, data: bytes) -> Iterator[FrameHead]:
        """Give the heads that are whole with *data*; it is to be read to its end."""
        data = self._begun + data
        self._begun = b""
        at = self._to_skip
        while at < len(data):
            second = data[at + 1] if at + 1 < len(data) else 0
            behind = at + 2 + _LONG.get(second & 0x7F, 0)
            start = behind + (4 if second & _MASKED else 0)
            if start > len(data):
                self._begun, at = data[at:], len(data)
                break
            size = int.from_bytes(data[at + 2 : behind], "big")
            size = size if behind > at + 2 else second & 0x7F
            yield FrameHead(data[at] & 0x0F, bool(data[at] & _LAST), size)
            at = start + size
        self._to_skip = at - len(data)


@final
@attrs.define(eq=False)
class _Rate:
    # A bucket that fills with time.
    left: float = FRAME_BURST
    at: float = attrs.field(factory=trio.current_time)

    def take(self) -> bool:
        now = trio.current_time()
        self.left = min(FRAME_BURST, self.left + (now - self.at) * FRAMES_PER_SECOND)
        self.at = now
        self.left -= 1
        return self.left >= 0


@final
@attrs.define(eq=False)
class Inflow:
    """What came of one client, and whether that is too much."""

    _heads: FrameHeads = attrs.field(factory=FrameHeads, init=False)
    _rate: _Rate = attrs.field(factory=_Rate, init=False)
    _pieces: int = attrs.field(default=0, init=False)
    """Of the message that is not whole."""
    _unknown_left: int | None = attrs.field(default=MAX_UNKNOWN_BYTES, init=False)
    """``None``: it is known who the client is."""
    _refusal: Refusal | None = attrs.field(default=None, init=False)
    has_closed: bool = attrs.field(default=False, init=False)
    """It said goodbye."""

    def admit(self) -> None:
        """It is known who the client is."""
        self._unknown_left = None

    def take(self, data: bytes) -> Refusal | None:
        """Take in what came next; return why it is too much, from then on for ever."""
        if self._refusal is None:
            self._refusal = self._count(len(data))
        if self._refusal is None:
            judged = map(self._judge, self._heads.feed(data))
            self._refusal = next(filter(None, judged), None)
        return self._refusal

    def _count(self, size: int) -> Refusal | None:
        if self._unknown_left is None:
            return None
        self._unknown_left -= size
        if self._unknown_left >= 0:
            return None
        return CloseCode.TOO_BIG, "say first who you are"

    def _judge(self, head: FrameHead) -> Refusal | None:
        is_further = head.opcode == _CONTINUATION
        if not (is_further and head.size >= FREE_PIECE_BYTES) and not self._rate.take():
            return CloseCode.RATE_LIMITED, "too many frames"
        if head.opcode == Opcode.CLOSE:
            self.has_closed = True
        if head.opcode < Opcode.CLOSE:
            self._pieces = self._pieces + 1 if is_further else 1
            if self._pieces > MAX_PIECES:
                return CloseCode.TOO_BIG, f"a message has at most {MAX_PIECES} pieces"
        return None
