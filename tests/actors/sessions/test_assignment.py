"""What a session has of its agent: the id, and names of Skills that it selected."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest
from kit.rehearsal import Probe, open_stage, replies
from kit.skills import package

from greenroom.protocol import SessionSettings
from greenroom.testing import Call, Halt, Say

ASK: Final = [Call("probe", {"n": 1}), Halt("tool_use")]
DONE: Final = [Say("done"), Halt()]
BODY: Final = "Skill body: fold every page."

CONFIG: Final[dict[str, Any]] = {
    "assistantModel": {"provider": "p1", "model": "only-the-agents-assistant"},
    "visionModel": {"provider": "p1", "model": "only-the-agents-eyes"},
    "imageModel": {"provider": "p1", "model": "only-the-agents-pencil"},
    "enabledMcpServerIds": ["only-the-agents-server"],
    "autoCompactionTriggerThreshold": 65,
    "autoCompactionRetainRecentPairs": 7,
    "memoryExtractionModel": {"provider": "p1", "model": "only-the-agents-memory"},
    "memoryInjectionTokenBudget": 4711,
}
"""What an agent has beside what a session's own settings begin with."""

SESSION_TABLES: Final = {
    "session": {"id", "name", "head", "token", "owner", "indexed"},
    "session_info": {
        "session",
        "name",
        "created_at",
        "updated_at",
        "settings",
        "plan",
        "messages",
        "open",
        "input_tokens",
        "output_tokens",
        "archived_at",
        "agent",
        "title",
    },
    "skill_selection": {"session", "names"},
    "binding": {"client", "session", "member", "bound_at"},
}
"""Every table with a row for each session, and its columns."""

OWN_SETTINGS: Final = {
    "agent_id",
    "title",
    "workspace",
    "provider",
    "model",
    "permission_mode",
    "system_prompt",
    "max_rounds",
    "max_output_tokens",
    "context_length",
    "temperature",
    "top_p",
    "reasoning_effort",
    "verbosity",
    "permission_seconds",
    "question_seconds",
    "turn_budget",
    "session_budget",
    "disabled_tools",
}
"""What a session decides for itself, whatever its agent says later."""


def rows_of(store: Any, session_id: str) -> dict[str, list[str]]:
    """Return every row of the session in the tables that have one for each."""
    execute = store.connection.execute
    number = execute("SELECT id FROM session WHERE name = ?", (session_id,)).get
    found = {}
    for table in SESSION_TABLES:
        rows = execute(f"SELECT * FROM {table}").fetchall()
        found[table] = [repr(r) for r in rows if {number, session_id} & {*r}]
    return found


@pytest.mark.contract("SES-02")
async def test_no_row_of_a_session_has_its_agents_config_or_a_skills_body(tmp_path):
    async with open_stage(tmp_path, replies(ASK, DONE), Probe()) as stage:
        engine = stage.engine
        agent = await engine.agents.create("theirs", config=CONFIG)
        await engine.skills.add(package(tmp_path / "sources", "pdf", BODY))
        await engine.skills.add(package(tmp_path / "sources", "csv", BODY))
        for name in ("pdf", "csv"):
            await engine.skills.bind(agent, name)
        session = await engine.create_session(workspace=tmp_path, agent=agent)
        await engine.skills.select(session.id, ["pdf"])
        await session.prompt("go")
        assert BODY in str(stage.provider.requests[0].messages)
        store: Any = engine._world.readers._reader  # type: ignore[attr-defined]
        for table, columns in SESSION_TABLES.items():
            info = store.connection.execute(f"PRAGMA table_info({table})").fetchall()
            assert {column[1] for column in info} == columns
        found = rows_of(store, session.id)
        assert len(found["session_info"]) == len(found["skill_selection"]) == 1
        text = str(found)
        assert agent in text
        for value in ("only-the-agents", "4711", BODY, "csv", "retain", "threshold"):
            assert value.lower() not in text.lower()
        assert store.skill_selection(session.id) == ("pdf",)
        # What the agent says from now on is in force, and no row had to follow.
        await engine.agents.update(agent, {"autoCompactionRetainRecentPairs": 3})
        assert rows_of(store, session.id) == found


@pytest.mark.contract("SES-02")
def test_the_settings_of_a_session_are_its_own():
    names = {field.name for field in msgspec.structs.fields(SessionSettings)}
    assert names == OWN_SETTINGS
