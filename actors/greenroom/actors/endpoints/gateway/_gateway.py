"""The listener: who may come in, what plain HTTP gets, and how the gateway stops.

It listens before there is an engine, so that a supervisor can ask how far it is, and
lets clients in while it serves one. A connection waits in a bounded room until it is
known who it is; when that is full, whoever waits longest has to go.
"""

from __future__ import annotations

import base64
import binascii
import logging
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final, cast, final

import attrs
import trio
from trio_websocket import WebSocketConnection, wrap_server_stream
from wsproto.utilities import LocalProtocolError

from greenroom.actors.kernel import Ids
from greenroom.protocol.gateway import (
    MAX_FRAME_BYTES,
    CloseCode,
    Opcode,
    Scope,
    server_frame,
)

from .._acp_agent import AgentInfo
from .._ports import SessionMaker
from ._access import Access
from ._calls_client import Clients
from ._connection import GatewayConnection, House
from ._descriptors import room_to_wait
from ._frames import Flusher, FrameOutbox
from ._head import Head, HeadError, HeadReader
from ._http import Answer
from ._metrics import METRICS_TYPE, metrics_text
from ._ports import EnginePort
from ._stream import WebSocketStream
from .console import HEADERS, PageFile, load_page

_LOG: Final = logging.getLogger("greenroom.endpoints")

ACP_PATH: Final = "/acp"

MAX_CONNECTIONS: Final = 4_096
"""Clients at a time; each costs some 25 KiB, and a descriptor."""

MAX_WAITING: Final = 256
"""Connections of which it is not known yet who they are."""

HEAD_SECONDS: Final = 5.0
HANDSHAKE_SECONDS: Final = 5.0
LINGER_SECONDS: Final = 1.0
"""How long an answer may take to be read, before the connection is closed."""

PING_SECONDS: Final = 25.0
"""Below the minute after which many proxies forget a connection."""

SILENT_SECONDS: Final = 2.5 * PING_SECONDS
"""A client of which nothing was heard for so long, pongs included, is gone."""

STOP_SECONDS: Final = 5.0
"""How long clients have to close, when the gateway stops."""

READ_BYTES: Final = 4_096
_PINGS_AT_ONCE: Final = 64

_ONCE: Final = frozenset(
    {"authorization", "origin", "sec-websocket-key", "sec-websocket-version", "upgrade"}
)
"""Headers of an upgrade that are there once, so that all mean the same one."""


