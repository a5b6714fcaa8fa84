"""The manager: what is listed, what is in force, what may change."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from kit.agents import Desk, open_desk
from trio.testing import MockClock

from greenroom.actors.agents import AgentChanged
from greenroom.actors.kernel import SystemIds
from greenroom.protocol import (
    FAIL_CLOSED,
    MAX_AGENTS,
    NATIVE_PREFIX,
    AgentConfig,
    AgentNotFoundError,
    AgentRefusedError,
    AgentRow,
    AgentUnavailableError,
    ModelChoice,
    delegation_problem,
)
from greenroom.storage import AppSettings, Piece

PERMISSIVE = {
    "permissionMode": "full_access",
    "enabledSkillNames": ["all"],
    "subagents": [{"id": "s", "target": "self"}],
    "systemPrompt": "builtin",
}
SLOT = {"id": "s", "target": "self"}


def spoil(desk: Desk, agent_id: str, config: str) -> None:
    row = desk.store.agent(agent_id)
    assert row is not None
    desk.store.put_agent(msgspec.structs.replace(row, config=config))


def others(desk: Desk, agent_id: str = "default") -> list[AgentRow]:
    return [row for row in desk.store.agents() if row.id != agent_id]


@pytest.mark.contract("AGT-06")
async def test_one_broken_row_is_listed_and_opens_for_nobody(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with open_desk(tmp_path / "state") as desk:
        await desk.agents.start()
        made = await desk.agents.create("good", config={"systemPrompt": "p"})
        bad = await desk.agents.create("bad")
        spoil(desk, bad, "{")
        listed = {entry.id: entry for entry in await desk.agents.list()}
        assert listed.keys() == {"default", made, bad}
        assert listed[bad].config is None
        assert listed[made].config == {"systemPrompt": "p"}
        with pytest.raises(AgentUnavailableError):
            await desk.agents.descriptor(bad)
        with pytest.raises(AgentUnavailableError):
            await desk.agents.select(bad)
        assert (await desk.agents.descriptor(made)).name == "good"


@pytest.mark.contract("AGT-09")
async def test_the_builtin_agent_is_there_enabled_and_protected_at_each_start(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with open_desk(tmp_path / "state") as desk:
        await desk.agents.start()
        row = desk.store.agent("default")
        assert row is not None
        tampered = msgspec.structs.replace(
            row, enabled=False, protected=False, kind="acp", source="manual"
        )
        desk.store.put_agent(tampered)
        await desk.agents.start()
        assert desk.store.agent("default") == row
        desk.store.drop_agent("default")
        await desk.agents.start()
        assert desk.store.agent("default") == row


@pytest.mark.contract("AGT-09")
async def test_the_builtin_agent_can_t_go_and_can_be_reset(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with open_desk(tmp_path / "state") as desk:
        await desk.agents.start()
        fresh = desk.store.agent("default")
        for name in ("a", "b"):
            await desk.agents.create(name, config={"systemPrompt": name})
        before = others(desk)
        await desk.agents.update("default", PERMISSIVE)
        await desk.agents.describe("default", name="mine", icon="i")
        with pytest.raises(AgentRefusedError) as removing:
            await desk.agents.remove("default")
        with pytest.raises(AgentRefusedError) as disabling:
            await desk.agents.describe("default", enabled=False)
        assert removing.value.code == disabling.value.code == "agent_protected"
        await desk.agents.reset("default")
        assert desk.store.agent("default") == fresh
        assert others(desk) == before


@pytest.mark.contract("AGT-10")
async def test_an_unknown_agent_is_never_replaced(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with open_desk(tmp_path / "state") as desk:
        await desk.agents.start()
        assert (await desk.agents.select(None)).agent.id == "default"
        mine = await desk.agents.create("mine")
        await desk.agents.change_app_settings(defaultAgent=mine)
        assert (await desk.agents.select(None)).agent.id == mine
        assert (await desk.agents.select("default")).agent.id == "default"
        for named in ("nobody", ""):
            with pytest.raises(AgentNotFoundError):
                await desk.agents.select(named)
        await desk.agents.remove(mine)
        for named in (None, "nobody", ""):
            with pytest.raises(AgentNotFoundError) as caught:
                await desk.agents.select(named)
            assert caught.value.code == "AGENT_NOT_FOUND"


@pytest.mark.contract("AGT-11")
def test_ids_of_native_agents_have_a_prefix_and_do_not_collide() -> None:
    ids = SystemIds()
    made = {NATIVE_PREFIX + ids.token(6) for _ in range(10_000)}
    assert len(made) == 10_000
    assert all(re.fullmatch(r"native-[A-Za-z0-9_-]{8}", each) for each in made)


@pytest.mark.contract("AGT-11")
async def test_a_new_agent_has_such_an_id_and_another_one_if_it_is_taken(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with open_desk(tmp_path / "one") as desk:
        first = await desk.agents.create("first")
    assert re.fullmatch(r"native-[A-Za-z0-9_-]{8}", first)
    with open_desk(tmp_path / "two") as desk:
        taken = AgentRow(
            id=first,
            kind="native",
            source="manual",
            name="taken",
            created_at=0.0,
            updated_at=0.0,
        )
        desk.store.put_agent(taken)
        other = await desk.agents.create("first")
        assert other != first
        assert desk.store.agent(first) == taken


@pytest.mark.contract("AGT-14", "AGT-08")
async def test_edits_of_the_builtin_agent_change_nobody_else(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    edits: list[dict[str, Any]] = [
        PERMISSIVE,
        {"systemPrompt": None, "disabledTools": ["shell"]},
        {"subagentEnabled": False, "enabledMcpServerIds": []},
    ]
    with open_desk(tmp_path / "state") as desk:
        await desk.agents.start()
        empty = await desk.agents.create("empty")
        said = await desk.agents.create("said", config={"memoryEnabled": True})
        odd = await desk.agents.create("odd")
        spoil(desk, odd, '{"inheritsFrom":"default"}')
        for edit in edits:
            await desk.agents.update("default", edit)
            assert await desk.agents.config(empty) == AgentConfig()
            assert await desk.agents.config(said) == AgentConfig(memory_enabled=True)
            assert await desk.agents.config(odd) == AgentConfig()
            assert await desk.agents.config("nobody") is None


@pytest.mark.contract("AGT-15")
async def test_a_corrupt_agent_takes_nothing_from_a_permissive_builtin_one(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with open_desk(tmp_path / "state") as desk:
        await desk.agents.start()
        await desk.agents.update("default", PERMISSIVE)
        bad = await desk.agents.create("bad")
        spoil(desk, bad, '{"subagents":')
        config = await desk.agents.config(bad)
    assert config == FAIL_CLOSED
    assert delegation_problem(FAIL_CLOSED) == "no_valid_slots"


@pytest.mark.contract("AGT-16")
async def test_an_edit_of_the_builtin_agent_is_news_of_that_agent_alone(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    written: list[str] = []

    class Watched:
        """Notes which agents and settings are written."""

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def put_agent(self, row: AgentRow) -> None:
            written.append(row.id)
            self.inner.put_agent(row)

        def put_app_setting(self, key: str, *args: Any, **kwargs: Any) -> None:
            written.append(f"setting {key}")
            self.inner.put_app_setting(key, *args, **kwargs)

    model = {"provider": "p", "model": "m"}
    values: dict[str, Any] = {"defaultModel": model, "assistantModel": model}
    values |= {"visionModel": model, "imageModel": model}
    values |= {"memoryEmbedding": model, "projectPath": "/w"}
    values |= {"memoryExtractionModel": model, "systemPrompt": "x"}
    values |= {"permissionMode": "default", "disabledTools": ["t"]}
    values |= {"enabledSkillNames": [], "enabledMcpServerIds": []}
    values |= {"subagents": [SLOT], "subagentEnabled": True, "memoryEnabled": True}
    values |= {"autoCompactionEnabled": False, "memoryRetrieval": {"k": 1}}
    values |= {"autoCompactionTriggerThreshold": 5, "personaEvolutionEnabled": True}
    values |= {"autoCompactionRetainRecentPairs": 9}
    values |= {"memoryInjectionTokenBudget": 100}
    assert values.keys() == {f.encode_name for f in msgspec.structs.fields(AgentConfig)}
    with open_desk(tmp_path / "state") as desk:
        await desk.agents.start()
        for name in ("a", "b"):
            await desk.agents.create(name, config={"systemPrompt": name})
        before, app = others(desk), await desk.agents.app_settings()
        desk.writer.wrap = Watched
        with desk.agents.changes() as news:
            for key, value in values.items():
                await desk.agents.update("default", {key: value})
            heard = [news.receive_nowait() for _ in values]
        assert others(desk) == before
        assert await desk.agents.app_settings() == app
    assert heard == [AgentChanged("default", "updated")] * len(values)
    assert written == ["default"] * len(values)


@pytest.mark.contract("AGT-17")
async def test_the_application_s_default_model_is_not_the_builtin_agent_s(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with open_desk(tmp_path / "state") as desk:
        agents = desk.agents
        await agents.start()
        ours, theirs = ModelChoice("p", "ours"), ModelChoice("p", "theirs")
        await agents.update(
            "default",
            {
                "defaultModel": msgspec.to_builtins(ours),
                "autoCompactionTriggerThreshold": 50,
            },
        )
        app = AppSettings(
            default_model=theirs,
            auto_compaction_enabled=False,
            auto_compaction_trigger_threshold=60,
        )
        await agents.change_app_settings(**msgspec.to_builtins(app))
        config = await agents.config("default")
        assert config is not None
        assert (config.default_model, config.auto_compaction_trigger_threshold) == (
            ours,
            50,
        )
        assert config.auto_compaction_enabled
        await agents.update("default", {"defaultModel": None})
        assert await agents.app_settings() == app
        await agents.change_app_settings(defaultModel=None)
        assert await agents.config("default") == AgentConfig(
            auto_compaction_trigger_threshold=50
        )


@pytest.mark.contract("AGT-18")
@pytest.mark.parametrize(
    "patch",
    [{"subagentEnabled": True, "subagents": []}, {"nope": 1}, {"systemPrompt": 1}],
)
async def test_a_refused_patch_leaves_the_row_to_the_byte(
    tmp_path: Path, patch: dict[str, Any], autojump_clock: MockClock
) -> None:
    with open_desk(tmp_path / "state") as desk:
        made = await desk.agents.create("a")
        spoil(desk, made, '{ "later" : 1,  "systemPrompt":"s" }')
        before = desk.everything()
        with desk.agents.changes() as news:
            with pytest.raises(AgentRefusedError):
                await desk.agents.update(made, patch)
            with pytest.raises(trio.WouldBlock):
                news.receive_nowait()
        assert desk.everything() == before
        await desk.agents.update(made, {"subagentEnabled": True, "subagents": [SLOT]})
        row = desk.store.agent(made)
        assert row is not None
        assert json.loads(row.config or "") == {
            "later": 1,
            "systemPrompt": "s",
            "subagentEnabled": True,
            "subagents": [SLOT],
        }


async def test_an_agent_is_described_disabled_and_removed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with open_desk(tmp_path / "state") as desk:
        await desk.agents.start()
        made = await desk.agents.create(" a ", description=" d ")
        with desk.agents.changes() as news:
            await desk.agents.describe(made, name=" b ", enabled=False)
            entry = (await desk.agents.list())[1]
            assert (entry.name, entry.description, entry.enabled) == ("b", "d", False)
            with pytest.raises(AgentRefusedError) as caught:
                await desk.agents.select(made)
            assert caught.value.code == "agent_disabled"
            await desk.agents.remove(made)
            assert [entry.id for entry in await desk.agents.list()] == ["default"]
            assert [news.receive_nowait().change for _ in range(2)] == [
                "updated",
                "removed",
            ]
        for call in (desk.agents.remove, desk.agents.reset):
            with pytest.raises(AgentNotFoundError):
                await call(made)


async def test_an_agent_with_a_process_has_no_configuration_here(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with open_desk(tmp_path / "state") as desk:
        made = await desk.agents.create_acp("x", "cmd", ["a"], {"K": "V"})
        assert await desk.agents.config(made) is None
        with pytest.raises(AgentRefusedError) as caught:
            await desk.agents.update(made, {"systemPrompt": "x"})
        assert caught.value.code == "not_native"
        with pytest.raises(AgentUnavailableError):
            await desk.agents.create_acp("y", "  ")
        assert len(desk.store.agents()) == 1


async def test_one_agent_too_many_is_refused(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    def fill(store: Any) -> None:
        for number in range(MAX_AGENTS):
            store.put_agent(
                AgentRow(
                    id=f"a{number}",
                    kind="native",
                    source="manual",
                    name="n",
                    created_at=0.0,
                    updated_at=0.0,
                )
            )

    with open_desk(tmp_path / "state") as desk:
        await desk.writer.submit(Piece(fill))
        with pytest.raises(AgentRefusedError) as caught:
            await desk.agents.create("one more")
    assert caught.value.code == "too_many_agents"


async def test_a_watcher_that_is_far_behind_is_let_go_and_holds_nobody_up(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with open_desk(tmp_path / "state") as desk:
        made = await desk.agents.create("a")
        with desk.agents.changes() as slow, desk.agents.changes() as quick:
            for _ in range(300):
                await desk.agents.describe(made, icon="i")
                quick.receive_nowait()
            assert len([news async for news in slow]) == 256
            await desk.agents.describe(made, icon="j")
            assert quick.receive_nowait() == AgentChanged(made, "updated")
