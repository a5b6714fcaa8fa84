"""Settings of a session: kept, in force from the next run on, and nobody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from kit.rehearsal import Probe, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.tools import ToolResult
from greenroom.protocol import ModelRequest, SystemMessage
from greenroom.testing import Call, Halt, Say

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]

GENERATION: dict[str, Any] = {
    "system_prompt": "be brief",
    "temperature": 0.25,
    "top_p": 0.5,
    "context_length": 50_000,
    "max_output_tokens": 321,
    "reasoning_effort": "low",
    "verbosity": "high",
    "model": "another-model",
    "permission_mode": "full_access",
}


def carried(request: ModelRequest) -> dict[str, Any]:
    first = request.messages[0]
    return {
        "system_prompt": first.text if isinstance(first, SystemMessage) else "",
        "temperature": request.temperature,
        "top_p": request.top_p,
        "max_output_tokens": request.max_output_tokens,
        "reasoning_effort": request.reasoning_effort,
        "verbosity": request.verbosity,
        "model": request.model,
    }


@pytest.mark.contract("SES-13")
async def test_what_was_set_is_in_the_first_request_after_a_restart(
    tmp_path: Path,
) -> None:
    async with open_stage(tmp_path, replies(DONE)) as stage:
        before = stage.session.settings
        assert before is not None
        set_one = await stage.engine.create_session(workspace=tmp_path)
        await set_one.configure(**GENERATION)
        session_id, other_id = set_one.id, stage.session.id
    script = replies(DONE, DONE)
    async with open_stage(tmp_path, script, session_id=session_id) as stage:
        settings = stage.session.settings
        assert settings is not None
        for name, value in GENERATION.items():
            assert getattr(settings, name) == value
        await stage.session.prompt("go")
        request = stage.provider.requests[-1]
        told = carried(request)
        assert GENERATION["system_prompt"] in told.pop("system_prompt")
        assert told == {name: GENERATION[name] for name in told}
        views = [e.fact for e in stage.tape() if e.fact.name == "view/assembled"]
        assert '"contextLength":50000' in views[-1].payload
        other = await stage.engine.open_session(other_id)
        assert other.settings == before
        await other.prompt("go")
        request = stage.provider.requests[-1]
        assert (request.temperature, request.model) == (None, before.model)


@pytest.mark.contract("SES-14")
async def test_a_run_keeps_what_it_began_with_and_the_next_one_has_the_new(
    tmp_path: Path,
) -> None:
    gate = trio.Event()

    async def block(_: Any, operation: Any) -> ToolResult:
        await operation.dispatch()
        await gate.wait()
        return ToolResult("ok")

    script, probe = replies(ASK, ASK, DONE, ASK), Probe(permission="?", body=block)
    async with open_stage(
        tmp_path, script, probe, permission_mode="full_access"
    ) as stage:
        old = stage.session.settings
        assert old is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            await stage.session.configure(model="new", permission_mode="default")
            assert stage.session.settings is not None
            assert stage.session.settings.model == "new"
            gate.set()
        # The gate of its second call did not ask, though the session asks by now.
        assert len(probe.operations) == 2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "again")
            await wait_all_tasks_blocked()
            assert len(await stage.session.interactions()) == 1
            await stage.session.cancel()
        models = [request.model for request in stage.provider.requests]
        assert models == [old.model] * 3 + ["new"]
        assert len(probe.operations) == 2


@pytest.mark.contract("SES-15")
@pytest.mark.parametrize("of_agent", [None, "default", "auto_approve", "full_access"])
@pytest.mark.parametrize("asked", [None, "default", "auto_approve", "full_access"])
async def test_a_new_session_asks_unless_somebody_says_otherwise(
    tmp_path: Path, asked: str | None, of_agent: str | None
) -> None:
    async with open_stage(tmp_path, replies()) as stage:
        config = {} if of_agent is None else {"permissionMode": of_agent}
        agent = await stage.engine.agents.create("a", config=config)
        made = await stage.engine.create_session(
            workspace=tmp_path, agent=agent, permission_mode=asked
        )
        (row,) = await stage.engine.sessions(agent=agent)
        assert row.id == made.id
        assert row.settings.permission_mode == (asked or of_agent or "default")
        # And one that names no agent.
        named = stage.session.settings
        assert named is not None
        assert named.permission_mode == "default"
