"""One request, one text: for summaries and titles, outside any run.

It has a retry policy of its own (TRY-02). Nothing is passed on before the reply is
whole, so a broken reply can be asked for again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import trio

from greenroom.protocol import (
    ModelRequest,
    ProviderFailure,
    RetryBudget,
    RetryDecision,
    Stop,
    TextDelta,
    classify_failure,
    decide_retry,
    server_delay_ms,
)
from greenroom.protocol.providers import make_failure

from ._errors import provider_error
from ._port import Provider

ONE_SHOT_RETRIES: Final = 2


async def generate_text(
    provider: Provider,
    request: ModelRequest,
    *,
    now: Callable[[], float],
    random: Callable[[], float],
    retries: int = ONE_SHOT_RETRIES,
) -> str:
    """Return the text of the reply to *request*.

    A reply that was cut at the output limit counts, as far as it goes.

    Args:
        now: the time since the epoch, in seconds.
        random: a number from 0 to 1, for the backoff.

    Raises:
        ProviderError: there was none; the class says what could be done about it.
    """
    budget = RetryBudget(limit=retries)
    while True:
        answer = await _ask(provider, request)
        if isinstance(answer, str):
            return answer
        verdict = decide_retry(
            classify_failure(answer),
            budget,
            committed=False,
            random_value=random(),
            told_ms=server_delay_ms(answer.headers, now()),
            replayable=provider.replayable,
            max_told_ms=provider.max_told_ms,
        )
        if verdict.decision is not RetryDecision.RETRY_SCHEDULED:
            raise provider_error(answer, verdict, attempts=budget.used + 1)
        budget = budget.spend()
        await trio.sleep((verdict.delay_ms or 0) / 1_000)


async def _ask(provider: Provider, request: ModelRequest) -> str | ProviderFailure:
    reply = _Reply()
    async with provider.stream(request) as events:
        async for event in events:
            match event:
                case TextDelta(text=text):
                    reply.parts.append(text)
                case ProviderFailure():
                    return event
                case Stop():
                    reply.stop = event
                case _:
                    pass
    return reply.result()


@attrs.define(eq=False)
class _Reply:
    parts: list[str] = attrs.field(factory=list[str])
    stop: Stop | None = None

    def result(self) -> str | ProviderFailure:
        if self.stop is None:
            text = "the reply ended before it was whole"
            return make_failure(text, "premature_eof", retryable=True)
        if not self.parts:
            return make_failure("the reply holds no text", "no_model_response")
        return "".join(self.parts)
