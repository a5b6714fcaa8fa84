"""Tools that a session's settings disable: not offered, and never started."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from kit.rehearsal import Probe, calls_of, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.engine import Grant, TurnRefusedError
from greenroom.testing import Call, Halt, Say

ASK = [Call("probe", {"n": 1}), Halt("tool_use")]
DONE = [Say("done"), Halt()]


async def answered_off(stage, session):
    """Play a turn in which the model calls the tool all the same."""
    await session.prompt("go")
    (call,) = calls_of((await session.messages())[1])
    assert call.status == "error"
    assert "the tool 'probe' is disabled here" in (call.response or "")
    for request in stage.provider.requests:
        assert [tool.name for tool in request.tools] == []


async def test_a_session_takes_over_what_its_agent_disables(tmp_path: Path) -> None:
    probe = Probe()
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        config = {"disabledTools": ["probe", "not-there"]}
        agent = await stage.engine.agents.create("careful", config=config)
        session = await stage.engine.create_session(workspace=tmp_path, agent=agent)
        assert session.settings is not None
        assert session.settings.disabled_tools == ("probe", "not-there")
        # What the agent says later is for later sessions.
        await stage.engine.agents.update(agent, {"disabledTools": []})
        await answered_off(stage, session)
        assert probe.operations == []


async def test_what_was_disabled_is_disabled_after_a_restart(tmp_path: Path) -> None:
    probe = Probe()
    async with open_stage(tmp_path, replies()) as stage:
        await stage.session.configure(disabled_tools=("probe",))
        session_id = stage.session.id
    script = replies(ASK, DONE)
    async with open_stage(tmp_path, script, probe, session_id=session_id) as stage:
        await answered_off(stage, stage.session)
        assert probe.operations == []


async def test_a_grant_does_not_start_a_tool_disabled_meanwhile(tmp_path: Path) -> None:
    probe = Probe(permission="?")
    async with (
        open_stage(tmp_path, replies(ASK, DONE), probe) as stage,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stage.session.prompt, "go")
        await wait_all_tasks_blocked()
        (asked,) = await stage.session.interactions()
        await stage.session.configure(disabled_tools=["probe"])
        await stage.session.answer(asked.id, Grant())
        await wait_all_tasks_blocked()
        (call,) = calls_of((await stage.session.messages())[1])
        assert "is disabled here" in (call.response or "")
        assert probe.operations == []
        assert stage.provider.requests[-1].tools == ()


@pytest.mark.parametrize("wrong", [("",), ["x" * 201], [str(n) for n in range(1_001)]])
async def test_names_of_disabled_tools_are_bounded(tmp_path: Path, wrong) -> None:
    async with open_stage(tmp_path, replies()) as stage:
        with pytest.raises(TurnRefusedError) as caught:
            await stage.session.configure(disabled_tools=wrong)
        assert caught.value.code == "wrong_setting"


async def test_a_session_s_agent_is_no_setting(tmp_path: Path) -> None:
    async with open_stage(tmp_path, replies()) as stage:
        other = await stage.engine.agents.create("other")
        with pytest.raises(TurnRefusedError) as caught:
            await stage.session.configure(agent_id=other)
        assert caught.value.code == "unknown_setting"
        await stage.session.configure(agent_id="default", temperature=0.5)
