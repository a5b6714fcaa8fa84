"""What is stored can always be sent again, whatever is stored."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from kit.strict_wire import unsafe_text, wire_problems

from greenroom.protocol import (
    ActionBlock,
    AssistantMessage,
    Block,
    Draft,
    ErrorBlock,
    ImageBlock,
    ItemId,
    MessageId,
    MessageMetadata,
    MessageRecord,
    ModelRequest,
    ReasoningBlock,
    ReasoningDelta,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallChunk,
    ToolCallEnd,
    ToolCallStart,
    ToolMessage,
    ViewBuilder,
)
from greenroom.protocol.providers import PROFILES, encode_request

ODD = ["\x00", "\ud800", "\udfff\ud800", "\\u0000", "é", "\n", "\ufeff", "\u2028"]
texts = st.one_of(
    st.text(st.characters(codec=None), max_size=8),
    st.sampled_from(["", " ", "ok", *ODD]),
)
# Few of them, so that they meet; among them ids that look derived.
ids = st.one_of(
    st.sampled_from(["a", "a-2", "a-2-2", "a~2", "", " ", "functions.read:0", "é"]),
    st.sampled_from(["x" * 41, "x" * 5_000, "call_" + "0" * 32]),
    texts,
)
names = st.one_of(
    st.sampled_from(["read", "", " ", "read file", "läs", "x" * 65, "x" * 5_000]), texts
)
ARGUMENTS = [
    *("", "{}", " {} ", "[1]", "1", "null", '"a"', "{", '{"a":', '{"a":1}}', "{}{}"),
    *('{"a":"\\u0000"}', '{"a":"\\\\u0000"}', '{"\\u0000":1}', '{"a":"\x00"}'),
    *('{"a":"\\ud800"}', '{"a":"\ud800"}', '{"a":"\\udc00\\ud800"}'),
    *('{"a":NaN}', '{"a":1e999}', '{"a":-Infinity}', f'{{"a":{"9" * 5_000}}}'),
    *("[" * 5_000, '{"a":' * 500 + "1" + "}" * 500, '{"a":' * 5_000, '\ufeff{"a":1}'),
    *("{'a':1}", "{a:1}", '{"a":1,"a":2}', '{"a":1,}', '{"a":"\n"}'),
]
arguments = st.one_of(st.sampled_from(ARGUMENTS), texts)
options = st.one_of(
    st.none(),
    st.dictionaries(
        st.sampled_from(["reasoning_details", "extra_content", "sig\x00"]),
        st.lists(st.dictionaries(texts, texts, max_size=2), max_size=2),
        max_size=2,
    ),
)
rounds = st.integers(0, 3)
item = ItemId("i")

blocks = st.one_of(
    st.builds(TextBlock, id=st.just(item), text=texts, round=rounds),
    st.builds(
        ReasoningBlock, id=st.just(item), text=texts, round=rounds, options=options
    ),
    st.builds(ImageBlock, id=st.just(item), media_type=texts, data=texts, round=rounds),
    st.builds(ErrorBlock, id=st.just(item), code=texts, text=texts, round=rounds),
    st.builds(
        ActionBlock,
        id=st.just(item),
        action=st.just("question_request"),
        origin=st.just("question"),
        tool_block_id=st.just(item),
        title=texts,
        round=rounds,
    ),
    st.builds(
        ToolCallBlock,
        id=st.just(item),
        call_id=ids,
        name=names,
        arguments=arguments,
        round=rounds,
        status=st.sampled_from(["pending", "loading", "success", "error"]),
        response=st.none() | texts,
        options=options,
    ),
)
records = st.builds(
    MessageRecord,
    id=st.just(MessageId("m")),
    order_seq=st.just(1),
    role=st.sampled_from(["user", "assistant"]),
    status=st.sampled_from(["pending", "sent", "error"]),
    blocks=st.lists(blocks, max_size=6).map(tuple),
    metadata=st.builds(
        MessageMetadata,
        provider=st.sampled_from(["p", "q", None]),
        model=st.sampled_from(["m", "n"]),
    ),
    created_at=st.just(0.0),
    updated_at=st.just(0.0),
)


def request_of(builder: ViewBuilder) -> ModelRequest:
    return ModelRequest(model=builder.model, messages=builder.messages)


def refused(request: ModelRequest) -> dict[str, list[str]]:
    """Return what each dialect would refuse."""
    problems = {
        name: wire_problems(encode_request(request, profile), profile)
        for name, profile in PROFILES.items()
    }
    return {name: found for name, found in problems.items() if found}


@settings(max_examples=250)
@given(texts, st.lists(records, max_size=4), st.lists(blocks, max_size=5))
def test_no_tape_makes_a_request_that_is_refused(system, history, in_progress):
    builder = ViewBuilder("p", "m")
    builder.add_system(system)
    for record in history:
        builder.add_record(record)
    builder.add_rounds(in_progress)
    assert refused(request_of(builder)) == {}
    # Other providers than ours see the messages themselves.
    assert list(unsafe_text(msgspec.to_builtins(builder.messages))) == []


starts = st.builds(ToolCallStart, index=st.integers(0, 2), id=ids, name=names)
chunks = st.builds(ToolCallChunk, index=st.integers(0, 2), text=arguments)
ends = st.builds(
    ToolCallEnd,
    index=st.integers(0, 2),
    id=ids,
    name=names,
    arguments=arguments,
    options=options,
)
replies = st.lists(
    st.one_of(
        st.builds(TextDelta, texts),
        st.builds(ReasoningDelta, texts, options),
        *(starts, chunks, ends),
    ),
    max_size=8,
)


@settings(max_examples=200)
@given(st.lists(replies, max_size=3))
def test_no_reply_makes_a_next_request_that_is_refused_or_a_reload_another(rounds):
    live, draft = ViewBuilder("p", "m"), Draft(MessageId("m"))
    for number, reply in enumerate(rounds, 1):
        draft.begin_round(number, number)
        for event in reply:
            draft.apply(event)
        live.add_rounds(draft.round_blocks)
        assert refused(request_of(live)) == {}
    kept = msgspec.json.decode(
        msgspec.json.encode(draft.blocks), type=tuple[Block, ...]
    )
    reloaded = ViewBuilder("p", "m")
    reloaded.add_rounds(kept)
    assert reloaded.messages == live.messages


def call(**fields: Any) -> ToolCallBlock:
    given: dict[str, Any] = {"call_id": "c", "name": "read", "arguments": "{}"}
    return ToolCallBlock(id=item, response="ok", **given | fields)


def sent_call(block: ToolCallBlock, *, foreign: bool = False):
    builder = ViewBuilder("p", "m")
    builder.add_rounds([block], keep_reasoning=not foreign)
    message, result = builder.messages
    assert isinstance(message, AssistantMessage)
    assert isinstance(result, ToolMessage)
    assert result.call_id == message.calls[0].id
    return message.calls[0]


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("read", "read"),
        ("read file", "read_file"),
        ("läs", "l_s"),
        ("x" * 100, "x" * 64),
        ("", "unnamed_tool"),
        ("\n", "unnamed_tool"),
    ],
)
def test_a_name_that_no_tool_can_have_is_sent_back_as_one_that_it_could(name, sent):
    assert sent_call(call(name=name)).name == sent


def test_an_escaped_nul_in_arguments_is_replaced_and_its_look_alike_is_not():
    assert sent_call(call(arguments='{"a":"\\u0000"}')).arguments == '{"a":"�"}'
    look_alike = '{"a":"\\\\u0000"}'
    assert sent_call(call(arguments=look_alike)).arguments == look_alike


def test_an_id_goes_back_as_it_came_to_who_sent_it_and_plain_to_others():
    block = call(call_id="functions.read:0")
    assert sent_call(block).id == "functions.read:0"
    assert sent_call(block, foreign=True).id == "functions_read_0"


def test_an_id_that_looks_like_a_replaced_one_is_not_taken_for_it():
    long = "x" * 50
    profile = PROFILES["openai"]

    def ids_of(*blocks: ToolCallBlock) -> list[str]:
        builder = ViewBuilder("p", "m")
        builder.add_rounds(blocks)
        body = json.loads(encode_request(request_of(builder), profile))
        return [c["id"] for c in body["messages"][0]["tool_calls"]]

    (replaced,) = ids_of(call(call_id=long))
    first, second = ids_of(call(call_id=long), call(call_id=replaced))
    assert first == replaced
    assert second != replaced
