"""Frames that no good client sends: how the connection ends, and that others go on."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from hypothesis import given, strategies as st
from kit.gateway import connected, raw_answer, served
from kit.rehearsal import open_stage, replies
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from greenroom.actors.endpoints.gateway import _connection, _inflow
from greenroom.actors.endpoints.gateway._access import Access, Token
from greenroom.actors.endpoints.gateway._inflow import FrameHead, FrameHeads
from greenroom.protocol.gateway import MAX_FRAME_BYTES, CloseCode

SECRET = "0123456789abcdef" * 2
GUARDED = Access("0.0.0.0", (Token.of(SECRET),), True)
UPGRADE = (
    b"GET /acp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
TEXT, BINARY, CLOSE, PING, PONG = 0x81, 0x82, 0x88, 0x89, 0x8A
BEGUN, PIECE, LAST = 0x01, 0x00, 0x80
LIST = b'{"jsonrpc":"2.0","id":1,"method":"_greenroom/session/list","params":{}}'


def frame(first: int, payload: bytes = b"", *, mask: int = 0x80) -> bytes:
    """A frame of a client; its mask changes nothing."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, mask | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, mask | 126, size)
    else:
        head = struct.pack("!BBQ", first, mask | 127, size)
    return head + (bytes(4) if mask else b"") + payload


def frames_in(data: bytes) -> list[tuple[int, bytes]]:
    """The opcodes and the payloads of what a gateway sent."""
    found = []
    while data:
        size, at = data[1], 2
        if size >= 126:
            wide = 2 if size == 126 else 8
            size, at = int.from_bytes(data[2 : 2 + wide], "big"), 2 + wide
        found.append((data[0], data[at : at + size]))
        data = data[at + size :]
    return found


def goodbye(data: bytes) -> tuple[int, str]:
    """The code and the reason of the close frame that is the last one."""
    _, _, frames = data.partition(b"\r\n\r\n")
    first, payload = frames_in(frames)[-1]
    assert first == CLOSE
    return int.from_bytes(payload[:2], "big"), payload[2:].decode()


@attrs.define(eq=False)
class Wire:
    """A connection that is upgraded, and what came over it."""

    gateway: object
    stream: trio.abc.HalfCloseableStream
    got: bytes = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)
        await wait_all_tasks_blocked()

    async def until(self, wanted: bytes) -> None:
        """Receive until that came."""
        while wanted not in self.got:
            part = await self.stream.receive_some()
            assert part, f"the connection ended: {self.got[-200:]!r}"
            self.got += part

    async def rest(self) -> bytes:
        """Everything that came, when the connection has ended."""
        async for part in self.stream:
            self.got += part
        return self.got


@asynccontextmanager
async def upgraded(gateway) -> AsyncGenerator[Wire]:
    ours, theirs = memory_stream_pair()
    gateway._nursery.start_soon(gateway.handle, theirs)
    async with ours:
        await ours.send_all(UPGRADE)
        wire = Wire(gateway, ours, bytes(await ours.receive_some()))
        assert wire.got.startswith(b"HTTP/1.1 101 ")
        yield wire


#### What is no frame


BROKEN = {
    "an opcode that is none": (frame(0x83, b"{}"), 1002),
    "a control opcode that is none": (frame(0x8B), 1002),
    "no mask": (frame(TEXT, b"{}", mask=0), 1002),
    "a ping in pieces": (frame(0x09, b"p"), 1002),
    "a ping that is too long": (frame(PING, b"x" * 126), 1002),
    "a size in more bytes than it needs": (b"\x81\xfe\x00\x02" + bytes(4), 1002),
    "a size that is negative": (b"\x81\xff\xff" + bytes(11), 1002),
    "a compressed frame, though nobody agreed": (frame(0xC1, b"\xaa\x02\x00"), 1002),
    "a further piece of nothing": (frame(LAST, b"{}"), 1002),
    "a message within another": (frame(BEGUN, b"{") + frame(TEXT, b"}"), 1002),
    "a goodbye of one byte": (frame(CLOSE, b"\x03"), 1002),
    "a goodbye with a code of nobody": (frame(CLOSE, b"\x00\x01"), 1002),
    "a goodbye that nobody may send": (frame(CLOSE, b"\x03\xee"), 1002),
    "a text that is none": (frame(TEXT, b'{"\xff"}'), 1007),
    "a text that ends too early": (frame(TEXT, b"\xe2\x82"), 1007),
    "a reason that is no text": (frame(CLOSE, b"\x03\xe8\xff"), 1007),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_no_frame_ends_its_connection_with_a_code(tmp_path, name):
    data, code = BROKEN[name]
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as other,
    ):
        async with upgraded(gateway) as wire:
            await wire.send(data + frame(TEXT, LIST) * 3)
            await wire.stream.send_eof()
            told, why = goodbye(await wire.rest())
        assert (told, bool(why)) == (code, True)
        await other.call("_greenroom/session/list")
        request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        metrics = (await raw_answer(gateway, request)).decode()
        assert f'greenroom_gateway_closed_total{{code="{code}"}} 1\n' in metrics


