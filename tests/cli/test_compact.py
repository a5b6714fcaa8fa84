"""A session is compacted, and shown whole again, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from greenroom.actors.providers import RehearsalProvider
from greenroom.cli import _compact, _run, main
from greenroom.cli._exit import ExitCode
from greenroom.engine import open_engine
from greenroom.testing import Halt, Say

LONG = "word " * 400
SUMMARY = [Say("## Goal\nkeep the door shut"), Halt()]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A session in which something long was said; the model only summarises."""
    monkeypatch.setenv("GREENROOM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    async def provide(*_: Any) -> tuple[RehearsalProvider, str]:
        await trio.lowlevel.checkpoint()
        return RehearsalProvider([SUMMARY]), "m"

    monkeypatch.setattr(_compact, "open_provider", provide)

    async def talk() -> str:
        async with open_engine(
            state=tmp_path / "state",
            provider=RehearsalProvider([[Say(LONG), Halt()]]),
            gc_thresholds=False,
        ) as engine:
            session = await engine.create_session(workspace=tmp_path)
            await session.prompt(LONG)
            return session.id

    return trio.run(talk)


def run(capsys: pytest.CaptureFixture[str], *argv: str, status: int = ExitCode.OK):
    assert main(["sessions", "compact", *argv]) == status
    return capsys.readouterr()


@pytest.mark.slow  # engines with real threads
def test_a_session_is_compacted_once_and_shown_again(
    session: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = json.loads(run(capsys, session, "the", "door", "--json").out)
    assert done["outcome"] == "summarized"
    assert done["after"] < done["before"]
    assert "nothing was changed" in run(capsys, session).out
    assert "was undone" in run(capsys, session, "--undo").out
    assert "nothing was changed" in run(capsys, session, "--undo").out
    assert "compacted: about" in run(capsys, session).out


@pytest.mark.slow  # engines with real threads
def test_run_compacts_where_the_prompt_is_the_command(
    session: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_run, "open_provider", _compact.open_provider)
    command = ["run", "--session", session, "/compact the door"]
    assert main([*command, "--json"]) == ExitCode.OK
    *_, line = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert (told["type"], told["outcome"]) == ("compaction", "summarized")
    assert told["after"] < told["before"]
    assert main(["sessions", "compact", session, "--undo"]) == ExitCode.OK
    capsys.readouterr()
    assert main(command) == ExitCode.OK
    out = capsys.readouterr().out
    assert "compacted: about" in out
    assert f"session {session}" in out


def test_a_new_conversation_has_nothing_to_compact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GREENROOM_STATE", str(tmp_path / "state"))
    assert main(["run", "/compact"]) == ExitCode.USAGE
    assert "nothing to compact in a new conversation" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


def test_an_undo_takes_no_focus(
    session: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = run(capsys, session, "door", "--undo", status=ExitCode.USAGE)
    assert "an undo takes no focus" in told.err
