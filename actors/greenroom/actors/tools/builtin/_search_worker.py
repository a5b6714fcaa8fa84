"""The program that walks and matches for ``find`` and ``grep``, in its own process.

A regular expression may take for ever, and Python's does so without letting any
other thread run; only a process of its own can be ended. This file is run by path
with nothing but the standard library: a request as JSON on stdin, one JSON line on
stdout for each thing found, a summary as the last line. The folder is an open
descriptor, and no link is ever followed, so there is no way out of it.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import signal
import stat
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

MAX_DEPTH = 64
MAX_FILES = 100_000
MAX_FILE_BYTES = 8 << 20
MAX_LINE_CHARS = 300
SKIPPED_FOLDERS = (".git",)
_BINARY_HEAD = 8_192
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class Counts:
    """What was looked at, and what was not."""

    def __init__(self) -> None:
        self.files = self.found = self.skipped = 0
        self.more = False


def walk(folder: int, counts: Counts) -> Iterator[tuple[str, str, int]]:
    """Yield name, path and open parent of everything below *folder*, in order."""
    for path, folders, files, parent in os.fwalk(
        ".", dir_fd=folder, follow_symlinks=False
    ):
        inside = path[2:]
        for name in sorted((*folders, *files)):
            counts.files += 1
            if counts.files > MAX_FILES:
                counts.more = True
                return
            shown = os.path.join(inside, name)
            yield name, f"{shown}/" if name in folders else shown, parent
        depth = inside.count("/") + 1 if inside else 0
        deep = depth + 1 >= MAX_DEPTH
        counts.more = counts.more or (deep and bool(folders))
        folders[:] = [] if deep else sorted(set(folders) - set(SKIPPED_FOLDERS))


def matches(path: str, pattern: list[str]) -> bool:
    """Whether *path* fits the segments of *pattern*; ``**`` is any number of names."""
    states = _with_empty({0}, pattern)
    for name in path.rstrip("/").split("/"):
        following: set[int] = set()
        for state in states:
            if state == len(pattern):
                continue
            if pattern[state] == "**":
                following.add(state)
            elif fnmatch.fnmatchcase(name, pattern[state]):
                following.add(state + 1)
        states = _with_empty(following, pattern)
    return len(pattern) in states


def _with_empty(states: set[int], pattern: list[str]) -> set[int]:
    grown = set(states)
    for state in range(len(pattern)):
        if state in grown and pattern[state] == "**":
            grown.add(state + 1)
    return grown


def segments(glob: str) -> list[str]:
    """Split *glob*; without a slash it is about the name, at any depth."""
    parts = [part for part in glob.split("/") if part not in ("", ".")]
    return parts if "/" in glob else ["**", *parts]


def find(folder: int, request: dict[str, Any], counts: Counts) -> None:
    """Tell each path that fits the pattern."""
    pattern = segments(request["glob"])
    for _, path, _ in walk(folder, counts):
        if matches(path, pattern):
            if counts.found == request["limit"]:
                counts.more = True
                return
            counts.found += 1
            tell({"path": clean(path)})


def grep(folder: int, request: dict[str, Any], counts: Counts) -> None:
    """Tell each line that the regular expression is found in."""
    flags = re.IGNORECASE if request["ignore_case"] else 0
    regex = re.compile(request["pattern"], flags)
    glob = segments(request["glob"]) if request["glob"] else None
    for name, path, parent in _files(folder, request["name"], counts):
        if glob and not matches(path, glob):
            continue
        lines = read_lines(name, parent)
        if lines is None:
            counts.skipped += 1
            continue
        for number, line in enumerate(lines, 1):
            if not (match := regex.search(line)):
                continue
            if counts.found == request["limit"]:
                counts.more = True
                return
            counts.found += 1
            shown = around(line, match.start())
            tell({"path": clean(path), "line": number, "text": clean(shown)})


def _files(folder: int, name: str, counts: Counts) -> Iterator[tuple[str, str, int]]:
    if name:
        counts.files += 1
        yield name, name, folder
        return
    for found, path, parent in walk(folder, counts):
        if not path.endswith("/"):
            yield found, path, parent


def read_lines(name: str, parent: int) -> list[str] | None:
    """Return the lines of a text file; ``None`` for anything else."""
    try:
        descriptor = os.open(name, _OPEN, dir_fd=parent)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_FILE_BYTES:
            return None
        data = file.read(MAX_FILE_BYTES)
    if b"\0" in data[:_BINARY_HEAD]:
        return None
    # Only at line feeds: splitlines would count lines as no editor does.
    lines = data.decode("utf-8", "replace").split("\n")
    return [line.removesuffix("\r") for line in lines]


def around(line: str, at: int) -> str:
    """Return *line*, or of a long one the part around character *at*."""
    if len(line) <= MAX_LINE_CHARS:
        return line
    start = max(0, at - MAX_LINE_CHARS // 3)
    part = line[start : start + MAX_LINE_CHARS]
    return ("…" if start else "") + part + "…"


def clean(text: str) -> str:
    """Return *text* without what can't be said as UTF-8 or would break a line."""
    text = text.encode("utf-8", "replace").decode()
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").replace("\n", "\\n")


def tell(value: dict[str, Any]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main(folder: int, seconds: int) -> NoReturn:
    """Do what stdin asks for."""
    # Should the engine be gone, nobody else ends a search that does not end.
    signal.alarm(seconds)
    request = json.load(sys.stdin)
    counts = Counts()
    (grep if "pattern" in request else find)(folder, request, counts)
    tell({"done": True, **vars(counts)})
    sys.exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
