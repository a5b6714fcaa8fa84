from __future__ import annotations

from typing import get_args

import pytest

from greenroom.cli._words import advice_words, count_words, ending_words, wait_words
from greenroom.protocol import (
    MessageMetadata,
    RunOutcome,
    SessionId,
    StatusChanged,
    WaitReason,
)


def status(reason: WaitReason | None, remaining: float | None = None) -> StatusChanged:
    return StatusChanged(
        session_id=SessionId("s"),
        version=1,
        state="generating",
        waiting_for=reason,
        remaining=remaining,
    )


@pytest.mark.parametrize("reason", get_args(WaitReason))
def test_every_wait_has_words(reason: WaitReason) -> None:
    words = wait_words(status(reason, 1.5))

    assert words
    assert "{" not in words


def test_a_wait_says_how_long_and_why() -> None:
    assert wait_words(status("rate_gate", 3)) == (
        "waiting 3 s for the provider: rate limited"
    )
    assert wait_words(status("backoff", 1.25)) == (
        "waiting 1.2 s for the provider: trying again"
    )
    assert wait_words(status("backoff")) == "waiting for the provider: trying again"
    assert wait_words(status(None)) is None


@pytest.mark.parametrize(
    ("outcome", "reason", "words"),
    [
        ("completed", "complete", "done"),
        ("completed", "max_tool_calls", "done: max_tool_calls"),
        ("paused", "interaction", "paused: waiting for your answer"),
        ("aborted", "user_stop", "stopped: user_stop"),
        ("error", "max_turns", "failed: max_turns"),
        (None, None, "not ended"),
    ],
)
def test_every_outcome_has_words(
    outcome: RunOutcome | None, reason: str | None, words: str
) -> None:
    metadata = MessageMetadata(run_outcome=outcome, run_stop_reason=reason)
    assert ending_words(metadata) == words


def test_an_ending_tells_what_is_known_of_its_cost() -> None:
    metadata = MessageMetadata(
        run_outcome="error",
        run_stop_reason="error",
        error_text="no such model",
        provider_rounds=1,
        tool_calls=2,
        input_tokens=1_234,
        output_tokens=0,
        generation_time=12.34,
    )
    assert ending_words(metadata) == (
        "failed: no such model · 1 round · 2 tool calls · 1,234 + 0 tokens · 12 s"
    )


@pytest.mark.parametrize(
    ("code", "text", "words"),
    [
        ("invalid_api_key", "the provider answered 401: no", "the key"),
        ("x", "the provider answered 403", "the key"),
        ("model_not_found", "the provider answered 404: no such model", "the model's"),
        ("x", "the provider answered 302", "the address"),
        ("not_a_model_api", "the server answered with a web page", "the address"),
        ("x", "the provider answered 429: slow down", "--session"),
        ("x", "the provider answered 500", "--session"),
        ("remote_protocol_error", "the connection failed: closed", "--session"),
        ("connect_error", "the connection failed: refused", "whether the server runs"),
        ("idle_timeout", "not a byte from the provider for 120 s", " idle_seconds"),
    ],
)
def test_a_failure_of_the_provider_tells_how_to_go_on(
    code: str, text: str, words: str
) -> None:
    metadata = MessageMetadata(
        run_outcome="error",
        run_stop_reason="provider_error",
        error_code=code,
        error_text=text,
    )
    advice = advice_words(metadata)
    assert advice is not None
    assert words in advice
    assert len(advice) < 120


@pytest.mark.parametrize(
    ("reason", "text"),
    [("max_turns", "500"), ("provider_error", "the provider answered 400: bad")],
)
def test_where_nothing_is_known_nothing_is_advised(reason: str, text: str) -> None:
    metadata = MessageMetadata(
        run_outcome="error", run_stop_reason=reason, error_text=text
    )
    assert advice_words(metadata) is None


def test_one_is_singular() -> None:
    assert [count_words(n, "step") for n in (0, 1, 2)] == [
        "0 steps",
        "1 step",
        "2 steps",
    ]
