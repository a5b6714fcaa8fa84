"""The numbers of a request before it is sent."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from greenroom.protocol import (
    AssistantMessage,
    ImagePart,
    Reasoning,
    TextPart,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
    canonical_json,
    estimate_tokens,
)
from greenroom.protocol.context import (
    MEDIA_TOKENS,
    Drops,
    Preflight,
    Tally,
    Weights,
    drops,
    exceeds_window,
    message_tokens,
    output_cap,
    tools_tokens,
)


@pytest.mark.contract("CTX-10")
@pytest.mark.parametrize(
    ("requested", "context", "cap"),
    [
        (None, None, 16_384),
        (None, 200_000, 16_384),
        (None, 20_000, 10_000),
        (1_000, None, 1_000),
        (32_768, None, 32_768),
        (32_769, None, 32_768),
        (99_999, 200_000, 32_768),
        (99_999, 8_000, 4_000),
        (4_000, 8_000, 4_000),
        (0, 8_000, 1),
        (10, 1, 1),
        (10, 0, 1),
    ],
)
def test_an_output_limit_is_capped(requested, context, cap):
    assert output_cap(requested, context) == cap


@pytest.mark.contract("CTX-07")
@pytest.mark.parametrize(
    ("context", "requested", "used", "tools", "remaining", "effective", "pressure"),
    [
        # The margin is kept only in a window of more than 1 024.
        (1_024, 100, 900, 0, 124, 100, False),
        (1_025, 100, 900, 0, -131, 1, True),
        (10_000, 3_999, 5_744, 0, 4_000, 3_999, False),
        (10_000, 4_000, 5_744, 0, 4_000, 4_000, False),
        (10_000, 4_000, 5_745, 0, 3_999, 3_999, True),
        (10_000, 3_999, 5_745, 0, 3_999, 3_999, False),
        (10_000, 3_999, 9_743, 0, 1, 1, False),
        (10_000, 3_999, 9_744, 0, 0, 1, True),
        (10_000, 100, 9_000, 743, 1, 1, False),
        (10_000, 100, 9_000, 744, 0, 1, True),
        (None, 16_384, 10**9, 10**9, None, 16_384, False),
    ],
)
def test_what_remains_and_when_that_is_pressure(
    context, requested, used, tools, remaining, effective, pressure
):
    preflight = Preflight(context, requested, used, tools)
    assert preflight.remaining == remaining
    assert preflight.effective == effective
    assert preflight.pressure is pressure
    assert preflight.fits is (remaining is None or remaining >= 1)


@given(
    st.integers(0, 50),
    st.integers(0, 50),
    st.lists(st.integers(1, 50), max_size=6),
    st.integers(-5, 400),
)
def test_memory_goes_first_then_directives_then_the_oldest_turns(
    memory, directives, turns, excess
):
    given = drops(Weights(memory, directives, turns), excess)
    saved = memory * given.memory + directives * given.directives
    if given.directives or given.turns:
        assert given.memory or not memory
    if given.turns:
        assert given.directives or not directives
    # Never one more than needed: without the last one it was not enough.
    assert excess > 0 or given == Drops()
    if given.turns:
        assert saved + sum(turns[: given.turns - 1]) < excess
    total = saved + sum(turns[: given.turns])
    assert total >= excess or (
        given.turns == len(turns)
        and given.memory is bool(memory)
        and given.directives is bool(directives)
    )


@pytest.mark.parametrize(("fixed", "too_much"), [(899, False), (900, True)])
def test_what_is_never_dropped_has_to_fit_beside_the_tools(fixed, too_much):
    assert exceeds_window(1_000, 100, fixed) is too_much
    assert not exceeds_window(None, 100, fixed)


TEXT = st.text(max_size=40)
OPTIONS = st.none() | st.dictionaries(st.text(max_size=5), TEXT, max_size=2)
CALLS = st.builds(ToolCall, id=TEXT, name=TEXT, arguments=TEXT, options=OPTIONS)
THOUGHTS = st.builds(Reasoning, TEXT, OPTIONS)


@pytest.mark.contract("CTX-09")
@given(TEXT, st.lists(THOUGHTS, max_size=3), st.lists(CALLS, max_size=3), CALLS)
def test_every_part_of_an_answer_adds_to_its_estimate(text, thoughts, calls, call):
    said = AssistantMessage(text=text, reasoning=(*thoughts,), calls=(*calls,))
    bare = AssistantMessage(text=text, calls=(*calls,))
    more = AssistantMessage(text=text, reasoning=(*thoughts,), calls=(*calls, call))
    assert message_tokens(bare) <= message_tokens(said) < message_tokens(more)
    alone = estimate_tokens(call.name) + estimate_tokens(call.arguments)
    assert message_tokens(more) - message_tokens(said) >= alone


@pytest.mark.contract("CTX-09")
def test_a_large_call_beside_text_weighs_what_it_weighs():
    arguments = '{"text": "' + "some words " * 4_600 + '"}'
    assert len(arguments) > 50_000
    call = ToolCall(id="1", name="write", arguments=arguments)
    message = AssistantMessage(text="I write it.", calls=(call,))
    assert message_tokens(message) >= estimate_tokens(arguments) > 8_000


@pytest.mark.contract("CTX-09")
@pytest.mark.parametrize("media_type", ["image/png", "audio/wav"])
def test_media_have_a_flat_weight_and_their_bytes_are_counted(media_type):
    said = UserMessage((TextPart("look"),))
    shown = UserMessage((TextPart("look"), ImagePart(media_type, "A" * 90_000)))
    assert message_tokens(shown) - message_tokens(said) == MEDIA_TOKENS == 512
    tally = Tally()
    tally.show([shown])
    assert tally.whole.size > 90_000


@pytest.mark.contract("CTX-09")
def test_tools_weigh_what_their_definitions_do():
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    tools = (ToolDefinition("read", "Reads a file.", schema),)
    assert tools_tokens(tools) == estimate_tokens(canonical_json(tools))
    assert tools_tokens(()) == 0


MESSAGES = st.lists(
    st.builds(lambda text: UserMessage((TextPart(text),)), st.sampled_from("abc"))
    | st.builds(lambda text: ToolMessage(call_id="c", name="n", text=text), TEXT),
    max_size=6,
)


@given(st.lists(MESSAGES, min_size=1, max_size=5))
def test_a_tally_knows_of_each_beginning_what_a_fresh_one_would(shown):
    tally = Tally()
    for messages in shown:
        tally.show(messages)
        fresh = Tally()
        fresh.show(messages)
        assert tally.count == len(messages)
        assert [tally.at(n) for n in range(len(messages) + 1)] == [
            fresh.at(n) for n in range(len(messages) + 1)
        ]
        sizes = [message_tokens(message) for message in messages]
        assert tally.whole.tokens == sum(sizes)


def test_a_hash_names_messages_and_their_order():
    a, b = (UserMessage((TextPart(text),)) for text in "ab")
    hashes = set()
    for messages in ([], [a], [b], [a, b], [b, a], [a, a, b]):
        tally = Tally()
        tally.show(messages)
        hashes.add(tally.whole.hash)
    assert len(hashes) == 6
