"""The one port of telemetry: an observer is told what hooks are told, and some more.

Runs and sessions tell their notices at one place each; who makes spans, metrics or
records of them is no part of them (PER-08). `greenroom.otel` has an observer that
speaks OpenTelemetry.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol

from greenroom.actors.kernel import Clock
from greenroom.protocol import Notice

_LOG: Final = logging.getLogger("greenroom.hooks")

Tell = Callable[[Notice], None]


class Observer(Protocol):
    """Looks on for one engine. Told in the engine's loop: it may never wait."""

    def told(self, notice: Notice) -> None:
        """Take *notice* in; of one session they come in the order of what happened."""
        ...

    def close(self) -> None:
        """The engine has ended; whatever is open then never ends any more."""
        ...


class Telemetry(Protocol):
    """Makes observers."""

    def observe(self, clock: Clock) -> Observer:
        """Return the observer of an engine that has begun; *clock* is its time."""
        ...


@asynccontextmanager
async def open_observer(
    telemetry: Telemetry | None, clock: Clock
) -> AsyncGenerator[Tell | None]:
    """Give what tells the observer of *telemetry*; ``None`` without one.

    What an observer raises is logged, and changes nothing.
    """
    if telemetry is None:
        yield None
        return
    observer = telemetry.observe(clock)

    def tell(notice: Notice) -> None:
        try:
            observer.told(notice)
        except Exception:
            what = type(notice).__name__
            _LOG.exception("the observer failed to take in a %s", what)

    try:
        yield tell
    finally:
        try:
            observer.close()
        except Exception:
            _LOG.exception("the observer failed to close")


def tell_both(hooks: Tell, observer: Tell | None) -> Tell:
    """Return what tells hooks and the observer, if there is one."""
    if observer is None:
        return hooks

    def tell(notice: Notice) -> None:
        hooks(notice)
        observer(notice)

    return tell
