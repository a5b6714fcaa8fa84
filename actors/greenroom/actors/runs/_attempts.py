"""One round's exchange with the provider: its attempts, and the only retry (TRY-01).

Steps of an attempt: wait for the retry, check for a cancel, count, stream, record,
decide (TRY-21). Everything but usage, stop and failure commits output the moment it is
passed on; what is committed is never replayed, and kept (TRY-11, TRY-12). The three
control events wait for the decision.
"""

from __future__ import annotations

import math
from typing import Any, Final, Literal, final

import attrs
import trio

from greenroom.actors.kernel import Context
from greenroom.protocol import (
    Draft,
    Fact,
    FactKind,
    FailureClass,
    Fault,
    InternalError,
    MessageId,
    ModelRequest,
    ProviderFailure,
    RetryBudget,
    RetryDecision,
    RetryVerdict,
    RunId,
    SourceType,
    Stop,
    StopReason,
    StreamEvent,
    Usage,
    UsageReported,
    add_usage,
    classify_failure,
    decide_retry,
    make_payload,
    safe_text,
    server_delay_ms,
)

from ._ports import RunPorts
from ._settlement import Progress

RequestOrigin = Literal["chat", "resume", "tool_loop", "context_recovery"]

ATTEMPT_SCHEMA: Final = 2

PREMATURE_EOF: Final = ProviderFailure(
    message="the provider closed the stream before the reply was finished",
    code="premature_eof",
    retryable=True,
)


@attrs.frozen
class AttemptIdentity:
    """What an attempt is of; captured by value (TRY-23)."""

    run_id: RunId
    message_id: MessageId
    provider: str
    model: str
    origin: RequestOrigin


@attrs.frozen
class RoundReply:
    """What the attempts of a round came to."""

    stop: StopReason | None
    failure: Fault | None = None
    overflow: bool = False


@final
@attrs.define(eq=False)
class _Attempt:
    """What one send brought."""

    usage: Usage | None = None
    stop: StopReason | None = None
    failure: ProviderFailure | None = None
    committed: bool = False
    aborted: bool = False

    @property
    def fault(self) -> ProviderFailure | None:
        """Why it failed; a stream without stop and failure was cut."""
        if self.failure is None and self.stop is None:
            return PREMATURE_EOF
        return self.failure


