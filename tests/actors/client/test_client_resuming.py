"""A client is cut off at any byte, comes back, and has every event once."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
import trio
from kit.cut_stream import Cut
from kit.gateway import served
from kit.rehearsal import Probe, open_stage, replies
from kit.remote import client_of, of_gateway
from trio.testing import MockClock

from greenroom.actors.endpoints.client._connect import CLOSE_SECONDS
from greenroom.actors.providers import Call, Halt, Pause, Say
from greenroom.client import Attachment, CallError, Client
from greenroom.protocol import StreamUpdated, events_of
from greenroom.protocol.gateway import (
    Attached,
    Nothing,
    PromptResult,
    SendPrompt,
    SessionRef,
)


@attrs.define(eq=False)
class Watcher:
    """What a session was, as a client knows it."""

    begins: list[Attached] = attrs.field(factory=list)
    durable: list[tuple[int, str]] = attrs.field(factory=list)
    texts: dict[str, str] = attrs.field(factory=dict)

    def take(self, item: Any) -> None:
        if isinstance(item, Attached):
            self.begins.append(item)
        elif isinstance(item, StreamUpdated):
            self._grow(item)
        elif hasattr(item, "seq"):
            self.durable.append((item.seq, type(item).__name__))

    def _grow(self, item: StreamUpdated) -> None:
        if item.kind != "text":
            return
        if item.block is not None:
            self.texts[item.item_id] = getattr(item.block, "text", "")
            return
        known = self.texts.get(item.item_id, "")
        assert item.offset == len(known), "a gap, or text told twice"
        self.texts[item.item_id] = known + item.text

    async def watch(self, attachment: Attachment) -> None:
        async for item in attachment:
            self.take(item)

    async def until(self, attachment: Attachment, seq: int) -> None:
        while (attachment.after or 0) < seq:
            self.take(await anext(attachment))


def script():
    def talk(name: str):
        for number in range(5):
            yield from (Say(f"{name}.{number} " * 12, chunk=10), Pause(0.7))

    return replies(
        [*talk("a"), Call("probe", {"n": 1}), Halt("tool_use")], [*talk("b"), Halt()]
    )


def wanted(stage: Any, after: int) -> list[tuple[int, str]]:
    events = [event for entry in stage.tape() for event in events_of(entry)]
    pairs = [(getattr(e, "seq", 0), type(e).__name__) for e in events]
    return [pair for pair in pairs if pair[0] > after]


async def prompted(client: Client, session_id: str, results: list[Any]) -> None:
    asked = SendPrompt(session_id, "go", "one")
    results.append(await client.call("prompt", asked, PromptResult))


@pytest.mark.parametrize("seed", range(6))
async def test_a_client_that_is_cut_off_has_every_event_once(
    tmp_path, autojump_clock: MockClock, seed
):
    chance = random.Random(seed)
    cuts = [0]

    def wrap(stream: trio.abc.Stream) -> trio.abc.Stream:
        cuts[0] += 1
        return Cut(stream, chance.randrange(600, 6_000) if cuts[0] < 12 else 1 << 30)

    watcher, results = Watcher(), []
    async with open_stage(
        tmp_path, script(), Probe(), permission_mode="full_access"
    ) as stage:
        session_id = stage.session.id
        async with (
            served(stage.engine) as gateway,
            client_of(of_gateway(gateway), wrap=wrap) as client,
            client.attach(session_id) as attachment,
        ):
            watcher.take(await anext(attachment))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watcher.watch, attachment)
                await prompted(client, session_id, results)
                nursery.cancel_scope.cancel()
            await watcher.until(attachment, wanted(stage, 0)[-1][0])
        begin = watcher.begins[0]
        assert begin.snapshot is not None
        assert watcher.durable == wanted(stage, begin.seq)
        assert len(watcher.begins) == 1
        assert (results[0].outcome, len(stage.provider.requests)) == ("completed", 2)
    # The test is of what it says it is of.
    assert cuts[0] > 2


async def test_a_cursor_begins_without_a_snapshot_and_ends_with_a_deletion(
    tmp_path, autojump_clock: MockClock
):
    async with open_stage(tmp_path, replies([Say("hello"), Halt()])) as stage:
        session_id = stage.session.id
        await stage.session.prompt("go")
        async with (
            served(stage.engine) as gateway,
            client_of(of_gateway(gateway)) as client,
            client.attach(session_id, after=0) as attachment,
        ):
            first = await anext(attachment)
            assert isinstance(first, Attached)
            assert first.snapshot is None
            watcher = Watcher()
            await watcher.until(attachment, wanted(stage, 0)[-1][0])
            assert watcher.durable == wanted(stage, 0)
            await client.call("session/delete", SessionRef(session_id), Nothing)
            async for _ in attachment:
                pass


async def test_a_session_that_was_cleared_begins_anew(
    tmp_path, autojump_clock: MockClock
):
    async with open_stage(tmp_path, replies([Say("hello"), Halt()])) as stage:
        session_id = stage.session.id
        await stage.session.prompt("go")
        async with (
            served(stage.engine) as gateway,
            client_of(of_gateway(gateway)) as client,
            client.attach(session_id, after=10_000) as attachment,
        ):
            # A cursor of another life of the state folder.
            begin = await anext(attachment)
            assert isinstance(begin, Attached)
            assert begin.snapshot is not None
            assert attachment.after == begin.seq


async def test_a_session_that_is_not_there_is_said_to_be(
    tmp_path, autojump_clock: MockClock
):
    async with (
        open_stage(tmp_path, []) as stage,
        served(stage.engine) as gateway,
        client_of(of_gateway(gateway)) as client,
        client.attach("nobody") as attachment,
    ):
        with pytest.raises(CallError) as refused:
            await anext(attachment)
        assert refused.value.code == "session_not_found"


async def test_a_session_is_followed_once_at_a_time(
    tmp_path, autojump_clock: MockClock
):
    async with (
        open_stage(tmp_path, []) as stage,
        served(stage.engine) as gateway,
        client_of(of_gateway(gateway)) as client,
    ):
        async with client.attach(stage.session.id):
            with pytest.raises(RuntimeError, match="followed already"):
                async with client.attach(stage.session.id):
                    pass
        async with client.attach(stage.session.id) as attachment:
            assert isinstance(await anext(attachment), Attached)


async def test_who_leaves_is_gone_at_once_and_says_so(
    tmp_path, autojump_clock: MockClock
):
    async with (
        open_stage(tmp_path, replies([Halt()])) as stage,
        served(stage.engine) as gateway,
    ):
        async with client_of(of_gateway(gateway)) as client:
            link = await client.linked()
            left_at = trio.current_time()
        assert trio.current_time() < left_at + CLOSE_SECONDS
        # The gateway was told, and has answered.
        reason = link._websocket.closed
        assert reason is not None
        assert reason.code == 1000
