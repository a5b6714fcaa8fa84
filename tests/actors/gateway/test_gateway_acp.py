"""ACP over the gateway: as on standard input and output, but the turn is not the
client's."""

from __future__ import annotations

import trio
from kit.gateway import connected, served
from kit.rehearsal import Probe, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, Say

DONE = [Say("done"), Halt()]
ASKS = replies([Call("probe", {}), Halt("tool_use")], DONE)


async def begun(client, folder) -> str:
    await client.call("initialize", protocolVersion=1, clientCapabilities={})
    made = await client.call("session/new", cwd=str(folder), mcpServers=[])
    return made["sessionId"]


def prompt(session_id: str) -> dict:
    return {"sessionId": session_id, "prompt": [{"type": "text", "text": "go"}]}


async def test_a_turn_is_told_to_the_client_that_prompts_and_to_no_other(tmp_path):
    async with (
        open_stage(tmp_path, replies(DONE)) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
        connected(gateway) as other,
    ):
        session_id = await begun(client, tmp_path)
        await other.call("_greenroom/session/attach", sessionId=session_id)
        ended = await client.call("session/prompt", **prompt(session_id))
        assert ended["stopReason"] == "end_turn"
        updates = [u["update"] for u in client.told("session/update")]
        said = [u for u in updates if u["sessionUpdate"] == "agent_message_chunk"]
        assert "".join(u["content"]["text"] for u in said) == "done"
        await other.until_idle()
        assert other.told("session/update") == []


async def test_a_request_that_somebody_else_answered_is_withdrawn(tmp_path):
    async with (
        open_stage(tmp_path, ASKS, Probe(permission="?")) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
        connected(gateway) as other,
    ):
        session_id = await begun(client, tmp_path)
        request_id = await client.request("session/prompt", **prompt(session_id))
        await client.until(lambda: client.told("session/request_permission"))
        (asked,) = (m for m in client.received if "id" in m and "method" in m)
        listed = await other.call("_greenroom/interaction/list", sessionId=session_id)
        (waiting,) = listed["interactions"]
        await other.call(
            "_greenroom/interaction/answer",
            sessionId=session_id,
            interactionId=waiting["block"]["id"],
            answer={"type": "grant"},
        )
        ended = await client.response(request_id)
        assert ended["result"]["stopReason"] == "end_turn"
        assert client.told("$/cancel_request") == [{"requestId": asked["id"]}]


async def test_a_turn_goes_on_without_its_client_and_its_question_stays(tmp_path):
    gate = trio.Event()
    probe = Probe(permission="?", gate=gate)
    async with (
        open_stage(tmp_path, ASKS, probe) as stage,
        served(stage.engine) as gateway,
    ):
        async with connected(gateway) as client:
            session_id = await begun(client, tmp_path)
            await client.request("session/prompt", **prompt(session_id))
            await client.until(lambda: client.told("session/request_permission"))
        await wait_all_tasks_blocked()
        assert gateway.connections == 0
        async with connected(gateway) as other:
            attached = await other.call(
                "_greenroom/session/attach", sessionId=session_id
            )
            (waiting,) = attached["interactions"]
            await other.call(
                "_greenroom/interaction/answer",
                sessionId=session_id,
                interactionId=waiting["block"]["id"],
                answer={"type": "grant"},
            )
            gate.set()
            await other.until_idle()
    assert len(probe.calls) == 1


async def test_a_client_that_leaves_at_once_has_prompted_all_the_same(tmp_path):
    async with (
        open_stage(tmp_path, replies(DONE)) as stage,
        served(stage.engine) as gateway,
    ):
        async with connected(gateway) as client:
            session_id = await begun(client, tmp_path)
            await client.request("session/prompt", **prompt(session_id))
        async with connected(gateway) as other:
            await other.call("_greenroom/session/attach", sessionId=session_id, after=0)
            await other.until_idle()
            assert other.events("stream/completed")


async def test_a_cancel_stops_the_turn_of_its_client(tmp_path):
    gate = trio.Event()
    async with (
        open_stage(
            tmp_path, ASKS, Probe(gate=gate), permission_mode="full_access"
        ) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
    ):
        session_id = await begun(client, tmp_path)
        await client.call(
            "session/set_mode", sessionId=session_id, modeId="full_access"
        )
        request_id = await client.request("session/prompt", **prompt(session_id))
        await wait_all_tasks_blocked()
        await client.send(method="session/cancel", params={"sessionId": session_id})
        ended = await client.response(request_id)
        assert ended["result"]["stopReason"] == "cancelled"
