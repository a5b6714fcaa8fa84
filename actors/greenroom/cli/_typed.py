"""What is typed into ``greenroom attach``: something to say, or a command. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

SAY: Final = "say"

TYPED: Final[Mapping[str, tuple[str, str]]] = {
    "steer": ("TEXT", "say it to the turn that runs"),
    "cancel": ("", "stop the turn that runs"),
    "answer": ("TEXT", "answer what waits first"),
    "inbox": ("", "list what waits for its turn"),
    "promote": ("N", "say input N of the inbox to the turn that runs"),
    "delete": ("N", "take input N of the inbox back"),
    "release": ("", "let what is held go on"),
    "compact": ("[FOCUS]", "put a summary in the place of what was said"),
    "fork": ("", "make a session of what was said"),
    "help": ("", "tell this"),
    "quit": ("", "leave; what runs goes on"),
}
"""By name, what follows it and what it does."""

_NEEDS_TEXT: Final = frozenset({"steer", "answer", "promote", "delete"})
_TAKES_TEXT: Final = _NEEDS_TEXT | {"compact"}


@attrs.frozen
class Typed:
    """One line, understood."""

    name: str
    """Of `TYPED`, or ``say``."""
    text: str = ""


def parse_typed(line: str) -> Typed | str:
    """Return what *line* means, or a sentence that says why it means nothing.

    A line that begins with ``//`` says what begins with ``/``.
    """
    if line.startswith("//") or not line.startswith("/"):
        return Typed(SAY, line.removeprefix("/") if line.startswith("//") else line)
    name, _, text = line[1:].partition(" ")
    text = text.strip()
    if name not in TYPED:
        return f"there is no /{name[:40]}; /help tells what there is"
    if text and name not in _TAKES_TEXT:
        return f"/{name} takes nothing behind it"
    if not text and name in _NEEDS_TEXT:
        return f"write it as /{name} {TYPED[name][0]}"
    return Typed(name, text)


def place_in(text: str, count: int, otherwise: str) -> int | str:
    """Return the index that a number from 1 to *count* names, or why it names none."""
    if not (text.isascii() and text.isdigit() and len(text) <= 4):
        return otherwise
    if not 1 <= int(text) <= count:
        return "nothing waits" if count == 0 else f"choose 1 to {count}"
    return int(text) - 1


def help_lines() -> list[str]:
    """Return what can be typed."""
    lines = ["a line is said to the session: at once, or when its turn has ended"]
    for name, (argument, about) in TYPED.items():
        lines.append(f"/{name} {argument}".rstrip().ljust(18) + about)
    return [*lines, "Ctrl-C stops the turn; once more, it leaves"]
