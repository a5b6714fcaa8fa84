"""A client, over all of its connections: what it is bound to, and how much it asks.

A client holds bindings, its own id to a session's, and never an instance (SES-08). They
are durable while one of its connections follows the session, and no longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final
from weakref import WeakValueDictionary

import attrs

from greenroom.protocol import GreenroomError, SessionId
from greenroom.protocol.gateway import MAX_SUBMISSIONS, Method

from ._ports import EnginePort


class DeadlineError(GreenroomError):
    """A request took longer than its kind may; what it began may go on."""

    code = "deadline_exceeded"
    hint = "look whether it was done; a prompt goes on, and is joined by its commandId"

    def __init__(self, method: Method) -> None:
        super().__init__(
            f"{method.name} took longer than the {method.seconds:g} s it may take"
        )


class TooManySubmissionsError(GreenroomError):
    """The client has too much open; nothing was done."""

    code = "too_many_submissions"
    hint = "wait for one of them to end, or queue what is to be said"

    def __init__(self) -> None:
        super().__init__(
            f"this client has {MAX_SUBMISSIONS} submissions open, as many as it may"
        )


class ForbiddenError(GreenroomError):
    """The client's token does not allow this kind of request; nothing was done."""

    code = "forbidden"

    def __init__(self, method: Method) -> None:
        super().__init__(f"{method.name} needs the scope {method.scope!r}")
        self.hint = f"use a token with the scope {method.scope!r}"


class ConnectionEndedError(GreenroomError):
    """The connection ended while a session was looked at; it follows nothing."""

    code = "connection_ended"
    hint = "connect again"

    def __init__(self) -> None:
        super().__init__("the connection that asked has ended")


class StoppedError(GreenroomError):
    """The gateway stopped while the request was worked on."""

    code = "gateway_stopped"
    hint = "connect again, and look whether it was done"

    def __init__(self, method: Method) -> None:
        super().__init__(f"the gateway stopped while it worked on {method.name}")


@final
@attrs.define(eq=False)
class Client:
    """One client; made by `Clients`."""

    id: str
    _engine: EnginePort
    connections: int = 0
    """Those that are open."""
    submissions: int = 0
    """Requests of the class ``send`` that are worked on, whoever waits for them."""
    _bound: dict[SessionId, int] = attrs.field(factory=dict[SessionId, int], init=False)
    """By how many connections each session is followed."""

    def __repr__(self) -> str:
        return f"<Client {self.id!r}, {self.connections} connections>"

    def begin_submission(self) -> None:
        """Count one submission more.

        Raises:
            TooManySubmissionsError: there are too many (SES-21).
        """
        if self.submissions >= MAX_SUBMISSIONS:
            raise TooManySubmissionsError
        self.submissions += 1

    def end_submission(self) -> None:
        """Count one submission less."""
        self.submissions -= 1

    async def bind(self, session_id: SessionId) -> None:
        """Let one more connection be bound to a session.

        Raises:
            SessionNotFoundError: there is none.
        """
        # Counted before anything is waited for: what is written is in the order in
        # which it was counted.
        self._bound[session_id] = self._bound.get(session_id, 0) + 1
        try:
            await self._engine.bindings.bind(self.id, session_id)
        except BaseException:
            # It may have been written nevertheless.
            self.unbind_soon(session_id)
            raise

    async def unbind(self, session_ids: Iterable[SessionId]) -> None:
        """Let one connection be bound to these sessions no more."""
        ended = [each for each in session_ids if self._left(each)]
        if ended:
            await self._engine.bindings.unbind(self.id, ended)

    def unbind_soon(self, session_id: SessionId) -> None:
        """The same for one session, without waiting until it is written."""
        if self._left(session_id):
            self._engine.bindings.unbind_soon(self.id, [session_id])

    def _left(self, session_id: SessionId) -> bool:
        count = self._bound[session_id] - 1
        if count:
            self._bound[session_id] = count
        else:
            del self._bound[session_id]
        return not count


@final
@attrs.define(eq=False)
class Clients:
    """The clients of a gateway; each is kept by its connections and its work."""

    _engine: EnginePort
    _clients: WeakValueDictionary[str, Client] = attrs.field(
        factory=WeakValueDictionary[str, Client], init=False
    )

    def find(self, client_id: str) -> Client:
        """Return a client, the same for each of its connections."""
        client = self._clients.get(client_id)
        if client is None:
            client = self._clients[client_id] = Client(client_id, self._engine)
        return client
