"""How many clients there are file descriptors for.

Each connection takes one, and the engine needs some itself: without any left it could
not open its database, and turns would fail because of clients who do nothing.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

ENGINE_DESCRIPTORS: Final = 512
"""For the engine, and for connections of which it is not known yet who they are."""

WANTED_DESCRIPTORS: Final = 8_192
"""Enough for every client that is let in; macOS allows some 10,000."""


def room_for(clients: int) -> int:
    """Return how many of so many clients can be connected at a time."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return clients
    return min(clients, max(soft // 4, soft - ENGINE_DESCRIPTORS))


def room_to_wait(connections: int) -> int:
    """Return how many of so many may wait to say who they are, beside the clients."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    return min(connections, soft // 4)


def raise_descriptors() -> None:
    """Let this process open `WANTED_DESCRIPTORS` files, as far as it may.

    Many systems begin with 256 or 1,024; a program that is a server says that it is.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    wanted = WANTED_DESCRIPTORS if unlimited else min(WANTED_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # A system may have a bound that it does not tell.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