async def test_what_was_said_before_is_answered(tmp_path):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
    ):
        async with upgraded(gateway) as wire:
            await wire.send(frame(TEXT, LIST))
            await wire.send(frame(0x83))
            await wire.stream.send_eof()
            frames = frames_in((await wire.rest()).partition(b"\r\n\r\n")[2])
        assert json.loads(frames[0][1])["result"]["sessions"]
        assert [first for first, _ in frames] == [TEXT, CLOSE]


@pytest.mark.parametrize(
    ("data", "counted"),
    [
        (frame(CLOSE), CloseCode.NORMAL),
        (frame(CLOSE, b"\x03\xe9bye"), CloseCode.NORMAL),
        (frame(CLOSE, b"\x03\xf1"), CloseCode.NORMAL),
        (frame(BEGUN, b"{") + frame(CLOSE, b"\x03\xe8"), CloseCode.NORMAL),
        (frame(BEGUN, b"{"), _connection.LOST),
        (b"\x81", _connection.LOST),
        (b"", _connection.LOST),
    ],
)
async def test_a_client_that_leaves_is_counted_by_whether_it_said_so(
    tmp_path, data, counted
):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
    ):
        async with upgraded(gateway) as wire:
            await wire.send(data)
            await wire.stream.send_eof()
            frames = frames_in((await wire.rest()).partition(b"\r\n\r\n")[2])
        await wait_all_tasks_blocked()
        assert gateway._closed == {counted: 1}
        assert [first for first, _ in frames] == [CLOSE] * (counted == CloseCode.NORMAL)


async def test_frames_that_come_with_the_head_are_taken(tmp_path):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
    ):
        ours, theirs = memory_stream_pair()
        gateway._nursery.start_soon(gateway.handle, theirs)
        async with ours:
            await ours.send_all(UPGRADE + frame(TEXT, LIST))
            await Wire(gateway, ours).until(b'"result"')


#### Too much


def fragments(payload: bytes) -> bytes:
    return frame(BEGUN) + frame(PIECE, payload) * 20_000


FLOODS = {
    "empty pieces": fragments(b""),
    "small pieces": fragments(b"x" * 100),
    "pings": frame(PING) * 20_000,
    "pongs": frame(PONG) * 20_000,
    "empty texts": frame(TEXT) * 20_000,
    "texts that are nothing": frame(TEXT, b"{}") * 20_000,
    "binaries": frame(BINARY) * 20_000,
    "notifications": frame(TEXT, b'{"jsonrpc":"2.0","method":"x"}') * 20_000,
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_ends_its_connection_before_it_is_worked_on(
    tmp_path, name, autojump_clock
):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as other,
    ):
        async with upgraded(gateway) as wire:
            begun = trio.current_time()
            await wire.stream.send_all(FLOODS[name])
            await wire.stream.send_eof()
            told, _ = goodbye(await wire.rest())
            assert trio.current_time() - begun < 1
        await wait_all_tasks_blocked()
        assert told == CloseCode.RATE_LIMITED
        # The library was handed no more frames than anybody may send.
        answers = frames_in(wire.got.partition(b"\r\n\r\n")[2])
        assert len(answers) - 1 <= _inflow.FRAME_BURST
        assert gateway._closed == {CloseCode.RATE_LIMITED: 1}
        await other.call("_greenroom/session/list")


async def test_a_flood_that_never_ends_is_not_waited_for(tmp_path, autojump_clock):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
    ):
        async with upgraded(gateway) as wire, trio.open_nursery() as nursery:
            nursery.start_soon(pinging, wire.stream)
            assert goodbye(await wire.rest())[0] == CloseCode.RATE_LIMITED
            nursery.cancel_scope.cancel()
        await wait_all_tasks_blocked()
        assert gateway.connections == 0


