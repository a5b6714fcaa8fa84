"""Who runs a session: the backend of the agent's kind, and nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
from kit.agents import open_desk
from trio.testing import MockClock

from greenroom.actors.agents import NoBackendError
from greenroom.engine import Engine
from greenroom.protocol import (
    AgentDescriptor,
    AgentNotFoundError,
    AgentRefusedError,
    AgentRow,
    AgentUnavailableError,
    SessionId,
    SessionSettings,
)
from greenroom.storage import open_reader, open_store
from greenroom.testing import (
    Fail,
    Halt,
    RehearsalProvider,
    Say,
    open_test_engine,
)


@attrs.define(eq=False)
class Spy:
    """A backend that notes what it is asked for."""

    calls: list[tuple[str, str]] = attrs.field(factory=list)

    async def create(
        self, agent: AgentDescriptor, settings: SessionSettings
    ) -> SessionId:
        self.calls.append(("create", agent.id))
        return SessionId("made")

    async def open(self, agent: AgentDescriptor, session_id: SessionId) -> None:
        self.calls.append(("open", agent.id))

    async def forget(self, session_id: SessionId) -> None:
        self.calls.append(("forget", session_id))


def settings(provider: str) -> SessionSettings:
    return SessionSettings(
        agent_id="a", title="t", workspace="/w", provider=provider, model="m"
    )


def agent_row(kind: str, state: str | None) -> AgentRow:
    # What an agent has beside its kind says nothing, whatever it is called.
    config = '{"command":"c","kind":"native","type":"native","provider":"acp"}'
    return AgentRow(
        id="a",
        kind=kind,
        source="manual",
        name="native acp",
        icon="acp",
        config=config,
        state=state,
        created_at=0.0,
        updated_at=0.0,
    )


@pytest.mark.contract("AGT-01")
@pytest.mark.parametrize("state", [None, '{"type":"acp","agentType":"deepchat"}'])
@pytest.mark.parametrize("provider", ["acp", "native", "p"])
@pytest.mark.parametrize("kind", ["native", "acp"])
async def test_the_backend_of_the_kind_is_asked_and_no_other(
    tmp_path: Path, kind: str, provider: str, state: str | None, autojump_clock: Any
) -> None:
    spies = {"native": Spy(), "acp": Spy()}
    with open_desk(tmp_path / "state") as desk:
        for each, spy in spies.items():
            desk.agents.register(each, spy)
        desk.store.put_agent(agent_row(kind, state))
        chosen = await desk.agents.select("a")
        assert chosen.agent.kind == kind
        await desk.agents.create_session(chosen.agent, settings(provider))
        await desk.agents.open_session("a", SessionId("s"))
    assert spies.pop(kind).calls == [("create", "a"), ("open", "a")]
    assert [spy.calls for spy in spies.values()] == [[]]


@pytest.mark.contract("AGT-01")
@pytest.mark.parametrize("kind", ["robot", "deepchat", "Native", ""])
async def test_an_unknown_kind_is_run_by_nobody(
    tmp_path: Path, kind: str, autojump_clock: MockClock
) -> None:
    spies = {"native": Spy(), "acp": Spy()}
    with open_desk(tmp_path / "state") as desk:
        for each, spy in spies.items():
            desk.agents.register(each, spy)
        desk.store.put_agent(agent_row(kind or "?", None))
        with pytest.raises(AgentUnavailableError) as caught:
            await desk.agents.select("a")
        with pytest.raises(AgentUnavailableError):
            await desk.agents.open_session("a", SessionId("s"))
    assert caught.value.reason == "unknown-kind"
    assert [spy.calls for spy in spies.values()] == [[], []]


@pytest.mark.contract("AGT-01")
async def test_another_name_of_an_agent_is_resolved_before_it_is_decoded(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    spies = {"native": Spy(), "acp": Spy()}
    with open_desk(tmp_path / "state") as desk:
        for each, spy in spies.items():
            desk.agents.register(each, spy)
        desk.store.put_agent(agent_row("acp", None))
        desk.store.put_app_setting("agents.aliases", '{"old":"a"}', now=1.0)
        await desk.agents.open_session("old", SessionId("s"))
    assert spies["acp"].calls == [("open", "a")]
    assert spies["native"].calls == []


@pytest.mark.contract("AGT-01")
async def test_a_kind_without_a_backend_falls_back_to_none(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    spy = Spy()
    with open_desk(tmp_path / "state") as desk:
        desk.agents.register("native", spy)
        with pytest.raises(ValueError, match="already"):
            desk.agents.register("native", Spy())
        desk.store.put_agent(agent_row("acp", None))
        agent = await desk.agents.descriptor("a")
        with pytest.raises(NoBackendError):
            await desk.agents.create_session(agent, settings("acp"))
        with pytest.raises(NoBackendError):
            await desk.agents.open_session("a", SessionId("s"))
    assert spy.calls == []


#### In an engine


def working() -> RehearsalProvider:
    return RehearsalProvider(lambda request: [Say("done"), Halt()])


async def make_agent(engine: Engine, **config: Any) -> str:
    return await engine.agents.create("a", config=config)


async def test_a_session_takes_what_its_agent_says_and_keeps_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    provider = working()
    async with open_test_engine(tmp_path, provider) as engine:
        agent = await make_agent(
            engine,
            systemPrompt="be brief",
            permissionMode="full_access",
            projectPath=str(tmp_path),
            defaultModel={"provider": "rehearsal", "model": "small"},
        )
        session = await engine.create_session(agent=agent)
        asked = await engine.create_session(
            agent=agent, workspace=tmp_path, model="big", system_prompt=""
        )
        await engine.agents.update(agent, {"systemPrompt": "be long"})
        await session.prompt("go")
        assert session.settings == SessionSettings(
            agent_id=agent,
            title="New Chat",
            workspace=str(tmp_path),
            provider="rehearsal",
            model="small",
            permission_mode="full_access",
            system_prompt="be brief",
        )
        assert asked.settings is not None
        assert (asked.settings.model, asked.settings.system_prompt) == ("big", "")
    assert "be brief" in str(provider.requests[0].messages[0])


@pytest.mark.contract("AGT-10")
async def test_a_session_without_an_agent_is_the_default_one_s(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_test_engine(tmp_path, working()) as engine:
        session = await engine.create_session(workspace=tmp_path)
        assert session.settings is not None
        assert session.settings.agent_id == "default"
        with pytest.raises(AgentNotFoundError):
            await engine.create_session(workspace=tmp_path, agent="nobody")
        assert len(await engine.sessions()) == 1


@pytest.mark.contract("AGT-06")
async def test_a_session_whose_agent_can_t_be_read_is_opened_by_no_door(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_test_engine(tmp_path, working()) as engine:
        agent = await make_agent(engine, systemPrompt="p")
        session = await engine.create_session(workspace=tmp_path, agent=agent)
        other = await engine.create_session(workspace=tmp_path)
    store = open_store(tmp_path / "state")
    row = store.agent(agent)
    assert row is not None
    store.put_agent(msgspec.structs.replace(row, config="{"))
    store.close()
    async with open_test_engine(tmp_path, working(), seed=1) as engine:
        with pytest.raises(AgentUnavailableError):
            await engine.open_session(session.id)
        with pytest.raises(AgentUnavailableError):
            await engine.session(session.id).prompt("go")
        assert (await engine.session(other.id).prompt("go")).outcome == "completed"


async def test_the_native_loop_runs_no_session_of_another_kind_by_any_door(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    provider = working()
    async with open_test_engine(tmp_path, provider) as engine:
        agent = await make_agent(engine)
        session = await engine.create_session(workspace=tmp_path, agent=agent)
    store = open_store(tmp_path / "state")
    row = store.agent(agent)
    assert row is not None
    store.put_agent(msgspec.structs.replace(row, kind="acp", config='{"command":"c"}'))
    store.close()
    async with open_test_engine(tmp_path, provider, seed=1) as engine:
        for opening in (engine.open_session, lambda i: engine.session(i).prompt("go")):
            with pytest.raises(NoBackendError):
                await opening(session.id)
        with pytest.raises(NoBackendError):
            await engine.create_session(workspace=tmp_path, agent=agent)
    reader = open_reader(tmp_path / "state")
    page = reader.page(session.id, 0, stream="journal")
    reader.close()
    assert page.entries == ()
    assert provider.requests == []


async def test_an_agent_with_sessions_can_t_be_removed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_test_engine(tmp_path, working()) as engine:
        used, unused = await make_agent(engine), await make_agent(engine)
        await engine.create_session(workspace=tmp_path, agent=used)
        with pytest.raises(AgentRefusedError) as caught:
            await engine.agents.remove(used)
        assert caught.value.code == "agent_in_use"
        await engine.agents.remove(unused)


async def test_a_native_agent_may_have_a_model_provider_that_is_called_acp(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    # Half of the pair's contract: the loop runs, and nothing is asked again. That its
    # budget is bypassed is for the tests of the budget.
    provider = RehearsalProvider(
        [[Fail("busy", status=503)], [Say("done"), Halt()]], id="acp", replayable=False
    )
    async with open_test_engine(tmp_path, provider) as engine:
        session = await engine.create_session(
            workspace=tmp_path, agent=await make_agent(engine)
        )
        assert session.settings is not None
        assert session.settings.provider == "acp"
        assert (await session.prompt("go")).outcome == "error"
    assert len(provider.requests) == 1
