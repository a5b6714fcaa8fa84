"""What the attempts of a round deliver, taken in: the draft, the usage, the reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import attrs

from greenroom.actors.backend import Watchers
from greenroom.protocol import (
    Draft,
    FailureClass,
    Fault,
    MessageId,
    ProviderFailure,
    ReasoningDelta,
    RunId,
    Stop,
    StopReason,
    StreamEvent,
    UsageReported,
    classify_failure,
    safe_text,
)

from ._attempt import OVERFLOW_CODES
from ._settlement import Progress


@attrs.frozen
class RoundReply:
    """What the attempts of a round came to."""

    stop: StopReason | None
    failure: Fault | None = None
    overflow: bool = False


@final
@attrs.define(eq=False)
class Exchange:
    """Takes in one round. Output goes on to watchers, the rest is the reply."""

    run_id: RunId
    message_id: MessageId
    draft: Draft
    progress: Progress
    watchers: Watchers
    now: Callable[[], float]
    _stop: StopReason | None = attrs.field(default=None, init=False)
    _failure: ProviderFailure | None = attrs.field(default=None, init=False)

    def take(self, event: StreamEvent) -> None:
        """Take one event in, in the order of delivery (TRY-15)."""
        match event:
            case UsageReported(usage=usage):
                self.progress.spend(usage)
            case ProviderFailure():
                self._failure = event
            case Stop(reason=reason):
                self._stop = reason
            case _:
                self._show(event)

    @property
    def reply(self) -> RoundReply:
        """What it came to, when everything was delivered."""
        failure = self._failure
        if failure is None:
            return RoundReply(self._stop)
        fault = Fault(failure.code or "provider_error", safe_text(failure.message))
        overflow = failure.code in OVERFLOW_CODES or (
            classify_failure(failure) is FailureClass.CONTEXT_OVERFLOW
        )
        return RoundReply(self._stop, fault, overflow)

    def _show(self, event: StreamEvent) -> None:
        now = self.now()
        if self.progress.first_output_at is None:
            self.progress.first_output_at = now
        if isinstance(event, ReasoningDelta):
            self.progress.think(now)
        for change in self.draft.apply(event):
            self.watchers.change(self.run_id, self.message_id, change)
