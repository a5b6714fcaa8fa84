"""A value or an error that comes once, for whoever waits in another thread.

No lock is held at any moment: a thread that is interrupted by Ctrl-C between any two
steps leaves nothing locked, as a future of the standard library may. What is shared
are single reads and writes and the ends of a deque.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Final, Generic, TypeVar, final

T = TypeVar("T")

SIGNAL_SECONDS: Final = 0.5
"""How late a blocked thread may notice a signal."""


@final
class Slot(Generic[T]):
    """Settled once, by one thread; read and waited for from any."""

    __slots__ = ("_callbacks", "_error", "_values", "done")

    def __init__(self) -> None:
        self.done = False
        """Whether it is settled."""
        self._values: tuple[T, ...] = ()
        self._error: BaseException | None = None
        self._callbacks = deque[Callable[[], object]]()

    def __repr__(self) -> str:
        return f"<Slot {'settled' if self.done else 'empty'}>"

    def set_value(self, value: T) -> None:
        """Settle it; what is settled stays as it is."""
        self._settle((value,), None)

    def set_error(self, error: BaseException) -> None:
        """Settle it with an error; what is settled stays as it is."""
        self._settle((), error)

    @property
    def error(self) -> BaseException | None:
        """The error that it was settled with."""
        return self._error

    def result(self) -> T:
        """Return the value of one that is settled, or raise its error."""
        assert self.done
        if self._error is not None:
            raise self._error
        (value,) = self._values
        return value

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call *callback* once when it is settled, in whichever thread is at hand.

        It must not raise.
        """
        self._callbacks.append(callback)
        if self.done:
            self._call_back()

    def forget(self, callback: Callable[[], object]) -> None:
        """Don't call *callback* any more, if it was not called."""
        with suppress(ValueError, IndexError):
            self._callbacks.remove(callback)

    def wait(self) -> None:
        """Block this thread until it is settled."""
        gate = Lock()
        gate.acquire()
        self.on_done(gate.release)
        # A signal right before the system waits would be noticed only afterwards.
        while not gate.acquire(timeout=SIGNAL_SECONDS):
            pass

    def wait_for(self, seconds: float) -> bool:
        """Block this thread so long at most; whether it is settled."""
        gate = Lock()
        gate.acquire()
        self.on_done(gate.release)
        return gate.acquire(timeout=seconds)

    def _settle(self, values: tuple[T, ...], error: BaseException | None) -> None:
        if self.done:
            return
        self._values, self._error = values, error
        self.done = True
        self._call_back()

    def _call_back(self) -> None:
        # Both threads may be here: each callback is taken by one of them.
        while True:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return
            callback()
