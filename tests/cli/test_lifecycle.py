"""Sessions are forked, moved and deleted from the command line."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kit.stores import SETTINGS, message

from greenroom.cli import main
from greenroom.cli._exit import ExitCode
from greenroom.protocol import AgentRow, SessionId
from greenroom.storage import (
    Grant,
    bootstrap_facts,
    message_fact,
    open_reader,
    open_store,
)

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sessions of the builtin agent, one of them empty, and another agent."""
    monkeypatch.setenv("GREENROOM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with closing(open_store(tmp_path / "state")) as store:
        member = store.join("test", "", 60.0, now=0.0)
        for name in ("alpha", "beta"):
            grant = store.acquire(member, SessionId(name), now=0.0)
            assert isinstance(grant, Grant)
            facts = [*bootstrap_facts(f"incarnation {name}", SETTINGS)]
            facts += [message_fact(message("hello"))] if name == "alpha" else []
            store.append(grant, 0, facts, now=0.0)
        store.put_agent(
            AgentRow(
                id="other",
                kind="native",
                source="manual",
                name="Other",
                created_at=0.0,
                updated_at=0.0,
            )
        )
        store.leave(member, now=0.0)
    return tmp_path / "state"


def done(capsys: Capture, *argv: str) -> dict[str, Any]:
    assert main(["sessions", *argv, "--json"]) == ExitCode.OK
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def agents_of(state: Path) -> dict[str, str]:
    with closing(open_reader(state)) as reader:
        return {row.id: row.settings.agent_id for row in reader.sessions()}


def test_a_session_is_forked(state: Path, capsys: Capture) -> None:
    made = done(capsys, "fork", "al")["id"]
    assert set(agents_of(state)) == {"alpha", "beta", made}
    with closing(open_reader(state)) as reader:
        row = reader.session(made)
        assert row is not None
        assert row.settings.title == f"{SETTINGS.title} - Fork"
        assert row.message_count == 1
    assert main(["sessions", "fork", "alpha", "--through", "nothing"]) != ExitCode.OK
    assert "no message 'nothing'" in capsys.readouterr().err
    assert main(["sessions", "fork", "alpha", "--rounds", "1"]) == ExitCode.USAGE
    assert "--through" in capsys.readouterr().err


def test_a_session_is_moved_and_its_agent_then_kept(
    state: Path, capsys: Capture
) -> None:
    moved = done(capsys, "move", "alpha", "other")
    assert moved == {"id": "alpha", "agent": "other"}
    assert agents_of(state) == {"alpha": "other", "beta": "default"}
    assert main(["agents", "remove", "other"]) != ExitCode.OK
    assert "has sessions" in capsys.readouterr().err
    assert main(["sessions", "move", "alpha", "other"]) != ExitCode.OK
    assert "of agent 'other' already" in capsys.readouterr().err


def test_all_sessions_of_an_agent_are_moved_after_a_look(
    state: Path, capsys: Capture
) -> None:
    before = agents_of(state)
    told = done(capsys, "move", "--all-of", "default", "other", "--dry-run")
    assert (told["moved"], told["deleted"], told["blocked"]) == (1, 1, 0)
    assert {sample["id"] for sample in told["samples"]} == {"alpha", "beta"}
    assert agents_of(state) == before
    assert main(["sessions", "move", "--all-of", "default", "other", "--dry-run"]) == 0
    assert "alpha" in capsys.readouterr().out
    moved = done(capsys, "move", "--all-of", "default", "other")
    assert moved == {"moved": 1, "deleted": 1}
    assert agents_of(state) == {"alpha": "other"}


@pytest.mark.parametrize(
    "argv",
    [["other"], ["alpha", "other", "--all-of", "x"], ["alpha", "b", "--dry-run"]],
)
def test_a_move_says_what_it_needs(
    state: Path, capsys: Capture, argv: list[str]
) -> None:
    assert main(["sessions", "move", *argv]) == ExitCode.USAGE
    assert agents_of(state) == {"alpha": "default", "beta": "default"}


def test_a_session_is_deleted_for_good(state: Path, capsys: Capture) -> None:
    assert done(capsys, "delete", "alpha") == {"id": "alpha"}
    assert set(agents_of(state)) == {"beta"}
    assert main(["sessions", "delete", "alpha"]) != ExitCode.OK
    assert "alpha" in capsys.readouterr().err


@pytest.mark.parametrize("action", [["fork", "a"], ["delete", "a"], ["move", "a", "b"]])
def test_no_state_is_made_where_there_is_none(
    tmp_path: Path, action: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    state = tmp_path / "none"
    assert main(["sessions", *action, "--state", str(state)]) != ExitCode.OK
    assert not state.exists()
