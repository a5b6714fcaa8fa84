"""Opening a gateway: its listeners, with or without an engine behind them yet."""

from __future__ import annotations

import errno
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from greenroom.actors.kernel import Ids, SystemIds

from .._ports import SessionMaker
from ._access import Access, AccessError, Token
from ._descriptors import room_for
from ._gateway import MAX_CONNECTIONS, Gateway
from ._ports import EnginePort

DEFAULT_PORT: Final = 8427
_PORTS_TRIED: Final = 10


@asynccontextmanager
async def listen(
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    tokens: Sequence[Token] = (),
    tls: ssl.SSLContext | None = None,
    insecure: bool = False,
    allow_origins: Sequence[str] = (),
    max_connections: int = MAX_CONNECTIONS,
    ids: Ids | None = None,
) -> AsyncGenerator[Gateway]:
    """Listen, without an engine yet: everybody is told that it is not ready.

    For the arguments see `open_gateway`.

    Raises:
        AccessError: it would be open to more people than is meant.
        OSError: the address can't be listened on.
    """
    access = Access(host, tuple(tokens), tls is not None, tuple(allow_origins))
    access.check(insecure=insecure)
    listeners = await _bind(access, port)
    bound: int = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        url = _url(host, bound, is_encrypted=tls is not None)
        gateway = Gateway(
            url, bound, access, nursery, room_for(max_connections), ids or SystemIds()
        )
        nursery.start_soon(gateway.run)
        async with trio.open_nursery() as accepting:
            for listener in listeners:
                accepting.start_soon(_accept, gateway, listener, tls, nursery)
            try:
                yield gateway
            finally:
                accepting.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


async def _bind(access: Access, port: int) -> list[trio.SocketListener]:
    listeners = await _open_listeners(access.host, port)
    try:
        for listener in listeners:
            access.check_address(listener.socket.getsockname()[0])
    except AccessError:
        await _close(listeners)
        raise
    return listeners


async def _open_listeners(host: str, port: int) -> list[trio.SocketListener]:
    # A name may have several addresses, as localhost has: the free port that is taken
    # has to be free at each of them.
    for _ in range(_PORTS_TRIED):
        first, *others = await trio.open_tcp_listeners(port, host=host)
        if port or not others:
            return [first, *others]
        found: int = first.socket.getsockname()[1]
        await _close([first, *others])
        try:
            return await trio.open_tcp_listeners(found, host=host)
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"no port is free at each address of {host}")


async def _close(listeners: list[trio.SocketListener]) -> None:
    for listener in listeners:
        await listener.aclose()


async def _accept(
    gateway: Gateway,
    listener: trio.SocketListener,
    tls: ssl.SSLContext | None,
    nursery: trio.Nursery,
) -> None:
    served = listener if tls is None else trio.SSLListener(listener, tls)
    await trio.serve_listeners(gateway.handle, [served], handler_nursery=nursery)


def _url(host: str, port: int, *, is_encrypted: bool) -> str:
    # A zone of an address is this machine's own, and stands in no URL.
    name = f"[{host.partition('%')[0]}]" if ":" in host else host
    return f"http{'s' if is_encrypted else ''}://{name}:{port}/"


@asynccontextmanager
async def open_gateway(
    engine: EnginePort,
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    tokens: Sequence[Token] = (),
    tls: ssl.SSLContext | None = None,
    insecure: bool = False,
    allow_origins: Sequence[str] = (),
    max_connections: int = MAX_CONNECTIONS,
    make_session: SessionMaker | None = None,
    ids: Ids | None = None,
) -> AsyncGenerator[Gateway]:
    """Let clients use *engine* over WebSocket, and show its console in a browser.

    Leaving it stops accepting and tells clients with close code 1001. Turns are the
    engine's and go on; they are stopped when that is closed.

    Args:
        engine: a running engine; it is not closed.
        host: the address to listen on. Another one than loopback needs a token, and
            TLS or *insecure*.
        port: 0 takes a free one; see `Gateway.port`.
        tokens: of which a client needs one; without them everybody on this machine
            may do everything.
        tls: makes it HTTPS.
        insecure: something in front encrypts, or nobody else is on the network.
        allow_origins: pages of which other origins may connect, as
            ``https://example.org``.
        max_connections: how many clients at a time; fewer where the process may not
            open as many files.
        make_session: makes the sessions of ACP clients in a folder; by default with
            what the engine's chosen agent says.
        ids: identities of connections, for tests.

    Raises:
        AccessError: it would be open to more people than is meant.
        OSError: the address can't be listened on.
    """
    async with (
        listen(
            host=host,
            port=port,
            tokens=tokens,
            tls=tls,
            insecure=insecure,
            allow_origins=allow_origins,
            max_connections=max_connections,
            ids=ids,
        ) as gateway,
        gateway.serving(engine, make_session),
    ):
        yield gateway
