"""Seeds of the simulation, in the quantity that fits into every run of the tests.

Each block of seeds is played by a process of its own with a fixed hash seed, so that a
seed that fails here fails in the command that is printed, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from kit import determinism
from kit.determinism import UnknownSchedulerError, check_scheduler, run_repeatably
from sim.mutants import MUTANTS

RUN = Path(__file__).with_name("run.py")
BLOCK = 100
BLOCKS = 5
MUTANT_SEEDS = 60
"""A mutant has to be found within so many seeds."""

# Whole engines, again and again; the processes are waited for.
pytestmark = pytest.mark.slow


def run_seeds(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": determinism.HASH_SEED}
    return subprocess.run(
        [sys.executable, "-W", "error", str(RUN), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize("first", range(0, BLOCK * BLOCKS, BLOCK))
def test_any_history_keeps_the_laws(first):
    done = run_seeds("--from", f"{first}", "--seeds", f"{BLOCK}", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["seeds"], figures["failed"]) == (BLOCK, [])
    # The seeds are worth their time: processes died, turns ended, tools had effects.
    assert min(figures["deaths"], figures["turns"], figures["effects"]) > BLOCK // 4


def test_a_seed_is_one_history_byte_for_byte():
    # Whatever was played before in the same process.
    first = run_seeds("--from", "3", "--seeds", "6", "--history")
    second = run_seeds("--from", "6", "--seeds", "3", "--history")
    assert first.returncode == 0, first.stderr
    told = [run.stdout.splitlines()[:-1] for run in (first, second)]
    assert len(told[1]) > 200
    assert told[0][-len(told[1]) :] == told[1]


@pytest.fixture(scope="module")
def found():
    # One process with the hash seed of every other: found here, found everywhere.
    done = run_seeds("--mutant", "all", "--seeds", f"{MUTANT_SEEDS}")
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(found, mutant):
    seeds, told = found
    assert seeds[mutant] is not None, told


#### What makes it repeat


async def order_of_steps() -> list[int]:
    steps: list[int] = []

    async def walk(number: int) -> None:
        for _ in range(5):
            steps.append(number)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(walk, number)
    return steps


def test_a_seed_of_the_scheduler_is_one_order_of_steps():
    orders = [tuple(run_repeatably(seed, order_of_steps)) for seed in (1, 1, 2, 3, 4)]
    assert orders[0] == orders[1]
    assert len(set(orders)) == 4


def test_an_unknown_scheduler_is_refused(monkeypatch):
    check_scheduler()
    monkeypatch.setattr(trio, "__version__", "0.99.0")
    with pytest.raises(UnknownSchedulerError, match=r"trio 0\.99\.0 is not one of"):
        check_scheduler()
