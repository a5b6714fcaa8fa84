"""A process is killed between an effect and its outcome; the tool's books know more."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit.aftermath import problems
from kit.rehearsal import journal_of, read_tape

from greenroom.protocol import DispatchCommitted, ToolOutcome
from greenroom.storage import OPERATION_RECONCILED

SHIPPER = [sys.executable, "-P", str(Path(__file__).with_name("shipper.py"))]


def play(*arguments):
    done = subprocess.run(
        [*SHIPPER, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    said: dict[str, str] = {}
    for line in done.stdout.splitlines():
        what, _, text = line.partition(" ")
        said[what] = text
    return done.returncode, said


@pytest.mark.parametrize("books_are_lost", [False, True])
def test_another_process_asks_the_tool_under_the_same_key_and_ships_nothing(
    tmp_path, books_are_lost
):
    state, workspace = tmp_path / "state", tmp_path / "workspace"
    workspace.mkdir()
    status, said = play("ship", state, workspace)
    assert status == -signal.SIGKILL
    session_id, key = said["session"], said["ships"]
    books = workspace / "books"
    assert books.read_text() == f"{key}\n"
    if books_are_lost:
        books.write_text("")
    status, said = play("ask", state, workspace, session_id)
    assert status == 0
    assert "ships" not in said
    tape = read_tape(state, session_id)
    (dispatch,) = [r for r in journal_of(tape) if isinstance(r, DispatchCommitted)]
    assert dispatch.operation.idempotency_key == key
    assert not [r for r in journal_of(tape) if isinstance(r, ToolOutcome)]
    reconciled = [e for e in tape if e.fact.name == OPERATION_RECONCILED]
    if books_are_lost:
        assert "it is not known whether this call ran" in said["told"]
        assert reconciled == []
    else:
        assert said["told"] == "shipped pear"
        assert len(reconciled) == 1
        assert books.read_text() == f"{key}\n"
    assert problems(state) == []
