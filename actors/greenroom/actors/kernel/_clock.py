"""Time and chance.

The one module in ``actors`` that reads the clock, makes ids or draws random
numbers (rule 7), so that a test can own all three. Actors get theirs from their
context.
"""

from __future__ import annotations

import base64
import random
import secrets
import time
import uuid
from time import perf_counter as perf_counter
from typing import Protocol, final

import attrs
import trio


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> float:
        """Seconds since the epoch, for what people and records see."""
        ...

    def monotonic(self) -> float:
        """Seconds on the loop's clock, for durations and deadlines."""
        ...


class Ids(Protocol):
    """Where identity and chance come from."""

    def uuid(self) -> str:
        """A new random UUID as text."""
        ...

    def token(self, size: int) -> str:
        """``size`` random bytes as URL-safe text without padding."""
        ...

    def random(self) -> float:
        """A number in [0, 1), for jitter."""
        ...


@final
@attrs.frozen
class SystemClock:
    """The machine's wall clock and the trio loop's own time."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return trio.current_time()


@final
@attrs.frozen
class FixedClock:
    """A wall clock that starts at a given time and moves with the loop's.

    Under `trio.testing.MockClock` both are the test's.
    """

    epoch: float = 1_700_000_000.0

    def now(self) -> float:
        return self.epoch + trio.current_time()

    def monotonic(self) -> float:
        return trio.current_time()


@final
@attrs.frozen
class StillClock:
    """A wall clock that stands; what waits goes by the loop's."""

    at: float

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return trio.current_time()


@final
@attrs.frozen
class SystemIds:
    """Identity and chance from the operating system."""

    def uuid(self) -> str:
        return str(uuid.uuid4())

    def token(self, size: int) -> str:
        return secrets.token_urlsafe(size)

    def random(self) -> float:
        return random.random()


@final
class SeededIds:
    """The same ids in the same order for the same seed. Not for secrets."""

    __slots__ = ("_source",)

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)

    def uuid(self) -> str:
        return str(uuid.UUID(bytes=self._source.randbytes(16), version=4))

    def token(self, size: int) -> str:
        raw = base64.urlsafe_b64encode(self._source.randbytes(size))
        return raw.rstrip(b"=").decode("ascii")

    def random(self) -> float:
        return self._source.random()
