"""One client: its messages in, what it is told out, and how it ends.

One task reads. What a message asks for is served by a task of its own, or at once; what
the client is told goes into its outbox. A connection ends when the client leaves, when
it breaks a limit, when it does not read, and when the gateway stops; none of that
changes anything but the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, final

import attrs
import msgspec
import trio
from trio_websocket import CloseReason, ConnectionClosed, WebSocketConnection

from greenroom.protocol.gateway import (
    AUTHENTICATE,
    MAX_FRAME_BYTES,
    PREFIX,
    Authenticate,
    Authenticated,
    CloseCode,
    Scope,
    server_frame,
)
from greenroom.protocol.jsonrpc import Connection, ErrorCode, ErrorObject

from .._acp_agent import Agent, AgentInfo
from .._acp_turn import RefusedError
from .._ports import SessionMaker
from ._access import Access, scopes_in
from ._calls import Calls
from ._calls_client import Clients
from ._ports import EnginePort
from ._relay import Relay
from ._stream import CLOSE_SECONDS, WebSocketStream

AUTHENTICATE_SECONDS: Final = 10.0
"""From the handshake to the token."""

MAX_UNANSWERED: Final = 64
"""Requests of one connection, more than any client waits for at a time."""

LOST: Final = 1006
"""The code that is counted for a client that went without a word (RFC 6455, 7.1.5)."""


@attrs.frozen
class House:
    """What the connections of a gateway share while it serves an engine."""

    engine: EnginePort
    clients: Clients
    make_session: SessionMaker
    info: AgentInfo
    access: Access
    turns: trio.Nursery
    """The gateway's: where prompts are waited for without their client."""
    counted: Callable[[], Mapping[str, float]]
    """What the gateway counts itself, by name."""


class _Envelope(msgspec.Struct):
    method: str = ""
    params: msgspec.Raw = msgspec.Raw(b"{}")


@attrs.define(eq=False)
class _Known:
    # What there is once it is known who the client is.
    calls: Calls
    agent: Agent
    authenticated: Authenticated | None
    """What the client is told if its first message asks."""


