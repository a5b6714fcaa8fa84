from __future__ import annotations

from typing import Literal

import msgspec
from hypothesis import given, strategies as st

from greenroom.protocol import (
    AssistantMessage,
    ErrorBlock,
    ItemId,
    MessageId,
    MessageMetadata,
    MessageRecord,
    MessageStatus,
    ReasoningBlock,
    SystemMessage,
    TextBlock,
    ToolCallBlock,
    ToolMessage,
    UserMessage,
    ViewBuilder,
)


def record(
    blocks,
    *,
    role: Literal["user", "assistant"] = "assistant",
    status: MessageStatus = "sent",
    provider="p",
    model="m",
):
    return MessageRecord(
        id=MessageId("x"),
        order_seq=1,
        role=role,
        status=status,
        blocks=tuple(blocks),
        metadata=MessageMetadata(provider=provider, model=model),
        created_at=0.0,
        updated_at=0.0,
    )


def text(value, number=1):
    return TextBlock(id=ItemId("i"), text=value, round=number)


def call(
    call_id="c", name="read", arguments="{}", response: str | None = "ok", number=1
):
    return ToolCallBlock(
        id=ItemId("i"),
        call_id=call_id,
        name=name,
        arguments=arguments,
        response=response,
        round=number,
        status="success" if response is not None else "error",
    )


def view(*records, provider="p", model="m"):
    builder = ViewBuilder(provider, model)
    for item in records:
        builder.add_record(item)
    return builder.messages


names = st.sampled_from(["read", "", "w\x00"])
blocks = st.lists(
    st.one_of(
        st.builds(text, st.text(max_size=3), st.integers(1, 3)),
        st.builds(
            call,
            st.sampled_from(["a", "b", "", "a-2"]),
            names,
            st.sampled_from(["{}", "[1]", '{"a":', "", '{"a":"\ud800"}', "[" * 5000]),
            st.sampled_from(["ok", None, "\x00"]),
            st.integers(1, 3),
        ),
    ),
    max_size=8,
).map(lambda items: sorted(items, key=lambda block: block.round))


@given(st.lists(blocks, max_size=3))
def test_every_call_has_one_result_in_order_right_after_it(turns):
    messages = list(view(*[record(turn) for turn in turns]))
    seen: set[str] = set()
    while messages:
        message = messages.pop(0)
        if not isinstance(message, AssistantMessage):
            raise AssertionError(f"a result without its call: {message}")
        for sent in message.calls:
            result = messages.pop(0)
            assert isinstance(result, ToolMessage)
            assert result.call_id == sent.id
            assert sent.id not in seen
            seen.add(sent.id)


@given(blocks)
def test_what_is_sent_is_safe_and_arguments_are_objects(turn):
    for message in view(record(turn)):
        encoded = msgspec.json.encode(message)
        assert b"\\u0000" not in encoded
        if isinstance(message, AssistantMessage):
            assert message.text or message.calls
            for sent in message.calls:
                assert isinstance(msgspec.json.decode(sent.arguments), dict)
                assert sent.name


def test_the_view_is_the_same_each_time_it_is_made():
    turns = [record([call("a"), call("a")]), record([call("a-2")])]
    assert view(*turns) == view(*turns)


def test_a_call_without_a_result_gets_one_that_says_so():
    _, result = view(record([call(response=None)]))
    assert isinstance(result, ToolMessage)
    assert result.is_error
    assert "no result" in result.text


def test_thinking_goes_back_only_to_the_model_it_came_from():
    thought = ReasoningBlock(id=ItemId("i"), text="hm", round=1, options={"sig": "s"})
    turn = record([thought, text("so")])
    (same,) = view(turn)
    (other,) = view(turn, model="another")
    assert isinstance(same, AssistantMessage)
    assert isinstance(other, AssistantMessage)
    assert same.reasoning[0].options == {"sig": "s"}
    assert other.reasoning == ()
    assert other.text == "so"


def test_an_aborted_turn_keeps_its_text_and_tells_the_model_that_it_was_cut():
    error = ErrorBlock(id=ItemId("e"), code="user_canceled", text="stopped by the user")
    turn = record([text("half"), error], status="error")
    # In one message: two in a row are refused by the templates of many models.
    (said,) = view(turn)
    assert isinstance(said, AssistantMessage)
    assert said.text == "half\n\n[this turn ended early: stopped by the user]"


def test_instructions_come_first_and_blank_ones_not_at_all():
    builder = ViewBuilder("p", "m")
    builder.add_system("  ")
    assert builder.messages == ()
    builder.add_system("be brief")
    builder.add_record(record([text("hi", 0)], role="user"))
    first, second = builder.messages
    assert first == SystemMessage("be brief")
    assert isinstance(second, UserMessage)


def test_calls_that_all_have_one_id_are_told_apart_at_no_growing_cost():
    # Some providers call every call the same; looking for a free id one by one would
    # cost the square of the calls.
    builder = ViewBuilder("p", "m")
    for _ in range(4_000):
        builder.add_rounds([call("same")])
    ids = [m.call_id for m in builder.messages if isinstance(m, ToolMessage)]
    assert ids[:3] == ["same", "same-2", "same-3"]
    assert len(set(ids)) == 4_000


def test_a_made_up_id_never_meets_one_that_was_sent():
    builder = ViewBuilder("p", "m")
    for call_id in ("a-2", "a", "a", "a-2", "a"):
        builder.add_rounds([call(call_id)])
    ids = [m.call_id for m in builder.messages if isinstance(m, ToolMessage)]
    assert ids == ["a-2", "a", "a-3", "a-2-2", "a-4"]
