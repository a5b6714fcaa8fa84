"""What the input of a client leaves on the tape: its first hop, or nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from kit.gateway import GatewayClient, connected, served
from kit.rehearsal import Probe, Stage, open_stage, replies, spy_on
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, Say
from greenroom.protocol import TapeEntry
from greenroom.storage import names

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]
ARRIVED = names.ENDPOINT_RECEIVED


@asynccontextmanager
async def open_client(
    tmp_path: Path, *rounds: Any, tool: Any = None
) -> AsyncIterator[tuple[Stage, GatewayClient]]:
    tools = [] if tool is None else [tool]
    async with (
        open_stage(tmp_path, replies(*rounds), *tools) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
    ):
        yield stage, client


def said(stage: Stage, command: str = "c", content: str = "go") -> dict[str, Any]:
    return {"sessionId": stage.session.id, "content": content, "commandId": command}


def arrivals(tape: list[TapeEntry]) -> list[str]:
    return [entry.fact.source_id for entry in tape if entry.fact.name == ARRIVED]


async def until_asked(stage: Stage) -> None:
    while not await stage.session.interactions():
        await trio.lowlevel.checkpoint()
    await wait_all_tasks_blocked()


@pytest.mark.contract("SES-18")
@pytest.mark.parametrize("why", ["interaction_pending", "empty_message"])
async def test_a_refused_prompt_of_a_client_leaves_nothing_however_often_it_comes(
    tmp_path: Path, why: str
) -> None:
    asks = Probe(permission="may it?")
    async with open_client(tmp_path, ASK, DONE, tool=asks) as (stage, client):
        if why == "interaction_pending":
            await client.request("_greenroom/prompt", **said(stage))
            await until_asked(stage)
        before, status = stage.tape(), stage.engine.status(stage.session.id)
        content = "more" if why == "interaction_pending" else " "
        for _ in range(3):
            refused = await client.refused(
                "_greenroom/prompt", **said(stage, "again", content)
            )
            assert refused == why
        assert stage.tape() == before
        assert stage.engine.status(stage.session.id) == status
        await stage.session.cancel()


async def test_input_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    gate = trio.Event()
    tool = Probe(gate=gate)
    async with open_client(tmp_path, ASK, *[DONE] * 6, tool=tool) as (stage, client):
        await client.request("_greenroom/prompt", **said(stage))
        await tool.reached.wait()
        for number in range(5):
            await client.call("_greenroom/queue", **said(stage, f"q{number}"))
        before = stage.tape()
        assert arrivals(before) == ["c", *(f"q{number}" for number in range(5))]
        asked = said(stage, "late")
        assert await client.refused("_greenroom/queue", **asked) == "queue_full"
        assert (
            await client.refused("_greenroom/steer", **asked, expectedTurn="another")
            == "turn_changed"
        )
        # The same id for something else is refused, too.
        other = said(stage, "q0", "other words")
        assert (
            await client.refused("_greenroom/queue", **other) == "conflicting_command"
        )
        assert stage.tape() == before
        gate.set()


@attrs.define(eq=False)
class Appends:
    """A session's record that notes what each append writes."""

    inner: Any
    written: list[list[str]] = attrs.field(factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def append(self, facts: Any, settles: Any = ()) -> None:
        await self.inner.append(facts, settles)
        self.written.append([fact.name for fact in facts])


@pytest.mark.contract("PER-08")
async def test_the_first_hop_is_written_with_what_takes_the_input_in(
    tmp_path: Path,
) -> None:
    gate = trio.Event()
    tool = Probe(gate=gate)
    async with open_client(tmp_path, ASK, DONE, DONE, tool=tool) as (stage, client):
        spied = spy_on(stage)
        appends = Appends(spied.inner)
        spied.inner = appends
        await client.request("_greenroom/prompt", **said(stage))
        await tool.reached.wait()
        await client.call("_greenroom/queue", **said(stage, "queued"))
        await client.call("_greenroom/steer", **said(stage, "steered"))
        gate.set()
        await client.call("_greenroom/prompt", **said(stage, "queued-behind"))
        taken_in = [each for each in appends.written if ARRIVED in each]
        hops = {
            command: (await stage.session.hops(command))[0].hop
            for command in ("c", "queued", "steered")
        }
    assert [each[0] for each in taken_in] == [ARRIVED] * 4
    assert all(len(each) > 1 for each in taken_in), "one transaction"
    assert set(hops.values()) == {"endpoint"}


async def test_input_that_is_sent_again_has_one_first_hop(tmp_path: Path) -> None:
    async with open_client(tmp_path, DONE, DONE) as (stage, client):
        for method in ("prompt", "prompt"):
            await client.call(f"_greenroom/{method}", **said(stage))
        await client.call("_greenroom/queue", **said(stage, "queued"))
        await client.call("_greenroom/queue", **said(stage, "queued"))
        while stage.engine.status(stage.session.id).state != "idle":  # type: ignore[union-attr]
            await trio.lowlevel.checkpoint()
        assert arrivals(stage.tape()) == ["c", "queued"]