@final
@attrs.define(eq=False)
class GatewayConnection:
    """A client's connection, from the end of its handshake."""

    id: str
    house: House
    stream: WebSocketStream
    _nursery: trio.Nursery
    """Ends with the connection."""
    _scopes: frozenset[Scope] | None
    """By the header; ``None``: the first message has to hold a token."""
    _on_admitted: Callable[[], None]
    """Called when it is known who the client is."""
    _known: _Known | None = attrs.field(default=None, init=False)
    _relay: Relay = attrs.field(init=False)
    _reading: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _code: int = attrs.field(default=CloseCode.NORMAL, init=False)
    _why: str = attrs.field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self._relay = Relay(
            self.stream.outbox, self.house.engine.session, self._nursery
        )

    @property
    def code(self) -> int:
        """With which code it was closed; 1000 if the client said goodbye, whatever it
        said, and `LOST` if it did not."""
        return self._code

    def close(self, code: CloseCode, why: str) -> None:
        """End the connection; the first reason holds."""
        if not self._reading.cancel_called:
            self._code, self._why = code, why
            self._reading.cancel()

    async def serve(self, websocket: WebSocketConnection) -> None:
        """Take what the client sends until the connection ends."""
        try:
            with self._reading:
                await self._read(websocket)
        finally:
            self._note(websocket.closed)

    def _note(self, reason: CloseReason | None) -> None:
        # Why the connection ended, if the library found that out.
        said_goodbye = self.stream.inflow.has_closed and self.stream.has_said_goodbye
        if reason is None or said_goodbye or self._reading.cancel_called:
            return
        self._code, self._why = int(reason.code), reason.reason or ""

    def _admit(self) -> None:
        self.stream.inflow.admit()
        self._on_admitted()

    async def _read(self, websocket: WebSocketConnection) -> None:
        try:
            with trio.move_on_after(AUTHENTICATE_SECONDS) as waiting:
                if self._scopes is not None:
                    self._admit()
                    waiting.deadline = float("inf")
                # What is no message does not say who the client is.
                while self._known is None and not self._reading.cancel_called:
                    self._take(await websocket.get_message())
            if waiting.cancelled_caught:
                self.close(CloseCode.TIMED_OUT, "authenticate first")
            while not self._reading.cancel_called:
                self._take(await websocket.get_message())
        except ConnectionClosed:
            pass

    async def end(self) -> None:
        """Forget what the client followed, tell it why, and close the connection.

        In a bounded time, cancelled or not; its nursery has ended.
        """
        self._relay.close()
        with trio.CancelScope(
            shield=True, deadline=trio.current_time() + CLOSE_SECONDS
        ):
            if self._known is not None:
                self._known.agent.leave()
                await self._known.calls.close()
            await self.stream.finish(self._code, self._why)

    #### Messages

    def _take(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            # As ACP's transport has it: what is no text is no message.
            return
        data = message.encode()
        if len(data) > MAX_FRAME_BYTES:
            # The library counts characters.
            self.close(CloseCode.TOO_BIG, f"more than {MAX_FRAME_BYTES} bytes")
            return
        if self._known is None:
            self._known = self._introduce(data)
        if self._known is not None:
            self._known.agent.take(data)

    def _introduce(self, data: bytes) -> _Known | None:
        asked = _authenticate(data)
        scopes = self._scopes
        if scopes is None or (asked is not None and asked.token is not None):
            scopes = self.house.access.scopes_of(None if asked is None else asked.token)
        if scopes is None:
            self.close(CloseCode.UNAUTHENTICATED, "the first message needs a token")
            return None
        self._admit()
        given = None if asked is None else asked.client_id
        client = self.house.clients.find(given or self.id)
        resumed = client.connections > 0
        calls = Calls(
            self.house.engine,
            client,
            scopes,
            self._relay,
            self.house.turns,
            self.house.counted,
        )
        agent = Agent(
            self.house.make_session,
            self.house.info,
            self._send,
            self._nursery,
            self.house.turns,
            extension=self,
            check=self._check,
            connection=Connection(max_open=MAX_UNANSWERED),
            detached=True,
        )
        told = Authenticated(client.id, scopes_in(scopes), resumed)
        return _Known(calls, agent, None if asked is None else told)

    def _send(self, message: bytes) -> None:
        if message:
            self.stream.outbox.put(server_frame(message.removesuffix(b"\n")))

    def _check(self, method: str) -> None:
        assert self._known is not None
        if "write" not in self._known.calls.scopes:
            raise RefusedError(
                ErrorObject(
                    ErrorCode.INVALID_REQUEST,
                    f"{method} needs the scope 'write'",
                    {"code": "forbidden", "hint": "use a token with that scope"},
                )
            )

    #### What ACP does not have

    def serves(self, method: str) -> bool:
        """See `Extension`."""
        return method.startswith(PREFIX)

    async def call(self, method: str, params: msgspec.Raw) -> object:
        """See `Extension`."""
        assert self._known is not None
        if method != AUTHENTICATE:
            return await self._known.calls.call(method, params)
        await trio.lowlevel.checkpoint()
        msgspec.json.decode(params, type=Authenticate)
        told, self._known.authenticated = self._known.authenticated, None
        if told is None:
            raise RefusedError(
                ErrorObject(
                    ErrorCode.INVALID_REQUEST,
                    "a client says who it is with its first message, or not at all",
                )
            )
        return told

    def answered(self, result: object) -> None:
        """See `Extension`."""
        self._relay.answered(result)


def _authenticate(data: bytes) -> Authenticate | None:
    try:
        message = msgspec.json.decode(data, type=_Envelope)
        if message.method == AUTHENTICATE:
            return msgspec.json.decode(message.params, type=Authenticate)
    except (msgspec.DecodeError, RecursionError):
        pass
    return None
