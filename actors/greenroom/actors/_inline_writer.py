"""A writer without a thread, and what it shares with the one that has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, final

import attrs
import outcome
import trio

from greenroom.storage import Piece, Settled

INDEX_BATCH: Final = 200
"""Entries that are made findable in one step."""


class WritableStore(Protocol):
    """What the writer needs of a store."""

    def run_group(self, pieces: Sequence[Piece]) -> list[Settled]:
        """See `Store.run_group`."""
        ...

    def index_pending(self, limit: int = ...) -> int:
        """See `Store.index_pending`."""
        ...

    def checkpoint(self) -> bool:
        """See `Store.checkpoint`."""
        ...

    def log_bytes(self) -> int:
        """See `Store.log_bytes`."""
        ...

    def close(self) -> None:
        """See `Reader.close`."""
        ...


INDEX_PIECE: Final = Piece(lambda store: store.index_pending(INDEX_BATCH))
"""A step of making entries findable; its value says whether there was one."""


@final
@attrs.define(eq=False)
class InlineWriter:
    """A writer without a thread: each piece is a group, run on the loop at once.

    For a store in memory, and for tests on a mock clock, which can't see a thread.
    """

    _store: WritableStore

    async def submit(
        self, piece: Piece, told: Callable[[Any], object] | None = None
    ) -> Any:  # noqa: ANN401 - the piece's value
        """See `Writer.submit`."""
        await trio.lowlevel.checkpoint()
        (settled,) = self._store.run_group([piece])
        tell(settled, told)
        return as_outcome(settled).unwrap()

    def submit_soon(self, piece: Piece, settled: Callable[[Settled], object]) -> None:
        """See `Writer.submit_soon`."""
        (result,) = self._store.run_group([piece])
        settled(result)

    async def flush(self) -> None:
        """See `Writer.flush`."""
        while await self.submit(INDEX_PIECE):
            pass


def tell(settled: Settled, told: Callable[[Any], object] | None) -> None:
    """Call *told* with the value of a piece that is on disk."""
    if told is not None and settled.error is None:
        told(settled.value)


def as_outcome(settled: Settled) -> outcome.Outcome[Any]:
    """Return how a piece ended as what its waiter is woken with."""
    if settled.error is None:
        return outcome.Value(settled.value)
    return outcome.Error(settled.error)
