"""A client that is refused while it still sends: it is told why."""

from __future__ import annotations

import pytest
import trio
from kit.rehearsal import open_stage, replies

from greenroom.actors.endpoints.gateway import _gateway, _stream
from greenroom.gateway import open_gateway
from greenroom.protocol.gateway import CloseCode

HEAD = (
    b"GET /acp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
LONG = 8 << 20
"""More than a connection holds on its way."""


def long_frame() -> bytes:
    return b"\x81\xff" + LONG.to_bytes(8, "big") + bytes(4)


def code_in(data: bytes) -> int:
    """The code of the close frame with which *data* ends."""
    at = data.index(b"\x88")
    assert at + 2 + data[at + 1] == len(data)
    return int.from_bytes(data[at + 2 : at + 4], "big")


async def upgraded(port: int) -> trio.SocketStream:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    await stream.send_all(HEAD)
    got = b""
    while b"\r\n\r\n" not in got:
        got += await stream.receive_some()
    return stream


async def test_who_still_sends_what_is_too_long_reads_why(tmp_path, monkeypatch):
    monkeypatch.setattr(_gateway, "MAX_FRAME_BYTES", 10_000)
    monkeypatch.setattr(_stream, "LINGER_SECONDS", 60.0)
    monkeypatch.setattr(_stream, "CLOSE_SECONDS", 60.0)
    async with (
        open_stage(tmp_path, replies()) as stage,
        open_gateway(stage.engine, port=0) as gateway,
        await upgraded(gateway.port) as client,
    ):
        with trio.fail_after(20):
            await client.send_all(long_frame())
            for _ in range(LONG >> 16):
                await client.send_all(bytes(1 << 16))
            await client.send_eof()
            told = b"".join([part async for part in client])
            assert code_in(told) == CloseCode.TOO_BIG


async def test_who_sends_for_ever_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(_gateway, "MAX_FRAME_BYTES", 10_000)
    monkeypatch.setattr(_stream, "LINGER_SECONDS", 0.05)
    async with (
        open_stage(tmp_path, replies()) as stage,
        open_gateway(stage.engine, port=0) as gateway,
        await upgraded(gateway.port) as client,
    ):
        with trio.fail_after(20), pytest.raises(trio.BrokenResourceError):
            await send_for_ever(client)


async def send_for_ever(client: trio.SocketStream) -> None:
    await client.send_all(long_frame())
    while True:
        await client.send_all(bytes(1 << 16))
