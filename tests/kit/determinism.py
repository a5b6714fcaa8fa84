"""One seed, one history: what makes a run of trio repeat exactly.

The one place that reaches into trio's scheduler. By default trio shuffles what is
runnable, on purpose and without a public seed; here it sorts first and shuffles by a
seed. What else could differ from run to run is taken away: the clock is a mock that
jumps, the garbage collector does not run in between (it ends asynchronous generators
that were left, which are steps), work for a thread is done on the spot (the clock does
not wait for a thread), and the hash seed is fixed, so sets and dicts of text have one
order in every process.

Chance, ids and the wall clock are not trio's: give the engine seeded ones.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import trio
from trio._core import _run as trio_scheduler
from trio.testing import MockClock

KNOWN_TRIO: Final = ("0.35",)
"""Minor versions whose scheduler was read and does what this module says."""

HASH_SEED: Final = "0"

T = TypeVar("T")


class UnknownSchedulerError(RuntimeError):
    """The installed trio may schedule in another way than this module relies on."""


def check_scheduler() -> None:
    """Check that the scheduler is one that this module knows.

    Raises:
        UnknownSchedulerError: it has another version, or lacks what is set here.
    """
    version = trio.__version__
    if not version.startswith(tuple(f"{known}." for known in KNOWN_TRIO)):
        raise UnknownSchedulerError(
            f"trio {version} is not one of {', '.join(KNOWN_TRIO)}: read how its"
            " _core/_run.py orders a batch of tasks, then add it to KNOWN_TRIO"
        )
    for name in ("_ALLOW_DETERMINISTIC_SCHEDULING", "_r"):
        if not hasattr(trio_scheduler, name):
            raise UnknownSchedulerError(f"trio {version} has no scheduler {name!r}")


@contextmanager
def deterministic(seed: int) -> Generator[None]:
    """Let trio's scheduler follow *seed* while the block runs."""
    check_scheduler()
    run_sync, trio.to_thread.run_sync = trio.to_thread.run_sync, _on_the_spot
    before = trio_scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    state = trio_scheduler._r.getstate()
    collects = gc.isenabled()
    gc.disable()
    trio_scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_scheduler._r.seed(seed)
    try:
        yield
    finally:
        trio.to_thread.run_sync = run_sync
        trio_scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before  # type: ignore[misc]
        trio_scheduler._r.setstate(state)
        if collects:
            gc.enable()


async def _on_the_spot(fn: Callable[..., T], *args: Any, **_: Any) -> T:
    await trio.lowlevel.checkpoint()
    return fn(*args)


def run_repeatably(seed: int, fn: Callable[..., Awaitable[T]], *args: object) -> T:
    """Return what `trio.run` of *fn* returns, on a clock that jumps."""
    with deterministic(seed):
        return trio.run(fn, *args, clock=MockClock(autojump_threshold=0))


def fix_hash_seed() -> None:
    """Start this program again with the one hash seed, if it has another.

    For the first line of a script; the process keeps its id.
    """
    if os.environ.get("PYTHONHASHSEED") == HASH_SEED:
        return
    environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
