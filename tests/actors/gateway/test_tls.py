"""Over TLS: the same events, and a client that does not read hurts itself alone."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from kit.gateway import GatewayClient
from kit.rehearsal import Stage, open_stage, replies
from trio_websocket import WebSocketConnection, wrap_client_stream

from greenroom.actors.endpoints.gateway import _gateway
from greenroom.actors.providers import Halt, Say
from greenroom.cli import _serve
from greenroom.gateway import Gateway, open_gateway
from greenroom.protocol.gateway import CloseCode

TURNS = 3
BIG = 200_000


@attrs.frozen
class Certificates:
    server: ssl.SSLContext
    client: ssl.SSLContext
    cert: Path
    key: Path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Certificates:
    """A certificate for localhost that signs itself, and who trusts it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("a certificate is made with openssl, which is not on PATH")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "ec", "-nodes", "-days", "1"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(cert, key)
    client = ssl.create_default_context(cafile=str(cert))
    return Certificates(server, client, cert, key)


@asynccontextmanager
async def encrypted(gateway: Gateway, tls: ssl.SSLContext) -> AsyncIterator[Visitor]:
    inner = await trio.open_tcp_stream("127.0.0.1", gateway.port)
    stream = trio.SSLStream(
        inner, tls, server_hostname="localhost", https_compatible=True
    )
    async with trio.open_nursery() as nursery:
        websocket = await wrap_client_stream(
            nursery,
            stream,  # pyright: ignore[reportArgumentType] - any stream will do
            "localhost",
            "/acp",
        )
        yield Visitor(websocket, GatewayClient(websocket, stream), nursery)
        await trio.aclose_forcefully(inner)
        nursery.cancel_scope.cancel()


@attrs.frozen
class Visitor:
    websocket: WebSocketConnection
    client: GatewayClient
    nursery: trio.Nursery

    def read(self) -> GatewayClient:
        """Read from now on."""
        self.nursery.start_soon(self.client.read)
        return self.client

    async def attach(self, session_id: str) -> None:
        """Attach, and read the answer alone."""
        params = {"sessionId": session_id}
        await self.client.request("_greenroom/session/attach", **params)
        assert "result" in json.loads(await self.websocket.get_message())


