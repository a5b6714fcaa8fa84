"""How much one read returns."""

from __future__ import annotations

from collections.abc import Iterable

from greenroom.protocol import TapeEntry

from ._store import MAX_PAGE_BYTES


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
