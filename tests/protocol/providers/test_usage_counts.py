"""Token counts of every dialect in one shape."""

from __future__ import annotations

from typing import Any

import pytest

from greenroom.protocol import Usage
from greenroom.protocol.providers import chat_usage


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
            Usage(input=5, output=2, total=7),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
            Usage(
                input=10, output=4, total=14, cache_read=6, cache_write=0, reasoning=3
            ),
        ),
        (
            {"prompt_tokens": 10, "completion_tokens": 4, "prompt_cache_hit_tokens": 0},
            Usage(input=10, output=4, total=14, cache_read=0),
        ),
        # One of the two can be had from the total.
        ({"prompt_tokens": 5, "total_tokens": 7}, Usage(input=5, output=2, total=7)),
        (
            {"completion_tokens": 2, "total_tokens": 7},
            Usage(input=5, output=2, total=7),
        ),
        # Unknown is not zero.
        ({"prompt_tokens": 5}, None),
        ({"total_tokens": 7}, None),
        ({"prompt_tokens": 9, "total_tokens": 7}, None),
        ({}, None),
        (None, None),
        ([], None),
        ("x", None),
        # Nor is nonsense a number.
        ({"prompt_tokens": -1, "completion_tokens": 2}, None),
        ({"prompt_tokens": True, "completion_tokens": 2}, None),
        ({"prompt_tokens": 1.5, "completion_tokens": 2}, None),
        ({"prompt_tokens": "5", "completion_tokens": 2}, None),
        ({"prompt_tokens": 2**53, "completion_tokens": 2}, None),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 2,
                "prompt_tokens_details": None,
                "completion_tokens_details": {"reasoning_tokens": "x"},
            },
            Usage(input=5, output=2, total=7),
        ),
    ],
)
def test_counts_are_taken_as_far_as_they_are_known(
    raw: Any, expected: Usage | None
) -> None:
    assert chat_usage(raw) == expected
