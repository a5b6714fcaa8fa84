"""What is tried about a request that is too large, in which order."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from greenroom.protocol.context import (
    RecoverySequence,
    Step,
    strict_output,
    strict_reserve,
)


@pytest.mark.parametrize("output_first", [False, True])
def test_steps_are_taken_in_one_order_and_each_once(output_first):
    sequence, taken = RecoverySequence(), []
    while (step := sequence.next(output_first=output_first)) is not None:
        taken.append(step)
        sequence = sequence.after(step, changed=False)
    expected = list(Step)
    assert taken == (expected[3:] + expected[:3] if output_first else expected)


@pytest.mark.parametrize(
    ("changed", "refused", "error"),
    [
        (False, False, "retry_projection_unchanged"),
        (False, True, "retry_projection_unchanged"),
        (True, False, "retry_projection_cannot_fit"),
        (True, True, "provider_rejected_retry"),
    ],
)
def test_the_error_says_what_was_tried(changed, refused, error):
    sequence = RecoverySequence().after(Step.STUB_OLDER, changed=changed)
    assert (sequence.refused() if refused else sequence).error == error


@given(st.lists(st.tuples(st.booleans(), st.booleans())))
def test_a_sequence_ends_whatever_its_steps_bring(steps):
    sequence, count = RecoverySequence(), 0
    for changed, refused in steps:
        if (step := sequence.next()) is None:
            break
        sequence = sequence.after(step, changed=changed)
        sequence = sequence.refused() if refused else sequence
        count += 1
    assert count <= len(Step)


@pytest.mark.contract("CTX-17")
@pytest.mark.parametrize(
    ("context", "reserve"),
    [(1_000, 256), (4_096, 409), (81_920, 8_192), (200_000, 8_192)],
)
def test_a_strict_retry_reserves_a_tenth_of_the_context_within_bounds(context, reserve):
    assert strict_reserve(context) == reserve


@pytest.mark.contract("CTX-17")
@pytest.mark.parametrize(
    ("context", "prompt", "requested", "lowered"),
    [
        (4_096, 1_000, 2_048, 1_024),
        (4_096, 3_000, 2_048, 687),
        (200_000, 100_000, 16_384, 8_192),
        (200_000, 190_000, 16_384, 1_808),
        (4_096, 3_687, 2_048, None),
        (4_096, 100, 1, None),
    ],
)
def test_a_strict_retry_halves_the_output_within_what_is_left(
    context, prompt, requested, lowered
):
    assert strict_output(context, prompt, requested) == lowered
