"""The soak in short: a few rounds run through, and the judge sees what grows."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from soak.soak import FEWEST, MAX_LOG_BYTES, Sample, grown, soak

FLAT = Sample(
    seconds=1.0,
    memory=200 << 20,
    descriptors=20,
    threads=5,
    tasks=30,
    actors=9,
    log=4 << 20,
)


async def test_a_few_rounds_leave_nothing_behind(tmp_path: Path) -> None:
    samples = await soak(tmp_path, 0.0, lambda _: None)
    assert len(samples) == FEWEST
    assert grown(samples) == []


def test_what_is_flat_is_judged_flat() -> None:
    noisy = [
        attrs.evolve(FLAT, memory=FLAT.memory + (n % 3 << 20), threads=4 + n % 3)
        for n in range(30)
    ]
    assert grown(noisy) == []


@pytest.mark.parametrize("name", ["descriptors", "threads", "tasks", "actors"])
def test_one_more_each_round_has_grown(name: str) -> None:
    samples = [attrs.evolve(FLAT, **{name: getattr(FLAT, name) + n}) for n in range(60)]
    (told,) = grown(samples)
    assert told.startswith(name)


@pytest.mark.parametrize("name", ["descriptors", "tasks", "actors"])
def test_one_more_each_few_rounds_has_grown(name: str) -> None:
    samples = [
        attrs.evolve(FLAT, **{name: getattr(FLAT, name) + n // 5}) for n in range(30)
    ]
    (told,) = grown(samples)
    assert told.startswith(name)


def test_memory_and_the_log_have_bounds() -> None:
    leak = [attrs.evolve(FLAT, memory=FLAT.memory + (n << 22)) for n in range(60)]
    assert [told.split()[0] for told in grown(leak)] == ["memory"]
    log = [attrs.evolve(FLAT, log=n * MAX_LOG_BYTES // 20) for n in range(30)]
    assert [told.split()[0] for told in grown(log)] == ["log"]


def test_too_few_rounds_judge_nothing() -> None:
    assert grown([FLAT] * (FEWEST - 1)) == ["only 8 rounds were done, 9 are needed"]
