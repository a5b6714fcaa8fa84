"""Output within bounds: heads, tails, previews and what was left out.

Pure functions and one byte buffer. Wherever something is cut, the text says so and
says how much, so that neither the model nor a reader takes a part for the whole.
"""

from __future__ import annotations

from typing import Final, final

import attrs

from greenroom.protocol import safe_text

MAX_RESULT_CHARS: Final = 100_000
"""A result longer than this is cut in the middle; about 25 000 tokens."""

PREVIEW_CHARS: Final = 1_024
"""What the model reads of an output that was kept in a file (TOL-16)."""


def cut_middle(text: str, limit: int) -> str:
    """Return *text*, its middle replaced by a note if it is longer than *limit*."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit - limit // 2], text[len(text) - limit // 2 :]
    return f"{head}\n[… {len(text) - limit} characters left out …]\n{tail}"


def cut_end(text: str, limit: int) -> str:
    """Return *text*, its end replaced by a note if it is longer than *limit*."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[… {len(text) - limit} characters left out]"


def printable(text: str) -> str:
    """Return *text* with whatever does not print as itself replaced by U+FFFD.

    Line ends, terminal escapes and characters that turn the direction of writing
    could make a path or a command look like another one to the user who allows it.
    """
    return "".join(char if char.isprintable() else "�" for char in text)


def one_line(text: str, limit: int = 200) -> str:
    """Return *text* as one printable line of at most *limit* characters."""
    line = printable(" ".join(text[: limit * 4].split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


@final
@attrs.define(eq=False)
class HeadAndTail:
    """The first and the last bytes of a stream, however long it gets.

    Memory is bounded by twice ``head_bytes`` plus three times ``tail_bytes``.
    """

    head_bytes: int
    tail_bytes: int
    _head: bytearray = attrs.field(factory=bytearray, init=False)
    _tail: bytearray = attrs.field(factory=bytearray, init=False)
    _left_out: int = attrs.field(default=0, init=False)

    def add(self, data: bytes) -> None:
        """Take in the next bytes."""
        room = self.head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        # Cut only now and then, so that small pieces do not move the tail each time.
        if len(self._tail) > 2 * self.tail_bytes:
            self._cut()

    def text(self) -> str:
        """Return what is kept as text that can be stored and sent again."""
        self._cut()
        if not self._left_out:
            return _decoded(bytes(self._head + self._tail))
        note = f"\n[… {self._left_out} bytes left out …]\n"
        return _decoded(bytes(self._head)) + note + _decoded(bytes(self._tail))

    def _cut(self) -> None:
        excess = len(self._tail) - self.tail_bytes
        if excess > 0:
            del self._tail[:excess]
            self._left_out += excess


def _decoded(data: bytes) -> str:
    return safe_text(data.decode("utf-8", "replace"))
