"""One round's exchange with the provider: its attempts, and the only retry (TRY-01).

Steps of an attempt: wait for the retry, enter the gate, clear its notice, check for a
cancel, check the authority, count, stream, record, decide (TRY-21). Everything but
usage, stop and failure commits output the moment it is passed on; what is committed is
never replayed, and kept (TRY-11, TRY-12). The three control events wait for the
decision. Without a retry they are delivered in one order: the usage of all attempts,
the failure, the stop; then what the stream raised is raised (TRY-15).

A round sends one payload, again where that is safe. Two things change the payload, and
make it the next request of the same round (TRY-22): an item that the provider refuses
is left out once, and an overflow is given to the recovery port. A payload of which an
estimate says that it is too large is given to that port before it is sent (CTX-07).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, final

import attrs
import msgspec
import trio

from greenroom.actors.backend import RunPorts
from greenroom.actors.kernel import Context
from greenroom.actors.providers import (
    ACP_PROVIDER,
    Provider,
    ShowsWire,
    may_replay,
)
from greenroom.protocol import (
    AttemptTrace,
    FailureClass,
    GreenroomError,
    InternalError,
    ModelRequest,
    ProviderFailure,
    RejectedItem,
    RetryBudget,
    RetryDecision,
    RetryVerdict,
    Stop,
    StreamEvent,
    Usage,
    UsageReported,
    ViewBuilder,
    WireRequest,
    add_usage,
    attempt_trace,
    classify_failure,
    decide_retry,
    is_counted,
    neutralised,
    rejected_item,
    server_delay_ms,
)
from greenroom.protocol.context import (
    ContextPressure,
    RecoveryError,
    RequestIdentity,
    silent_pressure,
)

from ._attempt import (
    Attempt,
    AttemptIdentity,
    ProviderRaisedError,
    attempt_end,
    attempt_fact,
    attempt_start,
    first_chunk,
    pressure_fact,
    told_failure,
)
from ._settlement import Progress

FAREWELL_SECONDS: Final = 10.0
"""How long a stream may go on after its stop; the usage may come behind it."""


class LostAuthorityError(GreenroomError):
    """The run may not ask the model any more: the session goes on without it."""

    code = "lost_authority"


@final
@attrs.define(eq=False)
class Attempts:
    """Sends the payloads of one round until there is a reply."""

    ports: RunPorts
    ctx: Context[Any]
    progress: Progress
    identity: AttemptIdentity
    deliver: Callable[[StreamEvent], None]
    """Takes output as it comes, and the rest when nothing is sent any more."""
    advance: Callable[[], None]
    """Called when the payload changes, to count the next request."""
    reject: Callable[[RejectedItem], None] = attrs.field(default=lambda _: None)
    """Told what later requests are to leave out."""
    view: ViewBuilder | None = None
    """What the request is made of; ``None``: of nothing that is known."""
    budget: RetryBudget = attrs.field(factory=RetryBudget)
    _usage: Usage | None = attrs.field(default=None, init=False)
    """Of all attempts so far, until it is delivered."""
    stop_before_abort: Stop | None = attrs.field(default=None, init=False)
    """What the attempt that was cancelled had heard: the reply was cut (TOL-02)."""
    _left_out: bool = attrs.field(default=False, init=False)
    """An item was left out in this round; that is done once."""
    _unrecovered: RecoveryError | None = attrs.field(default=None, init=False)
    """Why nothing smaller was sent after an overflow (CTX-15)."""

    async def run(self, request: ModelRequest) -> None:
        """Send *request*, and what becomes of it, until there is a reply.

        Raises:
            ProviderRaisedError: the stream raised; everything else is delivered.
            LostAuthorityError: the run is not the session's current one any more.
        """
        try:
            attempt, verdict = await self._converse(request)
        finally:
            # Before anything is raised, be it a cancellation.
            self._deliver_usage()
        fault = attempt.fault
        told = fault and told_failure(fault, attempt, verdict, self._unrecovered)
        if told is not None and (attempt.failure or attempt.raised is None):
            self.deliver(told)
        if attempt.stop is not None:
            self.deliver(attempt.stop)
        if attempt.raised is not None:
            assert told is not None
            raise ProviderRaisedError(told) from attempt.raised

    def _deliver_usage(self) -> None:
        usage, self._usage = self._usage, None
        if usage is not None:
            self.deliver(UsageReported(usage=usage))

    #### Payloads

    async def _converse(self, request: ModelRequest) -> tuple[Attempt, RetryVerdict]:
        request = await self._relieved(request)
        while True:
            request = await self._assembled(request)
            attempt, verdict = await self._send_until_decided(request)
            changed = await self._changed(request, attempt)
            if changed is None:
                return attempt, verdict
            request = changed
            self.advance()
            self.identity = attrs.evolve(self.identity, origin="context_recovery")

    async def _relieved(self, request: ModelRequest) -> ModelRequest:
        latch, recovery = self.progress.recovery.begin(), self.ports.recovery
        if latch is None or recovery is None:
            return request
        smaller = await recovery.relieve(request, latch)
        if smaller is None:
            return request
        self.progress.recovery = latch
        self.identity = attrs.evolve(self.identity, origin="context_recovery")
        return smaller

    async def _assembled(self, request: ModelRequest) -> ModelRequest:
        views, view = self.ports.views, self.view
        if views is None or view is None:
            return request
        self.ports.preparing("request")
        counters = self.progress.counters
        identity = RequestIdentity(
            self.identity.run_id,
            self.identity.message_id,
            counters.request_seq,
            counters.round,
            self.identity.origin,
        )
        return await views.assemble(request, view, identity)

    async def _changed(
        self, request: ModelRequest, attempt: Attempt
    ) -> ModelRequest | None:
        fault = attempt.fault
        if fault is None:
            self.progress.recovery = self.progress.recovery.close()
            return None
        if attempt.committed:
            return None
        if classify_failure(fault) is FailureClass.CONTEXT_OVERFLOW:
            return await self._recovered(request, fault)
        return self._without_rejected(request, fault)

    async def _recovered(
        self, request: ModelRequest, fault: ProviderFailure
    ) -> ModelRequest | None:
        latch = self.progress.recovery.begin()
        if latch is None or self.ports.recovery is None:
            return None
        changed = await self.ports.recovery.recover(request, fault, latch)
        if isinstance(changed, str):
            self._unrecovered = changed
            return None
        if changed == request:
            self._unrecovered = "retry_projection_unchanged"
            return None
        self.progress.recovery = latch
        return changed

    def _without_rejected(
        self, request: ModelRequest, fault: ProviderFailure
    ) -> ModelRequest | None:
        item = None if self._left_out else rejected_item(request.messages, fault)
        if item is None:
            return None
        self._left_out = True
        self.reject(item)
        messages = neutralised(request.messages, [item])
        return msgspec.structs.replace(request, messages=messages)

    #### Attempts

    async def _send_until_decided(
        self, request: ModelRequest
    ) -> tuple[Attempt, RetryVerdict]:
        delay_ms = 0
        while True:
            await self._admit(delay_ms)
            attempt = await self._send(request)
            verdict = self._record(attempt, self._pressure(request, attempt))
            if self.ports.views is not None and self.view is not None:
                self.ports.views.settled(
                    request, self.view, attempt.usage, attempt.fault
                )
            self._usage = add_usage(self._usage, attempt.usage)
            if verdict.decision is not RetryDecision.RETRY_SCHEDULED:
                return attempt, verdict
            self.budget = self.budget.spend()
            delay_ms = verdict.delay_ms or 0

    async def _admit(self, delay_ms: float) -> None:
        await self._wait(delay_ms)
        try:
            await self.ports.gate.enter(self._tell_gate)
        finally:
            self.ports.watchers.waiting(None)
        # After a cancel nothing is sent.
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self.ports.authority(self.progress.counters.request_seq):
            raise LostAuthorityError(
                f"run {self.identity.run_id} is not the session's current one any more"
            )
        self.progress.counters = self.progress.counters.enter_attempt()

    async def _wait(self, delay_ms: float) -> None:
        if not (math.isfinite(delay_ms) and delay_ms >= 0):
            raise InternalError(f"can't wait {delay_ms!r} ms")
        if delay_ms:
            seconds = delay_ms / 1_000
            self.ports.watchers.waiting("backoff", trio.current_time() + seconds)
            await trio.sleep(seconds)
            self.ports.watchers.waiting(None)

    def _tell_gate(self, until: float) -> None:
        self.ports.watchers.waiting("rate_gate", until)

    async def _send(self, request: ModelRequest) -> Attempt:
        attempt = Attempt()
        self.ports.preparing(None)
        self._trace(request)
        self.ports.tell_hooks(attempt_start(self.identity, self.progress.counters))
        try:
            stream = self.ports.provider.stream(
                request, waiting=self.ports.watchers.waiting
            )
            with trio.CancelScope() as scope:
                async with stream as events:
                    async for event in events:
                        self._take(event, attempt)
                        if attempt.stop is not None:
                            until = trio.current_time() + FAREWELL_SECONDS
                            scope.deadline = min(scope.deadline, until)
        except Exception as exc:
            attempt.raised = exc
        except BaseException:
            # A cancellation, bare or in a group.
            attempt.aborted = True
            self.stop_before_abort = attempt.stop
            self._record(attempt)
            self._usage = add_usage(self._usage, attempt.usage)
            raise
        finally:
            self.ports.watchers.waiting(None)
        return attempt

    def _take(self, event: StreamEvent, attempt: Attempt) -> None:
        match event:
            case UsageReported(usage=usage):
                attempt.usage = usage if is_counted(usage) else attempt.usage
            case Stop():
                attempt.stop = event
            case ProviderFailure():
                # The first one is the cause; what follows it is its consequence.
                attempt.failure = attempt.failure or event
            case _ if attempt.stop is None:
                if not attempt.committed:
                    self.ports.tell_hooks(first_chunk(self.identity))
                attempt.committed = True
                self.deliver(event)
            case _:
                # The reply was over; only its usage may still come.
                pass

    #### What follows, and what is kept of it

    def _pressure(
        self, request: ModelRequest, attempt: Attempt
    ) -> ContextPressure | None:
        views, stop = self.ports.views, attempt.stop
        if views is None or attempt.fault is not None or attempt.usage is None:
            return None
        if self.ports.provider.id == ACP_PROVIDER:
            # Whose window is its own affair (AGT-03).
            return None
        window = views.preflight(request).preflight.context
        return silent_pressure(window, stop and stop.reason, attempt.usage)

    def _record(
        self, attempt: Attempt, pressure: ContextPressure | None = None
    ) -> RetryVerdict:
        verdict = self._decide(attempt)
        fact = attempt_fact(
            self.identity, self.progress.counters, attempt, verdict, pressure
        )
        facts = [fact]
        if pressure is not None:
            facts.append(pressure_fact(fact.key, pressure))
            if self.ports.recovery is not None:
                self.ports.recovery.noticed(pressure)
        self.ports.record.append_soon(facts)
        self.ports.tell_hooks(
            attempt_end(self.identity, self.progress.counters, attempt, verdict)
        )
        return verdict

    def _decide(self, attempt: Attempt) -> RetryVerdict:
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
            replayable=may_replay(self.ports.provider),
            max_told_ms=self.ports.provider.max_told_ms,
        )

    def _trace(self, request: ModelRequest) -> None:
        # Values, taken now: when the trace is made the run may be at its next attempt.
        at = self.ctx.clock.now()
        provider = self.ports.provider
        identity, counters = self.identity, self.progress.counters

        def make() -> AttemptTrace:
            return attempt_trace(
                identity.run_id,
                identity.message_id,
                counters,
                provider=identity.provider,
                model=identity.model,
                at=at,
                wire=_wire(provider, request),
            )

        self.ports.trace_soon(make)


def _wire(provider: Provider, request: ModelRequest) -> WireRequest:
    if isinstance(provider, ShowsWire):
        return provider.wire(request)
    return WireRequest(provider.id, {}, msgspec.json.encode(request))
