"""What clients of the gateway are told, whoever of them reads it (SES-24)."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
from kit.gateway_link import Link, open_link
from kit.gateway_schema import check_part
from kit.rehearsal import Probe, open_stage, replies

from greenroom.actors.providers import Call, Halt, Say, Think
from greenroom.gateway import open_gateway
from greenroom.protocol import (
    MessageRetracted,
    MessagesChanged,
    SessionUpdated,
    StreamCompleted,
    StreamUpdated,
)
from greenroom.protocol.gateway import EVENT

DONE = [Say("done"), Halt()]
PIECES = [Say("x" * 30_000)] * 20
TURNS = 4


@asynccontextmanager
async def open_stalled(port: int, session_id: str) -> AsyncIterator[None]:
    """Attach to a session as a client that then reads nothing, not even the answer."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        payload = msgspec.json.encode(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "_greenroom/session/attach",
                "params": {"sessionId": session_id},
            }
        )
        # A client's frame is masked; a mask of zeros changes nothing.
        assert len(payload) < 126
        frame = bytes((0x81, 0x80 | len(payload))) + bytes(4) + payload
        head = (
            f"GET /acp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n"
        )
        await stream.send_all(head.encode())
        assert b" 101 " in bytes(await stream.receive_some(20))
        await stream.send_all(frame)
        yield


@pytest.mark.contract("SES-24")
async def test_a_client_that_does_not_read_delays_no_run_and_nobody_else(tmp_path):
    script = replies(*([*PIECES, Halt()] for _ in range(TURNS)))
    async with (
        open_stage(tmp_path, script) as stage,
        open_gateway(stage.engine, port=0) as gateway,
        open_link(f"ws://127.0.0.1:{gateway.port}/acp") as link,
        open_stalled(gateway.port, stage.session.id),
    ):
        await link.call("session/attach", sessionId=stage.session.id)
        with trio.fail_after(30):
            for number in range(TURNS):
                ended = await stage.session.prompt(f"turn {number}")
                assert ended.outcome == "completed"
                await link.until(lambda number=number: _ends(link) > number)
        values = (await link.call("metrics")).values
        assert values["gateway_connections"] == 2
        # More waits for it than the buffers between take.
        assert values["gateway_unsent_bytes"] > 500_000
        texts = [
            len(notice.event.text)
            for notice in link.events
            if isinstance(notice.event, StreamUpdated)
        ]
        assert sum(texts) == 600_000 * TURNS, "nothing was missed"


def _ends(link: Link) -> int:
    return sum(isinstance(notice.event, StreamCompleted) for notice in link.events)


async def test_every_event_of_a_rich_turn_is_in_the_schema(tmp_path):
    script = replies(
        [Think("hm"), Say("look"), Call("probe", {}, id="c1"), Halt("tool_use")],
        DONE,
        DONE,
    )
    async with (
        open_stage(
            tmp_path, script, Probe("probe"), permission_mode="full_access"
        ) as s,
        open_gateway(s.engine, port=0) as gateway,
        open_link(f"ws://127.0.0.1:{gateway.port}/acp") as link,
    ):
        await link.call("session/attach", sessionId=s.session.id)
        first = await s.session.prompt("one")
        await s.session.queue("two")
        await link.until(lambda: _ends(link) == 2)
        await s.session.rewind(first.message.id)
        await s.session.configure(title="end")
        await link.event(SessionUpdated)
        kinds = {type(notice.event).__name__ for notice in link.events}
        assert kinds >= {
            "StreamUpdated", "StatusChanged", "MessagesChanged", "MessageRetracted",
            "StreamCompleted", "InputsChanged", "SessionUpdated",
        }  # fmt: skip
        for notice in link.events:
            check_part(EVENT, "params", notice)


async def test_a_client_that_keeps_the_transcript_by_its_events_needs_no_snapshot(
    tmp_path,
):
    async with (
        open_stage(tmp_path, replies(*[DONE] * 3)) as stage,
        open_gateway(stage.engine, port=0) as gateway,
    ):
        url = f"ws://127.0.0.1:{gateway.port}/acp"
        kept: dict[str, Any] = {}
        session = stage.session
        first = await session.prompt("one")
        async with open_link(url) as link:
            begun = await link.call("session/attach", sessionId=session.id)
            kept |= {message.id: message for message in begun.snapshot.messages}
            await session.prompt("two")
            await link.until(lambda: _ends(link) == 1)
            _keep(kept, link)
            cursor = max(_seqs(link))
        # Away while it is taken back and goes on.
        await session.rewind(first.message.id)
        await session.prompt("three")
        async with open_link(url) as link:
            back = await link.call("session/attach", sessionId=session.id, after=cursor)
            assert back.snapshot is None
            await link.until(lambda: _ends(link) == 1)
            _keep(kept, link)
        assert list(kept) == [message.id for message in await session.messages()]


def _keep(kept: dict[str, Any], link: Link) -> None:
    for notice in link.events:
        match notice.event:
            case MessagesChanged(message=message):
                kept[message.id] = message
            case MessageRetracted(message_id=gone):
                del kept[gone]
            case _:
                pass


def _seqs(link: Link) -> list[int]:
    return [notice.event.seq for notice in link.events if hasattr(notice.event, "seq")]  # type: ignore[union-attr]
