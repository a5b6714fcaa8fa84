"""Pressure that no failure tells of."""

from __future__ import annotations

from typing import Any

import pytest

from greenroom.protocol import Usage
from greenroom.protocol.context import silent_pressure


def used(tokens: int, output: int = 1) -> Usage:
    return Usage(input=tokens, output=output, total=tokens + output)


@pytest.mark.contract("CTX-19")
@pytest.mark.parametrize(
    ("tokens", "kind"),
    [(1_001, "successful_prompt_overflow"), (1_000, None)],
)
def test_more_input_than_the_window_holds_is_pressure(tokens: int, kind: Any):
    found = silent_pressure(1_000, "complete", used(tokens))
    assert (found and found.kind) == kind
    assert found is None or found.threshold_tokens == 1_000


@pytest.mark.contract("CTX-19")
@pytest.mark.parametrize(
    ("window", "tokens", "output", "kind"),
    [
        (1_001, 991, 0, "zero_output_length_at_limit"),
        (1_001, 990, 0, None),
        (1_001, 991, 1, None),
    ],
)
def test_no_answer_at_99_per_cent_of_the_window_is_pressure(
    window: int, tokens: int, output: int, kind: Any
):
    found = silent_pressure(window, "max_tokens", used(tokens, output))
    assert (found and found.kind) == kind
    assert found is None or found.threshold_tokens == 991


@pytest.mark.parametrize("stop", ["tool_use", "error", "max_tokens", None])
def test_only_a_complete_answer_tells_of_an_overflow(stop: Any):
    assert silent_pressure(1_000, stop, used(2_000)) is None


def test_what_is_not_known_is_no_pressure():
    assert silent_pressure(None, "complete", used(10**9)) is None
    assert silent_pressure(10, "complete", None) is None
