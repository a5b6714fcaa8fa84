"""A process is killed in the middle of a rewind; asking again does the rest."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from kit.aftermath import problems

from greenroom.protocol import SessionId
from greenroom.storage import open_reader

REWINDER = [sys.executable, "-P", str(Path(__file__).with_name("rewinder.py"))]


def play(*arguments: object) -> tuple[int, str]:
    done = subprocess.run(
        [*REWINDER, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.strip()


def messages(state: Path, session: str) -> int:
    with closing(open_reader(state)) as reader:
        return reader.message_count(SessionId(session))


@pytest.mark.parametrize(
    ("point", "files", "left"),
    [
        ("restore 1", ["changed", "changed", "changed"], 2),
        ("restore 2", ["was", "changed", "changed"], 2),
        ("removed", ["was", "was", None], 2),
        ("before", ["was", "was", None], 2),
        ("after", ["was", "was", None], 0),
    ],
)
def test_a_rewind_that_was_killed_is_done_by_the_next(
    tmp_path: Path, point: str, files: list[str | None], left: int
) -> None:
    state, workspace = tmp_path / "state", tmp_path / "workspace"
    workspace.mkdir()
    paths = [workspace / f"{name}.txt" for name in "abc"]
    for path in paths[:2]:
        path.write_text("was")

    def found() -> list[str | None]:
        return [path.read_text() if path.exists() else None for path in paths]

    status, session = play("talk", state, workspace)
    assert status == 0
    assert found() == ["changed"] * 3
    status, _ = play("rewind", state, workspace, session, point)
    assert status == -signal.SIGKILL
    assert (found(), messages(state, session)) == (files, left)
    assert problems(state) == []
    status, told = play("rewind", state, workspace, session, "never")
    assert (status, told) == (0, str(left))
    assert (found(), messages(state, session)) == (["was", "was", None], 0)
    assert problems(state) == []
    # Nothing half-written is left beside the files.
    assert len(list(workspace.iterdir())) == 2
