"""How the benchmark runner measures: order, ratios, verdicts, the collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import run
from runner import GC_THRESHOLDS, Case, Claim, Limit, Ratio, measure


def case(*claims: Claim, **sides: list[float]) -> Case:
    """A case whose sides cost what is listed, run after run; the first is warm-up."""
    left: dict[str, Iterator[float]] = {name: iter(s) for name, s in sides.items()}
    return Case(
        name="made-up",
        question="?",
        clock="cpu",
        sides={name: lambda _, name=name: {"us": next(left[name])} for name in sides},
        claims=claims,
        size=2,
        smoke_size=1,
    )


def test_sides_are_measured_in_turn_after_one_small_round_for_warmth() -> None:
    order: list[tuple[str, int]] = []

    def side(name: str, size: int) -> dict[str, float]:
        order.append((name, size))
        return {"us": 1.0}

    measure(
        Case(
            name="made-up",
            question="?",
            clock="cpu",
            sides={name: lambda size, name=name: side(name, size) for name in "ab"},
            claims=(),
            size=7,
            smoke_size=1,
        ),
        2,
    )

    assert order == [("a", 1), ("b", 1), *[("a", 7), ("b", 7)] * 2]


def test_a_ratio_is_taken_within_each_round_and_its_median_is_judged() -> None:
    ratio = Ratio("us", over="slow", under="quick", at_least=4.5)
    made = case(ratio, slow=[9, 8, 30, 9], quick=[9, 2, 10, 1])

    (verdict,) = measure(made, 3).verdicts

    spread = verdict.spread
    assert (spread.median, spread.least, spread.most) == (4.0, 3.0, 9.0)
    assert verdict.met is False


@pytest.mark.parametrize(
    ("claim", "met"),
    [
        (Limit("us", of="a", at_most=5.0), True),
        (Limit("us", of="a", at_most=4.9), False),
        (Limit("us", of="a", at_least=5.1), False),
        (Limit("us", of="a"), None),
        (Ratio("us", over="a", under="b", at_most=2.4), False),
        (Ratio("us", over="a", under="b", at_least=2.5), True),
    ],
    ids=str,
)
def test_a_claim_is_met_at_its_bound_and_missed_beyond(
    claim: Claim, met: bool | None
) -> None:
    (verdict,) = measure(case(claim, a=[1, 5], b=[1, 2]), 1).verdicts

    assert verdict.met is met


@pytest.fixture
def thresholds() -> Iterator[tuple[int, int, int]]:
    """Collector thresholds that nobody else sets."""
    before, mine = gc.get_threshold(), (701, 11, 12)
    gc.set_threshold(*mine)
    yield mine
    gc.set_threshold(*before)


def test_the_collector_is_set_for_every_side_and_put_back(
    thresholds: tuple[int, int, int],
) -> None:
    seen: list[object] = []

    def side(_: int) -> dict[str, float]:
        seen.append(gc.get_threshold())
        return {"us": 1.0}

    made = Case("made-up", "?", "cpu", {"a": side}, (), 1, 1)
    measure(made, 1)

    assert seen == [GC_THRESHOLDS, GC_THRESHOLDS]
    assert gc.get_threshold() == thresholds


@pytest.mark.parametrize(("most", "status"), [(5.0, 0), (4.0, 1)])
def test_the_command_fails_when_a_target_is_missed(
    monkeypatch: pytest.MonkeyPatch, most: float, status: int
) -> None:
    made = case(Limit("us", of="a", at_most=most), a=[1, 5])
    monkeypatch.setattr(run, "CASES", (made,))

    assert run.main(["--rounds", "1"]) == status


def test_a_smoke_run_is_one_round_and_judges_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = case(Limit("us", of="a", at_most=4.0), a=[5])
    monkeypatch.setattr(run, "CASES", (made,))

    assert run.main(["--smoke", "--rounds", "3"]) == 0
