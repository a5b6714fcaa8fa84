"""What is done about a request that is too large: the `recovery` port of one run.

Before a request is sent an estimate may ask for it, afterwards a provider's refusal.
The steps and their order are `RecoverySequence`'s; here they are taken: results of
tools are shortened in the run's view, so that later rounds carry them short as well;
the session's history is compacted and the view made anew behind the boundary; the
output limit is lowered. Nothing that was executed runs again, and the user's prompt
stays the turn's: only what the same round sends becomes smaller (CTX-16).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, final

import attrs
import msgspec

from greenroom.protocol import (
    Block,
    ModelRequest,
    ProviderFailure,
    RecoveryLatch,
    SessionSettings,
    ViewBuilder,
)
from greenroom.protocol.context import (
    CRAMPED,
    ContextPressure,
    Numbers,
    RecoveryError,
    RecoverySequence,
    Step,
    Trigger,
    strict_output,
    stub_results,
)
from greenroom.protocol.providers import Overflow, overflow_of

from ._compactor import Compacted

_UNTOUCHED: Final = frozenset({"skill"})


def _unheard(_: ContextPressure) -> None:
    pass


class Estimates(Protocol):
    """The numbers of a request before it is sent; see `RequestViews`."""

    def preflight(self, request: ModelRequest) -> Numbers:
        """Return the numbers of *request* as it would be sent now."""
        ...


@attrs.frozen
class Limit:
    """What is known of the limit that a request has to keep to."""

    tokens: int | None
    """Of prompt and answer; ``None``: not known, so that only sending tells."""
    factor: float = 1.0
    """What the provider counts for one estimated token, as far as is known."""
    explicit: bool = False
    """The provider said it."""
    total: bool = False
    """The answer that was asked for is part of what is too much."""


@final
@attrs.define(eq=False)
class RunRecovery:
    """Makes the requests of one run smaller."""

    settings: SessionSettings
    view: ViewBuilder
    """The run's own; changed in place."""
    estimates: Estimates
    compact: Callable[[Trigger], Awaitable[Compacted]]
    """Compacts the session's history; what it hides, `base` lacks from then on."""
    base: Callable[[], ViewBuilder]
    """Makes the view of the session's history, without the turn's work."""
    blocks: Callable[[], Sequence[Block]]
    """What the turn's message holds by now."""
    due: Callable[[Numbers], Awaitable[Trigger | None]]
    """Why the history is to be compacted before a turn goes on with a request of these
    numbers; ``None``: it is not."""
    noticed: Callable[[ContextPressure], None] = _unheard
    """Told of a request that was too large, and nobody said so (CTX-19)."""
    protected: frozenset[str] = _UNTOUCHED
    """Tools whose results are never shortened."""
    _sequence: RecoverySequence = attrs.field(factory=RecoverySequence, init=False)

    #### Before a request is sent

    async def begin(self, request: ModelRequest) -> None:
        """Compact the history before *request*, with which a turn goes on."""
        trigger = await self.due(self.estimates.preflight(request))
        if trigger is None:
            return
        done = await self.compact(trigger)
        if done.outcome != "unchanged":
            self.view.rebase(self.base(), self.blocks())

    async def relieve(
        self, request: ModelRequest, latch: RecoveryLatch
    ) -> ModelRequest | None:
        """Return a smaller request where an estimate says that this one is cramped.

        ``None``: it is not, or nothing can be made smaller; an estimate alone never
        keeps a request from being sent.
        """
        if not self._is_cramped(request):
            return None
        self._open(latch)
        current = request
        for step in (Step.STUB_OLDER, Step.STUB_NEWEST, Step.COMPACT):
            if step in self._sequence.taken or not self._is_cramped(current):
                continue
            current = await self._take(step, current, Limit(None)) or current
        return None if current is request else current

    def _is_cramped(self, request: ModelRequest) -> bool:
        return self.estimates.preflight(request).preflight.pressure

    #### After a provider refused it

    async def recover(
        self, request: ModelRequest, failure: ProviderFailure, latch: RecoveryLatch
    ) -> ModelRequest | RecoveryError:
        """Return a smaller request, or why there is none (CTX-15)."""
        if not self._open(latch):
            self._sequence = self._sequence.refused()
        limit = self._limit(request, overflow_of(failure))
        output_first = self._only_output(request, limit)
        current = request
        while (step := self._sequence.next(output_first=output_first)) is not None:
            smaller = await self._take(step, current, limit)
            current = smaller or current
            if smaller is not None and self._fits(current, limit):
                return current
        return self._sequence.error

    def _open(self, latch: RecoveryLatch) -> bool:
        # The first payload of a sequence begins it; a later one joins.
        first = latch.payloads <= 1
        if first:
            self._sequence = RecoverySequence()
        return first

    #### Steps

    async def _take(
        self, step: Step, request: ModelRequest, limit: Limit
    ) -> ModelRequest | None:
        match step:
            case Step.STUB_OLDER | Step.STUB_NEWEST:
                smaller = self._stubbed(request, newest=step is Step.STUB_NEWEST)
            case Step.COMPACT:
                smaller = await self._compacted(request)
            case Step.LOWER_OUTPUT:
                smaller = self._lowered(request, limit)
        self._sequence = self._sequence.after(step, changed=smaller is not None)
        return smaller

    def _stubbed(self, request: ModelRequest, *, newest: bool) -> ModelRequest | None:
        messages = stub_results(
            request.messages, newest=newest, protected=self.protected
        )
        if messages == request.messages:
            return None
        self.view.shorten(messages)
        return self._with_messages(request)

    async def _compacted(self, request: ModelRequest) -> ModelRequest | None:
        done = await self.compact("context_pressure")
        if done.outcome == "unchanged":
            return None
        self.view.rebase(self.base(), self.blocks())
        if Step.STUB_OLDER in self._sequence.taken:
            newest = Step.STUB_NEWEST in self._sequence.taken
            messages = self.view.messages
            self.view.shorten(
                stub_results(messages, newest=newest, protected=self.protected)
            )
        smaller = self._with_messages(request)
        # A boundary that moved and saved nothing is no progress (CTX-21).
        saved = self._prompt(smaller) < self._prompt(request)
        return smaller if saved else None

    def _lowered(self, request: ModelRequest, limit: Limit) -> ModelRequest | None:
        if limit.tokens is None or not limit.explicit:
            return None
        prompt = self._counted(request, limit)
        lowered = strict_output(limit.tokens, prompt, self._asked(request))
        if lowered is None:
            return None
        return msgspec.structs.replace(request, max_output_tokens=lowered)

    def _with_messages(self, request: ModelRequest) -> ModelRequest:
        # With the limit of the output that was wished for: there may be room again.
        return msgspec.structs.replace(
            request,
            messages=self.view.messages,
            max_output_tokens=self.settings.max_output_tokens,
        )

    #### Numbers

    def _limit(self, request: ModelRequest, overflow: Overflow) -> Limit:
        numbers = self.estimates.preflight(request)
        known, total = numbers.preflight, overflow.scope == "total"
        counted = known.input + known.tools
        if overflow.limit is not None and overflow.actual is not None:
            answer = self._asked(request) if total else 0
            counted = max(1, overflow.actual - answer)
        factor = counted / max(1, numbers.estimated)
        if overflow.limit is None:
            return Limit(known.context, factor, total=total)
        return Limit(overflow.limit, factor, explicit=True, total=total)

    def _prompt(self, request: ModelRequest) -> int:
        # What a smaller one is compared by: it begins with nothing that was counted.
        return self.estimates.preflight(request).estimated

    def _asked(self, request: ModelRequest) -> int:
        # What the provider was told, or takes when it is told nothing.
        told = request.max_output_tokens
        known = self.estimates.preflight(request).preflight.requested
        return known if told is None else told

    def _counted(self, request: ModelRequest, limit: Limit) -> int:
        return round(self._prompt(request) * limit.factor)

    def _fits(self, request: ModelRequest, limit: Limit) -> bool:
        return limit.tokens is None or self._counted(request, limit) < limit.tokens

    def _only_output(self, request: ModelRequest, limit: Limit) -> bool:
        lowered = self._lowered(request, limit) if limit.total else None
        if lowered is None or lowered.max_output_tokens is None:
            return False
        least = min(CRAMPED, self._asked(request) // 2)
        return lowered.max_output_tokens >= least
