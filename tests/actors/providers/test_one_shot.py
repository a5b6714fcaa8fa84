"""One request, one text, with two retries."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import attrs
import pytest
import trio
from trio.testing import MockClock

from greenroom.actors.providers import (
    CLIENT_RETRIES,
    ContextOverflowError,
    OneShotKind,
    Provider,
    ProviderError,
    ProviderRefusedError,
    ProviderUnavailableError,
    RateGate,
    RateLimit,
    Waiting,
    ask_once,
    generate_text,
    ignore_waiting,
)
from greenroom.protocol import (
    ModelRequest,
    ProviderFailure,
    ReasoningDelta,
    Stop,
    StreamEvent,
    TextDelta,
    TextPart,
    Usage,
    UsageReported,
    UserMessage,
)
from greenroom.protocol.providers import Overflow

REQUEST: Final = ModelRequest(model="m", messages=(UserMessage((TextPart("hi"),)),))
STOP: Final = Stop(reason="complete", raw="stop")
BUSY: Final = ProviderFailure(message="busy", status=503)
REFUSED: Final = ProviderFailure(message="bad key", status=401, code="invalid_api_key")


@attrs.define(eq=False)
class Scripted:
    """Gives one list of events after the other."""

    replies: Sequence[Sequence[StreamEvent]]
    replayable: bool = True
    id: str = "scripted"
    max_told_ms: int = 60_000
    sends: int = 0

    @asynccontextmanager
    async def stream(
        self, request: ModelRequest, *, waiting: Waiting = ignore_waiting
    ) -> AsyncGenerator[AsyncIterator[StreamEvent], None]:
        assert request is REQUEST
        reply = _Events(list(self.replies[self.sends]))
        self.sends += 1
        yield reply


@attrs.define(eq=False)
class _Events:
    left: list[StreamEvent]

    def __aiter__(self) -> _Events:
        return self

    async def __anext__(self) -> StreamEvent:
        await trio.lowlevel.checkpoint()
        if not self.left:
            raise StopAsyncIteration
        return self.left.pop(0)


async def text_from(
    provider: Provider, retries: int | None = None, gate: RateGate | None = None
) -> str:
    return await generate_text(
        provider,
        REQUEST,
        now=lambda: 0.0,
        random=lambda: 0.0,
        retries=retries,
        gate=gate,
    )


async def error_from(*replies: Sequence[StreamEvent], sends: int) -> ProviderError:
    provider = Scripted(replies)
    with pytest.raises(ProviderError) as caught:
        await text_from(provider)
    assert provider.sends == caught.value.attempts == sends
    return caught.value


async def test_the_text_of_a_reply_is_returned() -> None:
    events = [ReasoningDelta("hm"), TextDelta("a"), TextDelta("b"), STOP]

    assert await text_from(Scripted([events])) == "ab"


async def test_a_reply_that_is_cut_counts_as_far_as_it_goes() -> None:
    cut = Stop(reason="max_tokens", raw="length")

    assert await text_from(Scripted([[TextDelta("a"), cut]])) == "a"


async def test_a_broken_reply_is_asked_for_again_and_nothing_of_it_is_kept(
    autojump_clock: MockClock,
) -> None:
    provider = Scripted(
        [[TextDelta("lost"), BUSY], [TextDelta("lost")], [TextDelta("kept"), STOP]]
    )
    started = trio.current_time()

    assert await text_from(provider) == "kept"
    assert provider.sends == 3
    assert trio.current_time() - started == pytest.approx(0.5 + 1.0)


async def test_a_told_delay_is_waited_for_exactly(autojump_clock: MockClock) -> None:
    told = ProviderFailure(message="wait", status=429, headers={"retry-after": "7"})
    started = trio.current_time()

    assert await text_from(Scripted([[told], [TextDelta("a"), STOP]])) == "a"
    assert trio.current_time() - started == pytest.approx(7)


async def test_two_retries_are_all(autojump_clock: MockClock) -> None:
    error = await error_from([BUSY], [BUSY], [BUSY], sends=3)

    assert isinstance(error, ProviderUnavailableError)
    assert str(error) == "busy (after 3 attempts)"
    assert "try again later" in (error.hint or "")


SENDS = {"text": 3, "embedding": 3, "image": 1, "video": 1, "speech": 1, "acp": 1}


@pytest.mark.contract("TRY-02")
@pytest.mark.parametrize("kind", SENDS)
async def test_how_often_is_sent_depends_on_what_is_asked_for(
    autojump_clock: MockClock, kind: OneShotKind
) -> None:
    sends: list[float] = []

    async def send() -> ProviderFailure:
        await trio.lowlevel.checkpoint()
        sends.append(trio.current_time())
        return BUSY

    with pytest.raises(ProviderUnavailableError) as caught:
        await ask_once(kind, send, now=lambda: 0.0, random=lambda: 0.0)
    assert len(sends) == caught.value.attempts == SENDS[kind]
    assert set(SENDS) == set(CLIENT_RETRIES)


@pytest.mark.contract("TRY-02")
async def test_text_is_asked_for_by_that_policy(autojump_clock: MockClock) -> None:
    error = await error_from([BUSY], [BUSY], [BUSY], sends=SENDS["text"])

    assert isinstance(error, ProviderUnavailableError)


async def test_every_attempt_at_a_text_enters_the_gate(
    autojump_clock: MockClock,
) -> None:
    gate, started = RateGate(RateLimit(qps=0.1)), trio.current_time()
    provider = Scripted([[BUSY], [BUSY], [TextDelta("a"), STOP]])

    assert await text_from(provider, gate=gate) == "a"
    assert trio.current_time() - started == pytest.approx(20)


async def test_retries_can_be_left_out() -> None:
    with pytest.raises(ProviderUnavailableError):
        await text_from(Scripted([[BUSY]]), retries=0)


@pytest.mark.contract("TRY-08")
async def test_a_refusal_is_not_asked_again() -> None:
    error = await error_from([REFUSED], sends=1)

    assert isinstance(error, ProviderRefusedError)
    assert (str(error), error.code) == ("bad key", "invalid_api_key")
    assert error.hint == "check the API key"
    assert error.failure is REFUSED


async def test_a_wait_that_is_too_long_is_told_and_not_waited_for() -> None:
    told = ProviderFailure(message="wait", status=429, headers={"retry-after": "61"})

    error = await error_from([told], sends=1)
    assert isinstance(error, ProviderUnavailableError)
    assert error.retry_after_ms == 61_000
    assert error.hint == "the provider asks to wait 61 s"


async def test_how_long_a_wait_may_be_is_the_providers_to_say(
    autojump_clock: MockClock,
) -> None:
    told = ProviderFailure(message="wait", status=429, headers={"retry-after": "61"})
    provider = Scripted([[told], [TextDelta("a"), STOP]], max_told_ms=61_000)

    assert await text_from(provider) == "a"


async def test_a_request_that_is_too_large_says_how_large() -> None:
    said = "prompt is too long: 20 tokens > 10 maximum"

    error = await error_from([ProviderFailure(message=said, status=400)], sends=1)
    assert isinstance(error, ContextOverflowError)
    assert error.overflow == Overflow("explicit", 20, 10)


async def test_a_reply_without_text_is_an_error() -> None:
    error = await error_from([ReasoningDelta("hm"), STOP], sends=1)

    assert error.code == "no_model_response"
    assert type(error) is ProviderError


async def test_a_reply_that_never_stops_is_an_error(autojump_clock: MockClock) -> None:
    error = await error_from(*[[TextDelta("a")]] * 3, sends=3)

    assert error.code == "premature_eof"


async def test_a_provider_that_is_not_replayable_is_asked_once() -> None:
    provider = Scripted([[BUSY]], replayable=False)

    with pytest.raises(ProviderUnavailableError):
        await text_from(provider)
    assert provider.sends == 1


async def test_a_cancel_during_the_wait_sends_nothing_more(
    autojump_clock: MockClock,
) -> None:
    provider = Scripted([[BUSY], [TextDelta("a"), STOP]])

    with trio.move_on_after(0.4) as scope:
        await text_from(provider)
    assert scope.cancelled_caught
    assert provider.sends == 1


async def test_what_can_be_no_number_of_tokens_is_not_spent() -> None:
    real, absurd = Usage(input=3, output=4, total=7), Usage(input=-3, output=0, total=0)
    told = [UsageReported(usage=usage) for usage in (real, absurd)]
    provider, spent = Scripted([[TextDelta("x"), *told, STOP]]), list[Usage]()
    await generate_text(
        provider, REQUEST, now=lambda: 0.0, random=lambda: 0.0, spend=spent.append
    )
    assert spent == [real]
