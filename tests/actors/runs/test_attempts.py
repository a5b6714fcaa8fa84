from __future__ import annotations

from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
from kit.attempts import attempts_of as attempts
from kit.rehearsal import Probe, calls_of, open_stage, replies, spy_on
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.providers import Call, End, Fail, Halt, Hang, Say, Think, Use
from greenroom.actors.runs._attempts import Attempts
from greenroom.actors.sessions import SessionClosedError
from greenroom.protocol import (
    MAX_SAFE_INTEGER,
    ImageData,
    InternalError,
    PermissionAsked,
    PlanProposed,
    ProviderFailure,
    ProviderSearch,
    ProviderUrlSource,
    RateLimited,
    ReasoningDelta,
    StatusChanged,
    Stop,
    StreamEvent,
    TextDelta,
    ToolCallChunk,
    ToolCallEnd,
    ToolCallStart,
    Usage,
    UsageReported,
)

DONE = [Say("done"), Halt()]
BUSY = [Fail("overloaded", status=503)]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]


def decisions(stage):
    return [attempt["retryDecision"] for attempt in attempts(stage)]


class RawProvider:
    """Streams exactly these events, one list for each attempt."""

    id = "raw"
    replayable = True
    max_told_ms = 60_000

    def __init__(self, *streams):
        self.streams = list(streams)
        self.requests = []

    @asynccontextmanager
    async def stream(self, request, *, waiting=None):
        self.requests.append(request)
        events = self.streams.pop(0)

        async def play():
            for event in events:
                await trio.lowlevel.checkpoint()
                if event is Hang:
                    await trio.sleep_forever()
                yield event

        playing = play()
        try:
            yield playing
        finally:
            await playing.aclose()


FAILED = ProviderFailure(message="overloaded", status=503)
WELL = [TextDelta("done"), Stop(reason="complete")]


@pytest.mark.contract("TRY-03")
async def test_a_round_is_tried_again_twice_and_the_next_one_afresh(
    tmp_path, autojump_clock: MockClock
):
    script = replies(BUSY, BUSY, ASK, BUSY, BUSY, DONE)
    async with open_stage(tmp_path, script, Probe()) as stage:
        assert (await stage.session.prompt("go")).outcome == "completed"
        assert decisions(stage) == [
            *["retry_scheduled"] * 2,
            "none",
            *["retry_scheduled"] * 2,
            "none",
        ]
    (tmp_path / "b").mkdir()
    async with open_stage(tmp_path / "b", replies(BUSY, BUSY, BUSY, DONE)) as stage:
        turn = await stage.session.prompt("go")
        assert (turn.outcome, turn.stop_reason) == ("error", "provider_error")
        assert decisions(stage)[-1] == "retry_budget_exhausted"
        assert len(stage.provider.requests) == 3


