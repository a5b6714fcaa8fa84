"""How often a run may send another payload because one was too large."""

from __future__ import annotations

from hypothesis import given, strategies as st

from greenroom.protocol import RecoveryLatch


@given(st.lists(st.booleans()))
def test_a_run_sends_a_bounded_number_of_changed_payloads(steps: list[bool]) -> None:
    latch, begun, in_sequence = RecoveryLatch(), 0, 0
    for is_overflow in steps:
        following = latch.begin() if is_overflow else latch.close()
        if following is None:
            # Refused only with a reason, and nothing has changed.
            assert in_sequence == 4 or (begun == 3 and in_sequence == 0)
            continue
        begun += is_overflow and in_sequence == 0
        in_sequence = in_sequence + 1 if is_overflow else 0
        latch = following
        assert latch == RecoveryLatch(begun, in_sequence)
    assert begun <= 3
    assert in_sequence <= 4