@final
@attrs.define(eq=False)
class Gateway:
    """A listening gateway; made by `open_gateway` or `listen`."""

    url: str
    """Of the console; clients connect to ``/acp`` beneath it."""
    port: int
    _access: Access
    _nursery: trio.Nursery
    """Where connections are served, and prompts are waited for."""
    _max_connections: int
    _ids: Ids
    _page: Mapping[str, PageFile] = attrs.field(factory=load_page, init=False)
    _house: House | None = attrs.field(default=None, init=False)
    _stopping: bool = attrs.field(default=False, init=False)
    _flusher: Flusher = attrs.field(init=False)
    _waiting: dict[trio.CancelScope, Callable[[], None]] = attrs.field(
        factory=dict[trio.CancelScope, Callable[[], None]], init=False
    )
    """By what is around each connection that waits, how it is ended; oldest first."""
    _connections: dict[str, GatewayConnection] = attrs.field(
        factory=dict[str, GatewayConnection], init=False
    )
    _accepted: int = attrs.field(default=0, init=False)
    _closed: Counter[int] = attrs.field(factory=Counter[int], init=False)
    _left: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set when a connection has ended; replaced by whoever waits for the next."""

    def __attrs_post_init__(self) -> None:
        self._flusher = Flusher(self._nursery)

    def __repr__(self) -> str:
        return f"<Gateway {self.url} {len(self._connections)} connections>"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    @property
    def is_ready(self) -> bool:
        """Whether clients are let in."""
        return self._house is not None and not self._stopping

    @asynccontextmanager
    async def serving(
        self, engine: EnginePort, make_session: SessionMaker | None = None
    ) -> AsyncGenerator[None]:
        """Let clients in as long as this lasts; then tell them, and see them out.

        Args:
            engine: what they use.
            make_session: makes the sessions of ACP clients; *engine*'s by default.
        """
        if self._house is not None:
            raise RuntimeError("the gateway serves an engine already")
        self._house = House(
            engine=engine,
            clients=Clients(engine),
            make_session=make_session or _maker(engine),
            info=AgentInfo("greenroom", version("greenroom")),
            access=self._access,
            turns=self._nursery,
            counted=self._counted,
        )
        try:
            yield
        finally:
            self._stopping = True
            with trio.CancelScope(shield=True):
                await self._dismiss()
            self._house, self._stopping = None, False

    async def _dismiss(self) -> None:
        for connection in tuple(self._connections.values()):
            connection.close(CloseCode.GOING_AWAY, "the gateway stops")
        with trio.move_on_after(STOP_SECONDS):
            while self._connections:
                self._left = trio.Event()
                await self._left.wait()

    #### A connection

    async def handle(self, stream: trio.abc.Stream) -> None:
        """Serve one connection to its end; nothing that it does ends another one."""
        scope = trio.CancelScope(deadline=trio.current_time() + HEAD_SECONDS)
        self._let_wait(scope)
        try:
            # The head is let go of before the connection begins, which may last for
            # days, and so is the scope.
            begun = None
            with scope:
                begun = await self._greet(stream)
            if begun is not None:
                await self._upgrade(*begun, scope)
        except Exception as exc:
            if not _is_late_pong(exc):
                _LOG.exception("a connection failed")
        finally:
            self._admit(scope)
            await trio.aclose_forcefully(stream)

    def _let_wait(self, scope: trio.CancelScope) -> None:
        self._waiting[scope] = scope.cancel
        if len(self._waiting) > room_to_wait(MAX_WAITING):
            give_way = self._waiting.pop(next(iter(self._waiting)))
            give_way()

    def _admit(self, scope: trio.CancelScope) -> None:
        self._waiting.pop(scope, None)

    async def _greet(
        self, stream: trio.abc.Stream
    ) -> tuple[WebSocketStream, frozenset[Scope] | None] | None:
        head = None
        try:
            head = await _read_head(stream)
            answer = self._judge(head)
        except HeadError as exc:
            answer = Answer.text(exc.status, str(exc))
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
            return None
        if head is None or answer is not None:
            assert answer is not None
            only_head = head is not None and head.method == "HEAD"
            await _answer(stream, answer.encode(head_only=only_head))
            return None
        outbox = FrameOutbox(stream, self._flusher)
        under = WebSocketStream(
            stream, outbox, head.raw, head.behind, trio.current_time()
        )
        return under, self._scopes(head)

    async def _upgrade(
        self,
        under: WebSocketStream,
        scopes: frozenset[Scope] | None,
        scope: trio.CancelScope,
    ) -> None:
        connection = None
        try:
            async with trio.open_nursery() as nursery:
                connection = self._enter(under, nursery, scopes, scope)
                websocket = await _shake_hands(nursery, under, connection.id)
                if websocket is not None:
                    await connection.serve(websocket)
                nursery.cancel_scope.cancel()
        finally:
            if connection is not None:
                await connection.end()
                del self._connections[connection.id]
                self._closed[connection.code] += 1
                self._left.set()

    def _enter(
        self,
        under: WebSocketStream,
        nursery: trio.Nursery,
        scopes: frozenset[Scope] | None,
        scope: trio.CancelScope,
    ) -> GatewayConnection:
        assert self._house is not None
        connection = GatewayConnection(
            # The id is also the client's that has none of its own.
            self._ids.uuid(),
            self._house,
            under,
            nursery,
            scopes,
            partial(self._admit, scope),
        )
        under.outbox.on_full = partial(connection.close, CloseCode.SLOW, "resume")
        under.on_refused = connection.close
        if scope in self._waiting:
            give_way = partial(connection.close, CloseCode.TRY_LATER, "too many")
            self._waiting[scope] = give_way
        self._connections[connection.id] = connection
        self._accepted += 1
        return connection

    def _scopes(self, head: Head) -> frozenset[Scope] | None:
        if self._access.tokens and head.bearer is None:
            return None
        return self._access.scopes_of(head.bearer)

    #### Judging

    def _judge(self, head: Head) -> Answer | None:
        if head.has_token_in_query:
            return Answer.text(400, "a token in a URL is kept in logs: use a header")
        if not self._access.allows_host(head.header("host")):
            return Answer.text(403, "the gateway is not known by that name")
        if head.path == ACP_PATH:
            return self._judge_upgrade(head)
        if head.wants_websocket:
            return Answer.text(404, f"WebSocket is spoken at {ACP_PATH}")
        if head.method not in ("GET", "HEAD"):
            return Answer.text(405, "there is nothing to change here", Allow="GET")
        return self._page_or_state(head)

    def _judge_upgrade(self, head: Head) -> Answer | None:
        if not head.wants_websocket or head.method != "GET":
            return Answer.text(426, "WebSocket is spoken here", Upgrade="websocket")
        if (problem := _problem_with(head)) is not None:
            return Answer.text(400, problem)
        if not self._access.allows_origin(head.header("origin"), head.header("host")):
            return Answer.text(403, "pages of that origin may not connect")
        if head.bearer is not None and self._access.scopes_of(head.bearer) is None:
            return _unauthorized()
        if head.header("sec-websocket-version") != "13" or not _has_key(head):
            return Answer.text(
                426, "version 13 with a key is spoken", Sec_WebSocket_Version="13"
            )
        if not self.is_ready:
            return Answer.text(503, "not ready", Retry_After="1")
        if len(self._connections) >= self._max_connections:
            return Answer.text(503, "there are too many connections", Retry_After="5")
        return None

    def _page_or_state(self, head: Head) -> Answer:
        match head.path:
            case "/healthz":
                return Answer.text(200, "alive")
            case "/readyz" if self.is_ready:
                return Answer.text(200, "ready")
            case "/readyz":
                return Answer.text(503, "not ready", Retry_After="1")
            case "/metrics":
                return self._metrics(head)
            case path if (file := self._page.get(path)) is not None:
                return Answer(200, file.body, file.content_type, HEADERS)
            case _:
                return Answer.text(404, "there is nothing here")

    def _metrics(self, head: Head) -> Answer:
        scopes = self._access.scopes_of(head.bearer)
        if scopes is None or "read" not in scopes:
            return _unauthorized()
        engine = {} if self._house is None else self._house.engine.metrics()
        text = metrics_text({**engine, **self._counted()}, self._closed)
        return Answer(200, text.encode(), METRICS_TYPE)

    def _counted(self) -> dict[str, float]:
        outboxes = (each.stream.outbox for each in self._connections.values())
        return {
            "gateway_connections": len(self._connections),
            "gateway_waiting": len(self._waiting),
            "gateway_unsent_bytes": sum(outbox.size for outbox in outboxes),
            "gateway_accepted_total": self._accepted,
            "gateway_frames_total": self._flusher.sent.frames,
            "gateway_bytes_total": self._flusher.sent.bytes,
        }

    #### What goes on beside

    async def run(self) -> None:
        """Send what waits, and find out who is gone, until it is cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._flusher.run)
            while True:
                await trio.sleep(PING_SECONDS)
                await self._ping_all()

    async def _ping_all(self) -> None:
        ping = server_frame(b"", Opcode.PING)
        for number, connection in enumerate(tuple(self._connections.values()), 1):
            if trio.current_time() - connection.stream.heard_at > SILENT_SECONDS:
                connection.close(CloseCode.TIMED_OUT, "nothing was heard")
            elif connection.stream.is_upgraded:
                connection.stream.outbox.put(ping)
            if number % _PINGS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()


