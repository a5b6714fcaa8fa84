"""Fifty clients come, are cut off at any byte and come back: each sees all, once.

What a client has at the end is held against the tape: every durable event after its
first snapshot, in order, none twice. And while it is there, the text that it puts
together from deltas has neither a gap nor a repetition.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
from kit.cut_stream import Cut
from kit.gateway import connected, served
from kit.rehearsal import Probe, open_stage, replies
from trio.testing import MockClock
from trio_websocket import ConnectionClosed

from greenroom.actors.providers import Call, Halt, Pause, Say
from greenroom.actors.sessions import Told
from greenroom.protocol import events_of

CLIENTS = 50
TURNS = 2
HANDSHAKE = 400
"""Bytes within which the handshake is over."""


@attrs.define(eq=False)
class Watcher:
    """A client as the guide tells people to write one."""

    session_id: str
    chance: random.Random
    begins: int | None = None
    """The sequence number of its first snapshot."""
    after: int | None = None
    log: list[tuple[int, str]] = attrs.field(factory=list)
    texts: dict[str, str] = attrs.field(factory=dict)
    visits: int = 0
    grown: int = 0
    _held: list[tuple[int, str]] = attrs.field(factory=list)

    def take(self, message: dict[str, Any]) -> None:
        if "snapshot" in message.get("result", {}):
            self.begins = self.after = message["result"]["seq"]
        if message.get("method") != "_greenroom/event":
            return
        event = message["params"]["event"]
        if event["type"] == "stream/updated":
            self._grow(event)
        elif "seq" in event:
            self._keep(event, more=message["params"].get("more", False))

    def _keep(self, event: dict[str, Any], *, more: bool) -> None:
        self._held.append((event["seq"], event["type"]))
        if not more:
            self.log += self._held
            self._held.clear()
            self.after = event["seq"]

    def _grow(self, event: dict[str, Any]) -> None:
        if event["kind"] != "text":
            return
        item = event["itemId"]
        if "block" in event:
            self.texts[item] = event["block"].get("text", "")
            return
        known = self.texts.get(item, "")
        assert event.get("offset", 0) == len(known), "a gap, or text told twice"
        self.texts[item] = known + event["text"]
        self.grown += 1

    async def live(self, gateway: Any, over: trio.Event) -> None:
        while not over.is_set():
            await trio.sleep(self.chance.random() * 2)
            await self.visit(gateway, self.chance.randrange(HANDSHAKE, 20_000))

    async def visit(
        self, gateway: Any, size: int, until: Callable[[], bool] | None = None
    ) -> None:
        self.visits += 1
        self._held.clear()
        with trio.move_on_after(1_000 if until else self.chance.random() * 8):
            async with connected(gateway, wrap=lambda s: Cut(s, size)) as client:
                client.on_message = self.take
                cursor = {} if self.after is None else {"after": self.after}
                try:
                    await client.request(
                        "_greenroom/session/attach", sessionId=self.session_id, **cursor
                    )
                except ConnectionClosed:
                    return
                if until is None:
                    await client.ended.wait()
                else:
                    await client.until(until)


def script():
    def talk(turn: str):
        for number in range(5):
            yield from (Say(f"{turn}.{number} " * 12, chunk=10), Pause(0.7))

    rounds = []
    for turn in range(TURNS):
        rounds.append([*talk(f"{turn}a"), Call("probe", {"n": 1}), Halt("tool_use")])
        rounds.append([*talk(f"{turn}b"), Halt()])
    return replies(*rounds)


async def crowd(tmp_path, seed: int, clients: int) -> None:
    chance = random.Random(seed)
    async with open_stage(
        tmp_path, script(), Probe(), permission_mode="full_access"
    ) as stage:
        session = stage.session
        crowd = [
            Watcher(session.id, random.Random(chance.random())) for _ in range(clients)
        ]
        over = trio.Event()
        async with served(stage.engine) as gateway:
            async with trio.open_nursery() as nursery:
                for watcher in crowd:
                    nursery.start_soon(watcher.live, gateway, over)
                for turn in range(TURNS):
                    await trio.sleep(chance.random())
                    await session.prompt(f"turn {turn}")
                over.set()
            tape = stage.tape()
            events = [event for entry in tape for event in events_of(entry)]
            last = Told(events[-1]).seq or 0
            for watcher in crowd:
                await watcher.visit(
                    gateway, 1 << 30, lambda w=watcher: (w.after or 0) >= last
                )
        wanted = [(Told(e).seq or 0, type(e).__struct_config__.tag) for e in events]
        for watcher in crowd:
            assert watcher.begins is not None
            assert watcher.log == [pair for pair in wanted if pair[0] > watcher.begins]
        # The test is of what it says it is of.
        assert sum(watcher.visits for watcher in crowd) > 3 * clients
        assert sum(watcher.grown for watcher in crowd) > clients
        assert len({watcher.begins for watcher in crowd}) > 1


@pytest.mark.slow  # fifty clients are some 2 s of processor time
@pytest.mark.parametrize("seed", [1, 2])
async def test_clients_that_are_cut_off_and_come_back_miss_nothing(
    tmp_path, autojump_clock: MockClock, seed
):
    await crowd(tmp_path, seed, CLIENTS)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(100, 140))
async def test_many_crowds_miss_nothing(tmp_path, autojump_clock: MockClock, seed):
    await crowd(tmp_path, seed, CLIENTS)
