"""The gateway: engines over WebSocket, for any number of clients.

A client is a watcher and a prompter like any other; it can only hurt itself. What it
sends is bounded, what it does not read is bounded, and a client that leaves changes
nothing: its turns go on, and whoever comes next sees the same.
"""

from __future__ import annotations

from ._access import (
    AccessError as AccessError,
    Token as Token,
    is_loopback as is_loopback,
    tokens_of as tokens_of,
)
from ._descriptors import raise_descriptors as raise_descriptors
from ._gateway import Gateway as Gateway
from ._opening import (
    DEFAULT_PORT as DEFAULT_PORT,
    listen as listen,
    open_gateway as open_gateway,
)
