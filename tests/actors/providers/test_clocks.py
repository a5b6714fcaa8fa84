"""How long a provider may be silent, on a clock that the tests own."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, cast

import attrs
import httpx2
import pytest
import trio
from trio.testing import MockClock

from greenroom.actors.providers import ChatCompletionsProvider, Clocks
from greenroom.protocol import (
    FailureClass,
    ModelRequest,
    ProviderFailure,
    RetryBudget,
    RetryDecision,
    Stop,
    StreamEvent,
    TextDelta,
    TextPart,
    UserMessage,
    classify_failure,
    decide_retry,
)

REQUEST: Final = ModelRequest(model="m", messages=(UserMessage((TextPart("hi"),)),))
TEXT: Final = b'data: {"choices":[{"delta":{"content":"text"}}]}\n\n'
FINISH: Final = b'data: {"choices":[{"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
PING: Final = b": ping\n\n"
GOOD: Final = [TextDelta("text"), Stop(reason="complete", raw="stop")]
FOREVER: Final = math.inf

Cue = bytes | float | Exception
"""Bytes to give, seconds to say nothing for, or an exception to raise."""


@attrs.define(eq=False)
class Wire(httpx2.AsyncBaseTransport):
    """A transport that takes its time: to connect, to answer, and in the body."""

    body: Sequence[Cue] = ()
    connect: float | Exception = 0.0
    head: float | Exception = 0.0
    status: int = 200
    sends: int = 0
    closed: bool = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.sends += 1
        await _pass(self.connect)
        trace = request.extensions["trace"]
        await trace("http11.send_request_headers.started", {})
        await _pass(self.head)
        return httpx2.Response(self.status, stream=_Body(self))


@attrs.define(eq=False)
class _Body(httpx2.AsyncByteStream):
    wire: Wire

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        for cue in self.wire.body:
            if isinstance(cue, bytes):
                yield cue
            else:
                await _pass(cue)

    async def aclose(self) -> None:
        self.wire.closed = True


async def _pass(cue: float | Exception) -> None:
    if isinstance(cue, Exception):
        raise cue
    if cue:
        await trio.sleep(cue)


@attrs.frozen
class Outcome:
    events: list[StreamEvent]
    took: float

    @property
    def failure(self) -> ProviderFailure:
        last = self.events[-1]
        assert isinstance(last, ProviderFailure)
        return last


async def outcome(
    wire: Wire, clocks: Clocks | None = None, *, pause: float = 0.0
) -> Outcome:
    started = trio.current_time()
    events: list[StreamEvent] = []
    async with (
        ChatCompletionsProvider("http://x", transport=wire, clocks=clocks) as provider,
        provider.stream(REQUEST) as stream,
    ):
        async for event in stream:
            events.append(event)
            await trio.sleep(pause)
    return Outcome(events, trio.current_time() - started)


#### Each clock


@pytest.mark.parametrize(
    ("wire", "code", "took", "said"),
    [
        (Wire(connect=FOREVER), "connect_timeout", 5, "no connection to the provider"),
        (Wire(connect=4, head=FOREVER), "first_byte_timeout", 4 + 120, "no answer"),
        (
            Wire([FOREVER]),
            "idle_timeout",
            120,
            "not a byte from the provider for 120 s",
        ),
        (Wire([TEXT, 119.0, PING, FOREVER]), "idle_timeout", 119 + 120, "not a byte"),
        (Wire([PING, 60.0] * 99), "content_idle_timeout", 300, "but heartbeats"),
        (Wire([TEXT, *[PING, 60.0] * 99]), "content_idle_timeout", 300, "for 300 s"),
        (
            Wire([*[PING, 60.0] * 4, TEXT, *[PING, 60.0] * 9]),
            "content_idle_timeout",
            540,
            "",
        ),
        (
            Wire([b"{", *[b" ", 60.0] * 99]),
            "content_idle_timeout",
            300,
            "but heartbeats",
        ),
    ],
)
async def test_silence_ends_on_the_clock_it_belongs_to(
    wire: Wire, code: str, took: float, said: str, autojump_clock: MockClock
) -> None:
    got = await outcome(wire)

    assert (got.failure.code, got.took) == (code, pytest.approx(took))
    assert said in got.failure.message
    assert got.failure.retryable
    assert classify_failure(got.failure) is FailureClass.TRANSIENT
    assert got.events[:-1] in ([], [TextDelta("text")])
    assert wire.sends == 1


async def test_a_slow_but_healthy_provider_is_left_alone(
    autojump_clock: MockClock,
) -> None:
    wire = Wire([119.0, PING, 119.0, TEXT, 119.0, FINISH], connect=4.9, head=119)

    assert (await outcome(wire)).events == GOOD


async def test_content_starts_the_content_clock_again(
    autojump_clock: MockClock,
) -> None:
    wire = Wire([*[PING, 100.0, PING, 100.0, TEXT] * 9, FINISH])

    assert len((await outcome(wire)).events) == 9 + 1


async def test_the_time_that_the_consumer_takes_does_not_count(
    autojump_clock: MockClock,
) -> None:
    wire = Wire([TEXT, 100.0, PING, TEXT, 100.0, PING, FINISH])

    got = await outcome(wire, pause=10_000)
    assert got.events == [TextDelta("text"), *GOOD]


async def test_clocks_can_be_set_and_left_out(autojump_clock: MockClock) -> None:
    short = Clocks(connect=1, first_byte=2, idle=3, content_idle=4)
    none = Clocks(first_byte=math.inf, idle=math.inf, content_idle=math.inf)

    assert (await outcome(Wire(connect=FOREVER), short)).took == pytest.approx(1)
    assert (await outcome(Wire(head=FOREVER), short)).took == pytest.approx(2)
    assert (await outcome(Wire([FOREVER]), short)).took == pytest.approx(3)
    assert (await outcome(Wire([PING, 2.0] * 9), short)).took == pytest.approx(4)
    patient = Wire([TEXT, 10_000.0, FINISH], head=10_000)
    assert (await outcome(patient, none)).events == GOOD


@pytest.mark.parametrize("name", ["connect", "first_byte", "idle", "content_idle"])
@pytest.mark.parametrize("seconds", [0, -1, math.nan])
def test_a_clock_without_time_is_refused(name: str, seconds: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be more than 0 seconds"):
        Clocks(**{name: seconds})


async def test_what_is_waited_for_is_told_with_its_deadline(
    autojump_clock: MockClock,
) -> None:
    told: list[tuple[str, float]] = []
    started = trio.current_time()
    wire = Wire([90, PING, 90, PING, 90, PING, TEXT, FINISH], connect=2, head=7)
    async with (
        ChatCompletionsProvider("http://x", transport=wire) as provider,
        provider.stream(
            REQUEST,
            waiting=lambda reason, deadline: told.append((reason, deadline - started)),
        ) as stream,
    ):
        assert told == []
        assert [event async for event in stream] == GOOD

    assert told == [
        ("connect", pytest.approx(5)),
        ("first_byte", pytest.approx(2 + 120)),
        # With each read anew; the content clock, where it ends first.
        ("stream", pytest.approx(9 + 120)),
        ("stream", pytest.approx(99 + 120)),
        ("stream", pytest.approx(189 + 120)),
        ("stream", pytest.approx(9 + 300)),
        ("stream", pytest.approx(279 + 120)),
    ]


#### Bounds of what is not worth a wait


async def test_an_explanation_that_does_not_come_is_not_waited_for(
    autojump_clock: MockClock,
) -> None:
    got = await outcome(Wire([b"over", FOREVER], status=503))

    assert (got.failure.status, got.took) == (503, pytest.approx(5))
    assert "over" in got.failure.message


async def test_a_connection_that_stays_open_behind_the_end_is_closed(
    autojump_clock: MockClock,
) -> None:
    wire = Wire([TEXT, FINISH, FOREVER])

    got = await outcome(wire)
    assert (got.events, got.took) == (GOOD, pytest.approx(1))
    assert wire.closed


async def test_what_comes_without_end_behind_the_end_is_not_read(
    autojump_clock: MockClock,
) -> None:
    wire = Wire([TEXT, FINISH, *[b"x" * 60_000, 0.4] * 9])

    got = await outcome(wire)
    assert (got.events, got.took) == (GOOD, pytest.approx(0.4))


async def test_a_reply_that_failed_is_left_at_once(autojump_clock: MockClock) -> None:
    wire = Wire([b"data: {no json\n\n", FOREVER])

    got = await outcome(wire)
    assert (got.failure.code, got.took) == ("bad_chunk", pytest.approx(0))
    assert wire.closed


async def test_a_fault_behind_the_end_is_none(autojump_clock: MockClock) -> None:
    wire = Wire([TEXT, FINISH, httpx2.ReadError("reset")])

    assert (await outcome(wire)).events == GOOD


#### Cancel (the provider's part of RUN-15)


@pytest.mark.parametrize(
    "wire",
    [Wire(connect=FOREVER), Wire(head=FOREVER), Wire([FOREVER]), Wire([TEXT, FOREVER])],
    ids=["connect", "head", "body", "after output"],
)
async def test_a_cancel_is_heard_in_every_phase_at_once(
    wire: Wire, autojump_clock: MockClock
) -> None:
    with trio.move_on_after(1) as scope:
        await outcome(wire)

    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(scope.deadline)
    assert wire.closed or not wire.body


#### Faults of the client


def subclasses(kind: type[Exception]) -> list[type[Exception]]:
    found = [kind]
    for sub in kind.__subclasses__():
        found += subclasses(sub)
    return [kind for kind in found if kind.__module__.startswith("httpx2")]


TRANSPORT_ERRORS: Final = subclasses(httpx2.TransportError)
PERMANENT_ERRORS: Final = {httpx2.UnsupportedProtocol, httpx2.LocalProtocolError}
# Only ever base classes, and one of a part of the client that is not used.
VAGUE_ERRORS: Final = {httpx2.TransportError, httpx2.ProtocolError, httpx2.SSEError}


def test_the_errors_of_the_client_are_the_ones_we_know() -> None:
    assert len(TRANSPORT_ERRORS) == 17
    assert {*TRANSPORT_ERRORS} > PERMANENT_ERRORS | VAGUE_ERRORS


@pytest.mark.contract("TRY-09")
@pytest.mark.parametrize("kind", TRANSPORT_ERRORS)
@pytest.mark.parametrize("place", ["connect", "head", "body"])
async def test_faults_of_the_network_are_retried_and_mistakes_are_not(
    kind: type[Exception], place: str, autojump_clock: MockClock
) -> None:
    error = kind("broken")
    wire = Wire([error]) if place == "body" else Wire(**cast("Any", {place: error}))

    failure = (await outcome(wire)).failure

    assert failure.message.startswith("the connection failed: broken")
    found = classify_failure(failure)
    verdict = decide_retry(found, RetryBudget(), committed=False, random_value=0)
    is_retried = verdict.decision is RetryDecision.RETRY_SCHEDULED
    assert is_retried == (kind not in PERMANENT_ERRORS | VAGUE_ERRORS)
    if kind in VAGUE_ERRORS:
        assert found is FailureClass.UNKNOWN


async def test_a_fault_without_words_is_named_by_its_class(
    autojump_clock: MockClock,
) -> None:
    failure = (await outcome(Wire(connect=httpx2.ConnectError("")))).failure

    assert failure.message == "the connection failed: ConnectError"


async def test_a_bug_is_not_taken_for_a_fault(autojump_clock: MockClock) -> None:
    with pytest.raises(ZeroDivisionError):
        await outcome(Wire([ZeroDivisionError()]))
