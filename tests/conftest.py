"""Runs are repeatable and tests are quick, or they fail.

*Repeatable*: the Hypothesis profile in force derandomises, and trio's scheduler,
which shuffles on purpose, starts each test from a seed made of the test's name. The
profile ``dev`` (``--hypothesis-profile=dev``) looks for new examples instead, and
``few`` tries few of them, for a Python that is not the first to be tested.

*Quick*: a test may take 0.25 s. What is measured is processor time, because elapsed
time grows with whatever else the machine does; and what fails is eight times that,
because processor time does too (shared caches, a slower machine, another suite beside
this one). A property test is a hundred small tests, and has 20 s. Waiting costs no
processor time, so a test that is idle for many seconds fails as well: it sleeps. Time
in which the machine kept it waiting for a processor is not idle; where the system
doesn't tell it, idleness isn't judged.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from trio._core import _run as trio_scheduler

MAX_CPU_SECONDS: Final = 2.0
MAX_CPU_SECONDS_OF_PROPERTY: Final = 20.0
MAX_IDLE_SECONDS: Final = 15.0
UNLIMITED_FOLDERS: Final = frozenset(
    {"crash", "interop", "soak", "cli", "end_to_end", "realmodel"}
)
UNLIMITED_MARKS: Final = ("slow", "sweep", "realmodel", "interop", "browser")

TESTS: Final = Path(__file__).parent
SCHEDULING: Final = Path("/proc/self/schedstat")
"""Nanoseconds the main thread ran, and those it waited for a processor; Linux only."""

# What fails inside the kit should say as much as what fails in a test; before anything
# imports it.
pytest.register_assert_rewrite("kit")

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("few", settings.get_profile("ci"), max_examples=8)
settings.register_profile("dev", deadline=None, print_blob=True)
settings.load_profile("ci")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Seed trio's scheduler, run the test, judge its cost."""
    # trio has no public way to seed it; Hypothesis does the same while it runs.
    trio_scheduler._r.seed(item.nodeid)
    cpu, idle = time.process_time(), _idle_clock()
    result = yield
    cpu, idle = time.process_time() - cpu, _idle_clock() - idle
    if _is_limited(item) and (verdict := _verdict(cpu, idle, _limit(item))):
        pytest.fail(verdict, pytrace=False)
    return result


# A clock that runs only while the main thread waits for something that is no processor.
def _idle_clock() -> float:
    try:
        ran, queued, _ = SCHEDULING.read_text().split()
    except OSError:
        return 0.0
    return time.monotonic() - (int(ran) + int(queued)) / 1e9


def _is_limited(item: pytest.Item) -> bool:
    # Under coverage or a debugger the times say nothing about the test.
    if "coverage" in sys.modules or sys.gettrace() is not None:
        return False
    if any(item.get_closest_marker(mark) for mark in UNLIMITED_MARKS):
        return False
    return UNLIMITED_FOLDERS.isdisjoint(item.path.relative_to(TESTS).parts)


def _limit(item: pytest.Item) -> float:
    if is_hypothesis_test(getattr(item, "obj", None)):
        return MAX_CPU_SECONDS_OF_PROPERTY
    return MAX_CPU_SECONDS


def _verdict(cpu: float, idle: float, limit: float) -> str | None:
    if cpu > limit:
        return (
            f"used {cpu:.2f} s of processor time, more than {limit:.2f} s: "
            "make it smaller, or mark it slow and say why"
        )
    if idle > MAX_IDLE_SECONDS:
        return (
            f"was idle for {idle:.1f} s: it sleeps or waits for a real time-out; "
            "use MockClock or a gate"
        )
    return None
