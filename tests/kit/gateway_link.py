"""A client of the gateway for tests: every answer is held to the protocol's types."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, open_websocket_url

from greenroom.gateway import open_gateway
from greenroom.protocol.gateway import (
    AUTHENTICATE,
    EVENT,
    METHODS,
    Authenticated,
    EventNotice,
)


class AnsweredError(Exception):
    """The gateway refused a request."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.rpc_code = error["code"]
        self.code = (error.get("data") or {}).get("code")


@attrs.define(eq=False)
class Link:
    """One connection, and what came over it."""

    socket: WebSocketConnection
    events: list[EventNotice] = attrs.field(factory=list)
    answered: set[str] = attrs.field(factory=set)
    """The methods that had a result."""
    others: list[dict[str, Any]] = attrs.field(factory=list)
    _last: int = 0
    _answers: dict[int, bytes | None] = attrs.field(factory=dict)
    _news: trio.Condition = attrs.field(factory=trio.Condition)
    closed: bool = False

    async def call(self, name: str, /, **params: Any) -> Any:
        """Ask, and return the result as the type that the method says."""
        return await self.answer(await self.send(name, **params), name)

    async def send(self, name: str, /, **params: Any) -> int:
        """Ask, and return the request's id."""
        self._last += 1
        message = {
            "jsonrpc": "2.0",
            "id": self._last,
            "method": f"_greenroom/{name}",
            "params": params,
        }
        self._answers[self._last] = None
        await self.socket.send_message(json.dumps(message))
        return self._last

    async def answer(self, number: int, name: str) -> Any:
        """Return the result of a request, of its type and nothing beyond it."""
        await self.until(lambda: self._answers[number] is not None)
        answer = msgspec.json.decode(self._answers[number] or b"", type=_Answer)
        if answer.error is not None:
            raise AnsweredError(answer.error)
        method = f"_greenroom/{name}"
        kind = Authenticated if method == AUTHENTICATE else METHODS[method].result
        result = msgspec.json.decode(answer.result, type=kind)
        assert json.loads(msgspec.json.encode(result)) == json.loads(
            bytes(answer.result)
        )
        self.answered.add(method)
        return result

    def is_answered(self, number: int) -> bool:
        return self._answers[number] is not None

    async def until(self, condition: Callable[[], Any]) -> Any:
        """Return the value of *condition* once it has one."""
        with trio.fail_after(20):
            async with self._news:
                while not (value := condition()):
                    if self.closed:
                        raise AssertionError("the connection was closed")
                    await self._news.wait()
                return value

    async def event(self, kind: type) -> Any:
        """Return the last event of a type, once there is one."""
        await self.until(lambda: any(isinstance(n.event, kind) for n in self.events))
        return [n.event for n in self.events if isinstance(n.event, kind)][-1]

    async def read(self) -> None:
        """Take in what comes, until the connection ends."""
        try:
            while True:
                data = await self.socket.get_message()
                text = data if isinstance(data, bytes) else data.encode()
                self._take(text)
                async with self._news:
                    self._news.notify_all()
        except ConnectionClosed:
            self.closed = True
            async with self._news:
                self._news.notify_all()

    def _take(self, text: bytes) -> None:
        frame = msgspec.json.decode(text, type=_Frame)
        if frame.method is None:
            self._answers[frame.id] = text
        elif frame.method == EVENT:
            self.events.append(msgspec.json.decode(frame.params, type=EventNotice))
        else:
            self.others.append(json.loads(text))


class _Frame(msgspec.Struct):
    id: Any = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _Answer(msgspec.Struct):
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: dict[str, Any] | None = None


@asynccontextmanager
async def open_link(url: str) -> AsyncIterator[Link]:
    """Connect to the gateway whose ``/acp`` is at *url*."""
    # It reads until it is closed: what is not read holds the close up.
    async with (
        trio.open_nursery() as nursery,
        open_websocket_url(url, max_message_size=8 << 20) as socket,
    ):
        link = Link(socket)
        nursery.start_soon(link.read)
        yield link


@asynccontextmanager
async def open_linked(engine: Any, **how: Any) -> AsyncIterator[Link]:
    """Serve *engine*, and connect to it."""
    async with (
        open_gateway(engine, port=0, **how) as gateway,
        open_link(f"ws://127.0.0.1:{gateway.port}/acp") as link,
    ):
        yield link
