"""Which version a connection speaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SUPPORTED_VERSIONS: Final = (1,)
"""What this greenroom speaks, as an agent."""


def negotiated_version(
    requested: int, supported: Sequence[int] = SUPPORTED_VERSIONS
) -> int:
    """Return what an agent answers to a client that offers *requested*.

    The newest that both know; when there is none, the newest of ours, and the client
    decides whether it goes on.
    """
    return max([v for v in supported if v <= requested] or supported)
