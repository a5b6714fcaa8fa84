"""Whether a tool call may run, or the user is asked first (TOL-10).

A pure decision over what a call says it needs and the mode that the run took a
snapshot of when it started (TOL-09). Anything not known asks: a mode from a newer
greenroom, or from a damaged store, never grants.
"""

from __future__ import annotations

from typing import Literal, Protocol

PermissionMode = Literal["default", "auto_approve", "full_access"]
PermissionVerdict = Literal["run", "ask"]


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


def permission_verdict(mode: str, needs: PermissionNeeds) -> PermissionVerdict:
    """Return whether a call with these *needs* may run under *mode*.

    The tool layer sees ``auto_approve`` as ``full_access`` (TOL-09).
    """
    if needs.always_ask:
        return "ask"
    if needs.permission is None or mode in ("auto_approve", "full_access"):
        return "run"
    return "ask"