@final
@attrs.define(eq=False)
class Attempts:
    """Sends one payload, again where that is safe, until there is a reply."""

    ports: RunPorts
    ctx: Context[Any]
    draft: Draft
    progress: Progress
    identity: AttemptIdentity
    budget: RetryBudget = attrs.field(factory=RetryBudget)

    async def run(self, request: ModelRequest) -> RoundReply:
        """Return the reply to *request*; its blocks are in the draft."""
        delay_ms = 0
        while True:
            await self._wait(delay_ms)
            attempt = await self._send(request)
            verdict = self._decide(attempt)
            self._record(attempt, verdict, retried=self.budget.used > 0)
            if verdict.decision is not RetryDecision.RETRY_SCHEDULED:
                return _reply(attempt, verdict)
            self.budget = self.budget.spend()
            delay_ms = verdict.delay_ms or 0

    async def _wait(self, delay_ms: float) -> None:
        if not (math.isfinite(delay_ms) and delay_ms >= 0):
            raise InternalError(f"can't wait {delay_ms!r} ms")
        if delay_ms:
            seconds = delay_ms / 1_000
            self.ports.watchers.waiting("backoff", trio.current_time() + seconds)
            await trio.sleep(seconds)
            self.ports.watchers.waiting(None)
        # After a cancel nothing is sent.
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _send(self, request: ModelRequest) -> _Attempt:
        self.progress.counters = self.progress.counters.enter_attempt()
        attempt = _Attempt()
        try:
            stream = self.ports.provider.stream(
                request, waiting=self.ports.watchers.waiting
            )
            async with stream as events:
                async for event in events:
                    self._take(event, attempt)
        except Exception as exc:
            attempt.failure = ProviderFailure(
                message=f"{type(exc).__name__}: {exc}", code="provider_raised"
            )
        except BaseException:
            # A cancellation, bare or in a group.
            attempt.aborted = True
            self._record(attempt, self._decide(attempt), retried=self.budget.used > 0)
            raise
        finally:
            self.progress.usage = add_usage(self.progress.usage, attempt.usage)
            self.ports.watchers.waiting(None)
        return attempt

    def _take(self, event: StreamEvent, attempt: _Attempt) -> None:
        match event:
            case UsageReported(usage=usage):
                attempt.usage = usage
            case Stop(reason=reason):
                attempt.stop = reason
            case ProviderFailure():
                # The first one is the cause; what follows it is its consequence.
                attempt.failure = attempt.failure or event
            case _:
                self._commit(event, attempt)

    def _commit(self, event: StreamEvent, attempt: _Attempt) -> None:
        if not attempt.committed:
            attempt.committed = True
            if self.progress.first_output_at is None:
                self.progress.first_output_at = self.ctx.clock.now()
        identity = self.identity
        for change in self.draft.apply(event):
            self.ports.watchers.change(identity.run_id, identity.message_id, change)

    def _decide(self, attempt: _Attempt) -> RetryVerdict:
        fault = attempt.fault
        if attempt.aborted:
            failure_class, told = FailureClass.ABORTED, None
        elif fault is None:
            failure_class, told = None, None
        else:
            failure_class = classify_failure(fault)
            told = server_delay_ms(fault.headers, self.ctx.clock.now())
        return decide_retry(
            failure_class,
            self.budget,
            committed=attempt.committed,
            random_value=self.ctx.ids.random(),
            told_ms=told,
            replayable=self.ports.provider.replayable,
            max_told_ms=self.ports.provider.max_told_ms,
        )

    def _record(
        self, attempt: _Attempt, verdict: RetryVerdict, *, retried: bool
    ) -> None:
        fact = attempt_fact(self.identity, self.progress, attempt, verdict, retried)
        self.ports.record.append_soon([fact])


def _reply(attempt: _Attempt, verdict: RetryVerdict) -> RoundReply:
    fault = attempt.fault
    if fault is None:
        return RoundReply(attempt.stop)
    overflow = classify_failure(fault) is FailureClass.CONTEXT_OVERFLOW
    code = fault.code or "provider_error"
    if overflow and attempt.committed:
        code = "context_overflow_after_output"
    text = safe_text(fault.message)
    if verdict.decision is RetryDecision.RETRY_AFTER_EXCEEDS_LIMIT:
        seconds = (verdict.told_ms or 0) / 1_000
        text = f"{text} (the server asks to wait {seconds:g} s, more than is allowed)"
    return RoundReply(attempt.stop, Fault(code, text), overflow)


def attempt_fact(
    identity: AttemptIdentity,
    progress: Progress,
    attempt: _Attempt,
    verdict: RetryVerdict,
    retried: bool,
) -> Fact:
    """Return the tape's record of one physical attempt (TRY-18)."""
    fault = None if attempt.aborted else attempt.fault
    counters, usage = progress.counters, attempt.usage
    payload = {
        "schema": ATTEMPT_SCHEMA,
        "messageId": identity.message_id,
        "logicalRound": counters.round,
        "requestSeq": counters.request_seq,
        "physicalAttempt": counters.attempt,
        "requestOrigin": identity.origin,
        "attemptOrigin": "transient_retry" if retried else "initial",
        "provider": identity.provider,
        "model": identity.model,
        "status": _status(attempt),
        "stopReason": attempt.stop,
        "failureClassification": None if fault is None else classify_failure(fault),
        "retryDecision": verdict.decision,
        "httpStatus": fault and fault.status,
        "errorCode": fault and fault.code,
        "retryDelayMs": verdict.delay_ms,
        "usage": usage,
        "cacheHitRate": _cache_hit_rate(usage),
        "contextPressure": None,
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


def _status(attempt: _Attempt) -> str:
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
