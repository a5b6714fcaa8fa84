"""Time: of the process for work that computes, of the wall for work that waits.

Processor time leaves out what others do on the machine, which elapsed time does not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import final

from runner import Figures


@final
class Stopwatch:
    """Runs from when it is made."""

    __slots__ = ("_cpu", "_wall")

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._wall = time.perf_counter()

    def cpu(self) -> float:
        """Processor seconds of the process, all its threads."""
        return time.process_time() - self._cpu

    def wall(self) -> float:
        """Elapsed seconds."""
        return time.perf_counter() - self._wall

    def cpu_us_each(self, count: int) -> Figures:
        """Processor microseconds for each of *count* things."""
        return {"us_each": self.cpu() / count * 1e6}


def percentile(values: Sequence[float], part: float) -> float:
    """The value below which *part* of *values* lie; 0 of none."""
    ordered = sorted(values) or [0.0]
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
