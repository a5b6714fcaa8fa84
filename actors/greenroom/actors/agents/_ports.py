"""What the manager needs: storage, and somebody who runs the sessions of a kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from greenroom.protocol import (
    AgentDescriptor,
    GreenroomError,
    SessionId,
    SessionSettings,
)
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


class Backend(Protocol):
    """Runs the sessions of one kind of agent; chosen by that kind alone (AGT-01)."""

    async def create(
        self, agent: AgentDescriptor, settings: SessionSettings
    ) -> SessionId:
        """Make a session of *agent* and return its id."""
        ...

    async def open(self, agent: AgentDescriptor, session_id: SessionId) -> None:
        """Make the session ready to be talked to; nothing if it is."""
        ...

    async def forget(self, session_id: SessionId) -> None:
        """Stop what runs of a session, and forget what is kept for it here.

        Of any session, with an agent of any kind or none; nothing is loaded or started
        for it, and nothing is an error because it is not there (DEL-01).
        """
        ...


class NoBackendError(GreenroomError):
    """Nobody in this engine runs agents of this kind; no other backend is tried."""

    code = "no_backend"

    def __init__(self, agent_id: str, kind: str, hint: str) -> None:
        super().__init__(f"agent {agent_id[:80]!r} is of kind {kind}, {hint}")
        self.agent_id = agent_id
        self.kind = kind
        self.hint = "choose an agent of kind native (greenroom agents list)"
