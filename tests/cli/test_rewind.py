"""A conversation is taken back, or forgotten, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from greenroom.actors.providers import RehearsalProvider
from greenroom.cli import main
from greenroom.cli._exit import ExitCode
from greenroom.engine import open_engine
from greenroom.testing import Call, Halt, Say


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a session has written ``a.txt`` twice."""
    monkeypatch.setenv("GREENROOM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "workspace"
    folder.mkdir()

    async def talk() -> None:
        script = [
            step
            for text in ("one\n", "two\n")
            for step in (
                [
                    Call("write", {"path": "a.txt", "content": text}),
                    Halt("tool_use"),
                ],
                [Say(f"wrote {text.strip()}"), Halt()],
            )
        ]
        async with open_engine(
            state=tmp_path / "state",
            provider=RehearsalProvider(script),
            gc_thresholds=False,
        ) as engine:
            session = await engine.create_session(
                workspace=folder, permission_mode="full_access"
            )
            await session.prompt("first")
            await session.prompt("second")

    trio.run(talk)
    return folder


def run(capsys: pytest.CaptureFixture[str], *argv: str, status: int = ExitCode.OK):
    assert main(["sessions", *argv]) == status
    return capsys.readouterr()


def session_of(capsys: pytest.CaptureFixture[str]) -> str:
    return json.loads(run(capsys, "list", "--json").out)["id"]


@pytest.mark.slow  # engines with real threads
def test_a_dry_run_tells_and_then_it_is_done(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(capsys)
    file = workspace / "a.txt"
    would = run(capsys, "rewind", session, "--to-start", "--files", "--dry-run")
    assert would.out.splitlines() == [
        "4 messages would be taken back",
        "remove  a.txt",
        "    @@ -1 +0,0 @@",
        "    -two",
    ]
    assert file.read_text() == "two\n"
    told = json.loads(
        run(capsys, "rewind", session, "--to-start", "--dry-run", "--json").out
    )
    assert (told["done"], len(told["messages"]), told["files"]) == (False, 4, [])

    reply = told["messages"][1]
    done = run(capsys, "rewind", session, reply, "--files")
    assert done.out.splitlines()[:2] == [
        "2 messages were taken back",
        "restore  a.txt",
    ]
    assert file.read_text() == "one\n"


@pytest.mark.slow  # engines with real threads
def test_a_refusal_says_why_and_how_to_go_on(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(capsys)
    (workspace / "a.txt").write_text("mine\n")
    refused = run(
        capsys,
        *("rewind", session, "--to-start", "--files"),
        status=ExitCode.RUN_FAILED,
    )
    assert "'a.txt' (it has been changed since)" in refused.err
    assert "rewind without the files" in refused.err
    assert (workspace / "a.txt").read_text() == "mine\n"
    neither = run(capsys, "rewind", session, status=ExitCode.USAGE)
    assert "--to-start" in neither.err


@pytest.mark.slow  # engines with real threads
def test_a_cleared_session_is_still_there(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(capsys)
    assert run(capsys, "clear", session).out == f"{session} is empty\n"
    row = json.loads(run(capsys, "list", "--json").out)
    assert (row["id"], row["messages"]) == (session, 0)
