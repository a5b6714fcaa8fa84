"""A trio run in a thread of its own that keeps one thing open, and calls into it.

Every call is a `Crossing`: a task there, with a cancel scope, and a future for whoever
waits here. Nothing blocks the caller's thread: `Portal.submit` puts a note into trio's
own queue and returns. Whatever becomes of the run, every crossing is settled.

The thread is a daemon: foreign code that never ends, left behind by the engine, does
not keep the process from ending.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any, Final, Generic, Protocol, TypeVar, final

import attrs
import trio

from greenroom.protocol import GreenroomError

from ._slot import Slot

Ending = Callable[[], Awaitable[None]]

T = TypeVar("T")
R = TypeVar("R")

LEAVE_SECONDS: Final = 2.0
"""How long closing waits for the thread when what it kept open is closed."""


class EngineClosedError(GreenroomError):
    """The engine is closed, or being closed; the call was not made, or cut off."""

    code = "engine_closed"
    hint = "open another one on the same state folder"

    def __init__(self) -> None:
        super().__init__("the engine of this call is closed")


class WithdrawnError(Exception):
    """A crossing ended because it was cancelled from here; its waiter never sees it."""


@final
@attrs.define(eq=False)
class Crossing(Generic[T]):
    """One call on its way; made by `Portal.submit`."""

    _function: Callable[[], Awaitable[T]]
    _token: trio.lowlevel.TrioToken
    slot: Slot[T] = attrs.field(factory=Slot[T], init=False)
    """Settled once, in whatever way the call ends; never cancelled itself."""
    begun: bool = attrs.field(default=False, init=False)
    """Whether its task was started; known in the run."""
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def cancel(self) -> None:
        """Cancel the call, from any thread; `slot` tells when it has ended."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._scope.cancel)

    def fail(self, error: BaseException) -> None:
        """End it with *error*, unless it has ended."""
        self.slot.set_error(error)

    async def run(self) -> None:
        """Make the call; the body of its task."""
        try:
            with self._scope:
                self.slot.set_value(await self._function())
        except trio.Cancelled:
            self.fail(EngineClosedError())
            raise
        except BaseException as exc:
            self.fail(single_cause(exc))
        else:
            self.fail(WithdrawnError())


