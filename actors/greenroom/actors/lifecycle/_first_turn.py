"""The first thing said in a session that is new, or nothing is left of it (SES-12).

Order of a session's creation: its agent → the agent's gate → row, settings and tape in
one transaction → whoever asked is bound to it → its first turn. What fails or is given
up on the way is undone: a session that nobody was given does not exist.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, final

import attrs
import trio

from greenroom.actors.logs import of_session
from greenroom.actors.sessions import Content, SessionHandle, Sessions
from greenroom.protocol import GreenroomError

from ._deletion import Deletion

_LOG: Final = logging.getLogger("greenroom.lifecycle")

UNDO_SECONDS: Final = 10.0
"""How long whoever gave up waits until the session is gone; else it goes at the next
start of an engine."""

Bind = Callable[[SessionHandle], Awaitable[object]]


@final
@attrs.frozen
class FirstTurns:
    """Begins sessions that were just made."""

    _sessions: Sessions
    _deletion: Deletion

    async def begin(
        self,
        session: SessionHandle,
        content: Content | None,
        command_id: str,
        bind: Bind | None,
    ) -> None:
        """Bind whoever asked, then take *content* in; raises what either does.

        Returns when the turn asks its model or has ended, after 30 s at most (SES-20).
        """
        try:
            if bind is not None:
                await bind(session)
            if content is not None:
                await session.submit(content, command_id=command_id)
        except BaseException:
            await self._undo(session)
            raise
        if content is not None:
            await self._sessions.watchdog.until_over(session.id)

    async def _undo(self, session: SessionHandle) -> None:
        why: object = f"it took more than {UNDO_SECONDS:g} s"
        with trio.CancelScope(shield=True), trio.move_on_after(UNDO_SECONDS):
            try:
                await self._deletion.delete(session.id)
            except GreenroomError as exc:
                why = exc
            else:
                return
        whose = of_session(session.id)
        _LOG.warning("session %s was not undone: %s", session.id, why, extra=whose)
