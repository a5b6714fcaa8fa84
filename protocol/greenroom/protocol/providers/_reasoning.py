"""Thinking that must go back as it came: OpenRouter's ``reasoning_details``.

The pieces of one detail are joined; details keep their order. Each flush carries all
of the reply's details so far, so whichever block they end up with, the last one is
complete.
"""

from __future__ import annotations

from typing import Any, Final, final

from .._canonical import safe_json
from .._stream import ReasoningDelta
from ._wire import as_list, as_object

MAX_DETAILS: Final = 1_024
"""Details kept of one reply; a server that sends more loses the rest."""

# What grows from piece to piece; anything else is set once and the newest holds.
_GROWING: Final = ("text", "summary")


@final
class ReasoningDetails:
    """The details of one reply."""

    def __init__(self) -> None:
        self._details: list[dict[str, Any]] = []
        self._growing: dict[str, list[str]] = {}
        self._changed = False

    def feed(self, value: object) -> None:
        """Take the ``reasoning_details`` of one chunk in."""
        for item in as_list(value):
            detail = as_object(safe_json(item))
            if not detail:
                continue
            self._changed = True
            if self._details and _continues(self._details[-1], detail):
                self._join(detail)
            elif len(self._details) < MAX_DETAILS:
                self._settle()
                self._details.append(dict(detail))

    def flush(self) -> list[ReasoningDelta]:
        """Return the event that carries the details, when there are new ones."""
        if not self._changed:
            return []
        self._changed = False
        self._settle()
        details = [dict(detail) for detail in self._details]
        return [ReasoningDelta("", {"reasoning_details": details})]

    def _join(self, piece: dict[str, Any]) -> None:
        for name, value in piece.items():
            if name in _GROWING and isinstance(value, str):
                self._growing.setdefault(name, []).append(value)
            elif value is not None:
                self._details[-1][name] = value

    def _settle(self) -> None:
        # Pieces are joined once, so that long thoughts don't cost their square.
        for name, parts in self._growing.items():
            known = self._details[-1].get(name)
            head = known if isinstance(known, str) else ""
            self._details[-1][name] = head + "".join(parts)
        self._growing.clear()


def _continues(detail: dict[str, Any], piece: dict[str, Any]) -> bool:
    if detail.get("type") == "reasoning.encrypted":
        return False
    same = ("type", "index")
    return [detail.get(name) for name in same] == [piece.get(name) for name in same]