@pytest.mark.contract("TRY-06")
async def test_the_wait_for_a_retry_hears_a_cancel_at_once(tmp_path):
    slow = [Fail("busy", status=429, headers={"retry-after": "50"})]
    async with open_stage(tmp_path, replies(slow, DONE)) as stage:
        results = []

        async def prompt():
            results.append(await stage.session.prompt("go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            async with stage.session.follow() as feed:
                status = await feed.__anext__()
                assert isinstance(status, StatusChanged)
                assert status.waiting_for == "backoff"
                assert status.remaining is not None
                assert 49 <= status.remaining <= 50
            await stage.session.cancel()
        assert results[0].stop_reason == "user_stop"
        assert len(stage.provider.requests) == 1


@pytest.mark.contract("TRY-06")
@pytest.mark.parametrize("delay", [float("nan"), float("inf"), -1.0])
async def test_a_delay_that_is_none_is_a_bug(delay):
    waits = Attempts(*[None] * 6)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InternalError):
        await waits._wait(delay)


COMMITTING: list[StreamEvent] = [
    TextDelta("x"),
    ReasoningDelta("x"),
    ToolCallStart(index=0, id="a", name="probe"),
    ToolCallChunk(index=0, text="x"),
    ToolCallEnd(index=0, id="a", name="probe", arguments="{}"),
    PermissionAsked(id="a", title="t", payload={}),
    ImageData(media_type="image/png", data="AA=="),
    RateLimited(text="x"),
    ProviderSearch(id="a", payload={}),
    ProviderUrlSource(url="u"),
    PlanProposed(entries=()),
]
CONTROL: list[StreamEvent] = [
    UsageReported(usage=Usage(input=1, output=1, total=2)),
    FAILED,
]


@pytest.mark.contract("TRY-11")
@pytest.mark.parametrize(
    "event", [*COMMITTING, *CONTROL], ids=lambda e: type(e).__name__
)
async def test_every_event_but_the_control_ones_commits_output(
    tmp_path, autojump_clock: MockClock, event
):
    provider = RawProvider([event, FAILED], WELL)
    async with open_stage(tmp_path, [], Probe(), provider=provider) as stage:
        turn = await stage.session.prompt("go")
        retried = event in CONTROL
        assert len(provider.requests) == (2 if retried else 1)
        assert (turn.outcome == "completed") == retried


@pytest.mark.contract("TRY-11", "TRY-13")
async def test_a_stop_alone_is_kept_until_the_decision(tmp_path):
    # A stop without anything is no success, and nothing of it was passed on.
    provider = RawProvider([Stop(reason="complete"), FAILED], WELL)
    async with open_stage(tmp_path, [], provider=provider) as stage:
        turn = await stage.session.prompt("go")
        assert len(provider.requests) == 2
        assert turn.text == "done"


@pytest.mark.contract("TRY-12")
async def test_an_overflow_after_output_has_a_code_of_its_own(tmp_path):
    long = ProviderFailure(message="maximum context length is 10 tokens", status=400)
    provider = RawProvider([TextDelta("half"), long], WELL)
    async with open_stage(tmp_path, [], provider=provider) as stage:
        turn = await stage.session.prompt("go")
        assert len(provider.requests) == 1
        assert turn.text == "half"
        assert turn.message.metadata.error_code == "context_overflow_after_output"
        assert decisions(stage) == ["output_committed"]


@pytest.mark.contract("TRY-13")
async def test_an_empty_end_is_tried_again_and_one_after_output_is_not(
    tmp_path, autojump_clock: MockClock
):
    script = replies([End()], ASK, [Think("hm"), End()], DONE)
    async with open_stage(tmp_path, script, Probe()) as stage:
        turn = await stage.session.prompt("go")
        assert (turn.outcome, len(stage.provider.requests)) == ("error", 3)
        assert turn.message.metadata.error_code == "premature_eof"
        assert [b.text for b in turn.message.blocks if b.id.endswith(".1")] == ["hm"]  # pyright: ignore[reportAttributeAccessIssue]
        assert [a["errorCode"] for a in attempts(stage)] == [
            "premature_eof",
            None,
            "premature_eof",
        ]


DECISIONS = {
    "none": ([DONE], {}),
    "retry_scheduled": ([BUSY, DONE], {}),
    "retry_budget_exhausted": ([BUSY, BUSY, BUSY], {}),
    "retry_after_exceeds_limit": (
        [[Fail("busy", status=429, headers={"retry-after": "61"})]],
        {},
    ),
    "output_committed": ([[Say("a"), Fail("overloaded", status=503)]], {}),
    "not_retryable": ([[Fail("no such model", status=404)]], {}),
    "not_retryable for this provider": ([BUSY], {"replayable": False}),
    "output_committed by an overflow": (
        [[Say("a"), Fail("prompt is too long", status=400)]],
        {},
    ),
}


@pytest.mark.contract("TRY-14")
@pytest.mark.parametrize("case", DECISIONS)
async def test_each_decision_is_recorded_with_its_attempt(
    tmp_path, autojump_clock: MockClock, case
):
    rounds, options = DECISIONS[case]
    async with open_stage(tmp_path, replies(*rounds), **options) as stage:
        await stage.session.prompt("go")
        wanted = case.split()[0]
        assert wanted in decisions(stage)
        if wanted not in ("retry_scheduled", "none"):
            assert decisions(stage)[-1] == wanted


async def test_a_refused_wait_says_how_long_the_server_asked_for(tmp_path):
    asked = [Fail("busy", status=429, headers={"retry-after": "3600"})]
    async with open_stage(tmp_path, replies(asked)) as stage:
        turn = await stage.session.prompt("go")
        assert "3600 s" in (turn.error or "")


@pytest.mark.contract("TRY-16")
async def test_usage_of_attempts_is_summed_and_kept_apart_on_the_tape(
    tmp_path, autojump_clock: MockClock
):
    first = [Use(5, 1), Use(9, 2), Fail("overloaded", status=503)]
    second = [Use(10, 1), Say("x"), Use(10, 4), Halt()]
    async with open_stage(tmp_path, replies(first, second)) as stage:
        turn = await stage.session.prompt("go")
        assert turn.usage == Usage(input=19, output=6, total=25)
        kept = [a["usage"] for a in attempts(stage)]
        assert kept == [
            {"input": 9, "output": 2, "total": 11},
            {"input": 10, "output": 4, "total": 14},
        ]


@pytest.mark.contract("TRY-16")
async def test_a_sum_that_is_no_safe_integer_is_an_error_and_not_a_wrong_number(
    tmp_path,
):
    huge = Usage(input=MAX_SAFE_INTEGER, output=0, total=MAX_SAFE_INTEGER)
    one = [UsageReported(usage=huge)]
    call = ToolCallEnd(index=0, id="a", name="probe", arguments="{}")
    provider = RawProvider([*one, call, Stop(reason="tool_use")], [*one, *WELL])
    async with open_stage(tmp_path, [], Probe(), provider=provider) as stage:
        turn = await stage.session.prompt("go")
        assert turn.outcome == "error"
        assert "safe integer" in (turn.error or "")


@pytest.mark.contract("TRY-17")
@pytest.mark.parametrize("number", range(4))
async def test_a_cancel_at_any_event_records_exactly_one_attempt(tmp_path, number):
    events = [TextDelta("a"), TextDelta("b"), TextDelta("c")]
    provider = RawProvider([*events[:number], Hang])
    async with open_stage(tmp_path, [], provider=provider) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            await stage.session.cancel()
        (attempt,) = attempts(stage)
        assert attempt["status"] == "aborted"
        assert attempt["retryDecision"] == (
            "output_committed" if number else "not_retryable"
        )


FIELDS = {
    "schema",
    "messageId",
    "logicalRound",
    "requestSeq",
    "physicalAttempt",
    "requestOrigin",
    "attemptOrigin",
    "provider",
    "model",
    "status",
    "stopReason",
    "failureClassification",
    "retryDecision",
    "httpStatus",
    "errorCode",
    "retryDelayMs",
    "usage",
    "cacheHitRate",
    "contextPressure",
}


@pytest.mark.contract("TRY-18")
async def test_an_attempt_event_has_a_fixed_set_of_fields(
    tmp_path, autojump_clock: MockClock
):
    busy = [Fail("busy", code="rate_limited", status=429, headers={"retry-after": "2"})]
    good = [Use(10, 2, cache_read=4), *ASK]
    odd = [Use(10, 2, cache_read=40), *DONE]
    async with open_stage(tmp_path, replies(busy, good, odd), Probe()) as stage:
        turn = await stage.session.prompt("go")
        first, second, third = attempts(stage)
        assert set(first) == set(second) == set(third) == FIELDS
        assert first == {
            "schema": 2,
            "messageId": turn.message.id,
            "logicalRound": 1,
            "requestSeq": 1,
            "physicalAttempt": 1,
            "requestOrigin": "chat",
            "attemptOrigin": "initial",
            "provider": "rehearsal",
            "model": "default",
            "status": "error",
            "stopReason": None,
            "failureClassification": "transient",
            "retryDecision": "retry_scheduled",
            "httpStatus": 429,
            "errorCode": "rate_limited",
            "retryDelayMs": 2000,
            "usage": None,
            "cacheHitRate": None,
            "contextPressure": None,
        }
        assert (second["attemptOrigin"], second["physicalAttempt"]) == (
            "transient_retry",
            2,
        )
        assert (second["cacheHitRate"], third["cacheHitRate"]) == (0.4, None)
        assert (second["requestOrigin"], third["requestOrigin"]) == (
            "chat",
            "tool_loop",
        )


@pytest.mark.contract("TRY-18")
async def test_an_attempt_that_cannot_be_recorded_changes_nothing(tmp_path):
    async with open_stage(tmp_path, replies(ASK, DONE), Probe()) as stage:
        spy = spy_on(stage)
        spy.inner = Unrecorded(spy.inner)
        assert (await stage.session.prompt("go")).outcome == "completed"
        assert attempts(stage) == []


class Unrecorded:
    """A record that loses every fact nobody waits for."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def append_soon(self, facts):
        pass


@pytest.mark.contract("TRY-19")
async def test_watchers_and_tape_know_nothing_of_retries_as_such(
    tmp_path, autojump_clock: MockClock
):
    async with open_stage(tmp_path, replies(BUSY, DONE)) as stage:
        async with stage.session.follow() as feed:
            await stage.session.prompt("go")
            stage.session._sessions.hub(stage.session.id).close()
            events = [event async for event in feed]
        said = repr(events) + repr(stage.names())
        for word in ("retry_scheduled", "retry_started", "retry_finished"):
            assert word not in said


@pytest.mark.contract("TRY-02")
@pytest.mark.parametrize(("replayable", "sends"), [(True, 3), (False, 1)])
async def test_chat_is_replayed_unless_its_provider_may_not_be(
    tmp_path, autojump_clock: MockClock, replayable, sends
):
    async with open_stage(tmp_path, lambda _: BUSY, replayable=replayable) as stage:
        assert (await stage.session.prompt("go")).outcome == "error"
        assert len(stage.provider.requests) == sends


@pytest.mark.contract("TRY-01")
async def test_a_transient_fault_is_sent_three_times_and_a_permanent_one_once(
    tmp_path, autojump_clock: MockClock
):
    import httpx2

    from greenroom.actors.providers import ChatCompletionsProvider

    for status, sends in ((503, 3), (401, 1)):
        seen = []

        class Failing(httpx2.AsyncBaseTransport):
            async def handle_async_request(self, request, seen=seen, status=status):
                seen.append(request)
                body = httpx2.ByteStream(b'{"error": {"message": "no"}}')
                return httpx2.Response(status, stream=body)

        folder = tmp_path / str(status)
        folder.mkdir()
        provider = ChatCompletionsProvider("http://x/v1", transport=Failing())
        async with (
            provider,
            open_stage(folder, [], provider=provider) as stage,
        ):
            turn = await stage.session.prompt("go")
            assert turn.outcome == "error"
            assert len(seen) == sends


@pytest.mark.contract("TRY-24")
async def test_a_silent_stream_is_ended_and_shown_while_it_lasts(
    tmp_path, autojump_clock: MockClock
):
    import httpx2

    from greenroom.actors.providers import ChatCompletionsProvider

    class Silent(httpx2.AsyncByteStream):
        def __init__(self, *chunks):
            self.chunks = chunks

        async def __aiter__(self):
            for chunk in self.chunks:
                yield chunk
            await trio.sleep_forever()

        async def aclose(self):
            pass

    text = b'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n'
    bodies = [Silent(), Silent(text)]

    class Transport(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request):
            headers = {"content-type": "text/event-stream"}
            return httpx2.Response(200, headers=headers, stream=bodies.pop(0))

    provider = ChatCompletionsProvider("http://x/v1", transport=Transport())
    async with provider, open_stage(tmp_path, [], provider=provider) as stage:
        async with stage.session.follow() as feed:
            started = trio.current_time()
            turn = await stage.session.prompt("go")
            # Nothing at all: tried again. Silence after text: kept, and a failure.
            assert 240 <= trio.current_time() - started < 250
            stage.session._sessions.hub(stage.session.id).close()
            waits = [getattr(event, "waiting_for", None) async for event in feed]
        assert {"first_byte", "stream"} & set(waits)
        assert (turn.outcome, turn.text) == ("error", "half")
        assert [a["retryDecision"] for a in attempts(stage)] == [
            "retry_scheduled",
            "output_committed",
        ]


@pytest.mark.contract("TRY-25")
def test_the_alphabet_is_closed():
    assert msgspec.json.decode(b'{"type":"text","text":"x"}', type=StreamEvent)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"type":"telepathy","text":"x"}', type=StreamEvent)


@pytest.mark.contract("TRY-25")
async def test_a_signature_survives_pause_restart_and_resume_byte_for_byte(tmp_path):
    from greenroom.protocol import Grant, StreamCompleted

    signed = {"signature": 'é\u2028+/=\\"', "nested": [1, {"a": None}]}
    first = [Think("hm", signed), *ASK]
    probe = Probe(permission="?")
    async with trio.open_nursery() as outside:  # noqa: SIM117 - leaves first
        async with open_stage(tmp_path, replies(first), probe) as stage:
            session_id = stage.session.id

            async def prompt():
                with pytest.raises(SessionClosedError):
                    await stage.session.prompt("go")

            outside.start_soon(prompt)
            await wait_all_tasks_blocked()
            (asked,) = await stage.session.interactions()
    script = replies(DONE)
    async with open_stage(tmp_path, script, probe, session_id=session_id) as stage:
        async with stage.session.follow() as feed:
            await stage.session.answer(asked.id, Grant())
            async for event in feed:
                if isinstance(event, StreamCompleted):
                    break
        message = stage.provider.requests[0].messages[1]
        assert message.reasoning[0].options == signed  # pyright: ignore[reportAttributeAccessIssue]
        (_, stored) = await stage.session.messages()
        assert calls_of(stored)
