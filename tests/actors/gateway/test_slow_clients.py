"""Clients that do not read: they lose their connection, and nobody else anything."""

from __future__ import annotations

import pytest
import trio
from kit.gateway import connected, served
from kit.rehearsal import open_stage, replies
from trio.testing import lockstep_stream_pair

from greenroom.actors.providers import Halt, Say
from greenroom.actors.sessions import Told
from greenroom.protocol import events_of
from greenroom.protocol.gateway import CloseCode

TURNS = 30


class Sleepy(trio.abc.Stream):
    """Reads only while it is awake; nothing is kept for it in between."""

    def __init__(self, inner):
        self.inner = inner
        self.awake = trio.Event()
        self.awake.set()

    async def receive_some(self, max_bytes=None):
        await self.awake.wait()
        return await self.inner.receive_some(max_bytes)

    async def send_all(self, data):
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self):
        await self.inner.wait_send_all_might_not_block()

    async def aclose(self):
        await self.inner.aclose()


@pytest.mark.contract("SES-24")
async def test_a_client_that_does_not_read_delays_nothing_and_comes_back_for_all(
    tmp_path, autojump_clock
):
    script = replies(*([Say("x" * 2_000), Halt()] for _ in range(TURNS)))
    async with (
        open_stage(tmp_path, script) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as reader,
        connected(gateway, pair=lockstep_stream_pair, wrap=Sleepy) as sleeper,
    ):
        for client in (reader, sleeper):
            await client.call("_greenroom/session/attach", sessionId=stage.session.id)
        slow = list(gateway._connections.values())[-1]
        slow.stream.outbox.max_frames = 50
        assert isinstance(sleeper.stream, Sleepy)
        sleeper.stream.awake = trio.Event()
        begun = trio.current_time()
        for turn in range(TURNS):
            await stage.session.prompt(f"turn {turn}")
        assert trio.current_time() - begun < 1
        await reader.until_idle(TURNS)
        assert slow.code == CloseCode.SLOW
        assert slow.stream.outbox.size < 1 << 20
        sleeper.stream.awake.set()
        await sleeper.ended.wait()
        # What it got is whole, and it comes back with what it has seen.
        last = cursor(sleeper)
        wanted = [
            Told(event).seq or 0
            for entry in stage.tape()
            for event in events_of(entry)
            if entry.seq > last
        ]
        async with connected(gateway) as again:
            await again.call(
                "_greenroom/session/attach", sessionId=stage.session.id, after=last
            )
            await again.until(lambda: len(seqs(again)) == len(wanted))
            assert seqs(again) == wanted


def seqs(client):
    return [event["seq"] for event in client.events() if "seq" in event]


def cursor(client):
    """The last fact that it was told whole."""
    notices = client.told("_greenroom/event")
    whole = [n["event"] for n in notices if not n.get("more")]
    return max((event["seq"] for event in whole if "seq" in event), default=0)
