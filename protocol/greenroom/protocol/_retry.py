"""Whether and when an attempt is sent again: pure decisions, in a fixed order.

`classify_failure` says what kind of failure it is: aborted, context overflow,
permanent, transient, unknown; the first that fits holds (TRY-07). `decide_retry` says
what follows (TRY-14). Time and chance are arguments. Nobody here waits or counts: the
attempt's owner keeps the `RetryBudget` of its round and sleeps the delay.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC
from decimal import Decimal
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Final, final

import attrs

from ._stream import ProviderFailure
from .providers import overflow_of

MAX_RETRIES: Final = 2
"""Transient retries of one logical round (TRY-03)."""

FIRST_BACKOFF_MS: Final = 500
MAX_BACKOFF_MS: Final = 8_000
JITTER: Final = 0.25
"""The share of a backoff that chance may take off."""

MAX_SERVER_DELAY_MS: Final = 60_000
"""The longest wait that a server may ask for, unless its provider is set otherwise."""

_MAX_HEADER_CHARS: Final = 256


class FailureClass(StrEnum):
    """What kind of failure an attempt ended in."""

    ABORTED = "aborted"
    CONTEXT_OVERFLOW = "context_overflow"
    PERMANENT = "permanent"
    TRANSIENT = "transient"
    UNKNOWN = "unknown"


class RetryDecision(StrEnum):
    """What follows an attempt; one of them is recorded with each (TRY-14)."""

    NONE = "none"
    """It did not fail."""
    OUTPUT_COMMITTED = "output_committed"
    """Something of it was passed on, so nothing is sent again (TRY-12)."""
    NOT_RETRYABLE = "not_retryable"
    """The same request would fare no better; an overflow may be recovered from."""
    RETRY_BUDGET_EXHAUSTED = "retry_budget_exhausted"
    RETRY_AFTER_EXCEEDS_LIMIT = "retry_after_exceeds_limit"
    """The server asked for a longer wait than is allowed."""
    RETRY_SCHEDULED = "retry_scheduled"


#### Classes of failure

_PERMANENT_CODE: Final = re.compile(
    r"""(?ix)
    \bauth(?!or) | authent | authoriz | unauthori[sz]ed | api[ _-]?key
    | billing | payment | quota | insufficient[ _-]?(?:funds|credits?|balance)
    | (?:invalid|bad)[ _-]?request | model[ _-]?not[ _-]?found
    | content[ _-]?filter | permission | forbidden
    """
)
_PERMANENT_TEXT: Final = re.compile(
    r"""(?ix)
    authentication\ (?:failed|error) | unauthori[sz]ed | \bforbidden\b
    | (?:bad|invalid|expired|incorrect|wrong|missing)\ (?:api[ _-]?)?key
    | api[ _-]?key\ (?:is\ )?(?:not\ valid|invalid|expired|missing)
    | billing | payment\ required | quota\ exceeded | exceeded\ .{0,40}quota
    | insufficient[ _]quota
    | (?:invalid|bad|unprocessable)[ _](?:request|entity)
    | model\ (?:.{0,80}\ )?(?:not\ found|does\ not\ exist) | content[ _-]?filter
    """
)
_TRANSIENT_CODE: Final = re.compile(
    r"""(?ix)
    ^(?:ECONNABORTED|ECONNREFUSED|ECONNRESET|EHOSTUNREACH|EPIPE|EAI_AGAIN|ENETDOWN
      |ENETRESET|ENETUNREACH|ESOCKETTIMEDOUT|ETIMEDOUT)$
    | ^(?:premature_eof|dns_failure|connect_error|read_error|write_error|close_error
      |network_error|server_error|api_error|internal_error|remote_protocol_error)$
    | time[ _-]?d?[ _-]?out | rate[ _-]?limit | overloaded | unavailable
    """
)
_TRANSIENT_TEXT: Final = re.compile(
    r"""(?ix)
    rate[ _-]?limit | too\ many\ requests | (?:temporarily|service)\ unavailable
    | gateway\ time-?out | overloaded | network\ error | fetch\ failed
    | socket\ hang\ up | connection\ (?:was\ )?(?:reset|refused|timed\ out)
    | time[ -]?d?[ -]?out
    """
)


def classify_failure(
    failure: ProviderFailure, *, aborted: bool = False
) -> FailureClass:
    """Return what kind of failure it is; the first class that fits holds."""
    if aborted:
        return FailureClass.ABORTED
    if overflow_of(failure):
        return FailureClass.CONTEXT_OVERFLOW
    if _is_permanent(failure):
        return FailureClass.PERMANENT
    if _is_transient(failure):
        return FailureClass.TRANSIENT
    return FailureClass.UNKNOWN


def _is_permanent(failure: ProviderFailure) -> bool:
    status = failure.status or 0
    return bool(
        failure.retryable is False
        or _should_retry(failure) == "false"
        or (400 <= status <= 499 and status not in (408, 409, 429))
        or _PERMANENT_CODE.search(failure.code or "")
        or _PERMANENT_TEXT.search(failure.message)
    )


def _is_transient(failure: ProviderFailure) -> bool:
    status = failure.status or 0
    return bool(
        failure.retryable
        or _should_retry(failure) == "true"
        or status in (408, 409, 429)
        or 500 <= status <= 599
        or _TRANSIENT_CODE.search(failure.code or "")
        or _TRANSIENT_TEXT.search(failure.message)
    )


def _should_retry(failure: ProviderFailure) -> str:
    return failure.headers.get("x-should-retry", "").strip().lower()


#### Delays


def backoff_ms(retries_used: int, random_value: float) -> int:
    """Return our own delay before the next retry, in milliseconds (TRY-04).

    *random_value* is from 0 to 1 and takes up to a quarter off.

    Raises:
        ValueError: *random_value* or *retries_used* is out of range.
    """
    if not 0 <= random_value <= 1 or retries_used < 0:
        raise ValueError(
            f"backoff wants retries >= 0 and chance from 0 to 1, "
            f"got {retries_used!r} and {random_value!r}"
        )
    # 2^4 is beyond the cap already: a larger exponent only makes a larger number.
    delay = min(FIRST_BACKOFF_MS * 2 ** min(retries_used, 4), MAX_BACKOFF_MS)
    return math.floor(delay * (1 - random_value * JITTER))


def server_delay_ms(headers: Mapping[str, str], now: float) -> int | None:
    """Return how long the server asks to wait, in milliseconds, if it does (TRY-05).

    *headers* have names in lower case, *now* is the time since the epoch in seconds.
    ``retry-after-ms`` comes first, then ``retry-after`` as seconds or as a date; a
    date that is past means now. What can't be read is as if it were not there.
    """
    exact = _milliseconds(headers.get("retry-after-ms", ""), 1)
    if exact is not None:
        return exact
    value = headers.get("retry-after", "")
    seconds = _milliseconds(value, 1_000)
    return seconds if seconds is not None else _until(value, now)


def _milliseconds(value: str, unit: int) -> int | None:
    if not re.fullmatch(
        r"\s*\+?(\d{1,32}(\.\d{0,32})?|\.\d{1,32})\s*", value, re.ASCII
    ):
        return None
    return math.ceil(Decimal(value.strip()) * unit)


def _until(value: str, now: float) -> int | None:
    if len(value) > _MAX_HEADER_CHARS:
        return None
    try:
        date = parsedate_to_datetime(value)
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return max(0, math.ceil((date.timestamp() - now) * 1_000))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


#### Decisions


@final
@attrs.frozen
class RetryBudget:
    """How often a logical round may still be sent again (TRY-03)."""

    used: int = 0
    limit: int = MAX_RETRIES

    @property
    def is_exhausted(self) -> bool:
        """Whether there is no retry left."""
        return self.used >= self.limit

    def spend(self) -> RetryBudget:
        """Return the budget after one more retry.

        Raises:
            ValueError: there is none left.
        """
        if self.is_exhausted:
            raise ValueError(f"all {self.limit} retries of this round are used")
        return attrs.evolve(self, used=self.used + 1)


@final
@attrs.frozen(kw_only=True)
class RetryVerdict:
    """What follows an attempt, and when."""

    decision: RetryDecision
    delay_ms: int | None = None
    """How long to wait, when a retry is scheduled."""
    told_ms: int | None = None
    """How long the server asked to wait, when that decided."""


def decide_retry(
    failure_class: FailureClass | None,
    budget: RetryBudget,
    *,
    committed: bool,
    random_value: float,
    told_ms: int | None = None,
    replayable: bool = True,
    max_told_ms: int = MAX_SERVER_DELAY_MS,
) -> RetryVerdict:
    """Return what follows an attempt that ended in *failure_class*, or in none.

    Args:
        committed: whether output of the attempt was passed on (TRY-11).
        random_value: chance for the backoff, from 0 to 1.
        told_ms: what `server_delay_ms` found in the failure's headers.
        replayable: whether this provider may be asked again at all (TRY-02).
        max_told_ms: the longest wait that the server may ask for.
    """
    if failure_class is None:
        return RetryVerdict(decision=RetryDecision.NONE)
    if failure_class is not FailureClass.TRANSIENT:
        return RetryVerdict(decision=_without_retry(failure_class, committed))
    if not replayable:
        return RetryVerdict(decision=RetryDecision.NOT_RETRYABLE)
    if committed:
        return RetryVerdict(decision=RetryDecision.OUTPUT_COMMITTED)
    if budget.is_exhausted:
        return RetryVerdict(decision=RetryDecision.RETRY_BUDGET_EXHAUSTED)
    if told_ms is None:
        delay_ms = backoff_ms(budget.used, random_value)
        return RetryVerdict(decision=RetryDecision.RETRY_SCHEDULED, delay_ms=delay_ms)
    if told_ms > max_told_ms:
        decision = RetryDecision.RETRY_AFTER_EXCEEDS_LIMIT
        return RetryVerdict(decision=decision, told_ms=told_ms)
    # A told delay is neither undercut nor jittered.
    decision = RetryDecision.RETRY_SCHEDULED
    return RetryVerdict(decision=decision, delay_ms=told_ms, told_ms=told_ms)


def _without_retry(failure_class: FailureClass, committed: bool) -> RetryDecision:
    said = (FailureClass.ABORTED, FailureClass.CONTEXT_OVERFLOW)
    if committed and failure_class in said:
        return RetryDecision.OUTPUT_COMMITTED
    return RetryDecision.NOT_RETRYABLE