@asynccontextmanager
async def secured(tmp_path, tls) -> AsyncIterator[tuple[Stage, Gateway]]:
    script = replies(*([Say("x" * BIG, chunk=BIG // 10), Halt()] for _ in range(TURNS)))
    async with (
        open_stage(tmp_path, script) as stage,
        open_gateway(stage.engine, port=0, tls=tls) as gateway,
    ):
        yield stage, gateway


def narrow(stream: trio.abc.Stream) -> None:
    """Have the system keep little of what is on its way."""
    assert isinstance(stream, trio.SSLStream)
    inner: trio.SocketStream = stream.transport_stream
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        inner.setsockopt(socket.SOL_SOCKET, option, 4_096)


async def test_events_come_in_order_over_tls(tmp_path, certificates):
    async with secured(tmp_path, certificates.server) as (stage, gateway):
        assert gateway.url.startswith("https://")
        async with encrypted(gateway, certificates.client) as visitor:
            client = visitor.read()
            session_id = stage.session.id
            await client.call("_greenroom/session/attach", sessionId=session_id)
            with trio.fail_after(20):
                for turn in range(TURNS):
                    ended = await client.call(
                        "_greenroom/prompt",
                        sessionId=session_id,
                        content="go",
                        commandId=str(turn),
                    )
                    assert len(ended["text"]) == BIG
                await client.until_idle(TURNS)
            grown = client.events("stream/updated")
            texts = [e for e in grown if "text" in e and e["kind"] == "text"]
            assert sum(len(event["text"]) for event in texts) == TURNS * BIG
            seqs = [event["seq"] for event in client.events() if "seq" in event]
            assert seqs == sorted(seqs)
            assert len(client.events("stream/completed")) == TURNS


async def test_who_does_not_read_over_tls_loses_its_connection_alone(
    tmp_path, certificates
):
    async with (
        secured(tmp_path, certificates.server) as (stage, gateway),
        encrypted(gateway, certificates.client) as reader,
        encrypted(gateway, certificates.client) as sleeper,
    ):
        client = reader.read()
        session_id = stage.session.id
        await client.call("_greenroom/session/attach", sessionId=session_id)
        await sleeper.attach(session_id)
        with trio.fail_after(20):
            slow = list(gateway._connections.values())[-1]
            slow.stream.outbox.max_bytes = BIG
            for stream in (slow.stream.inner, sleeper.client.stream):
                narrow(stream)
            for _ in range(TURNS):
                await stage.session.prompt("go")
            await client.until_idle(TURNS)
        assert slow.code == CloseCode.SLOW
        assert not client.ended.is_set()
        assert (await client.call("_greenroom/session/list"))["sessions"]


async def test_plain_text_is_no_client_of_an_encrypted_gateway(tmp_path, certificates):
    async with secured(tmp_path, certificates.server) as (_, gateway):
        stream = await trio.open_tcp_stream("127.0.0.1", gateway.port)
        async with stream:
            await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with trio.fail_after(20):
                answer = b"".join([part async for part in stream])
        assert b"HTTP/1.1" not in answer
        async with encrypted(gateway, certificates.client) as visitor:
            client = visitor.read()
            assert await client.call("_greenroom/session/list")


HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40)
"""How a client begins, cut off."""


@pytest.mark.parametrize("begun", [b"", b"\x16", HELLO])
async def test_a_handshake_that_is_not_ended_holds_its_slot_for_a_while_alone(
    tmp_path, certificates, monkeypatch, begun
):
    monkeypatch.setattr(_gateway, "HEAD_SECONDS", 0.05)
    async with (
        secured(tmp_path, certificates.server) as (_, gateway),
        await trio.open_tcp_stream("127.0.0.1", gateway.port) as stream,
    ):
        if begun:
            await stream.send_all(begun)
        with trio.fail_after(20):
            assert not [part async for part in stream]
        assert not gateway._waiting
        assert gateway.connections == 0


async def test_who_has_shaken_hands_has_no_more_time_for_the_head(
    tmp_path, certificates, monkeypatch
):
    monkeypatch.setattr(_gateway, "HEAD_SECONDS", 0.3)
    async with secured(tmp_path, certificates.server) as (_, gateway):
        inner = await trio.open_tcp_stream("127.0.0.1", gateway.port)
        stream = trio.SSLStream(inner, certificates.client, server_hostname="localhost")
        with trio.fail_after(20):
            await stream.do_handshake()
            with pytest.raises(trio.BrokenResourceError):
                # Without a goodbye of TLS: nobody waits for that either.
                assert await stream.receive_some() == b"never"
        await trio.aclose_forcefully(stream)
        assert not gateway._waiting


async def test_a_flood_of_handshakes_that_are_not_ended_leaves_room_for_others(
    tmp_path, certificates, monkeypatch
):
    monkeypatch.setattr(_gateway, "MAX_WAITING", 5)
    monkeypatch.setattr(_gateway, "HEAD_SECONDS", 60.0)
    async with (
        secured(tmp_path, certificates.server) as (_, gateway),
        AsyncExitStack() as stack,
    ):
        with trio.fail_after(20):
            for number in range(40):
                stream = await trio.open_tcp_stream("127.0.0.1", gateway.port)
                await stack.enter_async_context(stream)
                if number % 2:
                    await stream.send_all(HELLO)
            async with encrypted(gateway, certificates.client) as visitor:
                client = visitor.read()
                assert await client.call("_greenroom/session/list")
                assert len(gateway._waiting) <= 5


def test_a_connection_has_one_handshake_of_no_old_kind(
    certificates,
):
    context = _serve._tls(certificates.cert, certificates.key)
    assert context is not None
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
