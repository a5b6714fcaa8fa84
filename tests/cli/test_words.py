from __future__ import annotations

from typing import get_args

import pytest

from greenroom.cli._words import count_words, ending_words, wait_words
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


def test_one_is_singular() -> None:
    assert [count_words(n, "step") for n in (0, 1, 2)] == [
        "0 steps",
        "1 step",
        "2 steps",
    ]
