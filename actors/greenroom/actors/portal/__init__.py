"""Portals: an engine in a thread of its own, for asyncio and for plain threads.

A call crosses to the engine's thread as a task of its own and comes back with its
value or its error; whoever is cancelled while it waits cancels the task there, and
waits for its end. Nothing here knows what is called: `greenroom.aio` and
`greenroom.sync` say that.
"""

from __future__ import annotations

from ._asyncio import (
    AsyncStream as AsyncStream,
    awaiting as awaiting,
    awaiting_as as awaiting_as,
    awaiting_plain as awaiting_plain,
    open_async as open_async,
    open_async_stream as open_async_stream,
)
from ._asyncio_tools import (
    AsyncOperation as AsyncOperation,
    asyncio_tool as asyncio_tool,
)
from ._blocking import (
    BlockingStream as BlockingStream,
    blocking as blocking,
    blocking_as as blocking_as,
    blocking_plain as blocking_plain,
    open_blocking as open_blocking,
    open_blocking_stream as open_blocking_stream,
)
from ._slot import Slot as Slot
from ._streams import as_async as as_async, received as received
from ._thread import (
    Crossing as Crossing,
    EngineClosedError as EngineClosedError,
    Portal as Portal,
    Remote as Remote,
    Twin as Twin,
)
