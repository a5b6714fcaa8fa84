"""A gateway without sockets, and clients of it over memory streams."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import trio
from trio.testing import memory_stream_pair
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream
from wsproto.utilities import LocalProtocolError

from greenroom.actors.endpoints.gateway import Gateway
from greenroom.actors.endpoints.gateway._access import Access
from greenroom.actors.endpoints.gateway._gateway import MAX_CONNECTIONS
from greenroom.protocol.gateway import EVENT, EventNotice
from greenroom.testing import SeededIds


@asynccontextmanager
async def bare_gateway(
    access: Access | None = None, max_connections: int = MAX_CONNECTIONS
) -> AsyncGenerator[Gateway]:
    """A gateway that listens on nothing and serves nothing yet."""
    async with trio.open_nursery() as nursery:
        gateway = Gateway(
            "http://test/",
            0,
            access or Access("127.0.0.1"),
            nursery,
            max_connections,
            SeededIds(7),
        )
        nursery.start_soon(gateway.run)
        yield gateway
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def served(
    engine: Any, access: Access | None = None, **settings: Any
) -> AsyncGenerator[Gateway]:
    """A gateway that serves *engine*."""
    async with bare_gateway(access, **settings) as gateway, gateway.serving(engine):
        yield gateway


@attrs.define(eq=False)
class GatewayClient:
    """One connection, and everything that came over it."""

    websocket: WebSocketConnection
    stream: trio.abc.Stream
    received: list[dict[str, Any]] = attrs.field(factory=list)
    ended: trio.Event = attrs.field(factory=trio.Event)
    on_message: Callable[[dict[str, Any]], None] = lambda message: None
    _changed: trio.Event = attrs.field(factory=trio.Event)
    _last_id: int = 0

    #### Sending

    async def send(self, **message: Any) -> None:
        await self.websocket.send_message(json.dumps({"jsonrpc": "2.0"} | message))

    async def request(self, method: str, **params: Any) -> int:
        """Send a request and return its id."""
        self._last_id += 1
        await self.send(id=self._last_id, method=method, params=params)
        return self._last_id

    async def call(self, method: str, **params: Any) -> Any:
        """Send a request and return its result; an error fails the test."""
        response = await self.ask(method, **params)
        assert "result" in response, response
        return response["result"]

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return its response, whole."""
        return await self.response(await self.request(method, **params))

    async def refused(self, method: str, **params: Any) -> str:
        """Send a request and return the code of the error that it gets."""
        error = (await self.ask(method, **params))["error"]
        return error.get("data", {}).get("code", str(error["code"]))

    async def response(self, request_id: int) -> dict[str, Any]:
        await self.until(lambda: self._responses(request_id))
        (response,) = self._responses(request_id)
        return response

    def _responses(self, request_id: int) -> list[dict[str, Any]]:
        return [
            message
            for message in self.received
            if "method" not in message and message["id"] == request_id
        ]

    #### Looking

    def told(self, method: str) -> list[dict[str, Any]]:
        """The parameters of every message of a method."""
        return [m["params"] for m in self.received if m.get("method") == method]

    def events(self, *types: str) -> list[dict[str, Any]]:
        """Every event, or those of these types."""
        found = [params["event"] for params in self.told(EVENT)]
        return [event for event in found if not types or event["type"] in types]

    async def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            assert not self.ended.is_set(), f"closed: {self.websocket.closed}"
            self._changed = trio.Event()
            await self._changed.wait()

    async def until_idle(self, turns: int = 1) -> None:
        """Wait until so many turns were told to have ended."""
        ends = ("stream/completed", "stream/failed")
        await self.until(lambda: len(self.events(*ends)) >= turns)

    @property
    def close_code(self) -> int | None:
        reason = self.websocket.closed
        return None if reason is None else reason.code

    #### Receiving

    async def read(self) -> None:
        try:
            while True:
                text = await self.websocket.get_message()
                message = json.loads(text)
                if message.get("method") == EVENT:
                    # Every event is one of the closed union (SES-24).
                    raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
                    msgspec.json.decode(raw["params"], type=EventNotice)
                self.received.append(message)
                self.on_message(message)
                self._changed.set()
        except ConnectionClosed:
            self.ended.set()
            self._changed.set()


@asynccontextmanager
async def connected(
    gateway: Gateway,
    *,
    headers: dict[str, str] | None = None,
    host: str = "localhost",
    wrap: Callable[[trio.abc.Stream], trio.abc.Stream] = lambda stream: stream,
    pair: Callable[[], tuple[Any, Any]] = memory_stream_pair,
) -> AsyncGenerator[GatewayClient]:
    """A client of *gateway*; leaving closes it as a client that goes does."""
    ours, theirs = pair()
    gateway._nursery.start_soon(gateway.handle, theirs)
    try:
        async with _client_of(gateway, wrap(ours), headers, host) as client:
            yield client
    finally:
        await trio.aclose_forcefully(ours)


@asynccontextmanager
async def _client_of(
    gateway: Gateway,
    stream: trio.abc.Stream,
    headers: dict[str, str] | None,
    host: str,
) -> AsyncGenerator[GatewayClient]:
    try:
        async with trio.open_nursery() as nursery:
            extra = [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
            websocket = await wrap_client_stream(
                nursery,
                stream,  # pyright: ignore[reportArgumentType] - any stream will do
                host,
                "/acp",
                extra_headers=extra,
            )
            client = GatewayClient(websocket, stream)
            nursery.start_soon(client.read)
            yield client
            with trio.move_on_after(5):
                await websocket.aclose()
            nursery.cancel_scope.cancel()
    except* LocalProtocolError:
        # The library answers a ping that comes after it has begun to close, and fails.
        pass


async def raw_answer(gateway: Gateway, data: bytes, *, eof: bool = True) -> bytes:
    """Send bytes, and return every byte that comes back."""
    ours, theirs = memory_stream_pair()
    answer = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gateway.handle, theirs)
        try:
            await ours.send_all(data)
            if eof:
                await ours.send_eof()
        except trio.BrokenResourceError:
            pass
        async for part in ours:
            answer += part
        nursery.cancel_scope.cancel()
    return answer
