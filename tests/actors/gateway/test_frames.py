"""What waits for a client: bounded, in order, and joined into few writes."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from hypothesis import given, settings, strategies as st
from trio.testing import lockstep_stream_pair, wait_all_tasks_blocked

from greenroom.actors.endpoints.gateway import _frames
from greenroom.actors.endpoints.gateway._frames import Flusher, FrameOutbox


@attrs.define(eq=False)
class Wire:
    outbox: FrameOutbox
    peer: trio.abc.Stream
    flusher: Flusher
    full: list[bool]
    nursery: trio.Nursery


@asynccontextmanager
async def plain(**limits) -> AsyncGenerator[Wire]:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    streams = [
        trio.SocketStream(trio.socket.from_stdlib_socket(s)) for s in (ours, theirs)
    ]
    async with wire(*streams, **limits) as it:
        yield it


@asynccontextmanager
async def other(**limits) -> AsyncGenerator[Wire]:
    async with wire(*lockstep_stream_pair(), **limits) as it:
        yield it


@asynccontextmanager
async def wire(stream, peer, **limits) -> AsyncGenerator[Wire]:
    full: list[bool] = []
    async with stream, peer, trio.open_nursery() as nursery:
        flusher = Flusher(nursery)
        outbox = FrameOutbox(stream, flusher, lambda: full.append(True), **limits)
        nursery.start_soon(flusher.run)
        yield Wire(outbox, peer, flusher, full, nursery)
        nursery.cancel_scope.cancel()


KINDS = pytest.mark.parametrize("make", [plain, other])


@KINDS
async def test_frames_arrive_in_order_and_are_counted(make):
    async with make() as it:
        frames = [bytes([n % 256]) * (n * 37 % 900 + 1) for n in range(1_500)]
        for frame in frames:
            it.outbox.put(frame)
        got = b""
        while len(got) < sum(map(len, frames)):
            got += await it.peer.receive_some(1_000)
        assert got == b"".join(frames)
        await it.outbox.empty()
        assert (it.flusher.sent.frames, it.flusher.sent.bytes) == (1_500, len(got))


async def test_what_is_put_in_one_step_is_written_in_one_call(monkeypatch):
    calls = []
    writev = _frames.os.writev

    def counted(descriptor, frames):
        calls.append(len(frames))
        return writev(descriptor, frames)

    monkeypatch.setattr(_frames.os, "writev", counted)
    async with plain() as it:
        for _ in range(20):
            it.outbox.put(b"frame")
        await wait_all_tasks_blocked()
        assert calls == [20]
        assert len(it.nursery.child_tasks) == 1, "nobody but the flusher"


@KINDS
@pytest.mark.parametrize("limits", [{"max_bytes": 100_000}, {"max_frames": 50}])
async def test_a_client_that_does_not_read_is_given_up_once(make, limits):
    async with make(**limits) as it:
        it.outbox.put(b"a" * 50_000)
        await wait_all_tasks_blocked()
        for _ in range(2_000):
            it.outbox.put(b"x" * 1_000)
        assert it.full == [True]
        assert it.outbox.size <= 50_000
        it.outbox.put_last(b"goodbye")
        it.outbox.put(b"nobody hears this")
        got = b""
        with trio.fail_after(5):
            while not got.endswith(b"goodbye"):
                got += await it.peer.receive_some(10_000)
        # A frame is sent whole or not at all.
        assert got in (b"a" * 50_000 + b"goodbye", b"goodbye")


@KINDS
async def test_room_is_there_when_half_has_been_read(make):
    async with make(max_frames=20) as it:
        await it.outbox.room()
        for _ in range(20):
            it.outbox.put(b"x" * 200_000)
        waited = trio.Event()

        async def wait():
            await it.outbox.room()
            waited.set()

        it.nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert not waited.is_set()
        while not waited.is_set():
            await it.peer.receive_some(1_000_000)
            await trio.lowlevel.checkpoint()
        assert it.outbox.size > 0


@KINDS
async def test_a_peer_that_is_gone_costs_nothing_more(make):
    async with make() as it:
        await trio.aclose_forcefully(it.peer)
        for _ in range(3):
            it.outbox.put(b"x" * 100_000)
            await wait_all_tasks_blocked()
        with trio.fail_after(5):
            await it.outbox.empty()
        assert (it.outbox.size, it.full) == (0, [])


@given(st.lists(st.integers(1, 30_000), max_size=20), st.integers(100, 40_000))
@settings(max_examples=40)
def test_any_sizes_come_through_a_small_socket_whole(sizes, read):
    frames = [bytes([n % 256]) * size for n, size in enumerate(sizes)]

    async def main():
        async with plain() as it:
            for frame in frames:
                it.outbox.put(frame)
            got = b""
            while len(got) < sum(sizes):
                got += await it.peer.receive_some(read)
            assert got == b"".join(frames)

    trio.run(main)
