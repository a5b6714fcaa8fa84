"""Tool calls from pieces, by one rule for every dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from greenroom.protocol import (
    ProviderFailure,
    Stop,
    StreamEvent,
    ToolCallChunk,
    ToolCallEnd,
    ToolCallStart,
)
from greenroom.protocol.providers import PROFILES, ChatCompletionsDecoder

Entry = dict[str, Any]


def entry(
    index: object = 0,
    call_id: object = None,
    name: object = None,
    arguments: object = None,
) -> Entry:
    wired: Entry = {"function": {"name": name, "arguments": arguments}}
    if index is not None:
        wired["index"] = index
    return wired if call_id is None else wired | {"id": call_id}


def replied(
    *entries: object, finish: str | None = "tool_calls", profile: str = "compatible"
) -> list[StreamEvent]:
    decoder = ChatCompletionsDecoder(PROFILES[profile], salt="s")
    events: list[StreamEvent] = []
    for item in entries:
        delta = {"choices": [{"delta": {"tool_calls": [item]}}]}
        events += decoder.feed(json.dumps(delta))
    if finish is not None:
        events += decoder.feed(json.dumps({"choices": [{"finish_reason": finish}]}))
    return events + decoder.finish()


def calls(*entries: object, finish: str = "tool_calls") -> list[tuple[str, str, str]]:
    return [
        (event.id, event.name, event.arguments)
        for event in replied(*entries, finish=finish)
        if isinstance(event, ToolCallEnd)
    ]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        # Interleaved by index.
        (
            [
                entry(0, "a", "f", ""),
                entry(1, "b", "g", '{"x"'),
                entry(0, None, None, "{}"),
                entry(1, None, None, ":1}"),
            ],
            [("a", "f", "{}"), ("b", "g", '{"x":1}')],
        ),
        # One index for all, told apart by their ids; a piece may come back to one.
        (
            [
                entry(0, "a", "f", '{"x"'),
                entry(0, "b", "f", "{}"),
                entry(0, "a", None, ":1}"),
            ],
            [("a", "f", '{"x":1}'), ("b", "f", "{}")],
        ),
        # One index and no ids, told apart by arguments that are whole.
        (
            [
                entry(0, None, "f", '{"x":'),
                entry(0, None, None, "1}"),
                entry(0, None, "f", "{}"),
                entry(0, None, "g", ""),
            ],
            [
                ("call_s_0", "f", '{"x":1}'),
                ("call_s_1", "f", "{}"),
                ("call_s_2", "g", "{}"),
            ],
        ),
        # No index: an id opens a call or finds it, nothing goes on with the last.
        (
            [
                entry(None, "a", "f", '{"x"'),
                entry(None, None, None, ":1}"),
                entry(None, "b", "g", "{"),
                entry(None, "a", None, " "),
                entry(None, "b", None, "}"),
            ],
            [("a", "f", '{"x":1} '), ("b", "g", "{}")],
        ),
        # An index lost on the way: the id alone finds the call.
        (
            [
                entry(0, "a", "f", '{"x"'),
                entry(1, "b", "g", "{}"),
                entry(None, "a", None, ":1}"),
            ],
            [("a", "f", '{"x":1}'), ("b", "g", "{}")],
        ),
        # Id and name repeated with each piece.
        (
            [entry(0, "a", "f", '{"x"'), entry(0, "a", "f", ":1}"), entry(0, "a", "f")],
            [("a", "f", '{"x":1}')],
        ),
        # A name repeated behind whole arguments is no new call.
        (
            [entry(0, None, "f", "{}"), entry(0, None, "f", "")],
            [("call_s_0", "f", "{}")],
        ),
        # Nothing overwrites, and names are not joined.
        (
            [
                entry(0, "a", "f", "{"),
                entry(0, "", "", None),
                entry(0, None, "g", None),
                entry(0, None, None, "}"),
            ],
            [("a", "f", "{}")],
        ),
        # The name and the id come late.
        (
            [
                entry(0, None, None, '{"x":'),
                entry(0, None, "f", "1"),
                entry(0, "a", None, "}"),
            ],
            [("a", "f", '{"x":1}')],
        ),
        # Arguments as values; an index after pieces without one.
        (
            [entry(0, "a", "f", {"x": "é"}), entry(1, "b", "f", [1])],
            [("a", "f", '{"x": "é"}'), ("b", "f", "[1]")],
        ),
        ([entry(3, "a", "f", None)], [("a", "f", "{}")]),
        ([entry(0, "a", "f", "  ")], [("a", "f", "{}")]),
        # Not JSON: for the model to hear of, not for us to guess.
        ([entry(0, "a", "f", '{"x":')], [("a", "f", '{"x":')]),
        ([entry(0, "a", None, "{}")], [("a", "", "{}")]),
        # Of the wrong type, or nothing at all.
        ([None, 5, "x", [], {}, {"function": 3}, entry(0)], []),
        ([entry("0", 7, ["f"], "{}")], [("call_s_0", "", "{}")]),
        ([entry(True, "a", "f", "{}")], [("a", "f", "{}")]),
    ],
)
def test_pieces_become_calls(
    entries: list[object], expected: list[tuple[str, str, str]]
) -> None:
    assert calls(*entries) == expected


def test_a_call_is_announced_once_and_its_pieces_follow() -> None:
    events = replied(
        entry(0, None, None, "{"), entry(0, "a", "f"), entry(0, None, None, "}")
    )

    assert events == [
        ToolCallStart(index=0, id="a", name="f"),
        ToolCallChunk(index=0, text="{"),
        ToolCallChunk(index=0, text="}"),
        ToolCallEnd(index=0, id="a", name="f", arguments="{}"),
        Stop(reason="tool_use", raw="tool_calls"),
    ]


def test_a_call_cut_by_the_output_limit_does_not_end() -> None:
    entries = (
        entry(0, "a", "f", "{}"),
        entry(1, "b", "g", '{"x": 1'),
        entry(2, "c", "h"),
    )

    assert calls(*entries, finish="length") == [("a", "f", "{}")]
    assert replied(*entries, finish="length")[-1] == Stop(
        reason="max_tokens", raw="length"
    )


def test_the_old_single_function_call_is_a_call() -> None:
    decoder = ChatCompletionsDecoder(PROFILES["compatible"], salt="s")
    pieces = [{"name": "f", "arguments": '{"x"'}, {"arguments": ":1}"}, None]
    for piece in pieces:
        chunk = {"choices": [{"delta": {"function_call": piece}}]}
        decoder.feed(json.dumps(chunk))
    decoder.feed('{"choices": [{"finish_reason": "function_call"}]}')

    assert decoder.finish() == [
        ToolCallStart(index=0, id="call_s_0", name="f"),
        ToolCallChunk(index=0, text='{"x":1}'),
        ToolCallEnd(index=0, id="call_s_0", name="f", arguments='{"x":1}'),
        Stop(reason="tool_use", raw="function_call"),
    ]


def test_what_belongs_to_a_call_and_must_go_back_is_an_option_of_it() -> None:
    extra = {"google": {"thought_signature": "c2ln"}}

    events = replied(entry(0, "a", "f", "{}") | {"extra_content": extra})

    assert [e.options for e in events if isinstance(e, ToolCallEnd)] == [
        {"extra_content": extra}
    ]


def test_made_up_ids_are_equal_for_equal_requests_only() -> None:
    assert calls(entry(0, None, "f")) == calls(entry(0, None, "f"))
    decoder = ChatCompletionsDecoder(PROFILES["compatible"], salt="other")
    decoder.feed(
        json.dumps({"choices": [{"delta": {"tool_calls": [entry(0, None, "f")]}}]})
    )
    decoder.feed('{"choices": [{"finish_reason": "stop"}]}')
    assert isinstance(decoder.finish()[0], ToolCallStart)
    assert calls(entry(0, None, "f"))[0][0] == "call_s_0"


def test_a_flood_of_calls_is_a_failure() -> None:
    events = replied(*(entry(i, f"c{i}", "f", "{}") for i in range(200)))

    assert isinstance(events[-1], ProviderFailure)
    assert events[-1].code == "too_many_tool_calls"
    assert not [event for event in events if isinstance(event, ToolCallEnd)]


def test_words_without_end_are_cut() -> None:
    (found,) = calls(entry(0, "i" * 10_000, "n" * 10_000, "{}"))

    assert found == ("i" * 256, "n" * 256, "{}")


#### Whether calls are to run (RUN-22)


@pytest.mark.parametrize(
    ("profile", "finish", "reason"),
    [
        ("openai", "stop", "complete"),
        ("openai", "tool_calls", "tool_use"),
        *((name, "stop", "tool_use") for name in PROFILES if name != "openai"),
        ("vllm", "length", "max_tokens"),
        ("vllm", "content_filter", "error"),
        ("vllm", "error", "error"),
    ],
)
def test_a_stop_with_complete_calls_means_to_run_them_where_the_profile_says_so(
    profile: str, finish: str, reason: str
) -> None:
    last = replied(entry(0, "a", "f", "{}"), finish=finish, profile=profile)[-1]

    assert isinstance(last, Stop)
    assert last.reason == reason


@pytest.mark.parametrize("profile", PROFILES)
def test_text_that_looks_like_a_call_is_text(profile: str) -> None:
    decoder = ChatCompletionsDecoder(PROFILES[profile])
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    delta = {"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]}

    assert decoder.feed(json.dumps(delta)) != []
    assert decoder.finish() == [Stop(reason="complete", raw="stop")]
