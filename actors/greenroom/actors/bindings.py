"""Which client follows which session, for endpoints that serve clients (SES-08)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, final

import attrs

from greenroom.actors.sessions import PieceWriter, SessionNotFoundError
from greenroom.protocol import SessionId
from greenroom.storage import Member, Piece, Settled, Store

_LOG: Final = logging.getLogger("greenroom.endpoints")


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
        await self._writer.submit(self._unbinding(client_id, session_ids))

    def unbind_soon(self, client_id: str, session_ids: Sequence[str]) -> None:
        """Forget it with the next group, behind what was asked before; never waits.

        A failure is logged.
        """

        def settled(result: Settled) -> None:
            if result.error is not None:
                _LOG.warning("client %s is still bound: %s", client_id, result.error)

        self._writer.submit_soon(self._unbinding(client_id, session_ids), settled)

    def _unbinding(self, client_id: str, session_ids: Sequence[str]) -> Piece:
        scopes = [SessionId(each) for each in session_ids]
        return Piece(lambda store: store.unbind(self._member, client_id, scopes))
