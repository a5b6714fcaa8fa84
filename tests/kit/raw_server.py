"""An HTTP server of raw bytes on a loopback socket: it says exactly what a test wrote.

Each request plays the next script. A script is a sequence of bytes to send and of
steps; when it is over, the connection waits for its next request. What clients asked
is kept, and so is how each exchange ended.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from enum import Enum, auto
from functools import partial

import attrs
import trio


class Step(Enum):
    """What a script can do besides sending."""

    CLOSE = auto()
    """Close the connection properly."""
    RESET = auto()
    """Reset the connection, as a crashed peer does."""
    HANG = auto()
    """Say nothing until the client hangs up."""


Script = Sequence[bytes | Step | trio.Event]
"""An event is waited for."""


@attrs.define(eq=False)
class Request:
    """One request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes


@attrs.define(eq=False)
class RawServer:
    """What happened at the server so far."""

    port: int
    requests: list[Request] = attrs.field(factory=list[Request])
    connections: int = 0
    hung_up: trio.Event = attrs.field(factory=trio.Event)
    """Set when a client closed the connection during `Step.HANG`."""
    reached: trio.Event = attrs.field(factory=trio.Event)
    """Set when a script came to its first `Step.HANG`."""
    _scripts: list[Script] = attrs.field(factory=list[Script], alias="scripts")

    @property
    def base_url(self) -> str:
        """Where its Chat Completions are."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection."""
        self.connections += 1
        async with stream:
            try:
                while await self._exchange(stream):
                    pass
            except trio.BrokenResourceError:
                pass

    async def _exchange(self, stream: trio.SocketStream) -> bool:
        request = await _receive(stream)
        if request is None:
            return False
        self.requests.append(request)
        for step in self._scripts.pop(0):
            if not await self._play(stream, step):
                return False
        return True

    async def _play(
        self, stream: trio.SocketStream, step: bytes | Step | trio.Event
    ) -> bool:
        match step:
            case bytes():
                await stream.send_all(step)
            case trio.Event():
                await step.wait()
            case Step.HANG:
                self.reached.set()
                await _wait_for_hang_up(stream)
                self.hung_up.set()
                return False
            case Step.RESET:
                linger = struct.pack("ii", 1, 0)
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                return False
            case Step.CLOSE:
                return False
        return True


async def _receive(stream: trio.SocketStream) -> Request | None:
    data = bytearray()
    while b"\r\n\r\n" not in data:
        chunk = await stream.receive_some()
        if not chunk:
            return None
        data += chunk
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    line, *fields = head.decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip()
        for name, _, value in (field.partition(":") for field in fields)
    }
    while len(body) < int(headers.get("content-length", "0")):
        body += await stream.receive_some()
    return Request(line, headers, body)


async def _wait_for_hang_up(stream: trio.SocketStream) -> None:
    try:
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError:
        pass


@asynccontextmanager
async def serve_raw(*scripts: Script) -> AsyncGenerator[RawServer, None]:
    """Serve *scripts*, one for each request, until the context is left."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        server = RawServer(listener.socket.getsockname()[1], scripts=list(scripts))
        nursery.start_soon(partial(trio.serve_listeners, server.serve, [listener]))
        yield server
        nursery.cancel_scope.cancel()


def head(
    status: int = 200, *fields: str, content_type: str = "text/event-stream"
) -> bytes:
    """Return the head of an answer; *fields* are whole header lines."""
    lines = [f"HTTP/1.1 {status} X", f"content-type: {content_type}", *fields]
    return "\r\n".join([*lines, "", ""]).encode()


def whole(
    body: bytes,
    status: int = 200,
    *fields: str,
    content_type: str = "application/json",
) -> bytes:
    """Return a whole answer with *body*."""
    length = f"content-length: {len(body)}"
    return head(status, *fields, length, content_type=content_type) + body


def chunked_head(*fields: str) -> bytes:
    """Return the head of an event stream that comes in chunks."""
    return head(200, *fields, "transfer-encoding: chunked")


def chunk(data: bytes) -> bytes:
    """Return *data* as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