def _maker(engine: EnginePort) -> SessionMaker:
    async def make(folder: Path) -> object:
        return await engine.create_session(workspace=folder)

    return make  # pyright: ignore[reportReturnType]


#### Over the wire


async def _read_head(stream: trio.abc.Stream) -> Head:
    reader = HeadReader()
    while True:
        head = reader.feed(bytes(await stream.receive_some(READ_BYTES)))
        if head is not None:
            return head


async def _answer(stream: trio.abc.Stream, data: bytes) -> None:
    # What the client still sends is read for a moment: closing with it unread would
    # take the answer away from it.
    with trio.move_on_after(LINGER_SECONDS):
        try:
            await stream.send_all(data)
            if isinstance(stream, trio.abc.HalfCloseableStream):
                await stream.send_eof()
            for _ in range(64):
                if not await stream.receive_some(READ_BYTES):
                    break
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


async def _shake_hands(
    nursery: trio.Nursery, stream: WebSocketStream, connection_id: str
) -> WebSocketConnection | None:
    with trio.move_on_after(HANDSHAKE_SECONDS):
        request = await wrap_server_stream(
            nursery,
            stream,
            max_message_size=MAX_FRAME_BYTES,
            receive_buffer_size=READ_BYTES,
        )
        headers = [(b"Acp-Connection-Id", connection_id.encode())]
        return await request.accept(extra_headers=headers)
    return None


def _problem_with(head: Head) -> str | None:
    # What the library would stumble over, or take another one of than was judged.
    named = [(name, value) for name, value in head.headers if _is_judged(name)]
    if not all(value.isascii() for _, value in named):
        return "a header of the upgrade is not ASCII"
    if head.version != "1.1":
        return "an upgrade needs HTTP 1.1"
    if head.header("content-length") or head.header("transfer-encoding"):
        return "an upgrade has no body"
    once = Counter(name for name, _ in named if name in _ONCE)
    if any(count > 1 for count in once.values()):
        return "a header of the upgrade is there twice"
    tokens = (value for name, value in named if name == "connection")
    if "upgrade" not in (t.strip().lower() for v in tokens for t in v.split(",")):
        return "an upgrade needs the header Connection: Upgrade"
    return None


def _is_judged(name: str) -> bool:
    return name in _ONCE or name == "connection" or name.startswith("sec-websocket-")


def _is_late_pong(exc: Exception) -> bool:
    # The library answers pings that come after it has begun to close, and fails.
    if not isinstance(exc, ExceptionGroup):
        return False
    group = cast("ExceptionGroup[Exception]", exc)
    return group.split(LocalProtocolError)[1] is None


def _has_key(head: Head) -> bool:
    try:
        key = base64.b64decode(head.header("sec-websocket-key") or "", validate=True)
    except binascii.Error:
        return False
    return len(key) == 16


def _unauthorized() -> Answer:
    return Answer.text(401, "a token is needed", WWW_Authenticate="Bearer")
