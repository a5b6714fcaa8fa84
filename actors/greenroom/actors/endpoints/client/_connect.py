"""From an address to a connection on which it is known who the client is.

Everything on the way has a bound in time and size, and every way in which it can fail
is one of our errors: the library tells some of them by a task that ends, and is not
told when the gateway leaves in the middle of the handshake.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, cast, final

import attrs
import h11
import msgspec
import trio
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    HandshakeError,
    WebSocketConnection,
    wrap_client_stream,
)

from greenroom.protocol.gateway import (
    AUTHENTICATE,
    MAX_FRAME_BYTES,
    Authenticate,
    Authenticated,
)

from ._address import Address
from ._errors import (
    ConnectionLostError,
    GatewayProtocolError,
    GatewayRefusedError,
    UnreachableGatewayError,
)
from ._link import Link

CONNECT_SECONDS: Final = 10.0
"""From nothing to a WebSocket."""

AUTHENTICATE_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 2.0
MAX_HANDSHAKE_BYTES: Final = 64 * 1024
"""A gateway answers with a few hundred."""

READ_BYTES: Final = 64 * 1024

Dial = Callable[[Address, ssl.SSLContext | None], Awaitable[trio.abc.Stream]]

Live = Callable[[Link, Authenticated], Awaitable[None]]
"""What is done with a connection, as long as it is up."""


async def dial(address: Address, tls: ssl.SSLContext | None) -> trio.abc.Stream:
    """Return a stream to *address*, encrypted if that says so.

    Raises:
        OSError, BrokenResourceError: nobody is there, or not who it should be.
    """
    tcp = await trio.open_tcp_stream(address.host, address.port)
    if not address.is_encrypted:
        return tcp
    stream = trio.SSLStream(
        tcp,
        tls or ssl.create_default_context(),
        server_hostname=address.host,
        https_compatible=True,
    )
    try:
        await stream.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(tcp)
        raise
    return stream


@attrs.frozen(repr=False)
class Visitor:
    """Who connects, and how."""

    client_id: str
    token: str | None = None
    tls: ssl.SSLContext | None = None
    dial: Dial = dial


async def visit(address: Address, visitor: Visitor, live: Live) -> Link:
    """Connect, call *live*, close, and return the connection, which has ended.

    Raises:
        UnreachableGatewayError: nobody answers, or not in time.
        GatewayRefusedError: the client is not let in.
        GatewayProtocolError: it is no gateway.
    """
    found: list[Link] = []
    severed = trio.CancelScope()
    try:
        with severed:
            stream = await _dialled(address, visitor)
            try:
                await _visit(stream, address, visitor, live, severed, found)
            finally:
                await trio.aclose_forcefully(stream)
    except BaseExceptionGroup as group:
        error = _one_of_ours(group)
        if isinstance(error, ConnectionLostError) and found:
            # The connection knows better why.
            return found[0]
        if error is None:
            raise
        raise error from None
    return found[0]


async def _visit(
    stream: trio.abc.Stream,
    address: Address,
    visitor: Visitor,
    live: Live,
    severed: trio.CancelScope,
    found: list[Link],
) -> None:
    async with trio.open_nursery() as nursery:
        websocket = await _websocket(nursery, stream, address, visitor)
        link = Link(websocket, severed.cancel)
        found.append(link)
        nursery.start_soon(link.serve)
        try:
            told = await _introduce(link, visitor, address)
            await live(link, told)
        finally:
            is_left = trio.current_effective_deadline() == -math.inf
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                await (_leave(websocket, stream) if is_left else websocket.aclose())
        nursery.cancel_scope.cancel()


async def _leave(websocket: WebSocketConnection, stream: trio.abc.Stream) -> None:
    # Who leaves is cancelled, and with it the library's reader: nobody else would see
    # that the gateway has taken its leave, too.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_read_to_end, stream, nursery.cancel_scope)
        await websocket.aclose()
        nursery.cancel_scope.cancel()


async def _read_to_end(stream: trio.abc.Stream, closing: trio.CancelScope) -> None:
    try:
        # Cancelled beside us, the reader has let go of the stream behind this.
        await trio.lowlevel.checkpoint()
        while await stream.receive_some(READ_BYTES):
            pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    closing.cancel()


async def _introduce(link: Link, visitor: Visitor, address: Address) -> Authenticated:
    asked = Authenticate(client_id=visitor.client_id)
    with trio.move_on_after(AUTHENTICATE_SECONDS):
        result = await link.request(AUTHENTICATE, asked)
        try:
            return msgspec.json.decode(result, type=Authenticated)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise GatewayProtocolError(
                f"it does not say who we are: {str(exc)[:200]}"
            ) from exc
    raise UnreachableGatewayError(address, "it does not say who we are")


#### Streams


async def _dialled(address: Address, visitor: Visitor) -> trio.abc.Stream:
    try:
        with trio.fail_after(CONNECT_SECONDS):
            return await visitor.dial(address, visitor.tls)
    except trio.TooSlowError:
        raise UnreachableGatewayError(address, "it does not answer") from None
    except (OSError, trio.BrokenResourceError) as exc:
        raise UnreachableGatewayError(address, _why(exc)) from exc


def _why(exc: BaseException) -> str:
    # The cause of a broken stream is what broke it.
    cause = exc.__cause__ or exc
    while isinstance(cause, BaseExceptionGroup):
        cause = cast("BaseException", cause.exceptions[0])
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or "the connection broke"


async def _websocket(
    nursery: trio.Nursery, stream: trio.abc.Stream, address: Address, visitor: Visitor
) -> WebSocketConnection:
    watched = _Handshake(stream)
    headers: list[tuple[bytes, bytes]] = []
    if visitor.token is not None:
        headers.append((b"Authorization", b"Bearer " + visitor.token.encode()))
    with trio.move_on_after(CONNECT_SECONDS):
        async with trio.open_nursery() as racing:
            racing.start_soon(_cancel_when, watched.broken, racing.cancel_scope)
            websocket = await wrap_client_stream(
                nursery,
                watched,  # pyright: ignore[reportArgumentType] - any stream will do
                address.host_header,
                address.path,
                extra_headers=headers,
                max_message_size=MAX_FRAME_BYTES,
                receive_buffer_size=READ_BYTES,
            )
            watched.is_over = True
            racing.cancel_scope.cancel()
            return websocket
    if watched.broken.is_set():
        raise _no_gateway()
    raise UnreachableGatewayError(address, "it does not answer")


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


@final
@attrs.define(eq=False)
class _Handshake(trio.abc.Stream):
    # Tells when the peer leaves before there is a WebSocket, or says too much.
    inner: trio.abc.Stream
    broken: trio.Event = attrs.field(factory=trio.Event)
    is_over: bool = False
    _received: int = 0

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        try:
            data = bytes(await self.inner.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.broken.set()
            raise
        if not self.is_over:
            self._received += len(data)
        if not data or self._received > MAX_HANDSHAKE_BYTES:
            self.broken.set()
            # Once the answer is in hand the library looks at it first.
            return b""
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        try:
            await self.inner.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.broken.set()
            raise

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        self.broken.set()
        await self.inner.aclose()


#### Errors

_FOREIGN: Final = (HandshakeError, ConnectionClosed, h11.ProtocolError)
"""What the library ends with where the other side does not speak WebSocket."""


def _no_gateway() -> GatewayProtocolError:
    return GatewayProtocolError("what answers is no gateway")


def _one_of_ours(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    # What the library's task ended with is in a group with what that cancelled.
    leaves = list(_leaves(group))
    real = [leaf for leaf in leaves if not isinstance(leaf, trio.Cancelled)]
    for leaf in real:
        if isinstance(leaf, ConnectionRejected):
            body = bytes(leaf.body or b"")[:400].decode(errors="replace")
            return GatewayRefusedError(leaf.status_code, " ".join(body.split()))
    if not real:
        return leaves[0]
    if all(isinstance(leaf, _FOREIGN) for leaf in real):
        return _no_gateway()
    return real[0] if len(real) == 1 else None


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(cast("BaseExceptionGroup[BaseException]", each))
        else:
            yield each
