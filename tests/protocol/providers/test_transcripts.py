"""Replies in the shapes that servers really send, whole, cut and broken off."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from greenroom.protocol import (
    ProviderFailure,
    ReasoningDelta,
    Stop,
    StreamEvent,
    TextDelta,
    ToolCallChunk,
    ToolCallEnd,
    ToolCallStart,
    Usage,
    UsageReported,
)
from greenroom.protocol.providers import PROFILES, BodyDecoder

TRANSCRIPTS: Final = Path(__file__).parent / "transcripts"


def usage(**counts: int) -> UsageReported:
    counts["total"] = counts["input"] + counts["output"]
    return UsageReported(usage=Usage(**counts))


def start(index: int, call_id: str, name: str) -> ToolCallStart:
    return ToolCallStart(index=index, id=call_id, name=name)


def chunk(index: int, text: str) -> ToolCallChunk:
    return ToolCallChunk(index=index, text=text)


def end(index: int, call_id: str, name: str, arguments: str) -> ToolCallEnd:
    return ToolCallEnd(index=index, id=call_id, name=name, arguments=arguments)


FIRST_DETAIL: Final = {
    "type": "reasoning.text",
    "text": "First, look.",
    "format": "x-v1",
    "index": 0,
    "signature": "c2ln",
}
SECOND_DETAIL: Final = {
    "type": "reasoning.encrypted",
    "data": "ZW5j",
    "id": "tool_1",
    "index": 1,
}

EXPECTED: Final[dict[str, tuple[str, list[StreamEvent]]]] = {
    "openai_text": (
        "openai",
        [
            TextDelta("Grüße, "),
            TextDelta("世界 😀"),
            usage(input=20, output=7, cache_read=16, cache_write=4, reasoning=2),
            Stop(reason="complete", raw="stop"),
        ],
    ),
    "openai_tools": (
        "openai",
        [
            start(0, "call_A", "get_weather"),
            start(1, "call_B", "get_time"),
            chunk(0, '{"city":'),
            chunk(1, "{}"),
            chunk(0, '"Paris"}'),
            end(0, "call_A", "get_weather", '{"city":"Paris"}'),
            end(1, "call_B", "get_time", "{}"),
            Stop(reason="tool_use", raw="tool_calls"),
        ],
    ),
    "deepseek_thinking": (
        "deepseek",
        [
            ReasoningDelta("The user "),
            ReasoningDelta("asks."),
            TextDelta("Let me look."),
            start(0, "call_00_x", "ls"),
            usage(input=30, output=12, cache_read=24),
            end(0, "call_00_x", "ls", "{}"),
            Stop(reason="tool_use", raw="tool_calls"),
        ],
    ),
    "ollama_index_zero": (
        "ollama",
        [
            ReasoningDelta("hm"),
            start(0, "call_aa", "add"),
            chunk(0, '{"a":1}'),
            start(1, "call_bb", "add"),
            chunk(1, '{"a":2}'),
            end(0, "call_aa", "add", '{"a":1}'),
            end(1, "call_bb", "add", '{"a":2}'),
            Stop(reason="tool_use", raw="stop"),
        ],
    ),
    "ollama_no_index": (
        "ollama",
        [
            start(0, "call_salt_0", "add"),
            chunk(0, '{"a": 1}'),
            end(0, "call_salt_0", "add", '{"a": 1}'),
            start(1, "call_salt_1", "add"),
            chunk(1, '{"a": 2}'),
            end(1, "call_salt_1", "add", '{"a": 2}'),
            Stop(reason="tool_use", raw="stop"),
        ],
    ),
    "vllm": (
        "vllm",
        [
            ReasoningDelta("same"),
            TextDelta("Hi"),
            usage(input=11, output=2),
            Stop(reason="complete", raw="stop"),
        ],
    ),
    "llama_cpp": (
        "llama.cpp",
        [
            start(0, "W4qv9EJZ7dXw4pTgoL1f0Hk2Ms8Yb3Ra", "get_weather"),
            chunk(0, '{"'),
            chunk(0, 'city":"Paris"}'),
            usage(input=90, output=9, cache_read=85),
            end(
                0,
                "W4qv9EJZ7dXw4pTgoL1f0Hk2Ms8Yb3Ra",
                "get_weather",
                '{"city":"Paris"}',
            ),
            Stop(reason="tool_use", raw="tool_calls"),
        ],
    ),
    "openrouter_details": (
        "openrouter",
        [
            ReasoningDelta("First, "),
            ReasoningDelta("look."),
            ReasoningDelta("", {"reasoning_details": [FIRST_DETAIL]}),
            start(0, "tool_1", "ls"),
            chunk(0, "{}"),
            usage(input=5, output=6),
            ReasoningDelta("", {"reasoning_details": [FIRST_DETAIL, SECOND_DETAIL]}),
            end(0, "tool_1", "ls", "{}"),
            Stop(reason="tool_use", raw="tool_calls"),
        ],
    ),
    "openrouter_error": (
        "openrouter",
        [
            TextDelta("Half an"),
            ProviderFailure(
                message="Provider returned error", code="provider_error", status=502
            ),
        ],
    ),
    "no_finish": (
        "compatible",
        [
            start(0, "a", "f"),
            chunk(0, '{"x":1}'),
            start(1, "b", "g"),
            chunk(1, '{"y":2}'),
            end(0, "a", "f", '{"x":1}'),
            end(1, "b", "g", '{"y":2}'),
            Stop(reason="tool_use"),
        ],
    ),
    "usage_in_choice": (
        "compatible",
        [
            TextDelta("parts"),
            usage(input=3, output=1),
            Stop(reason="max_tokens", raw="length"),
        ],
    ),
    "refusal_cr": (
        "openai",
        [
            TextDelta("I can't "),
            TextDelta("do that."),
            Stop(reason="complete", raw="stop"),
        ],
    ),
}


def transcript(name: str) -> bytes:
    return (TRANSCRIPTS / f"{name}.txt").read_bytes()


def decoded(name: str, *chunks: bytes) -> list[StreamEvent]:
    decoder = BodyDecoder(PROFILES[EXPECTED[name][0]], salt="salt")
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events + decoder.finish()


def test_every_transcript_has_its_expectation() -> None:
    assert {path.stem for path in TRANSCRIPTS.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_transcript_decodes_to_its_events(name: str) -> None:
    assert decoded(name, transcript(name)) == EXPECTED[name][1]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("name", EXPECTED)
def test_line_ends_and_a_byte_order_mark_change_nothing(
    name: str, line_end: bytes
) -> None:
    lines = transcript(name).replace(b"\r", b"\n").split(b"\n")

    body = b"\xef\xbb\xbf" + line_end.join(lines)

    assert decoded(name, body) == EXPECTED[name][1]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_transcript_cut_into_single_bytes_decodes_to_the_same(name: str) -> None:
    body = transcript(name)

    assert decoded(name, *(bytes([byte]) for byte in body)) == EXPECTED[name][1]


@pytest.mark.slow  # some thousand decodings of a whole reply
@pytest.mark.parametrize("name", EXPECTED)
def test_a_transcript_cut_at_any_byte_decodes_to_the_same(name: str) -> None:
    body = transcript(name)

    for cut in range(len(body)):
        assert decoded(name, body[:cut], body[cut:]) == EXPECTED[name][1]


@pytest.mark.slow  # some thousand decodings of a broken reply
@pytest.mark.parametrize("name", EXPECTED)
def test_a_reply_broken_off_at_any_byte_has_no_stop_before_a_finish_reason(
    name: str,
) -> None:
    body, whole = transcript(name), EXPECTED[name][1]
    finish = body.find(b'"finish_reason":"')
    told = body.find(b"}]", finish) if finish >= 0 else body.find(b"[DONE]")

    for cut in range(len(body)):
        events = decoded(name, body[:cut])
        stops = [event for event in events if isinstance(event, Stop)]
        calls = [event for event in events if isinstance(event, ToolCallEnd)]
        content = [e for e in events if not isinstance(e, Stop | ToolCallEnd)]
        if cut < told:
            assert stops == []
            assert calls == []
        assert len(stops) <= 1
        assert all(call in whole for call in calls)
        assert [e for e in content if isinstance(e, TextDelta)] == [
            e for e in whole if isinstance(e, TextDelta)
        ][: sum(isinstance(e, TextDelta) for e in content)]
