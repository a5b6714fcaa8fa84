"""Agents of an older system's database, whatever is in the file."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from kit.legacy import SCHEMA, legacy_file

from greenroom.protocol import AgentConfig, ModelChoice, SubagentSlot, resolve
from greenroom.storage.legacy import LegacyError, read_legacy_agents

OLD_CONFIG = {
    "defaultModelPreset": {"providerId": "p", "modelId": "m", "temperature": 1},
    "imageGenerationModel": {"providerId": "p", "modelId": "i"},
    "defaultProjectPath": "/w",
    "disabledAgentTools": ["shell"],
    "subagents": [
        {"id": "a", "targetType": "self", "displayName": "A", "description": "d"},
        {"id": "b", "targetType": "agent", "targetAgentId": "deepchat"},
    ],
}


def test_rows_are_told_in_our_words(tmp_path: Path) -> None:
    path = legacy_file(
        tmp_path / "old.db",
        {"id": "deepchat", "source": "builtin", "protected": 1},
        {"id": "deepchat-abc", "config": OLD_CONFIG, "enabled": 0},
        {"id": "cl", "agent_type": "acp", "config": {"command": "c"}},
    )
    found = read_legacy_agents(path)
    rows = {row.id: row for row in found.rows}
    assert {i: (row.kind, row.source) for i, row in rows.items()} == {
        "default": ("native", "builtin"),
        "deepchat-abc": ("native", "manual"),
        "cl": ("acp", "manual"),
    }
    assert found.version == 0
    assert rows["cl"].config == '{"command":"c"}'
    assert rows["deepchat-abc"].created_at == 1_700_000_000.0
    assert not rows["deepchat-abc"].enabled
    assert resolve(rows["deepchat-abc"].config) == AgentConfig(
        default_model=ModelChoice("p", "m"),
        image_model=ModelChoice("p", "i"),
        project_path="/w",
        disabled_tools=("shell",),
        subagents=(
            SubagentSlot(id="a", target="self", title="A", description="d"),
            SubagentSlot(id="b", target="default"),
        ),
    )


@pytest.mark.parametrize(("told", "version"), [(3, 3), (2, 2), (99, 3), (-1, 0)])
def test_how_far_it_had_come_itself_is_told(
    tmp_path: Path, told: int, version: int
) -> None:
    path = legacy_file(tmp_path / "old.db", version=told)
    assert read_legacy_agents(path).version == version


@pytest.mark.parametrize(
    "fields",
    [
        {"config": b"\xff\xfe{"},
        {"config": "{\x00"},
        {"config": "[" * 200_000},
        {"config": '{"a":"' + "x" * (300 << 10)},
        {"config": 5},
        {"config": {"systemPrompt": {}}, "created_at": "never", "enabled": "yes"},
    ],
)
def test_a_row_that_can_t_be_decoded_is_kept_to_be_reported(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    path = legacy_file(tmp_path / "old.db", {"id": "x"} | fields)
    (row,) = read_legacy_agents(path).rows
    assert row.config
    assert len(row.config) <= 256 << 10
    assert resolve(row.config).subagents == ()


def test_odd_values_become_what_can_be_kept(tmp_path: Path) -> None:
    path = legacy_file(
        tmp_path / "old.db",
        {"id": "default", "name": ""},
        {"id": b"\xff", "name": "n" * 500, "agent_type": None, "source": None},
        {"id": "y", "avatar_json": "{" * 100_000, "created_at": float("inf")},
    )
    rows = {row.id: row for row in read_legacy_agents(path).rows}
    assert rows.keys() == {"imported-default", "\ufffd", "y"}
    assert rows["imported-default"].name == "imported-default"
    assert (rows["\ufffd"].kind, rows["\ufffd"].source) == ("unknown", "manual")
    assert len(rows["\ufffd"].name) == 200
    assert (rows["y"].avatar, rows["y"].created_at) == (None, 0.0)


def no_file(path: Path) -> None:
    assert not path.exists()


def no_database(path: Path) -> None:
    path.write_bytes(b"hello" * 1_000)


def no_agents(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE TABLE other (x)")


def a_view(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE VIEW agents AS SELECT 1 id, 2 agent_type, 3 name")


def no_type(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE TABLE agents (id, name)")


def too_many(path: Path) -> None:
    legacy_file(path, *({"id": f"a{n}"} for n in range(1_000)))


def a_huge_value(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as db:
        db.execute(SCHEMA)
        db.execute("INSERT INTO agents (id, name) VALUES ('a', zeroblob(3 << 20))")


@pytest.mark.parametrize(
    "make",
    [no_file, no_database, no_agents, a_view, no_type, too_many, a_huge_value],
    ids=lambda make: make.__name__,
)
def test_a_file_that_is_no_such_database_is_refused(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "old.db")
    with pytest.raises(LegacyError):
        read_legacy_agents(tmp_path / "old.db")


def test_the_file_is_not_written(tmp_path: Path) -> None:
    path = legacy_file(tmp_path / "old.db", {"id": "a", "config": json.dumps({})})
    before = path.read_bytes()
    path.chmod(0o400)
    read_legacy_agents(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["old.db"]
