"""``greenroom eval``: scenarios of a scripted model, offline, with an exit status.

Nothing is kept and nobody is called. Time is made to pass: a script may wait for an
hour and costs a moment.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, final

import attrs
import trio

from greenroom.testing import (
    STANDARD_SCENARIOS,
    Aggregate,
    Report,
    Scenario,
    ScenarioError,
    ScenarioResult,
    Spent,
    evaluate_scenario,
    load_scenarios,
    report_of,
)

from ._config import Config
from ._exit import CliError, ExitCode
from ._harmless import harmless, json_line, one_line
from ._terminal import wants_color
from ._words import count_words

_GREEN: Final = 32
_RED: Final = 31

_Show = Callable[[ScenarioResult], None]


def eval_command(arguments: argparse.Namespace, config: Config) -> int:
    """Run scenarios and print what came of them; return the exit status."""
    scenarios = _chosen(arguments.file, arguments.only or ())
    if arguments.json:
        report = _evaluate(scenarios, lambda _: None)
        sys.stdout.write(json_line(report))
    else:
        table = _Table.of(scenarios, config)
        table.begin()
        report = _evaluate(scenarios, table.show)
        print(_summary(report.aggregate))
    passed = report.aggregate.passed == report.aggregate.scenarios
    return ExitCode.OK if passed else ExitCode.RUN_FAILED


def _chosen(file: str | None, only: Sequence[str]) -> tuple[Scenario, ...]:
    try:
        found = STANDARD_SCENARIOS if file is None else load_scenarios(Path(file))
    except ScenarioError as exc:
        raise CliError(str(exc), hint=exc.hint) from exc
    known = {scenario.id for scenario in found}
    unknown = [each for each in only if each not in known]
    if unknown:
        raise CliError(
            f"there is no scenario {one_line(unknown[0])!r}",
            hint=f"there is {', '.join(scenario.id for scenario in found[:20])}",
        )
    return tuple(each for each in found if not only or each.id in only)


def _evaluate(scenarios: Sequence[Scenario], show: _Show) -> Report:
    return trio.run(_run, scenarios, show, clock=_SkippingClock())


async def _run(scenarios: Sequence[Scenario], show: _Show) -> Report:
    results: list[ScenarioResult] = []
    for scenario in scenarios:
        results.append(await evaluate_scenario(scenario))
        show(results[-1])
    return report_of(results)


@final
class _SkippingClock(trio.abc.Clock):
    """A loop's clock that goes to the next deadline when nothing else is to be done.

    Nothing here may wait for a thread or a process while a deadline runs.
    """

    __slots__ = ("_now",)

    def __init__(self) -> None:
        self._now = 0.0

    def start_clock(self) -> None:
        """See `trio.abc.Clock`."""

    def current_time(self) -> float:
        """See `trio.abc.Clock`."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """See `trio.abc.Clock`; asked only while no task can run."""
        if deadline == math.inf:
            return math.inf
        self._now = max(self._now, deadline)
        return 0.0


#### The table


@final
@attrs.frozen
class _Table:
    """A line for each scenario, as soon as it is known."""

    id_width: int
    colors: bool

    @classmethod
    def of(cls, scenarios: Sequence[Scenario], config: Config) -> _Table:
        colors = wants_color(
            config.color, is_terminal=sys.stdout.isatty(), environ=os.environ
        )
        return cls(max(len(scenario.id) for scenario in scenarios), colors)

    def begin(self) -> None:
        """Print what the columns are."""
        print(f"     {'scenario':<{self.id_width}}  {'ended':<24}  rounds   calls")

    def show(self, result: ScenarioResult) -> None:
        """Print how *result* ended, what it spent, and what was not as expected."""
        ending = f"{result.status}/{result.stop_reason or '-'}"
        rounds, calls = _of(result.provider_rounds), _of(result.tool_calls)
        print(
            f"{self._mark(result)} {result.id:<{self.id_width}}"
            f"  {harmless(ending):<24} {rounds:>7} {calls:>7}",
            flush=True,
        )
        for failure in result.failures:
            print(f"     {one_line(failure, 500)}")

    def _mark(self, result: ScenarioResult) -> str:
        word, code = ("ok  ", _GREEN) if result.passed else ("FAIL", _RED)
        return f"\x1b[{code}m{word}\x1b[0m" if self.colors else word


def _of(spent: Spent) -> str:
    return f"{spent.used}/{spent.budget}"


def _summary(total: Aggregate) -> str:
    rounds, calls = total.provider_rounds, total.tool_calls
    return (
        f"{total.passed} of {count_words(total.scenarios, 'scenario')} passed · "
        f"{rounds.used} of {count_words(rounds.budget, 'round')} · "
        f"{calls.used} of {count_words(calls.budget, 'tool call')} · "
        f"{count_words(total.tokens, 'token')}"
    )
