"""How much one read returns, and how much is kept for the case of doubt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from greenroom.protocol import TapeEntry

from ._values import MAX_PAGE_BYTES

MAX_ENTRIES: Final = 1_000
MAX_ROWS: Final = 500
MAX_HITS: Final = 100
MAX_MESSAGE_HITS: Final = 50
MAX_TRACES: Final = 100
"""Traces of one session that are kept, the newest."""
REMEMBERED: Final = 16
"""Results of appends with an id that are kept for each session."""
FORGOTTEN: Final = ""
"""The body of a command of before a reset; no command comes with such a one."""


def clamp(limit: int, most: int) -> int:
    """Return *limit* as a number from 1 to *most*."""
    return max(1, min(limit, most))


def within_page(entries: Iterable[TapeEntry]) -> tuple[TapeEntry, ...]:
    """Return the first *entries* that fit a page together; at least one of them."""
    taken: list[TapeEntry] = []
    size = 0
    for entry in entries:
        size += len(entry.fact.payload) + len(entry.fact.meta)
        if taken and size > MAX_PAGE_BYTES:
            break
        taken.append(entry)
    return tuple(taken)
