"""The backend of native agents: sessions whose turns run in our own loop."""

from __future__ import annotations

from typing import final

import attrs

from greenroom.actors.sessions import Sessions
from greenroom.protocol import AgentDescriptor, SessionId, SessionSettings


@final
@attrs.frozen
class NativeBackend:
    """See `Backend`; the model provider is the session's affair, whatever its id."""

    _sessions: Sessions

    async def create(
        self, agent: AgentDescriptor, settings: SessionSettings
    ) -> SessionId:
        """See `Backend.create`."""
        return (await self._sessions.create(settings)).session.id

    async def open(self, agent: AgentDescriptor, session_id: SessionId) -> None:
        """See `Backend.open`."""
        await self._sessions.open(session_id)

    async def forget(self, session_id: SessionId) -> None:
        """See `Backend.forget`; what is on the tape stays."""
        await self._sessions.close(session_id)
