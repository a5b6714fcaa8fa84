"""What the service of Skills needs: storage, agents, and somewhere to touch files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, final

import attrs
import trio

from greenroom.protocol import AgentConfig
from greenroom.storage import Piece, Reader

T = TypeVar("T")


class PieceWriter(Protocol):
    """Runs pieces; see `greenroom.actors.writer`."""

    async def submit(self, piece: Piece) -> Any:  # noqa: ANN401 - the piece's value
        """Return the piece's value once it is on disk."""
        ...


class StoreReaders(Protocol):
    """Runs reads; see `greenroom.actors.readers`."""

    async def read(self, fn: Callable[[Reader], T]) -> T:
        """Return *fn* of a reader."""
        ...


class Configs(Protocol):
    """Who knows what is in force for an agent."""

    async def config(self, agent_id: str) -> AgentConfig | None:
        """Return its configuration; ``None``: there is none, or it is not native."""
        ...


class Work(Protocol):
    """Runs functions that touch files."""

    async def run(self, fn: Callable[[], T], *, changes: bool = False) -> T:
        """Return what *fn* returns; one that *changes* something is waited for."""
        ...


@final
class ThreadWork:
    """Work in a worker thread: a slow disk never stops the loop."""

    async def run(self, fn: Callable[[], T], *, changes: bool = False) -> T:
        """See `Work.run`."""
        return await trio.to_thread.run_sync(fn, abandon_on_cancel=not changes)


@final
@attrs.frozen
class InlineWork:
    """Work on the loop at once, for tests on a mock clock, which can't see a thread."""

    async def run(self, fn: Callable[[], T], *, changes: bool = False) -> T:
        """See `Work.run`."""
        await trio.lowlevel.checkpoint()
        return fn()
