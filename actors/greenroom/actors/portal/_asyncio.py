"""Waiting for the run in asyncio: calls, the run itself, and streams.

A task that is cancelled while it waits cancels the call, and goes on with its
`CancelledError` when the call has ended; an error that the call ends with instead
wins, as that of a coroutine's own clean-up would. A coroutine that is thrown away
(its loop was closed) cancels the call and waits for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, final

import anyio
import attrs

from ._host import AsyncHost, hosted
from ._slot import Slot
from ._streams import Held, Reading
from ._thread import (
    LEAVE_SECONDS,
    Crossing,
    EngineClosedError,
    Portal,
    Remote,
    Twin,
    WithdrawnError,
)

T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R")
S = TypeVar("S")
E = TypeVar("E")
P = ParamSpec("P")


def awaiting(
    method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Twin[T], P], Coroutine[Any, Any, R]]:
    """Make the method of a twin out of that of its thing."""

    @wraps(method)
    async def call(twin: Twin[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        remote = twin.remote
        bound = partial(method, remote.thing, *args, **kwargs)
        return await awaited(remote.portal.submit(bound))

    return call


def awaiting_as(
    make: Callable[[Remote[U]], R],
    method: Callable[Concatenate[T, P], Coroutine[Any, Any, U]],
) -> Callable[Concatenate[Twin[T], P], Coroutine[Any, Any, R]]:
    """Do the same, for one that returns something that has a twin."""

    @wraps(method)
    async def call(twin: Twin[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        remote = twin.remote
        bound = partial(method, remote.thing, *args, **kwargs)
        return make(Remote(remote.portal, await awaited(remote.portal.submit(bound))))

    return call


def awaiting_plain(
    method: Callable[Concatenate[T, P], R],
) -> Callable[Concatenate[Twin[T], P], Coroutine[Any, Any, R]]:
    """Do the same, for one that is not asynchronous; it runs in the run's thread."""

    @wraps(method)
    async def call(twin: Twin[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        remote = twin.remote

        async def there() -> R:
            return method(remote.thing, *args, **kwargs)

        return await awaited(remote.portal.submit(there))

    return call


async def awaited(crossing: Crossing[R]) -> R:
    """Wait for a call and return its value, or raise what it raised."""
    try:
        await _settled(crossing.slot)
    except asyncio.CancelledError:
        crossing.cancel()
        with suppress(asyncio.CancelledError):
            await _until_settled(crossing.slot)
        error = crossing.slot.error
        if error is None or isinstance(error, WithdrawnError | EngineClosedError):
            raise
        raise error from None
    except BaseException:
        crossing.cancel()
        raise
    return crossing.slot.result()


#### The run


def open_async(
    opening: Callable[P, AbstractAsyncContextManager[T]],
    make: Callable[[Remote[T]], U],
) -> Callable[P, AbstractAsyncContextManager[U]]:
    """Make a context manager that opens *opening*'s thing in a run of its own."""

    @wraps(opening)
    @asynccontextmanager
    async def opened(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[U]:
        host = AsyncHost(asyncio.get_running_loop())
        portal = Portal(lambda: hosted(opening(*args, **kwargs), host))
        host.portal = portal
        portal.start()
        thrown_away = False
        try:
            await _settled(portal.opened)
            yield make(Remote(portal, portal.opened.result()))
        except GeneratorExit:
            thrown_away = True
            raise
        finally:
            portal.close_soon()
            if not thrown_away:
                await _closed(portal)

    return opened


async def _closed(portal: Portal[Any]) -> None:
    await _until_settled(portal.closed)
    with suppress(TimeoutError):
        async with asyncio.timeout(LEAVE_SECONDS):
            await _settled(portal.ended)
    portal.closed.result()


#### Streams


@final
@attrs.define(eq=False)
class AsyncStream(Generic[E]):
    """An asynchronous iterator over what the run has to tell; for one task."""

    _reading: Reading[E]

    def __aiter__(self) -> AsyncStream[E]:
        return self

    async def __anext__(self) -> E:
        reading = self._reading
        while not reading.ready:
            await _settled(reading.under_way())
            if not reading.adopt():
                raise StopAsyncIteration
        return reading.ready.popleft()


@asynccontextmanager
async def open_async_stream(
    portal: Portal[Any],
    opening: Callable[[], AbstractAsyncContextManager[S]],
    take: Callable[[S], Awaitable[Sequence[E]]],
) -> AsyncGenerator[tuple[S, AsyncStream[E]]]:
    """Keep *opening*'s thing open in the run and read from it by *take*."""
    held = Held(portal, opening, take)
    reading: Reading[E] | None = None
    try:
        await _settled(held.opened)
        thing, reading = held.opened.result()
        yield thing, AsyncStream(reading)
    finally:
        if reading is not None:
            reading.stop()
        held.close()


#### Waiting


async def _settled(slot: Slot[Any]) -> None:
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    wake = partial(_wake, loop, waiter)
    slot.on_done(wake)
    try:
        await waiter
    finally:
        slot.forget(wake)


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    # A loop that is closed has nobody who waits.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_set, waiter)


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _until_settled(slot: Slot[Any]) -> None:
    # Shielded against scopes of anyio, which would cancel this again and again; a
    # cancel of asyncio's own comes once, and is raised afterwards.
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not slot.done:
            try:
                await _settled(slot)
            except asyncio.CancelledError as exc:
                cancelled = exc
    if cancelled is not None:
        raise cancelled