@final
class Portal(Generic[T]):
    """Keeps what *opening* opens in a trio run of its own; begun by `start`."""

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._opening = opening
        self._thread = threading.Thread(
            target=self._run, name="greenroom engine", daemon=True
        )
        self._process = os.getpid()
        self._token: trio.lowlevel.TrioToken | None = None
        self._ready = Slot[None]()
        self._accepts = False
        self._crossings: set[Crossing[Any]] = set()
        self._endings: dict[Ending, None] = {}
        self.opened: Slot[T] = Slot()
        """What was opened, or why it could not be."""
        self.closed: Slot[None] = Slot()
        """Settled when it is closed; with the error if it broke."""
        self.ended: Slot[None] = Slot()
        """Settled when the thread has nothing more to do."""

    def __repr__(self) -> str:
        return f"<Portal {'open' if self._accepts else 'closed'}>"

    @property
    def is_own_thread(self) -> bool:
        """Whether this is the thread of the run, which must never wait for itself."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Start the thread; returns when calls can be submitted, opened or not.

        Raises:
            OSError, RuntimeError: the system has no room for it.
        """
        self._thread.start()
        self._ready.wait()
        if self._token is None:
            self.opened.result()

    def submit(self, function: Callable[[], Awaitable[R]]) -> Crossing[R]:
        """Begin a call in the run, from any thread; returns at once.

        After closing has begun it ends with an `EngineClosedError`.
        """
        crossing = self.prepare(function)
        self.begin(crossing)
        return crossing

    def prepare(self, function: Callable[[], Awaitable[R]]) -> Crossing[R]:
        """Make a call that is to be begun, for who must be able to cancel it first."""
        assert self._token is not None
        return Crossing(function, self._token)

    def begin(self, crossing: Crossing[Any]) -> None:
        """Begin a call that was prepared, if that was not done; see `submit`.

        In a process that was forked it fails: the run is in the other one.
        """
        assert self._token is not None
        if self._is_forked():
            crossing.fail(
                RuntimeError(
                    "the engine is in the process that has opened it; after a fork, "
                    "open another one"
                )
            )
            return
        try:
            self._token.run_sync_soon(self._begin, crossing)
        except trio.RunFinishedError:
            crossing.fail(EngineClosedError())

    def close_soon(self) -> None:
        """Begin to close, from any thread; what is still being opened is cancelled.

        Calls under way end as the thing ends them; those that it leaves are cancelled.
        A process that was forked has nothing to close.
        """
        assert self._token is not None
        if self._is_forked():
            self.closed.set_value(None)
            self.ended.set_value(None)
            return
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._close)

    def _is_forked(self) -> bool:
        # Threads stay behind in a fork, so nobody would ever answer.
        return os.getpid() != self._process

    #### In the thread

    @contextmanager
    def at_end(self, ending: Ending) -> Generator[None]:
        """Have *ending* awaited when the thing is closed, if the block is open then.

        All of them have two seconds; calls that are under way are cut off afterwards.
        """
        self._endings[ending] = None
        try:
            yield
        finally:
            del self._endings[ending]

    def _run(self) -> None:
        failure: BaseException = EngineClosedError()
        try:
            trio.run(self._main)
        except BaseException as exc:
            failure = exc
        for crossing in tuple(self._crossings):
            crossing.fail(EngineClosedError())
        self.opened.set_error(failure)
        self.closed.set_error(failure)
        self._ready.set_value(None)
        self.ended.set_value(None)

    async def _main(self) -> None:
        self._scope = trio.CancelScope()
        self._closing = trio.Event()
        async with trio.open_nursery() as self._nursery:
            self._token = trio.lowlevel.current_trio_token()
            self._ready.set_value(None)
            try:
                await self._keep()
                self._accepts = False
                with trio.move_on_after(LEAVE_SECONDS):
                    for ending in tuple(self._endings):
                        await ending()
            finally:
                self._nursery.cancel_scope.cancel()

    async def _keep(self) -> None:
        try:
            with self._scope:
                async with self._opening() as thing:
                    self._accepts = True
                    self.opened.set_value(thing)
                    await self._closing.wait()
        except BaseException as exc:
            cause = single_cause(exc)
            if not self.opened.done:
                self.opened.set_error(cause)
                self.closed.set_value(None)
            else:
                self.closed.set_error(cause)
        else:
            if not self.opened.done:
                self.opened.set_error(WithdrawnError())
            self.closed.set_value(None)

    def _begin(self, crossing: Crossing[Any]) -> None:
        if crossing.begun:
            return
        if not self._accepts:
            crossing.fail(EngineClosedError())
            return
        crossing.begun = True
        self._crossings.add(crossing)
        crossing.slot.on_done(lambda: self._crossings.discard(crossing))
        self._nursery.start_soon(crossing.run)

    def _close(self) -> None:
        self._accepts = False
        self._closing.set()
        if not self.opened.done:
            self._scope.cancel()


@final
@attrs.frozen(eq=False)
class Remote(Generic[T]):
    """Something of the run, as it is held outside of it."""

    portal: Portal[Any]
    thing: T
    """The thing itself: for use in the run's thread only."""


class Twin(Protocol[T]):
    """What stands outside for a thing of the run."""

    @property
    def remote(self) -> Remote[T]:
        """The thing."""
        ...


def single_cause(error: BaseException) -> BaseException:
    """Return what a group of one is about, however deep; others as they are."""
    cause, parts = error, _parts(error)
    while len(parts) == 1:
        (cause,) = parts
        parts = _parts(cause)
    return cause


def _parts(error: BaseException) -> tuple[BaseException, ...]:
    # Read so because the checker knows no type of the parts.
    return getattr(error, "exceptions", ()) if _is_group(error) else ()


def _is_group(error: BaseException) -> bool:
    return isinstance(error, BaseExceptionGroup)
