"""One attempt: what a send brought, and what is told and kept of it."""

from __future__ import annotations

from typing import Final, Literal, final

import attrs
import msgspec

from greenroom.protocol import (
    AttemptEnd,
    AttemptStart,
    Counters,
    Fact,
    FactKind,
    FailureClass,
    FirstChunk,
    GreenroomError,
    MessageId,
    ProviderFailure,
    RetryDecision,
    RetryVerdict,
    RunId,
    SessionId,
    SourceType,
    Stop,
    Usage,
    classify_failure,
    make_payload,
)
from greenroom.protocol.context import ContextPressure, RecoveryError
from greenroom.protocol.providers import failure_from_exception
from greenroom.storage import CONTEXT_PRESSURE

RequestOrigin = Literal["chat", "resume", "tool_loop", "context_recovery"]

ATTEMPT_SCHEMA: Final = 2

OVERFLOW_AFTER_OUTPUT: Final = "context_overflow_after_output"

_UNRECOVERED: Final[dict[RecoveryError, str]] = {
    "retry_projection_unchanged": "nothing could be made smaller",
    "retry_projection_cannot_fit": "what could be left out does not make it fit",
    "provider_rejected_retry": "a smaller request was refused, too",
}

OVERFLOW_CODES: Final = frozenset({OVERFLOW_AFTER_OUTPUT, *_UNRECOVERED})
"""How a failure is called that is an overflow for good."""

PREMATURE_EOF: Final = ProviderFailure(
    message="the provider closed the stream before the reply was finished",
    code="premature_eof",
    retryable=True,
)


class ProviderRaisedError(GreenroomError):
    """The provider raised instead of reporting a failure; that is the cause."""

    code = "provider_raised"

    def __init__(self, failure: ProviderFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@attrs.frozen
class AttemptIdentity:
    """What an attempt is of; captured by value (TRY-23)."""

    run_id: RunId
    message_id: MessageId
    provider: str
    model: str
    origin: RequestOrigin
    session_id: SessionId


@final
@attrs.define(eq=False)
class Attempt:
    """What one send brought."""

    usage: Usage | None = None
    stop: Stop | None = None
    failure: ProviderFailure | None = None
    raised: Exception | None = None
    committed: bool = False
    aborted: bool = False

    @property
    def fault(self) -> ProviderFailure | None:
        """Why it failed; a stream without stop and failure was cut."""
        if self.failure is not None:
            return self.failure
        if self.raised is not None:
            return failure_of(self.raised)
        return PREMATURE_EOF if self.stop is None else None


def failure_of(exc: Exception) -> ProviderFailure:
    """Return what a provider that raised would have reported."""
    failure = failure_from_exception(exc)
    message = f"{type(exc).__name__}: {failure.message}"
    code = failure.code or ProviderRaisedError.code
    return msgspec.structs.replace(failure, message=message, code=code)


def told_failure(
    fault: ProviderFailure,
    attempt: Attempt,
    verdict: RetryVerdict,
    unrecovered: RecoveryError | None,
) -> ProviderFailure:
    """Return the *fault* as a user is told it: with what was tried against it."""
    if attempt.committed and classify_failure(fault) is FailureClass.CONTEXT_OVERFLOW:
        return msgspec.structs.replace(fault, code=OVERFLOW_AFTER_OUTPUT)
    if unrecovered is not None:
        text = f"{fault.message} ({_UNRECOVERED[unrecovered]})"
        return msgspec.structs.replace(fault, code=unrecovered, message=text)
    if verdict.decision is RetryDecision.RETRY_AFTER_EXCEEDS_LIMIT:
        seconds = (verdict.told_ms or 0) / 1_000
        text = (
            f"{fault.message} (the server asks to wait {seconds:g} s, "
            "more than is allowed)"
        )
        return msgspec.structs.replace(fault, message=text)
    return fault


def attempt_fact(
    identity: AttemptIdentity,
    counters: Counters,
    attempt: Attempt,
    verdict: RetryVerdict,
    pressure: ContextPressure | None = None,
) -> Fact:
    """Return the tape's record of one physical attempt (TRY-18)."""
    fault = None if attempt.aborted else attempt.fault
    payload = {
        "schema": ATTEMPT_SCHEMA,
        "messageId": identity.message_id,
        "logicalRound": counters.round,
        "requestSeq": counters.request_seq,
        "physicalAttempt": counters.attempt,
        "requestOrigin": identity.origin,
        "attemptOrigin": "transient_retry" if counters.attempt > 1 else "initial",
        "provider": identity.provider,
        "model": identity.model,
        "status": _status(attempt),
        "stopReason": attempt.stop and attempt.stop.reason,
        "failureClassification": None if fault is None else classify_failure(fault),
        "retryDecision": verdict.decision,
        "httpStatus": fault and fault.status,
        "errorCode": fault and fault.code,
        "retryDelayMs": verdict.delay_ms,
        "usage": attempt.usage,
        "cacheHitRate": _cache_hit_rate(attempt.usage),
        "contextPressure": pressure,
    }
    return Fact(
        kind=FactKind.EVENT,
        name="provider/attempt_completed",
        source_type=SourceType.RUNTIME_EVENT,
        source_id=identity.run_id,
        source_seq=counters.request_seq,
        payload=make_payload(payload),
        provenance_key=(
            f"attempt:{identity.run_id}:{counters.request_seq}:{counters.attempt}"
        ),
    )


def attempt_start(identity: AttemptIdentity, counters: Counters) -> AttemptStart:
    """Return what hooks are told before the send."""
    return AttemptStart(
        session_id=identity.session_id,
        run_id=identity.run_id,
        message_id=identity.message_id,
        request_seq=counters.request_seq,
        attempt=counters.attempt,
        provider=identity.provider,
        model=identity.model,
    )


def first_chunk(identity: AttemptIdentity) -> FirstChunk:
    """Return what observers are told when the reply begins."""
    return FirstChunk(session_id=identity.session_id, run_id=identity.run_id)


def attempt_end(
    identity: AttemptIdentity,
    counters: Counters,
    attempt: Attempt,
    verdict: RetryVerdict,
) -> AttemptEnd:
    """Return what hooks are told after it."""
    fault = None if attempt.aborted else attempt.fault
    return AttemptEnd(
        session_id=identity.session_id,
        run_id=identity.run_id,
        message_id=identity.message_id,
        request_seq=counters.request_seq,
        attempt=counters.attempt,
        status=_status(attempt),
        stop_reason=attempt.stop and attempt.stop.reason,
        error=fault and (fault.code or classify_failure(fault)),
        retries=verdict.decision is RetryDecision.RETRY_SCHEDULED,
        usage=attempt.usage,
    )


def pressure_fact(attempt: str, pressure: ContextPressure) -> Fact:
    """Return that the request of the *attempt*, by its key, was too large (CTX-19)."""
    return Fact(
        kind=FactKind.EVENT,
        name=CONTEXT_PRESSURE,
        source_type=SourceType.RUNTIME_EVENT,
        source_id=attempt,
        payload=make_payload(pressure),
    )


def _status(attempt: Attempt) -> str:
    if attempt.aborted:
        return "aborted"
    fault = attempt.fault
    if fault is None:
        return "completed"
    overflow = classify_failure(fault) is FailureClass.CONTEXT_OVERFLOW
    return "context_overflow" if overflow else "error"


def _cache_hit_rate(usage: Usage | None) -> float | None:
    if usage is None or usage.cache_read is None or usage.input <= 0:
        return None
    if usage.cache_read > usage.input:
        return None
    return usage.cache_read / usage.input
