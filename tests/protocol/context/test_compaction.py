"""What a compaction hides, and whether it is worth it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from greenroom.protocol import ItemId, MessageId, MessageRecord, TextBlock
from greenroom.protocol.context import (
    Pair,
    accepts_summary,
    pairs_of,
    plan_compaction,
    retained_pairs,
    trigger_tokens,
)


def record(order: int, role: Any, text: str = "x"):
    return MessageRecord(
        id=MessageId(f"m{order}"),
        order_seq=order,
        role=role,
        status="sent",
        blocks=(TextBlock(id=ItemId(f"m{order}.0"), text=text),),
        created_at=0.0,
        updated_at=0.0,
    )


def sized(record):
    return len(record.blocks[0].text)


def pairs(*tokens):
    return tuple(Pair(2 * n + 1, 2 * n + 2, size) for n, size in enumerate(tokens))


def test_a_pair_begins_with_each_message_of_the_user():
    roles = ["assistant", "user", "assistant", "user", "user", "assistant"]
    records = [record(n + 1, role, "x" * (n + 1)) for n, role in enumerate(roles)]
    assert pairs_of(records, sized) == (
        Pair(1, 1, 1),
        Pair(2, 3, 5),
        Pair(4, 4, 4),
        Pair(5, 6, 11),
    )


@pytest.mark.contract("CTX-26")
@pytest.mark.parametrize(
    ("tokens", "at_least", "budget", "kept"),
    [
        # Long turns: those that are configured stay, however long.
        ((30_000, 30_000, 30_000), 1, 200_000, 1),
        ((30_000, 30_000, 30_000), 2, 200_000, 2),
        ((30_000,) * 12, 10, 200_000, 10),
        # Short ones: as many more as 20 000 tokens hold.
        ((1_000,) * 40, 1, 200_000, 20),
        ((1_000,) * 40, 2, 200_000, 20),
        ((1_000,) * 40, 10, 200_000, 20),
        # Or as a quarter of the budget holds.
        ((1_000,) * 40, 2, 40_000, 10),
        ((1_000,) * 40, 2, 43_999, 10),
        ((1_000,) * 40, 2, 44_000, 11),
        # Whole ones only, and none behind one that does not fit.
        ((10, 9_000, 9_000, 9_000), 1, 200_000, 2),
        ((10,), 2, 200_000, 1),
        ((), 2, 200_000, 0),
    ],
)
def test_the_tail_is_the_configured_pairs_and_as_many_more_as_fit(
    tokens, at_least, budget, kept
):
    assert retained_pairs(tokens, at_least, budget) == kept


@pytest.mark.contract("CTX-25")
@pytest.mark.parametrize(
    ("threshold", "bound"), [(80, 58_133), (95, 69_033), (5, 3_633)]
)
def test_the_bound_of_the_automatic_compaction_is_exact(threshold, bound):
    assert trigger_tokens(100_000, 10_000, 2_800, threshold) == bound
    exact = (100_000 - 10_000 - 2_800) / 1.2 * threshold / 100
    assert bound == int(exact)


@pytest.mark.contract("CTX-25")
def test_manual_keeps_no_tail_and_a_resumed_turn_one_pair_more():
    turns = pairs(*(30_000,) * 6)
    plan = plan_compaction(turns, "auto", 2, 200_000)
    assert plan is not None
    assert plan.cursor == 9
    plan = plan_compaction(turns, "resume", 2, 200_000)
    assert plan is not None
    assert plan.cursor == 7
    plan = plan_compaction(turns, "manual", 2, 200_000)
    assert plan is not None
    assert plan.cursor == 13


def test_pressure_hides_a_pair_even_where_all_of_them_are_configured_to_stay():
    plan = plan_compaction(pairs(50_000, 50_000), "context_pressure", 2, 60_000)
    assert plan is not None
    assert plan.cursor == 5
    plan = plan_compaction(pairs(100, 100), "context_pressure", 2, 60_000)
    assert plan is not None
    assert plan.cursor == 3


def test_nothing_is_hidden_when_everything_stays():
    assert plan_compaction(pairs(1, 1), "auto", 2, 1_000) is None
    assert plan_compaction((), "context_pressure", 2, 1_000) is None


@pytest.mark.contract("CTX-23")
@pytest.mark.parametrize(("new", "accepted"), [(499, True), (500, False), (501, False)])
def test_a_summary_must_be_smaller_than_what_it_replaces(new, accepted):
    assert accepts_summary(new, before=200, hidden=300) is accepted


@given(
    st.lists(st.integers(0, 40_000), max_size=30),
    st.sampled_from(["auto", "resume", "manual", "context_pressure"]),
    st.integers(1, 10),
    st.integers(0, 400_000),
)
def test_a_plan_hides_the_oldest_pairs_whole_and_the_boundary_moves(
    tokens, trigger, kept, budget
):
    turns = pairs(*tokens)
    plan = plan_compaction(turns, trigger, kept, budget)
    if plan is None:
        return
    assert plan.hidden == turns[: len(plan.hidden)]
    assert plan.cursor == plan.hidden[-1].last + 1 > 1
    assert plan.hidden_tokens == sum(pair.tokens for pair in plan.hidden)
    if trigger in ("auto", "resume"):
        least = kept + (trigger == "resume")
        assert len(turns) - len(plan.hidden) >= min(least, len(turns))
