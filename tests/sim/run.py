"""Play many seeds, or one again.

    python tests/sim/run.py --seeds 1000000 --jobs 2      from 0 on
    python tests/sim/run.py --from 4711 --seeds 1 --history
    python tests/sim/run.py --mutant lost_answer --seeds 60

Says which seeds failed, why, and how to play each again; the exit code is 1 if any did.
``--json`` prints the summary for a program. Progress goes to standard error.

A mutant is a bug on purpose (`mutants`): it is played until a seed fails, and the exit
code is 1 if none did. Several may be named; ``all`` names every one.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import argparse
import faulthandler
import json
import logging
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any, Final

import attrs
from kit.determinism import fix_hash_seed
from sim.mutants import MUTANTS
from sim.play import Verdict, make_template, play

STUCK_SECONDS: Final = 120.0
"""Real time after which a seed that hangs ends its process, with its stack."""
PROGRESS_SECONDS: Final = 10.0
CHUNK: Final = 20

Sound = dict[tuple[int, tuple[str, ...]], bool]
"""Seeds, and what was favoured in them: whether they are right without a mutant."""

_folder = Path()
"""Where this process plays; the template is in it."""


@attrs.define(eq=False)
class Summary:
    """What came of many seeds."""

    first: int
    seeds: int = 0
    deaths: int = 0
    turns: int = 0
    effects: int = 0
    cpu_seconds: float = 0.0
    started: float = attrs.field(factory=time.monotonic)
    failed: list[dict[str, Any]] = attrs.field(factory=list)

    def add(self, verdict: Verdict, cpu_seconds: float) -> None:
        self.seeds += 1
        self.deaths += verdict.deaths
        self.turns += verdict.turns
        self.effects += verdict.effects
        self.cpu_seconds += cpu_seconds
        if verdict.problems:
            self.failed.append(
                {
                    "seed": verdict.seed,
                    "problems": verdict.problems,
                    "replay": replay(verdict.seed),
                }
            )

    def figures(self) -> dict[str, Any]:
        rate = self.seeds / self.cpu_seconds if self.cpu_seconds else 0.0
        return {
            "from": self.first,
            "seeds": self.seeds,
            "deaths": self.deaths,
            "turns": self.turns,
            "effects": self.effects,
            "cpu_seconds": round(self.cpu_seconds, 2),
            "seconds": round(time.monotonic() - self.started, 2),
            "seeds_per_cpu_second": round(rate, 2),
            "failed": self.failed,
        }

    def line(self) -> str:
        figures = self.figures()
        return (
            f"{self.seeds} seeds from {self.first}, {len(self.failed)} failed;"
            f" {self.deaths} deaths, {self.turns} turns, {self.effects} effects;"
            f" {figures['seeds_per_cpu_second']} seeds per CPU second"
        )


def replay(seed: int) -> str:
    """Return the command that plays *seed* again."""
    return f"python tests/sim/run.py --from {seed} --seeds 1 --history"


#### In the process that plays


def prepare(folder: str) -> None:
    """Make the template of this process."""
    global _folder
    # What the engine warns of is expected here, and much.
    logging.getLogger("greenroom").addHandler(logging.NullHandler())
    logging.getLogger("greenroom").propagate = False
    _folder = Path(tempfile.mkdtemp(dir=folder))
    make_template(_folder / "template")


def play_one(
    seed: int, favours: tuple[str, ...] = (), *, history: bool = False
) -> tuple[Verdict, float]:
    """Play *seed*; also return the processor time it took."""
    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
    began = time.process_time()
    try:
        where = _folder / "template", _folder / f"seed-{seed}"
        verdict = play(seed, *where, favours, history=history)
    finally:
        faulthandler.cancel_dump_traceback_later()
    return verdict, time.process_time() - began


def play_quietly(seed: int) -> tuple[Verdict, float]:
    """Play *seed*; of a history that is right its lines are not told."""
    verdict, cpu = play_one(seed)
    return attrs.evolve(verdict, lines=()), cpu


#### In the process that was started


@contextmanager
def player(jobs: int, folder: str, *, history: bool) -> Iterator[Any]:
    """Yield what maps seeds to what came of them, in the order of the seeds."""
    if jobs == 1:
        prepare(folder)
        yield lambda seeds: map(partial(play_one, history=history), seeds)
        return
    with ProcessPoolExecutor(
        jobs, get_context("spawn"), initializer=prepare, initargs=(folder,)
    ) as pool:
        yield lambda seeds: _in_chunks(pool, seeds, jobs * 4 * CHUNK)


# The executor takes everything at once; a million tasks are given in portions.
def _in_chunks(
    pool: ProcessPoolExecutor, seeds: range, size: int
) -> Iterator[tuple[Verdict, float]]:
    for start in range(0, len(seeds), size):
        part = seeds[start : start + size]
        yield from pool.map(play_quietly, part, chunksize=CHUNK)


def watch(
    results: Iterable[tuple[Verdict, float]], summary: Summary, *, history: bool
) -> None:
    """Add up *results*, telling of failures at once and of progress at times."""
    told = time.monotonic()
    for verdict, cpu_seconds in results:
        summary.add(verdict, cpu_seconds)
        if history:
            print(*verdict.lines, sep="\n")
        if verdict.problems:
            print(f"seed {verdict.seed} failed:", file=sys.stderr)
            print(*verdict.problems, sep="\n", file=sys.stderr)
            print(f"again: {replay(verdict.seed)}", file=sys.stderr, flush=True)
        if time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            print(summary.line(), file=sys.stderr, flush=True)


def find(name: str, seeds: range, sound: Sound) -> int | None:
    """Return the first seed that fails with the mutant *name*, and never without it.

    *sound* is what is known already of seeds without a mutant.
    """
    mutant = MUTANTS[name]
    for seed in (mutant.known, *seeds):
        with mutant.change():
            verdict, _ = play_one(seed, mutant.favours)
        if not verdict.problems:
            continue
        key = seed, mutant.favours
        if key not in sound:
            sound[key] = not play_one(*key)[0].problems
        if sound[key]:
            # Of a traceback the last line, without the frame of a group.
            why = verdict.problems[0].rstrip("+-| \n").splitlines()[-1]
            print(f"{name}: seed {seed}: {why}", file=sys.stderr)
            return seed
    print(f"{name}: no seed finds it", file=sys.stderr)
    return None


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description="Play seeds of the simulation.")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--history", action="store_true", help="print what happened")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument(
        "--mutant",
        action="append",
        default=[],
        choices=["all", *MUTANTS],
        dest="mutants",
        help="a bug to be found",
    )
    asked = parser.parse_args()
    if asked.seeds < 1 or asked.jobs < 1 or asked.first < 0:
        parser.error("seeds and jobs are at least 1, and seeds begin at 0")
    if asked.jobs > 1 and (asked.history or asked.mutants):
        parser.error("histories are printed and mutants are found by one job")
    return asked


def play_seeds(asked: argparse.Namespace, seeds: range, folder: str) -> int:
    """Play, print the summary, return the exit code."""
    summary = Summary(asked.first)
    with player(asked.jobs, folder, history=asked.history) as results_of:
        watch(results_of(seeds), summary, history=asked.history)
    print(json.dumps(summary.figures()) if asked.json else summary.line())
    return 1 if summary.failed else 0


def find_mutants(names: Iterable[str], seeds: range, folder: str) -> int:
    """Print the seed that finds each mutant, as JSON; return the exit code."""
    prepare(folder)
    names = tuple(MUTANTS) if "all" in names else names
    sound: Sound = {}
    found = {name: find(name, seeds, sound) for name in names}
    print(json.dumps(found))
    return 1 if None in found.values() else 0


def main() -> int:
    """Do what was asked for, and return the exit code."""
    asked = arguments()
    fix_hash_seed()
    seeds = range(asked.first, asked.first + asked.seeds)
    with tempfile.TemporaryDirectory(prefix="greenroom-sim-") as folder:
        if asked.mutants:
            return find_mutants(asked.mutants, seeds, folder)
        return play_seeds(asked, seeds, folder)


if __name__ == "__main__":
    sys.exit(main())
