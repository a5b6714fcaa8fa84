"""What a provider counted holds for requests that go on from there, and no others."""

from __future__ import annotations

from typing import Any

import attrs
import msgspec
import pytest

from greenroom.protocol import (
    AssistantMessage,
    ModelRequest,
    SystemMessage,
    TextPart,
    Usage,
    UserMessage,
)
from greenroom.protocol.context import (
    RequestKind,
    Tally,
    generation_hash,
    prompt_tokens,
    usage_anchor,
)

KIND = RequestKind("p", "m", "generation", "tools")
SENT = (SystemMessage("be brief"), UserMessage((TextPart("hello there"),)))
NEXT = (
    *SENT,
    AssistantMessage(text="general"),
    UserMessage((TextPart("and now?"),)),
)


def tally_of(messages) -> Tally:
    tally = Tally()
    tally.show(messages)
    return tally


def anchored(count: Any = 1_000):
    usage = Usage(input=count, output=5, total=5, cache_read=600)
    return usage_anchor(KIND, tally_of(SENT), usage)


@pytest.mark.contract("CTX-12")
@pytest.mark.parametrize("count", [0, -3, 1.5, True, "7", 2**53])
def test_a_usage_that_is_no_count_sets_no_anchor(count):
    assert anchored(count) is None
    assert usage_anchor(KIND, tally_of(SENT), None) is None


@pytest.mark.contract("CTX-12")
def test_an_anchor_says_what_was_counted():
    anchor = anchored()
    assert anchor is not None
    assert anchor.kind == KIND
    assert anchor.message_count == 2
    assert anchor.messages_hash == tally_of(SENT).whole.hash
    assert (anchor.prompt_tokens, anchor.cache_read_tokens) == (1_000, 600)


@pytest.mark.contract("CTX-13")
def test_only_what_follows_an_anchor_is_estimated():
    tally = tally_of(NEXT)
    suffix = tally.whole.tokens - tally.at(2).tokens
    assert prompt_tokens(anchored(), KIND, tally, 70) == (1_000 + suffix, 0, True)
    assert prompt_tokens(None, KIND, tally, 70) == (tally.whole.tokens, 70, False)


@pytest.mark.contract("CTX-13")
@pytest.mark.parametrize(
    "change",
    [
        {"provider": "other"},
        {"model": "other"},
        {"generation_hash": "other"},
        {"tools_hash": "other"},
    ],
)
def test_another_kind_of_request_is_estimated_whole(change):
    tally = tally_of(NEXT)
    kind = attrs.evolve(KIND, **change)
    assert prompt_tokens(anchored(), kind, tally, 70) == (tally.whole.tokens, 70, False)


@pytest.mark.contract("CTX-13")
@pytest.mark.parametrize(
    "messages",
    [(SystemMessage("be brief."), *NEXT[1:]), NEXT[1:], NEXT[:1], (*NEXT[::-1],)],
)
def test_other_messages_in_front_are_estimated_whole(messages):
    tally = tally_of(messages)
    assert prompt_tokens(anchored(), KIND, tally, 0) == (tally.whole.tokens, 0, False)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"temperature": 0.5},
        {"top_p": 0.5},
        {"reasoning_effort": "high"},
        {"verbosity": "low"},
        {"tool_choice": "none"},
    ],
)
def test_every_parameter_but_the_output_limit_makes_another_generation(change):
    request = ModelRequest(model="m", messages=SENT)
    other = msgspec.structs.replace(request, **change)
    limited = msgspec.structs.replace(request, max_output_tokens=5)
    assert generation_hash("p", request) != generation_hash("p", other)
    assert generation_hash("p", request) != generation_hash("q", request)
    assert generation_hash("p", request) == generation_hash("p", limited)
