"""Who opened a run: the event loop that its tools of asyncio run on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, final

import attrs
import trio

from ._thread import Portal

T = TypeVar("T")


@final
@attrs.define(eq=False)
class AsyncHost:
    """An event loop, and the portal that was opened from it."""

    loop: asyncio.AbstractEventLoop
    portal: Portal[Any] | None = None


# Of the run, so that a tool is of no engine before it is called.
_HOST = trio.lowlevel.RunVar[AsyncHost | None]("greenroom_async_host", default=None)


@asynccontextmanager
async def hosted(
    opened: AbstractAsyncContextManager[T], host: AsyncHost
) -> AsyncGenerator[T]:
    """Open something in a run whose host is *host*."""
    _HOST.set(host)
    async with opened as thing:
        yield thing


def current_host() -> AsyncHost | None:
    """Return the host of this run, if it has one."""
    return _HOST.get()
