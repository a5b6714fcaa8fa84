from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from greenroom.protocol import Stop, TextDelta, ToolCallEnd, ToolCallStart
from greenroom.protocol.providers import TextCalls, find_text_calls

OFFERED = frozenset({"read"})
CALL = '{"name": "read", "arguments": {"path": "a"}}'


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"  {CALL}\n",
        f"```json\n{CALL}\n```",
        f"```\n{CALL}\n```",
        f"I look.\n<tool_call>\n{CALL}\n</tool_call>",
        CALL.replace("arguments", "parameters"),
    ],
)
def test_a_reply_that_is_a_call_is_one(text):
    (call,) = find_text_calls(text, OFFERED)
    assert (call.name, call.arguments) == ("read", '{"path":"a"}')


@pytest.mark.parametrize(
    "text",
    [
        "",
        "read",
        "I would call read with path a",
        f"Use this: {CALL}",
        f"{CALL} and then go on",
        '{"name": "write", "arguments": {}}',
        '{"name": "Read", "arguments": {}}',
        '{"name": "read"}',
        '{"name": "read", "arguments": "{}"}',
        '{"name": ["read"], "arguments": {}}',
        '{"name": "read", "arguments": {"path": ',
        "[" * 10_000,
        f'<tool_call>{CALL}</tool_call><tool_call>{{"name": "rm"}}</tool_call>',
        "x" * 300_000,
    ],
)
def test_what_only_looks_like_a_call_is_text(text):
    assert find_text_calls(text, OFFERED) == ()


@given(st.lists(st.text(max_size=8), max_size=6))
def test_text_without_a_call_passes_unchanged(pieces):
    stage = TextCalls(OFFERED)
    events = [*map(TextDelta, pieces), Stop(reason="complete")]
    assert stage.feed(events) == events


@given(st.integers(0, len(CALL)))
def test_a_call_in_pieces_becomes_a_tool_stop(cut):
    stage = TextCalls(OFFERED, salt="s")
    passed = stage.feed([TextDelta(CALL[:cut])])
    passed += stage.feed([TextDelta(CALL[cut:]), Stop(reason="complete", raw="stop")])
    *_, start, end, stop = passed
    assert isinstance(start, ToolCallStart)
    assert isinstance(end, ToolCallEnd)
    assert start.id == end.id == "text_s_0"
    assert stop == Stop(reason="tool_use", raw="stop")


@pytest.mark.parametrize("reason", ["max_tokens", "error", "tool_use"])
def test_only_an_ordinary_stop_becomes_a_tool_stop(reason):
    stage = TextCalls(OFFERED)
    events = [TextDelta(CALL), Stop(reason=reason)]
    assert stage.feed(events) == events


def test_text_beside_a_native_call_is_text():
    stage = TextCalls(OFFERED)
    events = [
        TextDelta(CALL),
        ToolCallStart(index=0, id="a", name="read"),
        Stop(reason="complete"),
    ]
    assert stage.feed(events) == events
