"""The example of the kernel's documentation runs, and prints what it should."""

from __future__ import annotations

import runpy
from pathlib import Path

import trio
from trio.testing import MockClock

SNIPPET = Path(__file__).parents[3] / "docs" / "snippets" / "counter_actor.py"


def test_the_counter_example_runs(capsys) -> None:
    main = runpy.run_path(str(SNIPPET))["main"]
    trio.run(main, clock=MockClock(autojump_threshold=0))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "count: 5"
    assert lines[1:3] == [
        "ticker ends: user_stop",
        "ticker exited: stopped (user_stop)",
    ]
    assert lines[3] == "count: 7"
    assert lines[4].startswith("report: ExitReport(path='counter', reason=Failed(")
    assert lines[5].startswith("counter exited: failed with ZeroDivisionError(")
    assert lines[6] == "count: 0"
