"""Failure classes, delays and retry decisions."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given, strategies as st

from greenroom.protocol import (
    FailureClass,
    ProviderFailure,
    RetryBudget,
    RetryDecision,
    RetryVerdict,
    backoff_ms,
    classify_failure,
    decide_retry,
    server_delay_ms,
)

NOW = 1_790_000_000.0


def failure(message: str = "x", **parts: object) -> ProviderFailure:
    return ProviderFailure(message=message, **parts)  # pyright: ignore[reportArgumentType]


def should_retry(value: str) -> dict[str, str]:
    return {"x-should-retry": value}


#### Classes

PERMANENT = [
    *(
        failure(status=status)
        for status in (400, 401, 402, 403, 404, 405, 409 + 1, 451)
    ),
    failure(status=422),
    failure(status=499),
    failure(code="authentication_error"),
    failure(code="auth_failed"),
    failure(code="invalid_api_key"),
    failure(code="api key missing"),
    failure(code="billing_hard_limit_reached"),
    failure(code="payment_required"),
    failure(code="insufficient_quota", status=429),
    failure(code="insufficient_funds"),
    failure(code="insufficient-credits"),
    failure(code="invalid_request_error"),
    failure(code="bad_request"),
    failure(code="model_not_found"),
    failure(code="content_filter"),
    failure(code="permission_denied"),
    failure(code="FORBIDDEN"),
    failure("Authentication failed"),
    failure("Unauthorized"),
    failure("access is forbidden"),
    failure("Incorrect API key provided"),
    failure("your API key is invalid"),
    failure("the key: expired key"),
    failure("Billing is not set up"),
    failure("payment required"),
    failure("Quota exceeded for today"),
    failure("You exceeded your current quota"),
    failure("invalid request"),
    failure("Unprocessable entity"),
    failure("model 'x' not found"),
    failure("The model `x` does not exist"),
    failure("blocked by the content filter"),
    failure(headers=should_retry("false"), status=500),
    failure(retryable=False, status=500),
]

TRANSIENT = [
    *(failure(status=status) for status in (408, 409, 429, 500, 502, 503, 504, 529)),
    failure(code="premature_eof"),
    failure(headers=should_retry("true")),
    failure(headers=should_retry(" TRUE ")),
    failure(retryable=True),
    *(
        failure(code=code)
        for code in (
            *("ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH", "EPIPE"),
            *("EAI_AGAIN", "ENETDOWN", "ENETRESET", "ENETUNREACH", "ESOCKETTIMEDOUT"),
            *("ETIMEDOUT", "connect_timeout", "first_byte_timeout", "idle_timeout"),
            *("content_idle_timeout", "dns_failure", "connect_error", "read_error"),
            *("write_error", "remote_protocol_error", "rate_limit_exceeded"),
            *("overloaded_error", "api_error", "server_error", "service_unavailable"),
        )
    ),
    failure("Rate limit reached"),
    failure("Too Many Requests"),
    failure("service unavailable"),
    failure("temporarily unavailable"),
    failure("504 Gateway Timeout"),
    failure("Overloaded"),
    failure("network error"),
    failure("fetch failed"),
    failure("socket hang up"),
    failure("Connection reset by peer"),
    failure("connection refused"),
    failure("the request timed out"),
]


@pytest.mark.contract("TRY-08")
@pytest.mark.parametrize("fault", PERMANENT, ids=str)
def test_a_permanent_failure_is_not_retried(fault: ProviderFailure) -> None:
    found = classify_failure(fault)

    assert found is FailureClass.PERMANENT
    verdict = decide_retry(found, RetryBudget(), committed=False, random_value=0)
    assert verdict == RetryVerdict(decision=RetryDecision.NOT_RETRYABLE)


@pytest.mark.contract("TRY-09")
@pytest.mark.parametrize("fault", TRANSIENT, ids=str)
def test_a_transient_failure_is_retried(fault: ProviderFailure) -> None:
    found = classify_failure(fault)

    assert found is FailureClass.TRANSIENT
    verdict = decide_retry(found, RetryBudget(), committed=False, random_value=0)
    assert verdict.decision is RetryDecision.RETRY_SCHEDULED


OVERFLOW = "maximum context length is 10 tokens"


@pytest.mark.contract("TRY-07")
@pytest.mark.parametrize(
    ("fault", "aborted", "expected"),
    [
        (failure(OVERFLOW), True, FailureClass.ABORTED),
        (failure(status=401), True, FailureClass.ABORTED),
        (failure(status=503), True, FailureClass.ABORTED),
        (failure(OVERFLOW, status=400), False, FailureClass.CONTEXT_OVERFLOW),
        (
            failure(OVERFLOW, code="invalid_request"),
            False,
            FailureClass.CONTEXT_OVERFLOW,
        ),
        (failure(OVERFLOW, status=500), False, FailureClass.CONTEXT_OVERFLOW),
        (failure(OVERFLOW, retryable=True), False, FailureClass.CONTEXT_OVERFLOW),
        (failure("quota exceeded", status=429), False, FailureClass.PERMANENT),
        (
            failure("invalid request: timeout", status=500),
            False,
            FailureClass.PERMANENT,
        ),
        (failure(status=400, retryable=True), False, FailureClass.PERMANENT),
        (
            failure(status=400, headers=should_retry("true")),
            False,
            FailureClass.PERMANENT,
        ),
        (
            failure(status=503, headers=should_retry("false")),
            False,
            FailureClass.PERMANENT,
        ),
        (failure(status=503), False, FailureClass.TRANSIENT),
        (failure("what is this"), False, FailureClass.UNKNOWN),
        (
            failure("the authors disagree", code="author_error"),
            False,
            FailureClass.UNKNOWN,
        ),
        (failure(status=301), False, FailureClass.UNKNOWN),
    ],
    ids=str,
)
def test_the_first_class_that_fits_holds(
    fault: ProviderFailure, aborted: bool, expected: FailureClass
) -> None:
    assert classify_failure(fault, aborted=aborted) is expected


@pytest.mark.contract("TRY-07")
def test_an_unknown_failure_is_never_retried() -> None:
    verdict = decide_retry(
        FailureClass.UNKNOWN, RetryBudget(), committed=False, random_value=0
    )

    assert verdict == RetryVerdict(decision=RetryDecision.NOT_RETRYABLE)


@given(st.text(), st.text(), st.integers(-1, 700))
def test_every_failure_has_a_class(message: str, code: str, status: int) -> None:
    assert classify_failure(failure(message, code=code, status=status)) in FailureClass


@pytest.mark.parametrize(
    "text", ["model " * 9_000, "exceeded " * 9_000, "api key " * 9_000]
)
def test_a_message_without_end_is_judged_in_time(text: str) -> None:
    classify_failure(failure(text, code=text))


#### Delays


@pytest.mark.contract("TRY-04")
@given(st.integers(0, 60), st.floats(0, 1))
def test_a_backoff_doubles_up_to_its_cap_less_a_quarter(
    used: int, chance: float
) -> None:
    whole = min(500 * 2**used, 8_000)

    delay = backoff_ms(used, chance)

    assert delay == math.floor(whole * (1 - chance * 0.25))
    assert whole * 0.75 <= delay <= whole


@pytest.mark.contract("TRY-04")
@pytest.mark.parametrize(
    ("used", "chance", "expected"),
    [
        (0, 0, 500),
        (0, 1, 375),
        (1, 0, 1_000),
        (1, 1, 750),
        (0, 0.123, 484),
        (9, 0, 8_000),
    ],
)
def test_backoffs_of_known_chance(used: int, chance: float, expected: int) -> None:
    assert backoff_ms(used, chance) == expected


@pytest.mark.parametrize(
    ("used", "chance"), [(0, -0.1), (0, 1.1), (0, math.nan), (0, math.inf), (-1, 0.5)]
)
def test_a_backoff_of_nonsense_is_refused(used: int, chance: float) -> None:
    with pytest.raises(ValueError, match="backoff wants"):
        backoff_ms(used, chance)


def at(seconds: float) -> str:
    return format_datetime(datetime.fromtimestamp(NOW + seconds, UTC), usegmt=True)


@pytest.mark.contract("TRY-05")
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after-ms": "60000"}, 60_000),
        ({"retry-after-ms": "60001"}, 60_001),
        ({"retry-after-ms": "0"}, 0),
        ({"retry-after-ms": "0.2"}, 1),
        ({"retry-after-ms": "7", "retry-after": "9"}, 7),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9_000),
        ({"retry-after-ms": "-5", "retry-after": "9"}, 9_000),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "60"}, 60_000),
        ({"retry-after": "60.001"}, 60_001),
        ({"retry-after": " 2.007 "}, 2007),
        ({"retry-after": "1.0001"}, 1_001),
        ({"retry-after": ".5"}, 500),
        ({"retry-after": "1."}, 1_000),
        ({"retry-after": at(5)}, 5_000),
        ({"retry-after": at(-5)}, 0),
        ({"retry-after": at(0)}, 0),
        ({"retry-after": at(86_400)}, 86_400_000),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 -0000"}, 0),
        *(
            ({"retry-after": garbage}, None)
            for garbage in (
                *(
                    "",
                    " ",
                    "soon",
                    "-1",
                    "nan",
                    "inf",
                    "1e3",
                    "1,5",
                    "0x10",
                    "1 2",
                    ".",
                ),
                *("٣", "9" * 33, "Thu, 99 Foo 9999 99:99:99 GMT", "Thu,", "x" * 10**6),
            )
        ),
    ],
)
def test_a_server_delay_is_read_from_the_headers(
    headers: dict[str, str], expected: int | None
) -> None:
    assert server_delay_ms(headers, NOW) == expected


@pytest.mark.contract("TRY-05")
@pytest.mark.parametrize(
    ("told", "cap", "decision", "delay"),
    [
        (0, 60_000, RetryDecision.RETRY_SCHEDULED, 0),
        (1, 60_000, RetryDecision.RETRY_SCHEDULED, 1),
        (60_000, 60_000, RetryDecision.RETRY_SCHEDULED, 60_000),
        (60_001, 60_000, RetryDecision.RETRY_AFTER_EXCEEDS_LIMIT, None),
        (60_001, 90_000, RetryDecision.RETRY_SCHEDULED, 60_001),
        (5, 4, RetryDecision.RETRY_AFTER_EXCEEDS_LIMIT, None),
    ],
)
def test_a_told_delay_is_used_exactly_or_refused_with_what_was_told(
    told: int, cap: int, decision: RetryDecision, delay: int | None
) -> None:
    # Chance would take a quarter off a delay of our own.
    verdict = decide_retry(
        FailureClass.TRANSIENT,
        RetryBudget(),
        committed=False,
        random_value=1,
        told_ms=told,
        max_told_ms=cap,
    )

    assert verdict == RetryVerdict(decision=decision, delay_ms=delay, told_ms=told)


@pytest.mark.contract("TRY-05")
def test_the_cap_is_a_minute_by_default_and_garbage_leaves_our_own_delay() -> None:
    def told(ms: int | None) -> RetryVerdict:
        return decide_retry(
            FailureClass.TRANSIENT,
            RetryBudget(),
            committed=False,
            random_value=0,
            told_ms=ms,
        )

    assert told(60_000).delay_ms == 60_000
    assert told(60_001).decision is RetryDecision.RETRY_AFTER_EXCEEDS_LIMIT
    assert told(server_delay_ms({"retry-after": "garbage"}, NOW)).delay_ms == 500


#### Decisions

SPENT = RetryBudget(used=2)


@pytest.mark.parametrize(
    ("failure_class", "committed", "expected"),
    [
        (None, True, RetryDecision.NONE),
        (None, False, RetryDecision.NONE),
        (FailureClass.CONTEXT_OVERFLOW, True, RetryDecision.OUTPUT_COMMITTED),
        (FailureClass.CONTEXT_OVERFLOW, False, RetryDecision.NOT_RETRYABLE),
        (FailureClass.ABORTED, True, RetryDecision.OUTPUT_COMMITTED),
        (FailureClass.ABORTED, False, RetryDecision.NOT_RETRYABLE),
        (FailureClass.PERMANENT, True, RetryDecision.NOT_RETRYABLE),
        (FailureClass.PERMANENT, False, RetryDecision.NOT_RETRYABLE),
        (FailureClass.UNKNOWN, True, RetryDecision.NOT_RETRYABLE),
        (FailureClass.TRANSIENT, True, RetryDecision.OUTPUT_COMMITTED),
        (FailureClass.TRANSIENT, False, RetryDecision.RETRY_SCHEDULED),
    ],
)
def test_what_follows_each_class(
    failure_class: FailureClass | None, committed: bool, expected: RetryDecision
) -> None:
    verdict = decide_retry(
        failure_class, RetryBudget(), committed=committed, random_value=0
    )

    assert verdict.decision is expected


@pytest.mark.parametrize(
    ("replayable", "committed", "budget", "told", "expected"),
    [
        (False, True, SPENT, 60_001, RetryDecision.NOT_RETRYABLE),
        (True, True, SPENT, 60_001, RetryDecision.OUTPUT_COMMITTED),
        (True, False, SPENT, 60_001, RetryDecision.RETRY_BUDGET_EXHAUSTED),
        (True, False, RetryBudget(), 60_001, RetryDecision.RETRY_AFTER_EXCEEDS_LIMIT),
        (True, False, RetryBudget(), 60_000, RetryDecision.RETRY_SCHEDULED),
    ],
)
def test_reasons_against_a_retry_are_asked_in_order(
    replayable: bool,
    committed: bool,
    budget: RetryBudget,
    told: int,
    expected: RetryDecision,
) -> None:
    verdict = decide_retry(
        FailureClass.TRANSIENT,
        budget,
        committed=committed,
        random_value=0,
        told_ms=told,
        replayable=replayable,
    )

    assert verdict.decision is expected


def test_a_round_is_retried_twice_with_growing_delays() -> None:
    budget, delays = RetryBudget(), list[int | None]()
    while True:
        verdict = decide_retry(
            FailureClass.TRANSIENT, budget, committed=False, random_value=0
        )
        if verdict.decision is not RetryDecision.RETRY_SCHEDULED:
            break
        delays.append(verdict.delay_ms)
        budget = budget.spend()

    assert delays == [500, 1_000]
    assert verdict.decision is RetryDecision.RETRY_BUDGET_EXHAUSTED
    with pytest.raises(ValueError, match="all 2 retries"):
        budget.spend()
