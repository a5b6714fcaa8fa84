"""Agents of the older system stand alone after any number of failed starts."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from kit.agents import Desk, open_desk
from kit.legacy import legacy_file
from trio.testing import MockClock

from greenroom.protocol import (
    FAIL_CLOSED,
    AgentConfig,
    AgentRefusedError,
    ModelChoice,
    StorageError,
    resolve,
    resolve_merged,
)
from greenroom.storage import AppSettings
from greenroom.storage.legacy import STEPS, LegacyError, is_due

BUILTIN = {
    "systemPrompt": "b",
    "permissionMode": "full_access",
    "enabledMcpServerIds": [],
    "enabledSkillNames": ["s1"],
    "defaultModelPreset": {"providerId": "p", "modelId": "m"},
    "autoCompactionTriggerThreshold": 42,
    "autoCompactionEnabled": False,
    "disabledAgentTools": [" shell ", "shell", 3, ""],
}
GOOD = {"systemPrompt": "own", "enabledSkillNames": None, "extra": 1}
ROWS: list[dict[str, Any]] = [
    {"id": "deepchat", "source": "builtin", "config": BUILTIN},
    {"id": "deepchat-good", "config": GOOD},
    {"id": "deepchat-null"},
    {"id": "deepchat-bad", "config": "{broken", "state_json": '{"k":1}'},
    {"id": "acp-m", "agent_type": "acp", "config": {"command": "c"}},
    {"id": "acp-old", "agent_type": "acp", "source": "builtin"},
]
PIECES = 1 + 1 + len(STEPS)
"""Of a start and an import: the builtin agent, the note, the steps."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return legacy_file(tmp_path / "old.db", *ROWS)


async def undisturbed(tmp_path: Path, old: Path) -> tuple[Any, ...]:
    with open_desk(tmp_path / "undisturbed") as desk:
        await take_over(desk, old)
        return desk.everything()


async def take_over(desk: Desk, old: Path) -> None:
    # A new state folder is migrated at its first start, from nothing.
    await desk.agents.start()
    desk.writer.count = 0
    await desk.agents.import_legacy(old)


