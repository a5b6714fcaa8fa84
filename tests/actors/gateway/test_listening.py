"""On which addresses a gateway listens, and by which names it is reached there."""

from __future__ import annotations

import socket

import pytest
import trio
from kit.rehearsal import open_stage, replies

from greenroom.gateway import AccessError, open_gateway

UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


async def answer(address: str, port: int, path: str, host: str, extra="") -> str:
    """What a request over a real connection gets, as far as it is a head."""
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{extra}\r\n"
    async with await trio.open_tcp_stream(address, port) as stream:
        await stream.send_all(request.encode())
        got = b""
        while b"\r\n\r\n" not in got:
            got += (part := await stream.receive_some())
            assert part, got
        return got.decode()


class Names(trio.abc.HostnameResolver):
    """A machine on which localhost is what the test says."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses

    async def getaddrinfo(self, host, port, family=0, type=0, proto=0, flags=0):  # noqa: A002
        found = self.addresses if host in (b"localhost", "localhost") else [host]
        return [
            info
            for address in found
            for info in socket.getaddrinfo(address, port, family, type, proto, flags)
        ]

    async def getnameinfo(self, sockaddr, flags):
        return socket.getnameinfo(sockaddr, flags)


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("127.0.0.1", ["127.0.0.1"]),
        ("localhost", ["127.0.0.1"]),
        pytest.param("::1", ["::1"], marks=IPV6),
        pytest.param("localhost", ["127.0.0.1", "::1"], marks=IPV6),
    ],
)
async def test_a_loopback_address_needs_no_token_and_knows_its_names(
    tmp_path, host, reached
):
    trio.socket.set_custom_hostname_resolver(Names(*reached))
    async with (
        open_stage(tmp_path, replies()) as stage,
        open_gateway(stage.engine, host=host, port=0) as gateway,
    ):
        port = gateway.port
        shown = f"[{host}]" if ":" in host else host
        assert gateway.url == f"http://{shown}:{port}/"
        for address in reached:
            for name in (shown, "localhost", "[::1]", "127.0.0.1"):
                own = f"{name}:{port}"
                extra = f"{UPGRADE}Origin: http://{own}\r\n"
                assert " 200 " in await answer(address, port, "/readyz", own)
                assert " 101 " in await answer(address, port, "/acp", own, extra)
            for origin in ("http://evil.example", f"http://[::2]:{port}", "null"):
                extra = f"{UPGRADE}Origin: {origin}\r\n"
                assert " 403 " in await answer(address, port, "/acp", own, extra)
            for name in ("evil.example", "[::2]", "[::1", "[::1].evil.example", "::1"):
                refused = await answer(address, port, "/readyz", f"{name}:{port}")
                assert " 403 " in refused, name


async def test_a_local_name_that_leads_elsewhere_is_refused(tmp_path):
    trio.socket.set_custom_hostname_resolver(Names("0.0.0.0"))
    async with open_stage(tmp_path, replies()) as stage:
        with pytest.raises(
            AccessError, match=r"localhost leads to 0\.0\.0\.0"
        ) as refused:
            async with open_gateway(stage.engine, host="localhost", port=0):
                pytest.fail("it listens")
    assert "127.0.0.1" in str(refused.value.hint)


@IPV6
async def test_a_port_that_is_taken_at_one_address_is_another_one(
    tmp_path, monkeypatch
):
    trio.socket.set_custom_hostname_resolver(Names("127.0.0.1", "::1"))
    taken = []
    bind = trio.open_tcp_listeners

    async def in_between(port, *, host):
        # Somebody else takes the first port that was found.
        if port and not taken:
            other = socket.create_server(("::1", port), family=socket.AF_INET6)
            taken.append((port, other))
        return await bind(port, host=host)

    monkeypatch.setattr(trio, "open_tcp_listeners", in_between)
    async with (
        open_stage(tmp_path, replies()) as stage,
        open_gateway(stage.engine, host="localhost", port=0) as gateway,
    ):
        ((port, other),) = taken
        other.close()
        assert gateway.port != port
        for address in ("127.0.0.1", "::1"):
            own = f"localhost:{gateway.port}"
            assert " 200 " in await answer(address, gateway.port, "/readyz", own)
