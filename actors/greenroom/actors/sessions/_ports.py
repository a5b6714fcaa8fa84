"""What sessions need of storage, with or without threads behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from greenroom.storage import Piece, Reader, Settled

T = TypeVar("T")


class PieceWriter(Protocol):
    """Runs pieces; see `greenroom.actors.writer`."""

    async def submit(
        self, piece: Piece, told: Callable[[Any], object] | None = None
    ) -> Any:  # noqa: ANN401 - the piece's value
        """Return the piece's value once it is on disk.

        *told* is called with it first, in the order in which pieces were written.
        """
        ...

    def submit_soon(self, piece: Piece, settled: Callable[[Settled], object]) -> None:
        """Let the piece ride with the next group."""
        ...


class StoreReaders(Protocol):
    """Runs reads; see `greenroom.actors.readers`."""

    async def read(self, fn: Callable[[Reader], T]) -> T:
        """Return *fn* of a reader."""
        ...
