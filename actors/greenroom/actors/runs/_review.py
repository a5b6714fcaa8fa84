"""The reviewer that asks a model: the built-in one of ``auto_approve`` (TOL-11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, final

import attrs

from greenroom.actors.observers import SideRequests
from greenroom.actors.providers import Provider, RateGate, generate_text
from greenroom.protocol import (
    ASK_USER,
    ChatMessage,
    GreenroomError,
    ModelRequest,
    Review,
    ReviewedCall,
    Usage,
    add_usage,
    can_be_reviewed,
    parse_review,
    review_messages,
)

MAX_REVIEW_TOKENS: Final = 2_000
"""Enough for a model that thinks before its one line."""


def _uncounted(_: Usage) -> None:
    pass


@final
@attrs.frozen
class ModelReviewer:
    """Asks the session's own model, in a request of its own."""

    provider: Provider
    model: str
    now: Callable[[], float]
    random: Callable[[], float]
    gate: RateGate | None = None
    """The provider's: a review waits in its queue like everything else (TRY-20)."""
    spend: Callable[[Usage], object] = _uncounted
    """Told what a review used, so that the turn's budget sees it."""
    requests: Callable[[], SideRequests] | None = None
    """Makes what tells observers of one review."""

    async def review(
        self, call: ReviewedCall, conversation: Sequence[ChatMessage]
    ) -> Review:
        """Return the model's decision; without a clear one, ask the user."""
        if not can_be_reviewed(call):
            return ASK_USER
        request = ModelRequest(
            model=self.model,
            messages=review_messages(call, conversation),
            max_output_tokens=MAX_REVIEW_TOKENS,
        )
        told = _Told(None if self.requests is None else self.requests())
        told.begin(self.provider.id, self.model)
        try:
            text = await self._ask(request, told)
        except GreenroomError as exc:
            told.end("error", exc.code)
            return ASK_USER
        except BaseException:
            told.end("aborted")
            raise
        told.end("completed")
        return parse_review(text)

    async def _ask(self, request: ModelRequest, told: _Told) -> str:
        def spend(usage: Usage) -> None:
            told.usage = add_usage(told.usage, usage)
            self.spend(usage)

        return await generate_text(
            self.provider,
            request,
            now=self.now,
            random=self.random,
            gate=self.gate,
            spend=spend,
        )


@final
@attrs.define(eq=False)
class _Told:
    # What observers are told of one review, if there are any.
    requests: SideRequests | None
    usage: Usage | None = None

    def begin(self, provider: str, model: str) -> None:
        if self.requests is not None:
            self.requests.begin(provider, model)

    def end(
        self, status: Literal["completed", "error", "aborted"], error: str | None = None
    ) -> None:
        if self.requests is not None:
            self.requests.end(status, usage=self.usage, error=error)
