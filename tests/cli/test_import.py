"""``greenroom import``: what a user types, and what is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.legacy_threads import NEWER, database, newer_file, put_message, put_session

from greenroom.cli import main
from greenroom.cli._exit import ExitCode


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GREENROOM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return str(newer_file(tmp_path / "old.db"))


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, object]]:
    assert main([*argv, "--json"]) == ExitCode.OK
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_dry_run_tells_and_makes_no_state(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, "import", file, "--dry-run")
    assert [each["outcome"] for each in found] == ["would be imported"] * 2 + [
        "left out"
    ]
    assert not (tmp_path / "state").exists()


def test_what_is_imported_is_listed_and_told_again_as_here(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", file, "--cwd", str(tmp_path)]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("about alpha  (6 messages, imported)")
    assert lines[2].endswith("(0 messages, left out: belongs to another conversation)")
    listed = told(capsys, "sessions")
    # In the order of their own times.
    assert [row["title"] for row in listed] == ["about beta", "about alpha"]
    # What was said is found at once, though no engine has been here.
    assert {hit["title"] for hit in told(capsys, "search", "lighthouse")} == {
        "about alpha"
    }
    again = told(capsys, "import", file)
    assert [each["outcome"] for each in again][:2] == ["already here"] * 2
    assert again[0]["messages"] == 6
    dry = told(capsys, "import", file, "--dry-run")
    assert [each["outcome"] for each in dry] == [each["outcome"] for each in again]


def test_a_conversation_is_written_out_of_the_old_file(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", file, "--export", "alpha"]) == ExitCode.OK
    out = tmp_path / "alpha.jsonl"
    out.write_text(capsys.readouterr().out)
    assert not (tmp_path / "state").exists()
    assert main(["sessions", "import", str(out)]) == ExitCode.OK
    capsys.readouterr()
    (row,) = told(capsys, "sessions")
    assert (row["title"], row["messages"]) == ("about alpha", 6)


def test_a_file_that_is_none_is_refused_and_makes_no_state(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.write_text("hello")
    assert main(["import", str(other)]) == ExitCode.USAGE
    assert "can't be read" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


def test_progress_is_told_now_and_then(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "many.db"
    with database(path, NEWER) as db:
        for number in range(101):
            put_session(db, f"s{number}")
        put_message(db, "s0", 1, "user", content="no json")
    assert main(["import", str(path)]) == ExitCode.RUN_FAILED
    assert capsys.readouterr().err.splitlines() == [
        "greenroom: 100 of 101 conversations",
        "greenroom: 101 of 101 conversations",
        "greenroom: 's0', message 1: its content is no JSON",
    ]
