"""What an endpoint asks of the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from greenroom.actors.context import Compacted
from greenroom.actors.sessions import Follower, TurnResult
from greenroom.protocol import (
    Answer,
    ImagePart,
    SessionId,
    SessionSettings,
    TextPart,
)


class AgentSession(Protocol):
    """A session, as its handle shows it."""

    @property
    def id(self) -> SessionId:
        """The session's id."""
        ...

    @property
    def settings(self) -> SessionSettings | None:
        """Its settings, while it is loaded."""
        ...

    async def prompt(
        self,
        content: Sequence[TextPart | ImagePart],
        *,
        detached: bool = False,
        endpoint: str = "",
    ) -> TurnResult:
        """Send a message that came through *endpoint*; return when the turn ends.

        Cancelling it stops the turn, unless that is *detached*.
        """
        ...

    async def answer(self, interaction_id: str, answer: Answer) -> None:
        """Answer a pending permission or question."""
        ...

    async def configure(self, **changes: Any) -> SessionSettings:  # noqa: ANN401 - the fields of SessionSettings
        """Change settings."""
        ...

    async def compact(self, focus: str = "") -> Compacted:
        """Hide what was said so far behind a summary, and say what came of it."""
        ...

    async def cancel(self) -> None:
        """Stop the turn or the compaction, if there is one."""
        ...

    def follow(
        self, *, after: int | None = None
    ) -> AbstractAsyncContextManager[Follower]:
        """Watch the session."""
        ...


SessionMaker = Callable[[Path], Awaitable[AgentSession]]
"""Makes a session that works in a folder."""
