"""The reviewer that asks a model: the built-in one of ``auto_approve`` (TOL-11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final, final

import attrs

from greenroom.actors.backend import SideRequests
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

from ._attempt import ProviderRaisedError

MAX_REVIEW_TOKENS: Final = 2_000
"""Enough for a model that thinks before its one line."""


@final
@attrs.frozen
class ModelReviewer:
    """Asks the session's own model, in a request of its own."""

    provider: Provider
    model: str
    now: Callable[[], float]
    random: Callable[[], float]
    gate: RateGate
    """The provider's: a review waits in its queue like everything else (TRY-20)."""
    spend: Callable[[Usage], object]
    """Told what a review used, so that the turn's budget sees it."""
    requests: Callable[[], SideRequests]
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
        used, told = list[Usage](), self.requests()
        told.begin(self.provider.id, self.model)
        try:
            text = await self._ask(request, used)
        except Exception as exc:
            known = isinstance(exc, GreenroomError)
            code = exc.code if known else ProviderRaisedError.code
            told.end("error", usage=_sum(used), error=code)
            return ASK_USER
        except BaseException:
            told.end("aborted", usage=_sum(used))
            raise
        told.end("completed", usage=_sum(used))
        return parse_review(text)

    async def _ask(self, request: ModelRequest, used: list[Usage]) -> str:
        def spend(usage: Usage) -> None:
            self.spend(usage)
            used.append(usage)

        return await generate_text(
            self.provider,
            request,
            now=self.now,
            random=self.random,
            gate=self.gate,
            spend=spend,
        )


def _sum(used: Sequence[Usage]) -> Usage | None:
    return reduce(add_usage, used, None)
