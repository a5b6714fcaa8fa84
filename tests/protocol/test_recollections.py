"""When and in which pieces a conversation is taken in, and what a turn may be told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from kit.stores import message

from greenroom.protocol import (
    ACCESS_SECONDS,
    CHUNK_CHARS,
    CHUNK_TOKENS,
    CONTRIBUTION_SECONDS,
    COOLDOWN_SECONDS,
    DRAIN_SECONDS,
    MAX_CHUNKS,
    MAX_TURNS,
    chunks_of,
    contribution_of,
    is_due,
    told,
)


def talk(*texts: str, **metadata: Any) -> list[Any]:
    return [
        message(text, name=f"m{n}", order=n, **metadata)
        for n, text in enumerate(texts, 1)
    ]


@pytest.mark.contract("SKL-08")
@pytest.mark.parametrize(
    ("records", "due"),
    [
        ([], False),
        (talk(*["short"] * 5), False),
        (talk(*["short"] * 6), True),
        (talk("x" * 10_000), False),
        (talk("x" * 159, tool_calls=1), False),
        (talk("x" * 160, tool_calls=1), True),
        (talk("x" * 100, tool_calls=1) + talk("y" * 60), True),
    ],
)
def test_six_messages_or_160_characters_with_tools_are_enough(
    records: list[Any], due: bool
) -> None:
    assert is_due(records) is due


@pytest.mark.contract("SKL-08")
def test_each_bound_of_time_and_number_is_what_is_promised() -> None:
    assert (CONTRIBUTION_SECONDS, DRAIN_SECONDS, COOLDOWN_SECONDS) == (4, 5, 30)
    assert (ACCESS_SECONDS, MAX_TURNS) == (30 * 60, 128)


@pytest.mark.contract("SKL-08")
def test_a_chunk_and_a_task_are_bounded() -> None:
    assert (CHUNK_TOKENS, CHUNK_CHARS, MAX_CHUNKS) == (4_000, 12_000, 4)
    fits = CHUNK_CHARS - len("user: ")
    (one,) = chunks_of(talk("x" * fits))
    assert len(one.text) == CHUNK_CHARS
    assert len(chunks_of(talk("x" * (fits + 1)))) == 2
    small = chunks_of(talk("a", "b", "c"))
    assert [(each.order_seq, each.text) for each in small] == [
        (3, "user: a\n\nuser: b\n\nuser: c")
    ]
    # The fifth chunk waits for the next task, and nothing of it is lost.
    many = talk(*["x" * fits] * 6)
    assert [each.order_seq for each in chunks_of(many)] == [1, 2, 3, 4]
    assert [each.order_seq for each in chunks_of(many[4:])] == [5, 6]
    # A message larger than a task does not hold up those behind it.
    huge = chunks_of(talk("x" * (10 * CHUNK_CHARS), "after"))
    assert [each.order_seq for each in huge] == [1] * 4
    assert chunks_of(talk(" ", "\n")) == ()


@given(st.lists(st.integers(0, 30_000), max_size=12))
def test_whatever_is_said_each_message_is_in_one_task(lengths: list[int]) -> None:
    records = talk(*[f"{n:05}" * (length // 5) for n, length in enumerate(lengths)])
    tasks, left = [], [r for r in records if r.blocks[0].text]
    while left:
        chunks = chunks_of(left)
        assert 1 <= len(chunks) <= MAX_CHUNKS
        assert all(len(each.text) <= CHUNK_CHARS for each in chunks)
        cursor = chunks[-1].order_seq
        tasks += chunks
        left = [record for record in left if record.order_seq > cursor]
    everything = "".join(each.text for each in tasks)
    for number, length in enumerate(lengths):
        if length // 5 * 5 > 0 and length < MAX_CHUNKS * 11_000:
            # The heads between may fall into a mark.
            assert everything.count(f"{number:05}") >= length // 5 - MAX_CHUNKS


@pytest.mark.parametrize(
    ("text", "budget", "state", "room"),
    [
        (None, None, "empty", 0),
        (" \n", None, "empty", 0),
        ("abc", None, "included", 3),
        ("abc", 1, "included", 3),
        ("abcd", 1, "cut", 3),
        ("abc", 0, "empty", 0),
        ("x" * 3_001, None, "cut", 3_000),
        ("\ud800\x00", None, "empty", 0),
    ],
)
def test_a_contribution_is_cleaned_then_cut(
    text: str | None, budget: int | None, state: str, room: int
) -> None:
    made = contribution_of("m", text, budget)
    assert (made.state, len(made.text)) == (state, room)
    assert bool(told(made)) is bool(room)
