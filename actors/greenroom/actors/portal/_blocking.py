"""Waiting for the run in a plain thread: calls, the run itself, and streams.

Any thread may call, several at once, but the run's own. A thread that is interrupted
while it waits (Ctrl-C in the main one) cancels the call and raises when it has ended;
interrupted again, it waits no more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
)
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, final

import attrs

from ._streams import Held, Reading
from ._thread import (
    LEAVE_SECONDS,
    Portal,
    Remote,
    Twin,
)

T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R")
S = TypeVar("S")
E = TypeVar("E")
P = ParamSpec("P")


def blocking(
    method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Twin[T], P], R]:
    """Make the method of a twin out of that of its thing."""

    @wraps(method)
    def call(twin: Twin[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        remote = twin.remote
        return waited(remote.portal, partial(method, remote.thing, *args, **kwargs))

    return call


def blocking_as(
    make: Callable[[Remote[U]], R],
    method: Callable[Concatenate[T, P], Coroutine[Any, Any, U]],
) -> Callable[Concatenate[Twin[T], P], R]:
    """Do the same, for one that returns something that has a twin."""

    @wraps(method)
    def call(twin: Twin[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        remote = twin.remote
        made = waited(remote.portal, partial(method, remote.thing, *args, **kwargs))
        return make(Remote(remote.portal, made))

    return call


def blocking_plain(
    method: Callable[Concatenate[T, P], R],
) -> Callable[Concatenate[Twin[T], P], R]:
    """Do the same, for one that is not asynchronous; it runs in the run's thread."""

    @wraps(method)
    def call(twin: Twin[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        remote = twin.remote

        async def there() -> R:
            return method(remote.thing, *args, **kwargs)

        return waited(remote.portal, there)

    return call


def waited(portal: Portal[Any], function: Callable[[], Awaitable[R]]) -> R:
    """Make a call and return its value, or raise what it raised.

    Raises:
        RuntimeError: this is the run's own thread, which would wait for itself.
    """
    _refuse_own_thread(portal)
    crossing = portal.prepare(function)
    try:
        portal.begin(crossing)
        crossing.slot.wait()
    except BaseException:
        # This thread was interrupted, perhaps before the call was begun.
        crossing.cancel()
        portal.begin(crossing)
        crossing.slot.wait()
        raise
    return crossing.slot.result()


def _refuse_own_thread(portal: Portal[Any]) -> None:
    if portal.is_own_thread:
        raise RuntimeError(
            "can't wait for the engine in its own thread; call from a function that"
            " runs in another one, as a plain function that is a tool does"
        )


#### The run


def open_blocking(
    opening: Callable[P, AbstractAsyncContextManager[T]],
    make: Callable[[Remote[T]], U],
) -> Callable[P, AbstractContextManager[U]]:
    """Make a context manager that opens *opening*'s thing in a run of its own."""

    @wraps(opening)
    @contextmanager
    def opened(*args: P.args, **kwargs: P.kwargs) -> Generator[U]:
        portal = Portal(lambda: opening(*args, **kwargs))
        portal.start()
        try:
            portal.opened.wait()
            yield make(Remote(portal, portal.opened.result()))
        finally:
            portal.close_soon()
            _close(portal)

    return opened


def _close(portal: Portal[Any]) -> None:
    try:
        portal.closed.wait()
    except BaseException:
        # Interrupted; closing has bounds, so once more is not for ever.
        portal.closed.wait()
        raise
    portal.ended.wait_for(LEAVE_SECONDS)
    portal.closed.result()


#### Streams


@final
@attrs.define(eq=False)
class BlockingStream(Generic[E]):
    """An iterator over what the run has to tell; for one thread."""

    _reading: Reading[E]

    def __iter__(self) -> BlockingStream[E]:
        return self

    def __next__(self) -> E:
        reading = self._reading
        while not reading.ready:
            reading.under_way().wait()
            if not reading.adopt():
                raise StopIteration
        return reading.ready.popleft()


@contextmanager
def open_blocking_stream(
    portal: Portal[Any],
    opening: Callable[[], AbstractAsyncContextManager[S]],
    take: Callable[[S], Awaitable[Sequence[E]]],
) -> Generator[tuple[S, BlockingStream[E]]]:
    """Keep *opening*'s thing open in the run and read from it by *take*."""
    _refuse_own_thread(portal)
    held = Held(portal, opening, take)
    reading: Reading[E] | None = None
    try:
        held.opened.wait()
        thing, reading = held.opened.result()
        yield thing, BlockingStream(reading)
    finally:
        if reading is not None:
            reading.stop()
        held.close()
