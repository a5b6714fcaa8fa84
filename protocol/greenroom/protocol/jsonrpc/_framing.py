"""Messages as lines: one JSON text, one LF, no LF inside.

Bytes are cut at LF before anything is decoded, so a chunk may end anywhere, within a
character too. A CR before the LF is dropped, blank lines are none. What is held back
is bounded.
"""

from __future__ import annotations

from typing import Final, final

import attrs

from .._errors import RemoteProtocolError

MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
"""As the reference implementation has it; real peers send half a megabyte."""


class MessageTooLargeError(RemoteProtocolError):
    """A line is longer than allowed; where the next one begins is not known."""

    code = "message_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"a message is longer than {limit} bytes; the connection is closed"
        )
        self.limit = limit


@final
@attrs.define(eq=False)
class LineBuffer:
    """Cuts a stream of bytes into lines. After its error it is of no more use."""

    limit: int = MAX_MESSAGE_BYTES
    _bytes: bytearray = attrs.field(factory=bytearray, init=False)
    _searched: int = attrs.field(default=0, init=False)
    """Bytes at the start that hold no LF, so that a long line is searched once."""

    def feed(self, data: bytes) -> None:
        """Take the next bytes in."""
        self._bytes += data

    def next_line(self) -> bytes | None:
        """Return the next line that is not blank; ``None``: more bytes are needed.

        Raises:
            MessageTooLargeError: the line exceeds the limit, whole or not.
        """
        while (end := self._bytes.find(b"\n", self._searched)) >= 0:
            self._check(end)
            line = bytes(self._bytes[:end])
            del self._bytes[: end + 1]
            self._searched = 0
            if line := line.strip(b" \t\r"):
                return line
        self._searched = len(self._bytes)
        self._check(self._searched)
        return None

    def _check(self, length: int) -> None:
        if length > self.limit:
            self._bytes.clear()
            raise MessageTooLargeError(self.limit)
