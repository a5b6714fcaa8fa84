"""Which client follows which session, for endpoints that serve clients (SES-08)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import attrs

from greenroom.actors.sessions import PieceWriter, SessionNotFoundError
from greenroom.protocol import SessionId
from greenroom.storage import Member, Piece, Store


@final
@attrs.frozen
class Bindings:
    """Keeps bindings of the clients that came through one engine."""

    _writer: PieceWriter
    _member: Member
    _now: Callable[[], float]

    async def bind(self, client_id: str, session_id: str) -> None:
        """Keep that a client follows a session; returns when it is durable.

        Raises:
            SessionNotFoundError: there is no such session.
            StorageError: it is not kept.
        """
        scope, now = SessionId(session_id), self._now()

        def run(store: Store) -> bool:
            if store.session(scope) is None:
                return False
            store.bind(self._member, client_id, scope, now=now)
            return True

        if not await self._writer.submit(Piece(run)):
            raise SessionNotFoundError(session_id)

    async def unbind(self, client_id: str, session_ids: Sequence[str]) -> None:
        """Forget that a client follows these sessions, and nothing else.

        Raises:
            StorageError: it is still kept; it goes with this engine.
        """
        scopes = [SessionId(each) for each in session_ids]
        await self._writer.submit(
            Piece(lambda store: store.unbind(self._member, client_id, scopes))
        )
