"""The tables of agents and settings: their exact schema, and what is read of them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from greenroom.protocol import AgentRow, ModelChoice, resolve
from greenroom.storage import (
    AppSettings,
    MemoryStore,
    builtin_row,
    ensure_builtin,
    open_store,
    put_app_settings,
    read_app_settings,
)
from greenroom.storage.legacy import STEPS, effective_config

COLUMNS = {
    # name: (type, not null, default, primary key)
    "id": ("TEXT", 1, None, 1),
    "kind": ("TEXT", 1, None, 0),
    "source": ("TEXT", 1, None, 0),
    "name": ("TEXT", 1, None, 0),
    "enabled": ("INTEGER", 1, "1", 0),
    "protected": ("INTEGER", 1, "0", 0),
    "description": ("TEXT", 1, "''", 0),
    "icon": ("TEXT", 1, "''", 0),
    "avatar_json": ("TEXT", 0, None, 0),
    "config_json": ("TEXT", 0, None, 0),
    "state_json": ("TEXT", 0, None, 0),
    "created_at": ("REAL", 1, None, 0),
    "updated_at": ("REAL", 1, None, 0),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    open_store(tmp_path / "state").close()
    return tmp_path / "state"


def columns(folder: Path) -> dict[str, tuple[object, ...]]:
    with closing(apsw.Connection(str(folder / "greenroom.db"))) as db:
        found = db.execute("PRAGMA table_info(agents)").fetchall()
    return {str(name): tuple(rest) for _, name, *rest in found}


def make_agent(agent_id: str, config: str | None = None) -> AgentRow:
    return AgentRow(
        id=agent_id,
        kind="native",
        source="manual",
        name=agent_id,
        config=config,
        created_at=1.0,
        updated_at=1.0,
    )


@pytest.mark.contract("AGT-11")
def test_the_table_has_exactly_these_columns(folder: Path) -> None:
    assert columns(folder) == COLUMNS


@pytest.mark.contract("AGT-11")
def test_the_table_has_an_index_on_kind_and_one_on_enabled(folder: Path) -> None:
    sql = "SELECT name, sql FROM sqlite_schema WHERE tbl_name = 'agents' AND sql LIKE ?"
    with closing(apsw.Connection(str(folder / "greenroom.db"))) as db:
        found = [str(text) for _, text in db.execute(sql, ("CREATE INDEX%",))]
    assert [text.partition("ON ")[2] for text in sorted(found)] == [
        "agents(enabled)",
        "agents(kind)",
    ]


@pytest.mark.contract("AGT-11")
@pytest.mark.parametrize("old", ["deepchat-Ab12_-xY", "native-x", "claude acp"])
def test_an_id_of_an_older_form_comes_back(folder: Path, old: str) -> None:
    with closing(open_store(folder)) as store:
        store.put_agent(make_agent(old))
    with closing(open_store(folder)) as store:
        assert store.agent(old) == make_agent(old)


@pytest.mark.contract("AGT-08")
def test_no_column_and_no_field_makes_an_agent_of_another(folder: Path) -> None:
    words = ("parent", "inherit", "template", "main", "base")
    names = [*columns(folder), *AgentRow.__struct_fields__]
    assert [name for name in names if any(word in name for word in words)] == []
    with closing(apsw.Connection(str(folder / "greenroom.db"))) as db:
        assert db.execute("PRAGMA foreign_key_list(agents)").fetchall() == []


@pytest.mark.contract("AGT-14")
def test_what_is_in_force_is_read_from_one_row_of_agents(folder: Path) -> None:
    with closing(open_store(folder)) as store:
        ensure_builtin(store, 1.0)
        for step in STEPS:
            step.run(store, 1.0)
        store.put_agent(make_agent("a", '{"systemPrompt":"mine"}'))
        store.put_agent(make_agent("b"))
        asked: list[str] = []
        db = store.connection
        db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: asked.append(event["sql"]))
        row = store.agent("a")
        assert row is not None
        config = effective_config(store, row)
        db.trace_v2(0, None)
    assert config == resolve('{"systemPrompt":"mine"}')
    of_agents = [sql for sql in asked if "FROM agents" in sql]
    assert len(of_agents) == 1
    assert of_agents[0].endswith("FROM agents WHERE id = ?")


def test_the_builtin_agent_is_mended_only_when_it_is_not_as_it_must_be() -> None:
    store = MemoryStore.create()
    assert ensure_builtin(store, 1.0)
    assert not ensure_builtin(store, 2.0)
    assert store.agents() == [builtin_row(1.0)]


#### Settings


@pytest.mark.contract("AGT-17")
def test_settings_of_the_application_are_each_their_own() -> None:
    store = MemoryStore.create()
    assert read_app_settings(store) == AppSettings()
    put_app_settings(
        store,
        {
            "defaultModel": {"provider": "p", "model": "m"},
            "autoCompactionTriggerThreshold": 33,
        },
        1.0,
    )
    put_app_settings(store, {"autoCompactionEnabled": False}, 2.0)
    assert read_app_settings(store) == AppSettings(
        default_model=ModelChoice("p", "m"),
        auto_compaction_enabled=False,
        auto_compaction_trigger_threshold=35,
    )
    put_app_settings(store, {"defaultModel": None}, 3.0)
    assert read_app_settings(store).default_model is None
    assert read_app_settings(store).auto_compaction_trigger_threshold == 35


@pytest.mark.parametrize(
    "changes", [{"nope": 1}, {"defaultModel": "m"}, {"autoCompactionEnabled": "x"}]
)
def test_a_setting_that_does_not_fit_is_refused(changes: dict[str, object]) -> None:
    store = MemoryStore.create()
    with pytest.raises(ValueError, match=r"setting|Expected"):
        put_app_settings(store, changes, 1.0)
    assert read_app_settings(store) == AppSettings()


def test_a_setting_that_can_t_be_read_is_as_if_it_were_not_there() -> None:
    store = MemoryStore.create()
    put_app_settings(store, {"defaultAgent": "a"}, 1.0)
    store.put_app_setting("app.defaultModel", "[1]", now=1.0)
    assert read_app_settings(store) == AppSettings(default_agent="a")
