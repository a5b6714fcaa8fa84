"""What can be put in the place of the default memory, and the default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar, final

import attrs
import trio

from greenroom.protocol import AgentConfig, Chunk, SessionId
from greenroom.storage import Piece, Reader

T = TypeVar("T")

RECALLED: Final = 8
"""Memories that the default tells of."""


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


class MemoryPort(Protocol):
    """How an agent remembers. Foreign code: it may be slow, fail, or never return."""

    async def contribute(
        self, agent_id: str, session_id: SessionId, prompt: str
    ) -> str:
        """Return what a turn that begins with *prompt* should know; it may be cut."""
        ...

    async def extract(
        self, agent_id: str, session_id: SessionId, chunks: Sequence[Chunk]
    ) -> Sequence[Chunk]:
        """Return what of *chunks* of a conversation is to be remembered."""
        ...


@final
@attrs.frozen
class StoreMemory:
    """The default: what was said, found again by its words in the store."""

    _readers: StoreReaders

    async def contribute(
        self, agent_id: str, session_id: SessionId, prompt: str
    ) -> str:
        """See `MemoryPort.contribute`."""
        found = await self._readers.read(
            lambda reader: reader.recall(agent_id, prompt, RECALLED)
        )
        # What was said in this very session the model reads anyway.
        others = [each.text for each in found if each.session_id != session_id]
        return "\n\n".join(others)

    async def extract(
        self, agent_id: str, session_id: SessionId, chunks: Sequence[Chunk]
    ) -> Sequence[Chunk]:
        """See `MemoryPort.extract`: all of it."""
        await trio.lowlevel.checkpoint()
        return chunks
