"""Changes to files as lines of a unified diff, bounded in work and in length."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import islice
from typing import Final, Literal

from greenroom.protocol import Diff

DiffStyle = Literal["header", "hunk", "added", "removed", "context"]
DiffLine = tuple[DiffStyle, str]

# Comparing costs the product of both lengths in the worst case.
MAX_COMPARED_LINES: Final = 1_000
MAX_COMPARED_CHARACTERS: Final = 200_000
MAX_SHOWN_LINES: Final = 120
MAX_LINE: Final = 400

_STYLES: Final[dict[str, DiffStyle]] = {"+": "added", "-": "removed", "@": "hunk"}


def diff_lines(diff: Diff) -> list[DiffLine]:
    """Return *diff* line by line, each with how it is to look."""
    old, new = (diff.old_text or ""), diff.new_text
    verb = "create" if diff.old_text is None else "change"
    header: DiffLine = ("header", f"{verb} {diff.path}")
    if len(old) + len(new) > MAX_COMPARED_CHARACTERS:
        return [header, ("context", f"{len(old):,} to {len(new):,} characters")]
    old_lines, new_lines = old.splitlines(), new.splitlines()
    if max(len(old_lines), len(new_lines)) > MAX_COMPARED_LINES:
        return [header, ("context", f"{len(old_lines):,} to {len(new_lines):,} lines")]
    return [header, *_bounded(_changes(old_lines, new_lines))]


def _changes(old: list[str], new: list[str]) -> Iterator[DiffLine]:
    lines = difflib.unified_diff(old, new, lineterm="", n=2)
    for line in islice(lines, 2, None):  # without the two lines that name the files
        yield _STYLES.get(line[0], "context"), _cut(line)


def _bounded(lines: Iterator[DiffLine]) -> Iterator[DiffLine]:
    yield from islice(lines, MAX_SHOWN_LINES)
    if left := sum(1 for _ in lines):
        yield "context", f"… {left:,} more lines"


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"
