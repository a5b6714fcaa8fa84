"""What a caller of a provider can be faced with, one class for each reaction.

Streams don't raise these: there, faults are events. They are for calls that return
one answer or none.
"""

from __future__ import annotations

from greenroom.protocol import (
    FailureClass,
    GreenroomError,
    ProviderFailure,
    RetryVerdict,
    classify_failure,
)
from greenroom.protocol.providers import overflow_of


class ProviderError(GreenroomError):
    """A provider did not answer, for a reason that fits no other class."""

    code = "provider_error"

    def __init__(self, failure: ProviderFailure, *, attempts: int = 1) -> None:
        tries = "" if attempts == 1 else f" (after {attempts} attempts)"
        super().__init__(f"{failure.message}{tries}")
        self.failure = failure
        self.attempts = attempts
        if failure.code:
            self.code = failure.code


class ProviderRefusedError(ProviderError):
    """The provider will not serve this request: something has to be changed."""

    def __init__(self, failure: ProviderFailure, *, attempts: int = 1) -> None:
        super().__init__(failure, attempts=attempts)
        self.hint = _HINTS.get(failure.status or 0)


class ProviderUnavailableError(ProviderError):
    """The provider can't serve now: the same request may work later."""

    hint = "try again later, or use another provider"

    def __init__(
        self,
        failure: ProviderFailure,
        *,
        attempts: int = 1,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(failure, attempts=attempts)
        self.retry_after_ms = retry_after_ms
        if retry_after_ms is not None:
            self.hint = f"the provider asks to wait {retry_after_ms / 1_000:g} s"


class ContextOverflowError(ProviderError):
    """The request is too large for the model's context: it has to be made smaller."""

    hint = "send less, or use a model with a larger context"

    def __init__(self, failure: ProviderFailure, *, attempts: int = 1) -> None:
        super().__init__(failure, attempts=attempts)
        self.overflow = overflow_of(failure)


_HINTS = {
    401: "check the API key",
    402: "check the account's balance",
    403: "check what the API key may do",
    404: "check the model's name, and base_url, which usually ends in /v1",
}


def provider_error(
    failure: ProviderFailure, verdict: RetryVerdict, *, attempts: int
) -> ProviderError:
    """Return the error for *failure*, of the class that its kind calls for."""
    match classify_failure(failure):
        case FailureClass.CONTEXT_OVERFLOW:
            return ContextOverflowError(failure, attempts=attempts)
        case FailureClass.PERMANENT:
            return ProviderRefusedError(failure, attempts=attempts)
        case FailureClass.TRANSIENT:
            return ProviderUnavailableError(
                failure, attempts=attempts, retry_after_ms=verdict.told_ms
            )
        case _:
            return ProviderError(failure, attempts=attempts)