async def pinging(stream: trio.abc.Stream) -> None:
    while True:
        try:
            await stream.send_all(frame(PING) * 500)
        except trio.BrokenResourceError:
            return
        await trio.sleep(0.05)


async def test_pings_at_their_pace_are_answered_for_ever(tmp_path, autojump_clock):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
    ):
        async with upgraded(gateway) as wire:
            for _ in range(100):
                await wire.send(frame(PING, b"?") * 100)
                await trio.sleep(0.6)
            await wire.stream.send_eof()
            frames = frames_in((await wire.rest()).partition(b"\r\n\r\n")[2])
        assert frames.count((PONG, b"?")) == 10_000


async def test_a_message_has_so_many_pieces_however_slowly_they_come(
    tmp_path, autojump_clock, monkeypatch
):
    monkeypatch.setattr(_inflow, "MAX_PIECES", 50)
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
    ):
        async with upgraded(gateway) as wire:
            cut = frame(BEGUN, LIST) + frame(PIECE) * 48 + frame(LAST)
            await wire.send(cut + frame(PING))
            await wire.send(frame(BEGUN) + frame(PIECE) * 49)
            await trio.sleep(60)
            await wire.send(frame(PING) + frame(LAST))
            await wire.stream.send_eof()
            told, why = goodbye(await wire.rest())
        assert (told, "50 pieces" in why) == (CloseCode.TOO_BIG, True)
        assert b'"result"' in wire.got


async def test_the_longest_message_may_be_in_pieces(tmp_path):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
        upgraded(gateway) as wire,
    ):
        piece = frame(PIECE, b" " * _inflow.FREE_PIECE_BYTES)
        count = _inflow.MAX_PIECES - 2
        await wire.stream.send_all(frame(BEGUN, LIST) + piece * count + frame(LAST))
        await wire.until(b'"result"')


async def test_a_message_has_so_many_bytes_whatever_its_letters(tmp_path):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
    ):
        async with upgraded(gateway) as wire:
            text = "€" * (MAX_FRAME_BYTES // 3 + 1)
            await wire.stream.send_all(frame(TEXT, text.encode()))
            await wire.stream.send_eof()
            assert goodbye(await wire.rest())[0] == CloseCode.TOO_BIG
        await wait_all_tasks_blocked()
        assert gateway._closed == {CloseCode.TOO_BIG: 1}


@pytest.mark.parametrize("first", [BEGUN, TEXT])
async def test_who_has_not_said_who_it_is_gets_no_memory(tmp_path, first):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine, GUARDED) as gateway,
    ):
        async with upgraded(gateway) as wire:
            await wire.stream.send_all(frame(first, b" " * (1 << 20)))
            await wire.stream.send_eof()
            told, why = goodbye(await wire.rest())
        assert (told, why) == (CloseCode.TOO_BIG, "say first who you are")


async def test_who_has_said_who_it_is_may_send_long_messages_at_once(tmp_path):
    asked = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "_greenroom/authenticate",
        "params": {"token": SECRET},
    }
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine, GUARDED) as gateway,
        upgraded(gateway) as wire,
    ):
        long = LIST + b" " * (1 << 20)
        await wire.stream.send_all(
            frame(TEXT, json.dumps(asked).encode()) + frame(TEXT, long)
        )
        await wire.until(b'"sessions"')


#### Heads of frames, without a gateway


SIZES = st.integers(0, 300) | st.sampled_from([65_535, 65_536, 70_000])
SENT = st.lists(st.tuples(st.integers(0, 255), SIZES, st.sampled_from([0, 0x80])))


@given(SENT, st.integers(1, 200_000))
def test_heads_are_found_however_the_frames_are_cut(sent, size):
    data = b"".join(frame(first, bytes(n), mask=mask) for first, n, mask in sent)
    heads = FrameHeads()
    found = []
    for start in range(0, len(data), size if len(data) < 5_000 else max(size, 500)):
        step = size if len(data) < 5_000 else max(size, 500)
        found += heads.feed(data[start : start + step])
    assert found == [FrameHead(f & 0x0F, f >= 0x80, n) for f, n, _ in sent]


@given(st.lists(st.binary(max_size=30)))
def test_whatever_comes_is_looked_at(parts):
    heads = FrameHeads()
    for part in parts:
        for head in heads.feed(part):
            assert head.size >= 0
