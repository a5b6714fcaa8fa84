from __future__ import annotations

import time

import pytest

from greenroom.cli._diff import (
    MAX_COMPARED_LINES,
    MAX_LINE,
    MAX_SHOWN_LINES,
    diff_lines,
)
from greenroom.protocol import Diff


def change(old: str | None, new: str) -> list[tuple[str, str]]:
    return list(diff_lines(Diff(path="a.py", old_text=old, new_text=new)))


def test_a_change_shows_what_went_and_what_came() -> None:
    lines = change("one\ntwo\nthree\n", "one\n2\nthree\n")

    assert lines == [
        ("header", "change a.py"),
        ("hunk", "@@ -1,3 +1,3 @@"),
        ("context", " one"),
        ("removed", "-two"),
        ("added", "+2"),
        ("context", " three"),
    ]


def test_a_new_file_is_created() -> None:
    assert change(None, "hello\n") == [
        ("header", "create a.py"),
        ("hunk", "@@ -0,0 +1 @@"),
        ("added", "+hello"),
    ]


def test_lines_that_look_like_headers_are_changes() -> None:
    assert change("-- a\n", "++ b\n")[2:] == [("removed", "--- a"), ("added", "+++ b")]


def test_nothing_changed_shows_only_the_header() -> None:
    assert change("same\n", "same\n") == [("header", "change a.py")]


def test_long_diffs_and_long_lines_are_cut() -> None:
    lines = change(None, "x\n" * 500 + "y" * 9_000)

    assert len(lines) == 1 + MAX_SHOWN_LINES + 1
    assert lines[-1] == ("context", f"… {501 + 1 - MAX_SHOWN_LINES} more lines")
    assert len(change(None, "y" * 9_000)[-1][1]) == MAX_LINE


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("x\n" * (MAX_COMPARED_LINES + 1), "y\n", "1,001 to 1 lines"),
        ("x" * 300_000, "y", "300,000 to 1 characters"),
    ],
)
def test_what_is_too_large_to_compare_is_only_measured(
    old: str, new: str, shown: str
) -> None:
    assert change(old, new)[1:] == [("context", shown)]


# Few different lines, many matches: the costly case for the comparison.
def test_the_costliest_comparison_stays_short() -> None:
    old = "\n".join("ab"[i % 2] * (i % 3) for i in range(MAX_COMPARED_LINES))
    new = "\n".join("ba"[i % 2] * (i % 5) for i in range(MAX_COMPARED_LINES))

    started = time.process_time()
    change(old, new)

    assert time.process_time() - started < 2.0
