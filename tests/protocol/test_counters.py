from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from hypothesis.strategies import sampled_from

from greenroom.protocol import MAX_SAFE_INTEGER, CounterError, Counters


class CounterRules(RuleBasedStateMachine):
    """The counters beside three plain numbers."""

    @initialize(start=sampled_from([0, 1, MAX_SAFE_INTEGER - 1, MAX_SAFE_INTEGER]))
    def begin(self, start: int) -> None:
        self.counters = Counters(start, start, start)
        self.model = [start, start, start]

    def step(self, name: str, allowed: bool, expected: list[int]) -> None:
        before = self.counters
        if allowed:
            self.counters = getattr(self.counters, name)()
            self.model = expected
        else:
            with pytest.raises(CounterError):
                getattr(self.counters, name)()
            assert self.counters is before

    @rule()
    def round(self) -> None:
        round_, seq, attempt = self.model
        self.step("enter_round", round_ < MAX_SAFE_INTEGER, [round_ + 1, seq, attempt])

    @rule()
    def request(self) -> None:
        round_, seq, _ = self.model
        self.step("advance_request", seq < MAX_SAFE_INTEGER, [round_, seq + 1, 0])

    @rule()
    def attempt(self) -> None:
        round_, seq, attempt = self.model
        allowed = seq > 0 and attempt < MAX_SAFE_INTEGER
        self.step("enter_attempt", allowed, [round_, seq, attempt + 1])

    @invariant()
    def agrees(self) -> None:
        now = self.counters
        assert [now.round, now.request_seq, now.attempt] == self.model


@pytest.mark.slow  # 60 schedules of 20 steps
@pytest.mark.contract("RUN-03")
def test_counters_follow_the_three_rules_and_refuse_unsafe_integers():
    run_state_machine_as_test(
        CounterRules, settings=settings(max_examples=60, stateful_step_count=20)
    )
