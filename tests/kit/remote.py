"""Clients of a gateway over memory streams, and gateways that are no good."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import trio
from trio.testing import memory_stream_pair
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream

from greenroom.actors.endpoints.client import Address, Client
from greenroom.actors.endpoints.client._client import running
from greenroom.actors.endpoints.client._connect import Visitor
from greenroom.actors.endpoints.gateway import Gateway

Handle = Callable[[trio.abc.Stream], Awaitable[None]]
AUTHENTICATED = {"clientId": "test", "scopes": ["read", "write"], "resumed": False}


@asynccontextmanager
async def client_of(
    handle: Handle,
    *,
    token: str | None = None,
    wrap: Callable[[trio.abc.Stream], trio.abc.Stream] = lambda stream: stream,
    on_change: Callable[[bool], object] = bool,
) -> AsyncGenerator[Client]:
    """A client each of whose connections is served by *handle*."""
    async with _serving() as nursery:

        async def dial(address: Address, tls: Any) -> trio.abc.Stream:
            await trio.lowlevel.checkpoint()
            ours, theirs = memory_stream_pair()
            nursery.start_soon(handle, theirs)
            return wrap(ours)

        visitor = Visitor("test", token, dial=dial)
        address = Address.of("http://localhost/")
        async with running(Client(address, visitor, on_change)) as client:
            yield client


@asynccontextmanager
async def _serving() -> AsyncGenerator[trio.Nursery]:
    # Errors of the client come out as they are.
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        raise group.exceptions[0] from None


def of_gateway(gateway: Gateway) -> Handle:
    """Serve connections as *gateway* does, until it ends."""

    async def handle(stream: trio.abc.Stream) -> None:
        await trio.lowlevel.checkpoint()
        gateway._nursery.start_soon(gateway.handle, stream)

    return handle


@attrs.define(eq=False)
class Peer:
    """The other end of a client's connection, which says what a test wants."""

    websocket: WebSocketConnection
    asked: list[dict[str, Any]] = attrs.field(factory=list)

    async def next(self) -> dict[str, Any]:
        """Return the next message of the client."""
        message = json.loads(await self.websocket.get_message())
        self.asked.append(message)
        return message

    async def say(self, **message: Any) -> None:
        await self.websocket.send_message(json.dumps({"jsonrpc": "2.0"} | message))

    async def greet(self) -> None:
        """Tell the client who it is."""
        await self.say(id=(await self.next())["id"], result=AUTHENTICATED)


def of_peer(act: Callable[[Peer], Awaitable[None]]) -> Handle:
    """Shake hands, then do what *act* does, then stay silent."""

    async def handle(stream: trio.abc.Stream) -> None:
        async with trio.open_nursery() as nursery:
            request = await wrap_server_stream(
                nursery,
                stream,  # pyright: ignore[reportArgumentType] - any stream will do
                max_message_size=16 << 20,
            )
            with suppress(ConnectionClosed):
                await act(Peer(await request.accept()))

    return handle


def of_bytes(data: bytes, *, closes: bool = True) -> Handle:
    """Answer whatever comes with *data*."""

    async def handle(stream: trio.abc.Stream) -> None:
        await stream.receive_some(4_096)
        with suppress(trio.BrokenResourceError):
            await stream.send_all(data)
        if closes:
            await stream.aclose()
        else:
            await trio.sleep_forever()

    return handle
