"""The reviewer that asks a model: the built-in one of ``auto_approve`` (TOL-11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, final

import attrs

from greenroom.actors.providers import Provider, RateGate, generate_text
from greenroom.protocol import (
    ASK_USER,
    ChatMessage,
    GreenroomError,
    ModelRequest,
    Review,
    ReviewedCall,
    Usage,
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
        try:
            text = await generate_text(
                self.provider,
                request,
                now=self.now,
                random=self.random,
                gate=self.gate,
                spend=self.spend,
            )
        except GreenroomError:
            return ASK_USER
        return parse_review(text)
