"""Where an actor is in its life. It only moves forward."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Phase(IntEnum):
    """The phases of an actor's life, in order."""

    NEW = 0
    """It has a reference and accepts mail; `Started` has not been handed to it."""
    STARTING = 1
    """It handles `Started`, or its asynchronous set-up runs."""
    LIVE = 2
    """It is published: its supervisor vouches for it."""
    CLOSING = 3
    """It reads no more mail; its children are being stopped."""
    EXITED = 4
    """Its exit reason is known and its watchers have been told."""


# Python 3.11 takes 0.15 us to read a member off its class, as long as ten attributes.
NEW: Final = Phase.NEW
STARTING: Final = Phase.STARTING
LIVE: Final = Phase.LIVE
CLOSING: Final = Phase.CLOSING
EXITED: Final = Phase.EXITED
