"""Long results of tools, shortened in what is sent."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, strategies as st

from greenroom.protocol import (
    AssistantMessage,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from greenroom.protocol.context import (
    RECALL_TOOLS,
    STUB_OVER,
    closed_units,
    stub_results,
)

LONG = "a" * 5_000 + "b" * 5_000


def user(text="go"):
    return UserMessage((TextPart(text),))


def unit(*results, name="read", first="c"):
    calls = tuple(
        ToolCall(id=f"{first}{n}", name=name, arguments="{}")
        for n, _ in enumerate(results)
    )
    answers = (
        ToolMessage(call_id=call.id, name=name, text=text)
        for call, text in zip(calls, results, strict=True)
    )
    return AssistantMessage(calls=calls), *answers


def texts(messages):
    return [m.text for m in messages if isinstance(m, ToolMessage)]


@pytest.mark.contract("CTX-30")
def test_a_stub_names_the_call_and_the_length_and_keeps_head_and_tail():
    messages = (user(), *unit(LONG))
    stub = texts(stub_results(messages, newest=True))[0]
    marker, rest = stub.split("\n", 1)
    assert "call c0" in marker
    assert "10000 characters" in marker
    assert "tape_search" in marker
    assert "tape_context" in marker
    assert rest == "a" * 4_096 + "\n[...]\n" + "b" * 1_024


@pytest.mark.contract("CTX-30")
@pytest.mark.parametrize(("length", "changed"), [(8_192, False), (8_193, True)])
def test_a_result_of_8192_characters_stays_and_one_more_does_not(length, changed):
    messages = (user(), *unit("x" * length))
    assert (stub_results(messages, newest=True) != messages) is changed


@pytest.mark.contract("CTX-30")
def test_an_open_unit_stays_as_it_is():
    call, result, _ = unit(LONG, LONG)
    messages = (user(), call, result)
    assert closed_units(messages) == ()
    assert stub_results(messages, newest=True) == messages


@pytest.mark.contract("CTX-30")
def test_what_lies_before_the_last_user_message_stays():
    messages = (user(), *unit(LONG, first="old"), user("next"), *unit(LONG))
    assert texts(stub_results(messages, newest=True))[0] == LONG


@pytest.mark.contract("CTX-30")
@pytest.mark.parametrize("name", [*sorted(RECALL_TOOLS), "skill"])
def test_results_of_tools_that_recall_or_are_protected_stay(name):
    messages = (user(), *unit(LONG, name=name))
    protected = frozenset({"skill"})
    assert stub_results(messages, newest=True, protected=protected) == messages


@pytest.mark.contract("CTX-31")
def test_the_newest_closed_unit_is_spared_until_it_is_asked_for():
    older, newest = unit(LONG, first="old"), unit(LONG, first="new")
    messages = (user(), *older, *newest)
    first = stub_results(messages)
    assert texts(first)[1] == LONG != texts(first)[0]
    assert all(text != LONG for text in texts(stub_results(first, newest=True)))


results = st.one_of(
    st.text(max_size=20),
    st.integers(STUB_OVER - 2, STUB_OVER + 2).map(lambda n: "x" * n),
    st.integers(20_000, 30_000).map(lambda n: "é" * n),
)
plain = st.sampled_from(
    [user(), SystemMessage("rules"), AssistantMessage(text="said")]
).map(lambda message: (message,))
units = st.lists(results, min_size=1, max_size=3).flatmap(
    lambda texts: st.sampled_from(["read", "tape_search"]).map(
        lambda name: unit(*texts, name=name)
    )
)
cut = units.map(lambda messages: messages[:-1])
conversations = st.lists(st.one_of(plain, units, cut), max_size=8).map(
    lambda parts: tuple(message for part in parts for message in part)
)


@pytest.mark.contract("CTX-30")
@given(conversations, st.booleans())
def test_a_second_pass_changes_nothing_and_only_results_are_changed(messages, newest):
    once = stub_results(messages, newest=newest)
    assert stub_results(once, newest=newest) == once
    assert len(once) == len(messages)
    for before, after in zip(messages, once, strict=True):
        if before != after:
            assert isinstance(before, ToolMessage)
            assert msgspec.structs.replace(after, text=before.text) == before
            assert isinstance(after, ToolMessage)
            assert len(after.text) < len(before.text)


@pytest.mark.contract("CTX-31")
@given(conversations)
def test_units_stay_closed_and_the_boundary_is_where_it_was(messages):
    once = stub_results(messages, newest=True)
    assert closed_units(once) == closed_units(messages)
    spared = closed_units(messages)[-1:]
    for each in spared:
        older = stub_results(messages)
        assert older[each.start : each.stop] == messages[each.start : each.stop]
