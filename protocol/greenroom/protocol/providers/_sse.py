"""Server-sent events: bytes in, events out.

A line ends at CR, LF or CRLF and nowhere else, wherever the chunks are cut. Bytes
that are not UTF-8 are replaced. Comments and blocks without data make no event: that
bytes came is for the caller to notice. The last block counts even when the stream
ends without the blank line behind it (`close`). What is held back is bounded.
"""

from __future__ import annotations

import re
from typing import Final, final

import attrs

from .._errors import RemoteProtocolError

MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
"""Room for a whole tool call with a file in it; more than that is abuse."""

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class SseLimitError(RemoteProtocolError):
    """One event of the stream is larger than allowed; the stream is of no more use."""

    code = "sse_event_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"an event of the stream is larger than {limit} bytes")
        self.limit = limit


@attrs.frozen
class SseEvent:
    """One event that carries data."""

    data: str
    name: str | None = None
    """What the server called it; ``None`` when it did not say."""


@final
class SseDecoder:
    """Decodes one stream. After `SseLimitError` it is of no more use."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        # The start of a line whose end has not come.
        self._pending = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._name: str | None = None
        self._at_start = True
        # The last byte was CR: a LF that follows belongs to the same line end.
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Take the next bytes in and return the events that they complete.

        Raises:
            SseLimitError: an event is larger than allowed.
        """
        if not chunk:
            return []
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        *ends, rest = _LINE_END.split(chunk)
        events = [event for end in ends if (event := self._end_line(end)) is not None]
        self._hold(rest)
        return events

    def close(self) -> list[SseEvent]:
        """End the stream and return the event that was still open, if any."""
        events = [self._end_line(b""), self._dispatch()]
        return [event for event in events if event is not None]

    def _hold(self, piece: bytes) -> None:
        self._pending += piece
        if len(self._pending) + self._size > self._limit:
            raise SseLimitError(self._limit)

    def _end_line(self, end: bytes) -> SseEvent | None:
        self._hold(end)
        line = bytes(self._pending)
        self._pending.clear()
        if self._at_start:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            self._at_start = False
        if not line:
            return self._dispatch()
        self._take_field(line)
        return None

    def _take_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            # One more for the line end: empty lines are held in memory as well.
            self._size += len(value) + 1
        elif name == b"event":
            self._name = value.decode(errors="replace")

    def _dispatch(self) -> SseEvent | None:
        data = b"\n".join(self._data).decode(errors="replace")
        name = self._name
        self._data, self._size, self._name = [], 0, None
        return SseEvent(data, name) if data.strip() else None
