"""The port between whoever asks and whatever answers.

A caller sees a provider through this and nothing else (RUN-26). One call of `stream` is
one physical attempt: no retry, no rate gate, no budget lives behind the port (TRY-01).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, runtime_checkable

from greenroom.protocol import ModelRequest, StreamEvent, WaitReason, WireRequest

ACP_PROVIDER: Final = "acp"
"""The id of a provider that is an agent's own process, used as a model (AGT-03).

It keeps its own conversation: what it is sent is not fitted into a window, and nothing
is sent to it twice."""

Waiting = Callable[[WaitReason, float], None]
"""Told which clock an attempt is on now, and the deadline of it in trio's time.

Called in the task that streams, before it waits. It must not raise: what it raises
leaves the attempt as it is.
"""


def ignore_waiting(reason: WaitReason, deadline: float) -> None:
    """Take no notice of what an attempt waits for."""


@runtime_checkable
class ShowsWire(Protocol):
    """A provider that can tell what it sends, for a trace (TRY-23)."""

    def wire(self, request: ModelRequest) -> WireRequest:
        """Return *request* as `Provider.stream` sends it. Pure; for any thread."""
        ...


class Provider(Protocol):
    """Something that answers model requests."""

    @property
    def id(self) -> str:
        """What it is called in records; equal for equal configurations."""
        ...

    @property
    def replayable(self) -> bool:
        """Whether the same request may be sent again (TRY-02)."""
        ...

    @property
    def max_told_ms(self) -> int:
        """The longest wait that the server may ask for before a retry (TRY-05)."""
        ...

    def stream(
        self, request: ModelRequest, *, waiting: Waiting = ignore_waiting
    ) -> AbstractAsyncContextManager[AsyncIterator[StreamEvent]]:
        """Send *request* once; the iterator gives what comes back.

        Entering sends nothing yet: connecting is part of the first step. Faults of the
        peer and of the connection arrive as a `ProviderFailure`, never as an
        exception. The iterator ends after the last event; an end without a stop or a
        failure is for the caller to judge (TRY-13). Iterate in the task that entered.
        Leaving the context, or cancelling, closes the connection at once.
        """
        ...


def may_replay(provider: Provider) -> bool:
    """Whether a request to *provider* may be sent again (TRY-02, AGT-03)."""
    return provider.replayable and provider.id != ACP_PROVIDER
