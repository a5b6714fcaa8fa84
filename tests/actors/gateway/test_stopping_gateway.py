"""A gateway that stops: its clients are told, and turns are none of its business."""

from __future__ import annotations

import pytest
import trio
from kit.gateway import GatewayClient, connected, served
from kit.rehearsal import Probe, Stage, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.endpoints.gateway import Gateway
from greenroom.actors.providers import Call, Halt, Hang, Say
from greenroom.engine import Engine
from greenroom.protocol import ActionBlock, RunTerminal, journal_record
from greenroom.protocol.gateway import CloseCode

DONE = [Say("done"), Halt()]
HELD = replies([Call("probe", {}), Halt("tool_use")], DONE)
STREAMS = replies([Say("so far"), Hang()])


async def ours(client: GatewayClient, session_id: str) -> None:
    await client.request(
        "_greenroom/prompt", sessionId=session_id, content="go", commandId="c"
    )


async def acp_s(client: GatewayClient, session_id: str) -> None:
    content = [{"type": "text", "text": "go"}]
    await client.request("session/prompt", sessionId=session_id, prompt=content)


PROMPTS = pytest.mark.parametrize("prompt", [ours, acp_s])


async def begun(client: GatewayClient, stage: Stage) -> str:
    await client.call("initialize", protocolVersion=1)
    made = await client.call("session/new", cwd=str(stage.state), mcpServers=[])
    session_id = made["sessionId"]
    await client.call("_greenroom/session/attach", sessionId=session_id)
    return session_id


def ends(tape) -> list[tuple[str, str]]:
    """The outcome and the stop reason of every run."""
    records = [journal_record(e.fact) for e in tape if e.fact.is_execution]
    return [(r.outcome, r.stop_reason) for r in records if isinstance(r, RunTerminal)]


async def serve(
    engine: Engine, stop: trio.Event, task_status: trio.TaskStatus[Gateway]
) -> None:
    async with served(engine) as gateway:
        task_status.started(gateway)
        await stop.wait()


@PROMPTS
async def test_a_turn_goes_on_when_its_gateway_stops(tmp_path, prompt):
    gate, stop = trio.Event(), trio.Event()
    async with open_stage(tmp_path, HELD, Probe(gate=gate)) as stage:
        async with trio.open_nursery() as nursery:
            gateway = await nursery.start(serve, stage.engine, stop)
            async with connected(gateway) as client:
                session_id = await begun(client, stage)
                session = stage.engine.session(session_id)
                await session.configure(permission_mode="full_access")
                await prompt(client, session_id)
                await wait_all_tasks_blocked()
                stop.set()
                await client.ended.wait()
                assert client.close_code == CloseCode.GOING_AWAY
        assert ends(stage.tape(session_id)) == []
        gate.set()
        await wait_all_tasks_blocked()
        assert ends(stage.tape(session_id)) == [("completed", "complete")]


@PROMPTS
async def test_a_turn_that_streams_is_interrupted_by_the_engine_s_end(tmp_path, prompt):
    async with (
        open_stage(tmp_path, STREAMS) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
    ):
        session_id = await begun(client, stage)
        await prompt(client, session_id)
        await client.until(lambda: client.events("stream/updated"))
    tape = stage.tape(session_id)
    assert ends(tape) == [("aborted", "shutdown")]
    async with open_stage(tmp_path, replies(), session_id=session_id) as stage:
        message = (await stage.session.messages())[-1]
        assert message.status == "error"
        assert message.metadata.error_code == "session_interrupted"


@PROMPTS
async def test_a_question_stays_when_gateway_and_engine_end(tmp_path, prompt):
    probe = Probe(permission="?")
    async with (
        open_stage(tmp_path, HELD, probe) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
    ):
        session_id = await begun(client, stage)
        await prompt(client, session_id)
        await wait_all_tasks_blocked()
        (waiting,) = await stage.engine.session(session_id).interactions()
    assert ends(stage.tape(session_id)) == [("paused", "interaction")]
    async with open_stage(tmp_path, replies(), session_id=session_id) as stage:
        (still,) = await stage.session.interactions()
        assert isinstance(still, ActionBlock)
        assert still.id == waiting.id
    assert probe.calls == []
