"""A session that goes while clients use it: each is told what has become of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from kit.gateway import GatewayClient, connected, served
from kit.rehearsal import Probe, Stage, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, Hang, Say
from greenroom.protocol.gateway import ENDED

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]


@attrs.define(eq=False)
class Desk:
    stage: Stage
    clients: list[GatewayClient]

    @property
    def scope(self) -> str:
        return self.stage.session.id

    async def ask(self, client: int, method: str, **params: Any) -> Any:
        asked = {"sessionId": self.scope} | params
        return await self.clients[client].ask(f"_greenroom/{method}", **asked)

    async def refused(self, client: int, method: str, **params: Any) -> str:
        asked = {"sessionId": self.scope} | params
        return await self.clients[client].refused(f"_greenroom/{method}", **asked)

    async def send(self, client: int, command: str) -> int:
        said = {"sessionId": self.scope, "content": command, "commandId": command}
        return await self.clients[client].request("_greenroom/prompt", **said)


@asynccontextmanager
async def open_desk(
    tmp_path: Path, *rounds: Any, tool: Any = None
) -> AsyncIterator[Desk]:
    tools = [] if tool is None else [tool]
    async with (
        open_stage(tmp_path, replies(*rounds), *tools) as stage,
        served(stage.engine) as gateway,
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(connected(gateway)) for _ in "abc"]
        for client in clients:
            await client.call("_greenroom/session/attach", sessionId=stage.session.id)
        yield Desk(stage, clients)


def code_of(response: dict[str, Any]) -> str:
    return response["error"]["data"]["code"]


async def test_everybody_who_follows_a_deleted_session_is_told_so_once(
    tmp_path: Path,
) -> None:
    gate = trio.Event()
    tool = Probe(gate=gate)
    async with open_desk(tmp_path, ASK, DONE, tool=tool) as desk:
        sent = await desk.send(0, "go")
        await tool.reached.wait()
        await desk.ask(1, "session/delete")
        for client in desk.clients:
            await client.until(lambda client=client: client.told(ENDED))
        await wait_all_tasks_blocked()
        for client in desk.clients:
            (ended,) = client.told(ENDED)
            assert ended == {"sessionId": desk.scope, "reason": "deleted"}
        # The turn that went on was stopped, and its client is told what it came to.
        result = (await desk.clients[0].response(sent))["result"]
        assert (result["outcome"], result["stopReason"]) == ("aborted", "user_stop")
        assert await desk.refused(2, "session/attach") == "session_not_found"
        assert await desk.refused(2, "cancel") == "session_not_found"
        said = {"content": "x", "commandId": "late"}
        assert await desk.refused(2, "prompt", **said) == "session_not_found"


async def test_a_prompt_that_waits_is_told_that_its_session_is_deleted(
    tmp_path: Path,
) -> None:
    tool = Probe(gate=trio.Event())
    async with open_desk(tmp_path, ASK, DONE, tool=tool) as desk:
        await desk.send(0, "go")
        await tool.reached.wait()
        waiting = [await desk.send(each, f"waits-{each}") for each in range(3)]
        await wait_all_tasks_blocked()
        await desk.ask(1, "session/delete")
        for client, sent in zip(desk.clients, waiting, strict=True):
            error = (await client.response(sent))["error"]
            assert error["data"]["code"] == "being_deleted"
            assert "is being deleted" in error["message"]
            assert error["data"]["hint"]


async def test_a_prompt_that_waits_for_an_answer_is_told_so_too(tmp_path: Path) -> None:
    asks = Probe(permission="may it?")
    async with open_desk(tmp_path, ASK, DONE, tool=asks) as desk:
        sent = await desk.send(0, "go")
        while not (asked := await desk.stage.session.interactions()):
            await trio.lowlevel.checkpoint()
        await desk.ask(1, "session/delete")
        result = (await desk.clients[0].response(sent))["result"]
        assert (result["outcome"], result["stopReason"]) == ("aborted", "user_stop")
        grant = {"interactionId": asked[0].id, "answer": {"type": "grant"}}
        assert (
            await desk.refused(2, "interaction/answer", **grant) == "session_not_found"
        )
        assert asks.calls == []


async def test_a_prompt_that_waits_goes_on_after_its_session_was_put_away(
    tmp_path: Path,
) -> None:
    gate = trio.Event()
    tool = Probe(gate=gate)
    async with open_desk(tmp_path, ASK, DONE, DONE, tool=tool) as desk:
        await desk.send(0, "go")
        await tool.reached.wait()
        waiting = await desk.send(0, "waits")
        await wait_all_tasks_blocked()
        await desk.ask(1, "session/archive", archived=True)
        response = await desk.clients[0].response(waiting)
        assert code_of(response) == "session_closed"
        assert "same command id" in response["error"]["data"]["hint"]
        # As it says: the same again is joined, and has its turn.
        again = await desk.ask(0, "prompt", content="waits", commandId="waits")
        assert again["result"]["text"] == "done"
        messages = await desk.stage.session.messages()
        assert [m.id for m in messages if m.role == "user"] == ["go", "waits"]


LATE: dict[str, dict[str, Any]] = {
    "cancel": {},
    "prompt": {"content": "x", "commandId": "late"},
    "queue": {"content": "x", "commandId": "late"},
    "interaction/answer": {"interactionId": "i", "answer": {"type": "grant"}},
}


@pytest.mark.parametrize("late", LATE)
async def test_what_comes_while_a_session_is_deleted_has_an_answer_that_says_so(
    tmp_path: Path, late: str
) -> None:
    script = replies(*[[Hang()]] * 20)
    async with (
        open_stage(tmp_path, script) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as deletes,
        connected(gateway) as client,
    ):
        for passes in range(0, 32, 4):
            session = await stage.engine.create_session(workspace=tmp_path)
            asked = {"sessionId": session.id}
            await client.call("_greenroom/session/attach", **asked)
            said = {"content": "go", "commandId": "go"}
            await deletes.request("_greenroom/prompt", **asked, **said)
            await wait_all_tasks_blocked()
            deleting = await deletes.request("_greenroom/session/delete", **asked)
            for _ in range(passes):
                await trio.lowlevel.checkpoint()
            response = await client.ask(f"_greenroom/{late}", **asked, **LATE[late])
            if "error" in response:
                gone = ("being_deleted", "session_not_found")
                assert code_of(response) in (*gone, "unknown_interaction"), passes
            else:
                # It came before the deletion did.
                assert late in ("cancel", "queue"), passes
            assert (await deletes.response(deleting))["result"] == {}
            await client.until(
                lambda asked=asked: asked | {"reason": "deleted"} in client.told(ENDED)
            )
        assert {each["reason"] for each in client.told(ENDED)} == {"deleted"}


@attrs.define(eq=False)
class HeldRelease:
    """A session's record that is let go only when a gate opens."""

    inner: Any
    reached: trio.Event = attrs.field(factory=trio.Event)
    gate: trio.Event = attrs.field(factory=trio.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def release(self) -> None:
        self.reached.set()
        await self.gate.wait()
        await self.inner.release()


@pytest.mark.parametrize("late", ["session/move", "prompt", "session/configure"])
async def test_what_comes_while_a_session_is_put_away_is_done_behind_it(
    tmp_path: Path, late: str
) -> None:
    async with open_desk(tmp_path, DONE) as desk:
        client, scope = desk.clients[0], {"sessionId": desk.scope}
        made = await client.call("_greenroom/agent/add", name="Other")
        more: dict[str, Any] = {
            "session/move": {"agent": made["agent"]["id"]},
            "prompt": {"content": "late", "commandId": "late"},
            "session/configure": {"changes": {"title": "Late"}},
        }[late]
        loaded = desk.stage.session._sessions.loaded(desk.stage.session.id)
        assert loaded is not None
        held = HeldRelease(loaded.session.ports.record)
        loaded.session.ports = attrs.evolve(loaded.session.ports, record=held)
        archive = await client.request(
            "_greenroom/session/archive", **scope, archived=True
        )
        await held.reached.wait()
        asked = await client.request(f"_greenroom/{late}", **scope, **more)
        await wait_all_tasks_blocked()
        held.gate.set()
        assert "result" in await client.response(asked)
        archived = await client.response(archive)
        if "error" in archived:
            # It was loaded again before it could be put away.
            assert code_of(archived) == "session_held"
            archived = await desk.ask(0, "session/archive", archived=True)
        assert archived["result"]["session"]["archivedAt"]
