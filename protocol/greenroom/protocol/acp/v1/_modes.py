"""The permission modes of a session, as the modes that a client may choose."""

from __future__ import annotations

from typing import Final

from ._methods import SessionMode, SessionModeState

MODES: Final = (
    SessionMode("default", "Ask", "Ask before anything is changed or run"),
    SessionMode(
        "auto_approve", "Approve", "Change and run without asking, one call at a time"
    ),
    SessionMode(
        "full_access",
        "Full access",
        "Change and run without asking; calls that only read run side by side",
    ),
)
"""Their ids are the words of the session's setting."""


def mode_state(current: str) -> SessionModeState:
    """Return the modes, of which *current* is in force."""
    return SessionModeState(current, MODES)
