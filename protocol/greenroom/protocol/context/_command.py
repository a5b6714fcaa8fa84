"""``/compact [focus]``: what a user types in the place of a prompt."""

from __future__ import annotations

from typing import Final

from ._summary import MAX_FOCUS

COMPACT: Final = "compact"
"""The command's name, without the slash."""


def compact_focus(text: str) -> str | None:
    """Return what the user finds important, mostly nothing; ``None``: no command.

    The command is the first word, so ``/compacted`` is a prompt like any other.
    """
    name, *focus = text.split(maxsplit=1) or [""]
    return "".join(focus).strip()[:MAX_FOCUS] if name == f"/{COMPACT}" else None
