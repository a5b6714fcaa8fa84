"""What the reply's decoder makes of ends, errors and nonsense."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, strategies as st

from greenroom.protocol import (
    ProviderFailure,
    ReasoningDelta,
    Stop,
    StreamEvent,
    TextDelta,
    UsageReported,
)
from greenroom.protocol.providers import PROFILES, BodyDecoder, ChatCompletionsDecoder


def decoder(profile: str = "compatible") -> ChatCompletionsDecoder:
    return ChatCompletionsDecoder(PROFILES[profile], salt="s")


def wire(finish: object = None, **delta: object) -> str:
    return json.dumps({"choices": [{"delta": delta, "finish_reason": finish}]})


def replied(*data: str, profile: str = "compatible") -> list[StreamEvent]:
    reply = decoder(profile)
    events = [event for item in data for event in reply.feed(item)]
    return events + reply.finish()


#### Finish reasons


@pytest.mark.contract("RUN-21")
@pytest.mark.parametrize(
    ("raw", "reason", "code", "retryable"),
    [
        ("stop", "complete", None, None),
        ("end", "complete", None, None),
        ("eos", "complete", None, None),
        ("length", "max_tokens", None, None),
        ("tool_calls", "tool_use", None, None),
        ("function_call", "tool_use", None, None),
        ("content_filter", "error", "content_filter", False),
        ("error", "error", "provider_finish_error", None),
        ("unknown", "error", "provider_finish_error", None),
        ("network_error", "error", "provider_finish_error", True),
        ("insufficient_system_resource", "error", "provider_finish_error", True),
        ("abort", "error", "provider_stream_aborted", None),
        ("cancelled", "error", "provider_stream_aborted", None),
        ("SAFETY", "error", "provider_finish_other", None),
        ("pause_turn", "error", "provider_finish_other", None),
    ],
)
def test_a_finish_reason_is_normalised_and_its_raw_word_kept(
    raw: str, reason: str, code: str | None, retryable: bool | None
) -> None:
    events = replied(wire(content="text"), wire(finish=raw))

    stop = events[-1]
    assert isinstance(stop, Stop)
    assert (stop.reason, stop.raw) == (reason, raw)
    failures = [event for event in events if isinstance(event, ProviderFailure)]
    assert [failure.code for failure in failures] == ([code] if code else [])
    for failure in failures:
        assert raw in failure.message
        assert failure.retryable is retryable
        # The failure is told before the stop that it led to.
        assert events[-2] is failure


def test_a_full_window_is_a_cut_with_output_and_an_overflow_without() -> None:
    raw = "model_context_window_exceeded"

    assert replied(wire(content="x"), wire(finish=raw))[-1] == Stop(
        reason="max_tokens", raw=raw
    )
    failure, stop = replied(wire(finish=raw))
    assert isinstance(failure, ProviderFailure)
    assert failure.code == "context_overflow"
    assert stop == Stop(reason="error", raw=raw)


def test_the_last_finish_reason_wins_and_content_after_it_counts() -> None:
    events = replied(wire("length", content="a"), wire("stop", content="b"), wire(None))

    assert events == [
        TextDelta("a"),
        TextDelta("b"),
        Stop(reason="complete", raw="stop"),
    ]


#### Ends


def test_an_end_after_a_finish_reason_is_a_good_one_without_done() -> None:
    assert replied(wire("stop", content="a"))[-1] == Stop(reason="complete", raw="stop")


@pytest.mark.parametrize("tail", [[], [wire(content="more")]])
def test_an_end_with_neither_finish_reason_nor_done_has_no_stop(
    tail: list[str],
) -> None:
    events = replied(wire(content="a"), *tail)

    assert all(isinstance(event, TextDelta) for event in events)


def test_done_without_a_finish_reason_ends_text() -> None:
    assert replied(wire(content="a"), "[DONE]")[-1] == Stop(reason="complete")


def test_done_behind_nothing_is_no_end() -> None:
    assert replied("[DONE]") == []


def test_done_behind_half_a_call_is_no_end() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x"'}}
    events = replied(wire(tool_calls=[call]), "[DONE]")

    assert not any(isinstance(event, Stop) for event in events)


def test_nothing_is_taken_in_after_the_end() -> None:
    reply = decoder()
    reply.feed(wire("stop", content="a"))
    assert reply.feed(" [DONE] ") == [Stop(reason="complete", raw="stop")]

    assert reply.is_over
    assert reply.feed(wire(content="b")) == []
    assert reply.feed_body(b"{}") == []
    assert reply.fail(ProviderFailure(message="late")) == []
    assert reply.finish() == []


#### Errors


@pytest.mark.parametrize(
    ("chunk", "code", "status", "said"),
    [
        (
            {"error": {"message": "no", "type": "server_error"}},
            "server_error",
            None,
            "no",
        ),
        ({"error": {"message": "no", "code": 503}}, "provider_error", 503, "no"),
        ({"error": {"message": "no", "code": "x", "type": "y"}}, "x", None, "no"),
        ({"error": "plain words"}, "provider_error", None, "plain words"),
        ({"error": {"detail": "why"}}, "provider_error", None, "why"),
        (
            {
                "object": "error",
                "message": "flat",
                "type": "BadRequestError",
                "code": 400,
            },
            "BadRequestError",
            400,
            "flat",
        ),
        (
            {"choices": [{"index": 0, "error": {"message": "in choice", "code": 502}}]},
            "provider_error",
            502,
            "in choice",
        ),
        ({"error": {"odd": {"deep": "words"}}}, "provider_error", None, "words"),
        ({"error": {"nothing": None}}, "provider_error", None, "without a word"),
    ],
)
def test_an_error_in_the_stream_is_a_failure(
    chunk: dict[str, Any], code: str, status: int | None, said: str
) -> None:
    events = replied(wire(content="a"), json.dumps(chunk), wire("stop"), "[DONE]")

    text, failure = events
    assert text == TextDelta("a")
    assert isinstance(failure, ProviderFailure)
    assert (failure.code, failure.status) == (code, status)
    assert said in failure.message


@pytest.mark.parametrize("nothing", [None, {}, "", [], 0, False])
def test_an_empty_error_is_none(nothing: object) -> None:
    chunk = {"error": nothing, "choices": [{"delta": {"content": "a"}}]}

    assert replied(json.dumps(chunk)) == [TextDelta("a")]


@pytest.mark.parametrize(
    "data",
    ["{", "<html>", "[]", '"text"', "null", "[" * 100_000, '{"a":' * 100_000, "\x00"],
)
def test_data_that_is_no_object_is_a_failure_that_may_pass(data: str) -> None:
    failure, *others = replied(data, wire("stop", content="a"))

    assert others == []
    assert isinstance(failure, ProviderFailure)
    assert (failure.code, failure.retryable) == ("bad_chunk", True)
    assert len(failure.message) < 300


#### Content


def test_the_first_of_two_names_for_a_thought_counts() -> None:
    assert replied(wire(reasoning_content="a", reasoning="b")) == [ReasoningDelta("a")]
    assert replied(wire(reasoning_content="", reasoning="b")) == [ReasoningDelta("b")]


def test_half_a_surrogate_pair_is_replaced() -> None:
    assert replied('{"choices":[{"delta":{"content":"a\\ud83d"}}]}') == [
        TextDelta("a\ufffd")
    ]


def test_other_choices_and_unknown_fields_are_left_alone() -> None:
    other = {"index": 1, "delta": {"content": "other"}, "finish_reason": "length"}
    mine = {"index": 0, "delta": {"content": "mine", "audio": {}}, "x": 1}

    assert replied(json.dumps({"choices": [other, mine], "y": 2})) == [
        TextDelta("mine")
    ]


@pytest.mark.parametrize("choices", [None, [], {}, "x", [None], [3], [[]]])
def test_odd_choices_are_nothing(choices: object) -> None:
    assert replied(json.dumps({"choices": choices})) == []


def test_details_wait_for_what_follows_them_and_keep_their_order() -> None:
    first = {"type": "reasoning.summary", "summary": "a", "index": 0}
    events = replied(
        wire(reasoning_details=[first]),
        wire(reasoning_details=[{**first, "summary": "b"}, {"type": "x", "index": 1}]),
        wire(content="text"),
        wire(reasoning_details=[None, 3, {}]),
        wire("stop"),
        profile="openrouter",
    )

    details = [{**first, "summary": "ab"}, {"type": "x", "index": 1}]
    assert events == [
        ReasoningDelta("", {"reasoning_details": details}),
        TextDelta("text"),
        Stop(reason="complete", raw="stop"),
    ]


def details_of(*pieces: object) -> list[Any]:
    chunks = (wire(reasoning_details=[piece]) for piece in pieces)
    delta = replied(*chunks, wire("stop"), profile="openrouter")[0]
    assert isinstance(delta, ReasoningDelta)
    assert delta.options is not None
    return delta.options["reasoning_details"]


def test_encrypted_details_are_never_joined_and_nothing_is_overwritten_with_null() -> (
    None
):
    sealed = {"type": "reasoning.encrypted", "data": "x", "index": 0}
    text = {"type": "reasoning.text", "text": "a", "signature": "s", "index": 1}
    later = {"type": "reasoning.text", "text": None, "signature": None, "index": 1}

    assert details_of(sealed, sealed, text, later) == [sealed, sealed, text]


def test_of_details_without_end_only_so_many_are_kept() -> None:
    assert len(details_of(*({"type": "x", "index": i} for i in range(1_100)))) == 1_024


@pytest.mark.parametrize("depth", [100, 400, 600, 800, 950])
def test_details_that_nest_without_end_raise_nothing(depth: int) -> None:
    nested = '{"x":' * depth + "1" + "}" * depth
    chunk = f'{{"choices":[{{"delta":{{"reasoning_details":[{nested}]}}}}]}}'
    events = replied(chunk, wire("stop"), profile="openrouter")
    assert len(events) in (1, 2)


def test_details_are_not_kept_where_they_do_not_go_back() -> None:
    assert replied(wire(reasoning_details=[{"type": "x"}]), profile="vllm") == []


#### A whole body


def body_events(body: bytes, *, max_bytes: int = 10_000) -> list[StreamEvent]:
    reply = BodyDecoder(PROFILES["compatible"], salt="s", max_bytes=max_bytes)
    half = len(body) // 2
    return [*reply.feed(body[:half]), *reply.feed(body[half:]), *reply.finish()]


COMPLETION: Final = {
    "object": "chat.completion",
    "choices": [
        {"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"},
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2},
}


@pytest.mark.parametrize("prefix", [b"", b" \r\n", b"\xef\xbb\xbf"])
def test_a_body_that_is_not_a_stream_is_read_as_a_whole(prefix: bytes) -> None:
    text, usage, stop = body_events(prefix + json.dumps(COMPLETION, indent=1).encode())

    assert text == TextDelta("Hi")
    assert isinstance(usage, UsageReported)
    assert stop == Stop(reason="complete", raw="stop")


def test_a_body_that_is_cut_is_a_failure() -> None:
    (failure,) = body_events(json.dumps(COMPLETION).encode()[:-9])

    assert isinstance(failure, ProviderFailure)
    assert failure.code == "bad_chunk"


def test_an_error_with_a_good_status_is_a_failure() -> None:
    (failure,) = body_events(b'{"error": {"message": "no", "code": "x"}}')

    assert failure == ProviderFailure(message="no", code="x")


def test_an_empty_body_is_nothing() -> None:
    assert body_events(b"") == []
    assert body_events(b"  \n ") == []


@pytest.mark.parametrize("body", [b"data: x\n", b'{"a": "b"}, ' * 3, b": c\n\n"])
def test_a_body_without_end_is_refused(body: bytes) -> None:
    (failure,) = body_events(body * 20, max_bytes=40)

    assert isinstance(failure, ProviderFailure)
    assert (failure.code, failure.retryable) == ("response_too_large", False)


def test_an_event_without_end_is_a_failure() -> None:
    reply = BodyDecoder(PROFILES["compatible"])
    events = [e for _ in range(9) for e in reply.feed(b"data: " + b"x" * (1 << 20))]

    (failure,) = events
    assert isinstance(failure, ProviderFailure)
    assert failure.code == "sse_event_too_large"


#### Whatever a peer sends


NAMES: Final = [
    *("choices", "delta", "message", "content", "refusal", "reasoning", "index", "id"),
    *("reasoning_content", "reasoning_details", "tool_calls", "function", "name"),
    *("arguments", "finish_reason", "usage", "error", "code", "type", "text", "object"),
    *("prompt_tokens", "completion_tokens", "total_tokens", "function_call"),
]
LEAVES: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 600),
    st.floats(allow_nan=True),
    st.sampled_from(["", "stop", "length", "error", "{}", "x" * 9, "\ud800", "\x00"]),
)
VALUES: Final = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    ),
    max_leaves=20,
)
SHAPED: Final = st.fixed_dictionaries(
    {"choices": st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES), max_size=2)},
    optional={"usage": VALUES, "error": VALUES},
)


@given(
    st.lists(st.one_of(SHAPED, VALUES), max_size=4), st.sampled_from(sorted(PROFILES))
)
def test_no_json_raises_and_every_event_can_be_stored(
    chunks: list[object], profile: str
) -> None:
    events = replied(*(json.dumps(chunk) for chunk in chunks), profile=profile)

    stops = [event for event in events if isinstance(event, Stop)]
    assert len(stops) <= 1
    assert stops == events[len(events) - len(stops) :]
    for event in events:
        stored = msgspec.json.encode(event)
        assert isinstance(msgspec.json.decode(stored, type=StreamEvent), type(event))


@given(st.binary(max_size=300), st.integers(0, 300))
def test_no_bytes_raise_and_cuts_change_nothing(body: bytes, cut: int) -> None:
    def decoded(*chunks: bytes) -> list[StreamEvent]:
        reply = BodyDecoder(PROFILES["compatible"])
        events = [event for chunk in chunks for event in reply.feed(chunk)]
        return events + reply.finish()

    assert decoded(body[:cut], body[cut:]) == decoded(body)
