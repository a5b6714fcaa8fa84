"""The runner: cases of several sides each, measured in interleaved rounds.

A case asks one question. Its *sides* are ways of doing the same work, one of them the
named baseline; each returns *figures*, lower being better (costs) unless the name of
the figure ends in ``_per_s``. What counts is the *ratio* of one figure on two sides,
taken within a round and summed up as median, least and most over the rounds: machines
differ and their speed drifts, and what drifts slower than a round cancels out.

The state of the garbage collector is part of the result: every side starts after a
full collection and runs with the thresholds below, which are those that a running
system of actors sets. With Python's own the baselines are slower still.
"""

from __future__ import annotations

import gc
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, final

import attrs

Figures = dict[str, float]
Side = Callable[[int], Figures]
"""Does the work of a size and returns what it cost."""

GC_THRESHOLDS: Final = (50_000, 20, 100)


@final
@attrs.frozen
class Ratio:
    """Says that a figure of ``over`` is so many times that of ``under``."""

    figure: str
    over: str
    under: str
    at_least: float | None = None
    at_most: float | None = None

    def __str__(self) -> str:
        return f"{self.figure}: {self.over} / {self.under}"

    def value(self, sides: Mapping[str, Figures]) -> float:
        """The ratio in one round."""
        return sides[self.over][self.figure] / sides[self.under][self.figure]


@final
@attrs.frozen
class Limit:
    """Says that a figure of one side is so high."""

    figure: str
    of: str
    at_least: float | None = None
    at_most: float | None = None

    def __str__(self) -> str:
        return f"{self.figure}: {self.of}"

    def value(self, sides: Mapping[str, Figures]) -> float:
        """The figure in one round."""
        return sides[self.of][self.figure]


Claim = Ratio | Limit


@final
@attrs.frozen
class Case:
    """One question."""

    name: str
    question: str
    clock: str
    """What the figures are: ``cpu`` seconds of the process, ``wall``, or ``bytes``."""
    sides: Mapping[str, Side]
    claims: tuple[Claim, ...]
    size: int
    smoke_size: int
    needs: str | None = None
    """A module that is not among greenroom's own requirements."""

    @property
    def is_possible(self) -> bool:
        """Whether what it needs is installed."""
        return self.needs is None or find_spec(self.needs) is not None


@final
@attrs.frozen
class Spread:
    """Figures of all rounds, summed up."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Sum *values* up."""
        return cls(statistics.median(values), min(values), max(values))


@final
@attrs.frozen
class Verdict:
    """What became of a claim; ``met`` is ``None`` when it has no target."""

    claim: Claim
    spread: Spread
    met: bool | None

    @classmethod
    def of(cls, claim: Claim, rounds: Sequence[Mapping[str, Figures]]) -> Verdict:
        """Judge *claim* by its median."""
        spread = Spread.of([claim.value(sides) for sides in rounds])
        if claim.at_least is not None:
            return cls(claim, spread, spread.median >= claim.at_least)
        if claim.at_most is not None:
            return cls(claim, spread, spread.median <= claim.at_most)
        return cls(claim, spread, None)


@final
@attrs.frozen
class Result:
    """A case, measured."""

    case: Case
    figures: Mapping[str, Mapping[str, Spread]]
    """By side, then by figure."""
    verdicts: tuple[Verdict, ...]


def measure(case: Case, rounds: int, *, smoke: bool = False) -> Result:
    """Run every side once for warmth, then all sides in turn, *rounds* times."""
    size = case.smoke_size if smoke else case.size
    found: list[dict[str, Figures]] = []
    with _collector():
        if not smoke:
            _round(case, case.smoke_size)
        found += [_round(case, size) for _ in range(rounds)]
    verdicts = tuple(Verdict.of(claim, found) for claim in case.claims)
    return Result(case, _summed_up(found), verdicts)


def _round(case: Case, size: int) -> dict[str, Figures]:
    figures: dict[str, Figures] = {}
    for name, side in case.sides.items():
        gc.collect()
        figures[name] = side(size)
    return figures


@contextmanager
def _collector() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _summed_up(
    rounds: Sequence[Mapping[str, Figures]],
) -> dict[str, dict[str, Spread]]:
    return {
        side: {
            figure: Spread.of([one[side][figure] for one in rounds])
            for figure in figures
        }
        for side, figures in rounds[0].items()
    }


#### What people and programs read


def as_table(result: Result) -> str:
    """A case as text: what each side cost, then each claim with its target."""
    lines = [f"{result.case.name}: {result.case.question} [{result.case.clock}]"]
    for side, figures in result.figures.items():
        shown = ", ".join(f"{name} {_number(s.median)}" for name, s in figures.items())
        lines.append(f"    {side:<34} {shown}")
    lines += [f"  {_line(verdict)}" for verdict in result.verdicts]
    return "\n".join(lines)


def _line(verdict: Verdict) -> str:
    spread = verdict.spread
    found = f"{_number(spread.median)}"
    span = f"({_number(spread.least)} to {_number(spread.most)})"
    return f"{verdict.claim!s:<58} {found:>8} {span:<20} {target(verdict)}"


def target(verdict: Verdict) -> str:
    """The target in words, and whether it was met."""
    if verdict.met is None:
        return "no target"
    least, most = verdict.claim.at_least, verdict.claim.at_most
    wanted = f"at least {least:g}" if least is not None else f"at most {most:g}"
    return f"{wanted}: {'met' if verdict.met else 'MISSED'}"


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def as_json(
    results: Sequence[Result], rounds: int, where: Mapping[str, str]
) -> dict[str, Any]:
    """All results, with *where* they come from."""
    return {
        "machine": where,
        "rounds": rounds,
        "gc_thresholds": GC_THRESHOLDS,
        "cases": {result.case.name: _case_json(result) for result in results},
    }


def _case_json(result: Result) -> dict[str, Any]:
    return {
        "question": result.case.question,
        "clock": result.case.clock,
        "figures": {
            side: {name: attrs.asdict(spread) for name, spread in figures.items()}
            for side, figures in result.figures.items()
        },
        "claims": [
            {
                "claim": str(verdict.claim),
                **attrs.asdict(verdict.spread),
                "at_least": verdict.claim.at_least,
                "at_most": verdict.claim.at_most,
                "met": verdict.met,
            }
            for verdict in result.verdicts
        ],
    }


def machine() -> dict[str, str]:
    """Where figures come from: without it a figure says nothing."""
    return {
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1] for line in lines if line.startswith("model name")]
    if not names:
        return platform.machine()
    return f"{len(names)} x {names[0].strip()}"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