@pytest.mark.contract("AGT-19", "AGT-20")
async def test_what_was_in_force_is_in_force_from_each_row_alone(
    tmp_path: Path, old: Path, autojump_clock: MockClock, caplog: Any
) -> None:
    builtin = json.dumps(
        {
            "systemPrompt": "b",
            "permissionMode": "full_access",
            "enabledMcpServerIds": [],
            "enabledSkillNames": ["s1"],
            "defaultModel": {"provider": "p", "model": "m"},
            "autoCompactionTriggerThreshold": 42,
            "autoCompactionEnabled": False,
            "disabledTools": ["shell"],
        }
    )
    before = {
        "deepchat-good": resolve_merged(builtin, json.dumps(GOOD)).config,
        "deepchat-null": resolve_merged(builtin, None).config,
        "deepchat-bad": FAIL_CLOSED,
    }
    with open_desk(tmp_path / "state") as desk:
        await take_over(desk, old)
        made = desk.agents.migrated
        rows = {row.id: row for row in desk.store.agents()}
        alone = {name: resolve(rows[name].config) for name in before}
        asked = {name: await desk.agents.config(name) for name in before}
    assert alone == asked == before
    assert before["deepchat-null"].permission_mode == "full_access"
    assert sorted(made.ids) == sorted(before)
    assert made.recovered == ("deepchat-bad",)
    assert made.skills == {
        "deepchat-good": None,
        "deepchat-null": ("s1",),
        "deepchat-bad": (),
    }
    evidence = json.loads(rows["deepchat-bad"].state or "")
    assert evidence["k"] == 1
    assert evidence["recovered"]["config"] == "{broken"
    assert json.loads(rows["deepchat-good"].config or "")["extra"] == 1
    (warning,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "deepchat-bad" in warning.getMessage()


@pytest.mark.contract("AGT-20")
@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_materialisation_that_fails_half_way_changes_no_row(
    tmp_path: Path, old: Path, number: int, autojump_clock: MockClock
) -> None:
    class Half:
        """Fails at one of the rows that the step writes."""

        def __init__(self, inner: Any) -> None:
            self.inner, self.puts = inner, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def put_agent(self, row: Any) -> None:
            self.puts += 1
            if self.puts == number:
                raise StorageError("half way")
            self.inner.put_agent(row)

    with open_desk(tmp_path / "state") as desk:
        await desk.agents.start()
        await begin(desk, old, until="materialise")
        rows = desk.store.agents()
        desk.writer.wrap = Half
        await desk.agents.start()
        assert desk.store.agents() == rows
        assert is_due(desk.store)
        desk.writer.wrap = lambda store: store
        await desk.agents.start()
        assert not is_due(desk.store)
        assert desk.everything() == await undisturbed(tmp_path, old)


async def begin(desk: Desk, old: Path, *, until: str) -> None:
    """Import *old*, and fail in front of the step *until*."""
    names = [step.name for step in STEPS]
    desk.writer.count, desk.writer.before = 0, 2 + names.index(until)
    with pytest.raises(StorageError):
        await desk.agents.import_legacy(old)
    desk.writer.before = 0


@pytest.mark.contract("AGT-19")
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("piece", range(1, 2 + len(STEPS)))
async def test_an_import_that_fails_at_any_piece_ends_as_if_it_had_not(
    tmp_path: Path, old: Path, piece: int, moment: str, autojump_clock: MockClock
) -> None:
    state = tmp_path / "state"
    with open_desk(state) as desk:
        await desk.agents.start()
        desk.writer.count = 0
        setattr(desk.writer, moment, piece)
        with pytest.raises(StorageError):
            await desk.agents.import_legacy(old)
    with open_desk(state) as desk:
        await desk.agents.start()
        if (piece, moment) == (1, "before"):
            assert len(desk.store.agents()) == 1, "nothing was noted, nothing is done"
            await desk.agents.import_legacy(old)
        assert desk.everything() == await undisturbed(tmp_path, old)


@pytest.mark.contract("AGT-19")
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("piece", range(2, 2 + len(STEPS)))
async def test_a_start_that_fails_at_any_step_warns_and_the_next_one_goes_on(
    tmp_path: Path,
    old: Path,
    piece: int,
    moment: str,
    autojump_clock: MockClock,
    caplog: Any,
) -> None:
    state, begun = tmp_path / "state", []
    with open_desk(state) as desk:
        await desk.agents.start()
        await begin(desk, old, until=STEPS[0].name)
    with open_desk(state, **{moment: piece}) as desk:
        caplog.clear()
        await desk.agents.start(lambda: begun.append("registry"))
        assert "next start tries again" in caplog.text
        is_written = (STEPS[piece - 2].name, moment) == ("write version", "after")
        is_written |= STEPS[piece - 2].name == "convert the MCP list"
        assert (desk.store.app_setting("agents.version") == "3") == is_written
        assert begun == ["registry"], "the registry begins whatever failed"
    with open_desk(state) as desk:
        await desk.agents.start()
        assert desk.everything() == await undisturbed(tmp_path, old)
        before = desk.everything()
        await desk.agents.start()
        assert desk.everything() == before


@pytest.mark.contract("AGT-19")
async def test_the_steps_are_done_in_their_order_and_the_registry_last(
    tmp_path: Path, old: Path, autojump_clock: MockClock, caplog: Any
) -> None:
    with open_desk(tmp_path / "state") as desk:
        await desk.agents.start()
        await begin(desk, old, until=STEPS[0].name)
        caplog.clear()
        caplog.set_level(logging.DEBUG, "greenroom.agents")
        trace: list[str] = []
        await desk.agents.start(
            lambda: trace.extend([record.getMessage() for record in caplog.records])
        )
    assert [line.partition(": ")[2] for line in trace if ": " in line] == [
        "take over",
        "clean tools",
        "reconcile selections",
        "clean up deprecated",
        "materialise",
        "move settings",
        "write version",
        "convert the MCP list",
    ]


@pytest.mark.contract("AGT-21")
@pytest.mark.parametrize("step", ["move settings", "write version"])
async def test_the_old_rule_holds_until_the_version_is_written(
    tmp_path: Path, old: Path, step: str, autojump_clock: MockClock
) -> None:
    state = tmp_path / "state"
    with open_desk(state) as desk:
        await desk.agents.start()
        await begin(desk, old, until=step)
        made = await desk.agents.create("made meanwhile")
        config = await desk.agents.config(made)
        assert config is not None
        assert config.system_prompt == "b", "the builtin agent lies under it"
    with open_desk(state) as desk:
        await desk.agents.start()
        assert desk.agents.migrated.recovered == ("deepchat-bad",), "done again"
        assert (await desk.agents.config(made)) == config, "as it was in force"
        await desk.agents.update("default", {"systemPrompt": "another"})
        assert (await desk.agents.config(made)) == config
        fresh = await desk.agents.create("made after")
        assert (await desk.agents.config(fresh)) == AgentConfig()
        assert (await desk.agents.config("deepchat-bad")) == FAIL_CLOSED


@pytest.mark.contract("AGT-21")
async def test_what_the_builtin_agent_said_for_all_becomes_the_application_s(
    tmp_path: Path, old: Path, autojump_clock: MockClock
) -> None:
    with open_desk(tmp_path / "state") as desk:
        await desk.agents.start()
        await desk.agents.change_app_settings(autoCompactionTriggerThreshold=90)
        await desk.agents.import_legacy(old)
        assert await desk.agents.app_settings() == AppSettings(
            default_model=ModelChoice("p", "m"),
            auto_compaction_enabled=False,
            auto_compaction_trigger_threshold=90,
        ), "what the user has set stays"


async def test_a_selection_of_the_old_builtin_agent_is_of_ours(
    tmp_path: Path, old: Path, autojump_clock: MockClock
) -> None:
    with open_desk(tmp_path / "state") as desk:
        await desk.agents.start()
        desk.store.put_app_setting("app.defaultAgent", '"deepchat"', now=1.0)
        await desk.agents.import_legacy(old)
        assert (await desk.agents.app_settings()).default_agent == "default"
        assert (await desk.agents.descriptor("deepchat")).id == "default"
        assert desk.store.agent("acp-old") is None, "nothing can run it, none uses it"


async def test_agents_that_stood_alone_already_are_taken_as_they_are(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    old = legacy_file(tmp_path / "old.db", *ROWS, version=3)
    with open_desk(tmp_path / "state") as desk:
        await take_over(desk, old)
        assert await desk.agents.config("deepchat-null") == AgentConfig()
        bad = desk.store.agent("deepchat-bad")
    assert bad is not None
    assert bad.config == "{broken"


async def test_an_import_is_done_once_and_changes_no_agent_that_is_there(
    tmp_path: Path, old: Path, autojump_clock: MockClock
) -> None:
    with open_desk(tmp_path / "state") as desk:
        await take_over(desk, old)
        await desk.agents.update("deepchat-good", {"systemPrompt": "changed"})
        after = desk.everything()
        await desk.agents.import_legacy(old)
        assert desk.everything() == after
        other = legacy_file(tmp_path / "other.db", {"id": "x"})
        with pytest.raises(AgentRefusedError) as caught:
            await desk.agents.import_legacy(other)
        assert caught.value.code == "agents_exist"
        assert desk.everything() == after


@pytest.mark.parametrize("make", ["an agent", "a changed builtin agent"])
async def test_agents_of_one_s_own_refuse_an_import(
    tmp_path: Path, old: Path, make: str, autojump_clock: MockClock
) -> None:
    with open_desk(tmp_path / "state") as desk:
        await desk.agents.start()
        if make == "an agent":
            await desk.agents.create("mine")
        else:
            await desk.agents.update("default", {"systemPrompt": "mine"})
        with pytest.raises(AgentRefusedError):
            await desk.agents.import_legacy(old)
        with pytest.raises(LegacyError):
            await desk.agents.import_legacy(tmp_path / "nowhere.db")
        assert not is_due(desk.store)


@pytest.mark.contract("AGT-22")
async def test_an_empty_list_of_servers_is_taken_for_all_exactly_once(
    tmp_path: Path, old: Path, autojump_clock: MockClock
) -> None:
    state = tmp_path / "state"
    with open_desk(state) as desk:
        await take_over(desk, old)
        config = await desk.agents.config("default")
        assert config is not None
        assert config.enabled_mcp_server_ids is None
        await desk.agents.update("default", {"enabledMcpServerIds": []})
    with open_desk(state) as desk:
        await desk.agents.start()
        config = await desk.agents.config("default")
        assert config is not None
        assert config.enabled_mcp_server_ids == ()


@pytest.mark.contract("AGT-22")
async def test_that_there_was_nothing_to_take_is_noted_too(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    state = tmp_path / "state"
    for _ in range(2):
        with open_desk(state) as desk:
            await desk.agents.start()
            assert not is_due(desk.store)
            await desk.agents.update("default", {"enabledMcpServerIds": []})
            config = await desk.agents.config("default")
            assert config is not None
            assert config.enabled_mcp_server_ids == ()


@pytest.mark.contract("AGT-22")
@pytest.mark.parametrize("step", ["materialise", "convert the MCP list"])
async def test_an_empty_list_that_a_person_said_is_never_taken_for_another(
    tmp_path: Path, old: Path, step: str, autojump_clock: MockClock
) -> None:
    state = tmp_path / "state"
    with open_desk(state) as desk:
        await desk.agents.start()
        await begin(desk, old, until=step)
        await desk.agents.update("default", {"enabledMcpServerIds": []})
    with open_desk(state) as desk:
        await desk.agents.start()
        config = await desk.agents.config("default")
        assert config is not None
        assert config.enabled_mcp_server_ids == ()
