from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, strategies as st

from greenroom.protocol import (
    RAISE,
    Account,
    ActionBlock,
    Budget,
    BudgetExcess,
    ItemId,
    MessageMetadata,
    Price,
    Spent,
    Usage,
    amount,
    cost_of,
    find_excess,
    question_of,
    raises,
    spent_of,
)

AMOUNTS = st.floats(min_value=0.001, max_value=1e9)
TOKENS = st.integers(0, 10**9)


def asked(excess, answer: str | None = RAISE, number=0):
    return ActionBlock(
        id=ItemId(f"m.{number}"),
        action="question_request",
        origin="budget",
        tool_block_id=ItemId(f"m.{number}"),
        title="?",
        status="success",
        answer=answer,
        excess=excess,
    )


@given(st.integers(1, 10**9), TOKENS)
def test_a_limit_is_reached_exactly_when_as_much_is_used(limit, used):
    excess = find_excess(Budget(tokens=limit), "turn", Spent(tokens=used), {})
    assert (excess is not None) == (used >= limit)
    if excess is not None:
        assert (excess.kind, excess.limit, excess.spent) == ("tokens", limit, used)


@given(AMOUNTS, AMOUNTS, st.sampled_from(["money", "seconds"]))
def test_one_raise_is_always_enough_for_what_was_used(limit, used, kind):
    spent = Spent(**{kind: used})
    budget = Budget(**{kind: limit})
    excess = find_excess(budget, "turn", spent, {})
    if excess is None:
        assert used < limit
        return
    raised = raises([asked(excess)], "turn")
    assert raised == {kind: excess.raise_by}
    assert excess.raise_by >= limit
    assert find_excess(budget, "turn", spent, raised) is None


@given(st.lists(AMOUNTS, max_size=6), AMOUNTS)
def test_raises_add_up_and_never_count_for_another_scope(steps, limit):
    blocks = [
        asked(
            BudgetExcess(
                scope="session", kind="money", limit=1, spent=1, raise_by=step
            ),
            number=number,
        )
        for number, step in enumerate(steps)
    ]
    assert sum(raises(blocks, "session").values()) == pytest.approx(sum(steps))
    assert raises(blocks, "turn") == {}


def test_only_the_answer_raise_raises():
    excess = BudgetExcess(scope="turn", kind="tokens", limit=1, spent=1, raise_by=1)
    assert raises([asked(excess, answer="stop")], "turn") == {}
    assert raises([asked(excess, answer=None)], "turn") == {}


@pytest.mark.parametrize("kind", ["tokens", "money"])
def test_what_is_not_known_asks_once_and_is_never_zero(kind):
    budget = Budget(**{kind: 10})
    spent = Spent(unknown=frozenset({kind}))
    excess = find_excess(budget, "turn", spent, {})
    assert excess is not None
    assert excess.spent is None
    assert "unknown" in question_of(excess)[1]
    assert find_excess(budget, "turn", spent, raises([asked(excess)], "turn")) is None


def test_what_is_known_counts_though_more_may_have_been_used():
    spent = Spent(tokens=50, unknown=frozenset({"tokens"}))
    excess = find_excess(Budget(tokens=10), "turn", spent, {"tokens": 20})
    assert excess is not None
    assert (excess.limit, excess.spent) == (30, 50)


def test_a_turn_without_a_request_has_used_nothing_that_is_unknown():
    assert spent_of(MessageMetadata()) == Spent()
    silent = spent_of(MessageMetadata(request_seq=1))
    assert silent.unknown == {"tokens", "money"}
    known = MessageMetadata(
        request_seq=1, input_tokens=3, total_tokens=5, cost=0.5, generation_time=2.0
    )
    assert spent_of(known) == Spent(5, 0.5, 2.0)


@given(st.lists(st.tuples(TOKENS, st.floats(0, 1e6), st.floats(0, 1e6)), max_size=5))
def test_an_account_is_the_sum_of_its_turns(turns):
    account = Account()
    for tokens, cost, seconds in turns:
        metadata = MessageMetadata(
            request_seq=1,
            input_tokens=tokens,
            total_tokens=tokens,
            cost=cost,
            generation_time=seconds,
        )
        account = account.after(metadata, [])
    assert account.spent.tokens == sum(turn[0] for turn in turns)
    assert account.spent.money == pytest.approx(sum(turn[1] for turn in turns))
    assert account.spent.seconds == pytest.approx(sum(turn[2] for turn in turns))
    assert account.spent.unknown == frozenset()


def test_cached_input_has_a_price_of_its_own():
    price = Price(input=2.0, output=10.0, cache_read=0.5, cache_write=4.0)
    usage = Usage(
        input=1_000_000,
        output=100_000,
        total=1_100_000,
        cache_read=400_000,
        cache_write=100_000,
    )
    assert cost_of(usage, price) == pytest.approx(1.0 + 0.2 + 0.4 + 1.0)
    plain = Price(input=2.0, output=10.0)
    assert cost_of(usage, plain) == pytest.approx(2.0 + 1.0)


@pytest.mark.parametrize("wrong", [0, -1, 1e300])
def test_a_limit_is_a_positive_number(wrong):
    for kind in ("tokens", "money", "seconds"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({kind: wrong}, Budget)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("tokens", 12_000, "12,000 tokens"),
        ("money", 0.0125, "$0.0125"),
        ("money", 12.5, "$12.50"),
        ("seconds", 90, "90.0 s"),
        ("money", None, "unknown"),
    ],
)
def test_amounts_are_told_in_their_unit(kind, value, text):
    assert amount(kind, value) == text
