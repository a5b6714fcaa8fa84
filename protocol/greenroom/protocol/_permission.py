"""Whether a tool call may run, or somebody is asked first (TOL-10, TOL-11).

A pure decision over what a call says it needs and the mode that the run took a
snapshot of when it started (TOL-09). Anything not known asks: a mode from a newer
greenroom, or from a damaged store, never grants.
"""

from __future__ import annotations

from typing import Literal, Protocol

PermissionMode = Literal["default", "auto_approve", "full_access"]
PermissionVerdict = Literal["run", "ask", "review"]
"""run it; ask the user; or let the reviewer look at it first."""


class PermissionNeeds(Protocol):
    """The part of a call's needs that the decision looks at."""

    @property
    def permission(self) -> str | None:
        """What the user would be asked; ``None`` when there is nothing to ask."""
        ...

    @property
    def always_ask(self) -> bool:
        """Whether the user is asked whatever the mode is."""
        ...

    @property
    def reviewable(self) -> bool:
        """Whether the reviewer looks at it though the user would not be asked."""
        ...


def permission_verdict(mode: str, needs: PermissionNeeds) -> PermissionVerdict:
    """Return whether a call with these *needs* may run under *mode*."""
    if needs.always_ask:
        return "ask"
    if mode == "auto_approve" and (needs.reviewable or needs.permission is not None):
        return "review"
    if needs.permission is None or mode == "full_access":
        return "run"
    return "ask"


def tool_layer_mode(mode: str) -> str:
    """Return the mode as tools see it: ``auto_approve`` is ``full_access`` (TOL-09)."""
    return "full_access" if mode == "auto_approve" else mode
