"""The queue in front of a provider, on a clock that the tests own."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock, assert_no_checkpoints, wait_all_tasks_blocked

from greenroom.actors.providers import DEFAULT_QPS, RateGate, RateLimit


class Asker:
    """Enters the gate and notes what it was told and when it passed."""

    def __init__(self, gate: RateGate) -> None:
        self.gate = gate
        self.told: list[float] = []
        self.passed: float | None = None
        self.scope = trio.CancelScope()

    async def enter(self) -> None:
        with self.scope:
            await self.gate.enter(self.told.append)
            self.passed = trio.current_time()


async def entered(gate: RateGate, nursery: trio.Nursery) -> Asker:
    asker = Asker(gate)
    nursery.start_soon(asker.enter)
    await wait_all_tasks_blocked()
    return asker


@pytest.mark.contract("TRY-20")
async def test_askers_pass_in_order_an_interval_apart(mock_clock: MockClock) -> None:
    gate = RateGate(RateLimit(qps=2))
    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        askers = [await entered(gate, nursery) for _ in range(4)]
        assert [asker.told for asker in askers] == [
            [],
            [started + 0.5],
            [started + 1.0],
            [started + 1.5],
        ]
        mock_clock.autojump_threshold = 0
    assert [asker.passed for asker in askers] == [
        pytest.approx(started + 0.5 * n) for n in range(4)
    ]


@pytest.mark.contract("TRY-20")
@pytest.mark.parametrize("leaver", [1, 2])
async def test_who_is_cancelled_leaves_and_the_next_moves_up(
    mock_clock: MockClock, leaver: int
) -> None:
    gate = RateGate(RateLimit(qps=0.5))
    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        askers = [await entered(gate, nursery) for _ in range(4)]
        askers[leaver].scope.cancel()
        await wait_all_tasks_blocked()
        assert gate.waiting == 2
        assert askers[3].told == [
            pytest.approx(started + 6),
            pytest.approx(started + 4),
        ]
        mock_clock.autojump_threshold = 0
    assert askers[leaver].passed is None
    left = [asker for asker in askers if asker is not askers[leaver]]
    assert [asker.passed for asker in left] == [
        pytest.approx(started + 2 * n) for n in range(3)
    ]
    assert gate.waiting == 0


async def test_a_pause_makes_no_credit(autojump_clock: MockClock) -> None:
    gate = RateGate(RateLimit(qps=1))
    await gate.enter(lambda until: None)
    await trio.sleep(100)
    started = trio.current_time()
    for _ in range(3):
        await gate.enter(lambda until: None)
    assert trio.current_time() - started == pytest.approx(2)


async def test_who_comes_while_somebody_waits_waits_behind(
    mock_clock: MockClock,
) -> None:
    gate = RateGate(RateLimit(qps=1))
    async with trio.open_nursery() as nursery:
        await entered(gate, nursery)
        second = await entered(gate, nursery)
        mock_clock.jump(1)
        # The second may pass now, but has not run yet: the third is not before it.
        third = Asker(gate)
        nursery.start_soon(third.enter)
        mock_clock.autojump_threshold = 0
    assert second.passed is not None
    assert third.passed == pytest.approx(second.passed + 1)


async def test_an_open_gate_holds_nobody() -> None:
    gate = RateGate()
    with assert_no_checkpoints():
        for _ in range(100):
            await gate.enter(lambda until: pytest.fail("told of a wait"))


def test_a_limit_is_slow_by_default_and_must_be_a_rate() -> None:
    assert RateLimit() == RateLimit(qps=DEFAULT_QPS)
    assert RateLimit().interval == pytest.approx(10)
    for qps in (0, -1, math.nan, math.inf, 1e-9):
        with pytest.raises(ValueError, match="requests per second"):
            RateLimit(qps)
