"""Which failures mean that the request was too large for the context."""

from __future__ import annotations

import pytest

from greenroom.protocol import FailureClass, ProviderFailure, classify_failure
from greenroom.protocol.providers import (
    OVERFLOW_CODE,
    Overflow,
    collect_evidence,
    failure_from_response,
    overflow_in,
    overflow_of,
)

# What providers say, and the (actual, limit) that can be read from it.
OVERFLOWS = [
    (
        (
            "This model's maximum context length is 128000 tokens. However, "
            "your messages resulted in 130000 tokens. Please reduce the length "
            "of the messages."
        ),
        (130_000, 128_000),
    ),
    (
        (
            "This model's maximum context length is 4097 tokens. However, you "
            "requested 5000 tokens (1000 in the messages, 4000 in the "
            "completion)."
        ),
        (5_000, 4_097),
    ),
    (
        (
            "request (3000 tokens) exceeds the available context size (2048 "
            "tokens), try increasing it"
        ),
        (3_000, 2_048),
    ),
    ("prompt is too long: 201234 tokens > 200000 maximum", (201_234, 200_000)),
    (
        "input length and `max_tokens` exceed context limit: 190,000 + 20,000",
        (None, None),
    ),
    (
        (
            "The input token count (1196265) exceeds the maximum number of "
            "tokens allowed (1048576)."
        ),
        (1_196_265, 1_048_576),
    ),
    (
        (
            "This model's maximum prompt length is 131072 but the request "
            "contains 537812 tokens."
        ),
        (537_812, 131_072),
    ),
    ("prompt tokens (40000) exceed model maximum (32768)", (40_000, 32_768)),
    ("The current length is 9000 while limit is 8192", (9_000, 8_192)),
    ("Your request exceeded model token limit: 8192", (None, 8_192)),
    ("Input is too long for requested model.", (None, None)),
    ("context window exceeds limit", (None, None)),
    ("Prompt too long; exceeded by 5 tokens", (None, None)),
    ("Too many tokens in the prompt", (None, None)),
    ("Please reduce the length of the messages or completion.", (None, None)),
    ("Maximum input length is 8192 tokens", (None, 8_192)),
    ("input tokens exceed the configured limit", (None, None)),
    ("The prompt is longer than the model's context length", (None, None)),
    ("request too large for model with 8192 maximum context length", (None, None)),
]


@pytest.mark.contract("CTX-18")
@pytest.mark.parametrize(("said", "numbers"), OVERFLOWS)
def test_an_overflow_is_recognised_with_its_numbers(
    said: str, numbers: tuple[int | None, int | None]
) -> None:
    found = overflow_of(ProviderFailure(message=said, status=400))

    assert (found.actual, found.limit) == numbers
    assert found.confidence == ("explicit" if numbers[1] else "qualitative")
    assert (
        classify_failure(ProviderFailure(message=said)) is FailureClass.CONTEXT_OVERFLOW
    )


@pytest.mark.contract("CTX-18")
@pytest.mark.parametrize(
    "said",
    [
        "Rate limit reached: the prompt is too long for your tokens per minute",
        "429: maximum context length is 128000 tokens",
        "Request too large on tokens per minute (TPM): Limit 6000, Requested 7000",
        "You exceeded your current quota; context window unavailable",
        "Too many requests for this context length",
        "Request was throttled: input is too long",
        "Invalid 'messages[1].content': string_above_max_length: input is too long",
        # Token and exceeds phrases without a word about the input.
        "token limit",
        "too many tokens",
        "exceeds the maximum number of tokens",
        # A refused setting.
        "Invalid request: max_tokens exceeds the maximum number of output tokens",
        "max_completion_tokens is too large: 99999",
        "The image exceeds 20 MB",
        "model not found",
        "",
    ],
)
def test_other_failures_are_no_overflow(said: str) -> None:
    assert not overflow_of(ProviderFailure(message=said, status=400))


@pytest.mark.contract("CTX-18")
@pytest.mark.parametrize("status", [401, 403, 404, 408, 429, 503])
def test_a_status_that_means_something_else_is_no_overflow(status: int) -> None:
    said = "maximum context length is 128000 tokens"

    for code in (None, "context_length_exceeded"):
        failure = ProviderFailure(message=said, status=status, code=code)
        assert not overflow_of(failure)


@pytest.mark.parametrize(
    "failure",
    [
        ProviderFailure(message="no", code="context_length_exceeded"),
        ProviderFailure(message="no", code="exceed_context_size_error", status=400),
        ProviderFailure(message="no", code=OVERFLOW_CODE, status=200 + 200),
        ProviderFailure(message="", status=413),
    ],
)
def test_a_code_or_a_status_can_be_enough(failure: ProviderFailure) -> None:
    assert overflow_of(failure) == Overflow("qualitative")


def test_output_that_was_asked_for_can_be_part_of_what_is_too_much() -> None:
    said = (
        "This model's maximum context length is 4096 tokens. However, you requested "
        "4000 output tokens and your prompt contains at least 200 input tokens"
    )

    found = overflow_in(said, status=400)
    assert (found.scope, found.limit) == ("total", 4_096)
    assert overflow_in("prompt is too long", status=400).scope == "prompt"


#### Evidence


@pytest.mark.contract("CTX-18")
def test_evidence_is_bounded_in_depth_width_and_length() -> None:
    deep = {"a": {"b": {"c": {"d": "seen"}}}}
    deeper = {"a": {"b": {"c": {"d": {"e": "unseen"}}}}}
    wide = ["x"] * 15 + ["sixteenth", "seventeenth"]

    assert collect_evidence(deep) == "seen"
    assert collect_evidence(deeper) == ""
    assert "sixteenth" in collect_evidence(wide)
    assert "seventeenth" not in collect_evidence(wide)
    assert len(collect_evidence("x" * 100_000)) == 12_000
    assert len(collect_evidence(["x" * 100_000] * 9).replace("\n", "")) == 48_000


@pytest.mark.contract("CTX-18")
def test_what_lies_beyond_the_bounds_is_not_seen() -> None:
    phrase = "prompt is too long"
    padded = '{"error": {"message": "' + "x" * 11_990 + phrase + '"}}'
    near = '{"error": {"message": "' + "x" * 11_900 + phrase + '"}}'

    assert failure_from_response(400, {}, near.encode()).code == OVERFLOW_CODE
    assert failure_from_response(400, {}, padded.encode()).code != OVERFLOW_CODE


def test_numbers_in_fields_are_told_in_the_message() -> None:
    body = b"""{"error": {"code": 400, "type": "exceed_context_size_error",
        "message": "the request exceeds the available context size",
        "n_prompt_tokens": 3000, "n_ctx": 2048}}"""

    failure = failure_from_response(400, {}, body)
    assert failure.code == OVERFLOW_CODE
    assert overflow_of(failure) == Overflow("explicit", 3_000, 2_048)


@pytest.mark.parametrize(
    "text",
    ["tokens " * 8_000, "prompt exceed " * 4_000, "1" * 48_000, "(" * 48_000],
)
def test_evidence_without_end_is_judged_in_time(text: str) -> None:
    overflow_in(text, status=400)
