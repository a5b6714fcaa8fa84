"""One request, one text: for summaries and titles, outside any run.

It has a retry policy of its own (TRY-02). Nothing is passed on before the reply is
whole, so a broken reply can be asked for again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, TypeVar

import attrs
import trio

from greenroom.protocol import (
    MAX_SERVER_DELAY_MS,
    ModelRequest,
    ProviderFailure,
    RetryBudget,
    RetryDecision,
    Stop,
    TextDelta,
    Usage,
    UsageReported,
    classify_failure,
    decide_retry,
    is_counted,
    server_delay_ms,
)
from greenroom.protocol.providers import make_failure

from ._errors import provider_error
from ._port import Provider, may_replay
from ._rate_gate import RateGate

OneShotKind = Literal["text", "embedding", "image", "video", "speech", "acp"]

CLIENT_RETRIES: Final[Mapping[OneShotKind, int]] = {
    "text": 2,
    "embedding": 2,
    # What costs much, or has an effect, is never sent again.
    "image": 0,
    "video": 0,
    "speech": 0,
    "acp": 0,
}
"""Retries of a request outside a run, by what is asked for. Chat has none here: the
attempts of its run own them (TRY-01)."""

T = TypeVar("T")


async def ask_once(
    kind: OneShotKind,
    send: Callable[[], Awaitable[T | ProviderFailure]],
    *,
    now: Callable[[], float],
    random: Callable[[], float],
    retries: int | None = None,
    replayable: bool = True,
    max_told_ms: int = MAX_SERVER_DELAY_MS,
) -> T:
    """Return what *send* brings, sent again as often as the policy of *kind* allows.

    Args:
        send: one physical attempt; a failure is returned, not raised.
        now: the time since the epoch, in seconds.
        random: a number from 0 to 1, for the backoff.
        retries: instead of the policy's.
        replayable: whether the provider may be asked again at all.
        max_told_ms: the longest wait that the server may ask for.

    Raises:
        ProviderError: it failed; the class says what could be done about it.
    """
    budget = RetryBudget(limit=CLIENT_RETRIES[kind] if retries is None else retries)
    while True:
        answer = await send()
        if not isinstance(answer, ProviderFailure):
            return answer
        verdict = decide_retry(
            classify_failure(answer),
            budget,
            committed=False,
            random_value=random(),
            told_ms=server_delay_ms(answer.headers, now()),
            replayable=replayable,
            max_told_ms=max_told_ms,
        )
        if verdict.decision is not RetryDecision.RETRY_SCHEDULED:
            raise provider_error(answer, verdict, attempts=budget.used + 1)
        budget = budget.spend()
        await trio.sleep((verdict.delay_ms or 0) / 1_000)


def _uncounted(_: Usage) -> None:
    pass


async def generate_text(
    provider: Provider,
    request: ModelRequest,
    *,
    now: Callable[[], float],
    random: Callable[[], float],
    retries: int | None = None,
    gate: RateGate | None = None,
    spend: Callable[[Usage], object] = _uncounted,
) -> str:
    """Return the text of the reply to *request*.

    A reply that was cut at the output limit counts, as far as it goes.

    Args:
        now: the time since the epoch, in seconds.
        random: a number from 0 to 1, for the backoff.
        retries: instead of those of the policy (TRY-02).
        gate: the provider's, which every attempt enters (TRY-20).
        spend: told the usage of every attempt that reports one.

    Raises:
        ProviderError: there was none; the class says what could be done about it.
    """

    async def send() -> str | ProviderFailure:
        if gate is not None:
            await gate.enter(lambda until: None)
        return await _ask(provider, request, spend)

    return await ask_once(
        "text",
        send,
        now=now,
        random=random,
        retries=retries,
        replayable=may_replay(provider),
        max_told_ms=provider.max_told_ms,
    )


async def _ask(
    provider: Provider, request: ModelRequest, spend: Callable[[Usage], object]
) -> str | ProviderFailure:
    reply = _Reply()
    try:
        return await _read(provider, request, reply)
    finally:
        # Also of an attempt that failed or was cancelled.
        if reply.usage is not None:
            spend(reply.usage)


async def _read(
    provider: Provider, request: ModelRequest, reply: _Reply
) -> str | ProviderFailure:
    async with provider.stream(request) as events:
        async for event in events:
            match event:
                case UsageReported(usage=usage) if is_counted(usage):
                    reply.usage = usage
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
    usage: Usage | None = None

    def result(self) -> str | ProviderFailure:
        if self.stop is None:
            text = "the reply ended before it was whole"
            return make_failure(text, "premature_eof", retryable=True)
        if not self.parts:
            return make_failure("the reply holds no text", "no_model_response")
        return "".join(self.parts)
