"""From a folder of Skills for each agent to global packages with bindings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kit.skills import package

from greenroom.actors.skills import _migration
from greenroom.actors.skills._packages import tree_digest
from greenroom.protocol import CorruptStoreError, SessionId, SkillBinding
from greenroom.testing import RehearsalProvider, open_test_engine

SILENT = RehearsalProvider([])
WRITER, CODER = "native-writer01", "native-coder001"


class Crash(BaseException):
    """The process is gone."""


async def old_world(folder: Path, *, version: int) -> dict[str, SessionId]:
    """Make a folder as the older system left it; return its sessions by agent."""
    skills = folder / "state" / "skills"
    sessions: dict[str, SessionId] = {}
    async with open_test_engine(folder, SILENT) as engine:
        row = (await engine.agents.list())[0]
        assert row.id == "default"
        acp = await engine.agents.create_acp("A", "true")

        def plant(store: Any, now: float) -> None:
            known = store.agent("default")
            for agent in (WRITER, CODER):
                store.put_agent(
                    _with(known, id=agent, source="manual", protected=False)
                )

        await engine.skills._write(plant)
        for agent in ("default", WRITER, CODER):
            made = await engine.create_session(agent=agent, workspace=folder)
            sessions[agent] = made.id
        await engine.skills._write(
            lambda store, _: store.put_skill_selection(sessions[CODER], ["kept"])
        )
    package(skills, "pdf", "The builtin's.", notes="n")
    package(skills, "off")
    scopes = skills / ".agent-scopes"
    package(scopes / WRITER, "pdf", "The builtin's.", notes="n")
    package(scopes / WRITER, "style", "Write well.")
    package(scopes / CODER, "pdf", "The coder's.")
    package(scopes / CODER, "style", "Write well.")
    package(scopes / CODER, "lint")
    package(scopes / acp, "acp-only")
    package(scopes / "gone", "gone-only")
    state: dict[str, Any] = {"version": 1, "disabled": ["off"]}
    if version == 2:
        state = {
            "version": 2,
            "agents": {
                "default": {"disabled": ["off"], "extensions": {"off": {"a": 1}}},
                CODER: {"disabled": ["style"], "extensions": {"pdf": {"b": [2]}}},
                acp: {"disabled": []},
            },
            "selections": {
                sessions["default"]: ["pdf", "off"],
                sessions[WRITER]: ["style", "nowhere"],
                sessions[CODER]: ["pdf", "lint"],
                "orphan": ["pdf"],
            },
        }
    (skills / "state.json").write_text(json.dumps(state))
    return sessions


def _with(row: Any, **changes: Any) -> Any:
    return type(row)(**{n: getattr(row, n) for n in row.__struct_fields__} | changes)


def tree(folder: Path) -> Mapping[str, str]:
    """What is in the folder of Skills: each package and each scope, by content."""
    skills = folder / "state" / "skills"
    names = [n for n in sorted(os.listdir(skills)) if (skills / n).is_dir()]
    return {n: tree_digest(skills / n) for n in names if n != ".incoming"}


async def outcome(folder: Path, sessions: Mapping[str, str]) -> Any:
    async with open_test_engine(folder, SILENT) as engine:
        state = await engine.skills.state()
        selected = await engine.skills._readers.read(lambda r: r.skill_selections())
        found = await engine.skills.packages()
        left = await engine.skills._readers.read(_migration.kept_plan)
    assert left is None
    by_agent = {session: agent for agent, session in sessions.items()}
    return (
        tree(folder),
        state,
        {by_agent.get(scope, scope): names for scope, names in selected},
        {name: each.text.instructions for name, each in found.items()},
    )


@pytest.mark.contract("SKL-06")
async def test_version_2_keeps_every_content_once_and_every_binding(
    tmp_path: Path,
) -> None:
    sessions = await old_world(tmp_path, version=2)
    before = tree(tmp_path)
    after, state, selected, texts = await outcome(tmp_path, sessions)
    coders = f"pdf-{CODER}"
    assert texts == {
        "pdf": "The builtin's.",
        "off": "Do off.",
        "style": "Write well.",
        "lint": "Do lint.",
        coders: "The coder's.",
    }
    # What was there is there as it was; those of other kinds of agents too.
    assert before.items() <= after.items()
    bindings = {name: agent.bindings for name, agent in state.agents.items()}
    on = SkillBinding(assigned=True)
    assert bindings == {
        "default": {"pdf": on, "off": SkillBinding(extension={"a": 1})},
        WRITER: {"pdf": on, "style": on},
        CODER: {
            coders: SkillBinding(assigned=True, extension={"b": [2]}),
            "style": SkillBinding(),
            "lint": on,
        },
    }
    assert selected == {
        "default": ("off", "pdf"),
        WRITER: ("style",),
        CODER: ("lint", coders),
    }
    assert state.version == 3
    # Once: a later start migrates nothing again.
    assert await outcome(tmp_path, sessions) == (after, state, selected, texts)


@pytest.mark.contract("SKL-06")
async def test_version_1_knows_the_builtin_s_disabled_and_no_selections(
    tmp_path: Path,
) -> None:
    sessions = await old_world(tmp_path, version=1)
    _, state, selected, _ = await outcome(tmp_path, sessions)
    bindings = {
        agent: {name for name, each in told.bindings.items() if each.assigned}
        for agent, told in state.agents.items()
    }
    assert bindings == {
        "default": {"pdf"},
        WRITER: {"pdf", "style"},
        CODER: {f"pdf-{CODER}", "style", "lint"},
    }
    # Sessions that the old state does not name are left as they are.
    assert selected == {CODER: ("kept",)}


@pytest.mark.contract("SKL-06")
@pytest.mark.parametrize(
    ("where", "number"),
    [
        *[("copying", number) for number in range(3)],
        *[("copied", number) for number in range(3)],
        ("all copied", 0),
        ("committed", 0),
    ],
)
async def test_a_crash_at_any_copy_leads_to_the_same_tree(
    tmp_path: Path, where: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    expected = await outcome(whole, await old_world(whole, version=2))
    sessions = await old_world(cut, version=2)
    copies = 0

    def crash_while(before: Any, after: Any) -> Any:
        def instead(*arguments: Any) -> Any:
            nonlocal copies
            copies += 1
            if copies == number + 1:
                before(*arguments)
                raise Crash
            return after(*arguments)

        return instead

    def half(source: Path, target: Path) -> None:
        target.mkdir(parents=True)
        (target / "SKILL.md").write_text("half of it")

    with monkeypatch.context() as patch:
        if where == "copying":
            patch.setattr(
                _migration, "copy_tree", crash_while(half, _migration.copy_tree)
            )
        elif where == "copied":
            patch.setattr(_migration.os, "rename", crash_while(os.rename, os.rename))
        else:
            _crash_at_the_commit(patch, late=where == "committed")
        with pytest.raises(BaseException) as gone:
            async with open_test_engine(cut, SILENT):
                pass
        assert (
            gone.group_contains(Crash)
            if isinstance(gone.value, BaseExceptionGroup)
            else isinstance(gone.value, Crash)
        )
    assert await outcome(cut, sessions) == expected


def _crash_at_the_commit(patch: pytest.MonkeyPatch, *, late: bool) -> None:
    real = _migration.put_skill_state

    def crash(*arguments: Any) -> None:
        if late:
            real(*arguments)
        raise Crash

    patch.setattr(_migration, "put_skill_state", crash)


async def test_a_state_that_can_not_be_read_is_tried_again_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sessions = await old_world(tmp_path, version=2)
    file = tmp_path / "state" / "skills" / "state.json"
    good = file.read_text()
    file.write_text("{")
    async with open_test_engine(tmp_path, SILENT) as engine:
        assert (await engine.skills.state()).skills == {}
    assert "not put in order" in caplog.text
    with pytest.raises(CorruptStoreError, match=r"state\.json can't be read"):
        _migration.LegacySkills(file.parent).plan(frozenset({"default"}))
    file.write_text(good)
    _, state, _, _ = await outcome(tmp_path, sessions)
    assert len(state.skills) == 5
