"""The provider over real sockets: what servers say, and how they break."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx2
import msgspec
import pytest
import trio
from kit.raw_server import (
    LAST_CHUNK,
    RawServer,
    Step,
    chunk,
    chunked_head,
    head,
    serve_raw,
    whole,
)

from greenroom.actors.providers import ChatCompletionsProvider
from greenroom.protocol import (
    FailureClass,
    ModelRequest,
    ProviderFailure,
    Stop,
    StreamEvent,
    TextDelta,
    TextPart,
    UserMessage,
    classify_failure,
)
from greenroom.protocol.providers import PROFILES, BodyDecoder, Profile

KEY: Final = "sk-very-secret-key"
REQUEST: Final = ModelRequest(
    model="m", messages=(UserMessage((TextPart("hello"),)),), temperature=0.0
)
TRANSCRIPTS: Final = Path(__file__).parents[2] / "protocol/providers/transcripts"
BODIES: Final = {path.stem: path.read_bytes() for path in TRANSCRIPTS.iterdir()}

TEXT: Final = b'data: {"choices":[{"delta":{"content":"text"}}]}\n\n'
FINISH: Final = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
DONE: Final = b"data: [DONE]\n\n"
GOOD: Final = [TextDelta("text"), Stop(reason="complete", raw="stop")]


async def events_of(provider: ChatCompletionsProvider) -> list[StreamEvent]:
    async with provider.stream(REQUEST) as events:
        return [event async for event in events]


async def asked(server: RawServer) -> list[StreamEvent]:
    async with ChatCompletionsProvider(server.base_url, api_key=KEY) as provider:
        return await events_of(provider)


async def answered(*script: bytes | Step) -> list[StreamEvent]:
    async with serve_raw(script) as server:
        events = await asked(server)
        # Whatever the answer, it was asked for once (TRY-01).
        assert len(server.requests) == 1
        return events


async def failure_from(*script: bytes | Step) -> ProviderFailure:
    (failure,) = await answered(*script)
    assert isinstance(failure, ProviderFailure)
    return failure


#### The request


async def test_a_request_is_one_post_with_the_key_in_one_header() -> None:
    async with serve_raw([whole(b"{}")]) as server:
        await asked(server)

    (request,) = server.requests
    assert request.line == "POST /v1/chat/completions HTTP/1.1"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["content-type"] == "application/json"
    assert msgspec.json.decode(request.body) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_without_a_key_there_is_no_header_for_it() -> None:
    async with (
        serve_raw([whole(b"{}")]) as server,
        ChatCompletionsProvider(server.base_url) as provider,
    ):
        await events_of(provider)

    assert "authorization" not in server.requests[0].headers


async def test_proxies_of_the_environment_are_used_only_when_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")

    async with serve_raw([whole(b"{}")]) as server:
        assert await asked(server) == []
        async with ChatCompletionsProvider(server.base_url, trust_env=True) as provider:
            (failure,) = await events_of(provider)
    assert isinstance(failure, ProviderFailure)
    assert failure.code == "connect_error"


async def test_cookies_are_not_sent_back() -> None:
    answer = whole(b"{}", 200, "set-cookie: a=b; path=/")
    async with (
        serve_raw([answer], [answer]) as server,
        ChatCompletionsProvider(server.base_url) as provider,
    ):
        await events_of(provider)
        await events_of(provider)

    assert "cookie" not in server.requests[1].headers


#### Replies


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_transcript_in_small_chunks_gives_its_events(body: bytes) -> None:
    decoder = BodyDecoder(PROFILES["compatible"])
    expected = [*decoder.feed(body), *decoder.finish()]
    pieces = [chunk(body[i : i + 97]) for i in range(0, len(body), 97)]

    events = await answered(chunked_head(), *pieces, LAST_CHUNK)

    assert without_ids(events) == without_ids(expected)


def without_ids(events: Sequence[StreamEvent]) -> list[object]:
    # Made-up ids hang on the request.
    return [{**msgspec.to_builtins(event), "id": None} for event in events]


async def test_a_reply_that_is_not_streamed_is_read() -> None:
    choice = {"message": {"content": "text"}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice]}).encode()

    assert await answered(whole(body)) == GOOD
    assert await answered(whole(body, content_type="text/event-stream")) == GOOD


async def test_the_end_of_the_connection_ends_a_reply() -> None:
    assert await answered(head(), TEXT + FINISH, Step.CLOSE) == GOOD
    assert await answered(head(), TEXT + FINISH.rstrip(), Step.CLOSE) == GOOD


async def test_an_early_end_of_the_connection_is_no_stop() -> None:
    assert await answered(head(), TEXT, Step.CLOSE) == [TextDelta("text")]
    assert await answered(head(), Step.CLOSE) == []


@pytest.mark.parametrize("end", [Step.CLOSE, Step.RESET])
async def test_a_break_after_a_finish_reason_does_no_harm(end: Step) -> None:
    gate = trio.Event()
    async with (
        serve_raw([chunked_head(), chunk(TEXT + FINISH), gate, end]) as server,
        ChatCompletionsProvider(server.base_url) as provider,
        provider.stream(REQUEST) as events,
    ):
        # A reset would take away what was not read before it.
        got = [await anext(events)]
        gate.set()
        got += [event async for event in events]

    assert got == GOOD


@pytest.mark.parametrize("kept", [True, False])
async def test_a_reply_is_read_to_its_end_so_that_its_connection_could_be_kept(
    kept: bool,
) -> None:
    # A transport of our own keeps connections; without TLS the usual one doesn't.
    transport = httpx2.AsyncHTTPTransport() if kept else None
    script = [chunked_head(), chunk(TEXT + FINISH + DONE), LAST_CHUNK]
    async with (
        serve_raw(script, script, script) as server,
        ChatCompletionsProvider(server.base_url, transport=transport) as provider,
    ):
        for _ in range(3):
            assert await events_of(provider) == GOOD

    assert server.connections == (1 if kept else 3)


#### Faults


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ([Step.CLOSE], "remote_protocol_error"),
        ([Step.RESET], "read_error"),
        ([b"what?\r\n\r\n", Step.CLOSE], "remote_protocol_error"),
        ([b"HTTP/1.1 200 OK\r\n", Step.CLOSE], "remote_protocol_error"),
        ([b"x" * 200_000, Step.CLOSE], "remote_protocol_error"),
        ([chunked_head(), b"zz\r\n", Step.CLOSE], "remote_protocol_error"),
        (
            [head(200, "content-length: 99"), b": c\n", Step.CLOSE],
            "remote_protocol_error",
        ),
        ([chunked_head(), chunk(b": c\n"), Step.CLOSE], "remote_protocol_error"),
        ([chunked_head(), chunk(b": c\n"), Step.RESET], "read_error"),
    ],
)
async def test_a_broken_connection_is_a_failure_that_may_pass(
    script: list[bytes | Step], code: str
) -> None:
    failure = await failure_from(*script)

    assert (failure.code, failure.retryable) == (code, True)
    assert failure.message.startswith("the connection failed: ")
    assert classify_failure(failure) is FailureClass.TRANSIENT


async def test_what_came_before_a_break_is_passed_on() -> None:
    text, failure = await answered(chunked_head(), chunk(TEXT), Step.CLOSE)

    assert text == TextDelta("text")
    assert isinstance(failure, ProviderFailure)


async def test_nobody_at_the_address_is_a_failure_that_may_pass() -> None:
    async with serve_raw() as server:
        pass
    (failure,) = await asked(server)

    assert isinstance(failure, ProviderFailure)
    assert (failure.code, failure.retryable) == ("connect_error", True)
    assert "refused" in failure.message


async def test_a_refusal_is_a_failure_with_its_status_and_wait() -> None:
    body = b'{"error": {"message": "slow down", "code": "rate_limit_exceeded"}}'
    answer = whole(body, 429, "Retry-After: 3", "X-Request-ID: req_1")

    assert await failure_from(answer) == ProviderFailure(
        message="the provider answered 429: slow down (request req_1)",
        code="rate_limit_exceeded",
        status=429,
        headers={"retry-after": "3"},
    )


@pytest.mark.parametrize("status", [400, 401, 404, 500, 503])
async def test_a_refusal_is_not_asked_again(status: int) -> None:
    assert (await failure_from(whole(b"no", status))).status == status


async def test_a_redirect_is_not_followed() -> None:
    async with serve_raw([whole(b"{}")]) as other:
        answer = whole(b"", 307, f"location: {other.base_url}/chat/completions")
        failure = await failure_from(answer)

    assert failure.status == 307
    assert other.requests == []


async def test_a_refusal_whose_explanation_breaks_off_is_still_that_refusal() -> None:
    partial = head(503, "content-length: 99") + b'{"error": "over'

    failure = await failure_from(partial, Step.CLOSE)
    assert failure.status == 503
    assert "over" in failure.message


async def test_of_an_explanation_without_end_only_the_start_is_read() -> None:
    flood = [chunk(b"x" * 4_096)] * 64

    failure = await failure_from(
        head(400, "transfer-encoding: chunked"), *flood, Step.HANG
    )
    assert failure.status == 400
    assert len(failure.message) == 2_048


async def test_a_web_page_is_not_taken_for_a_reply() -> None:
    failure = await failure_from(whole(b"<html>", content_type="text/html; x"))

    assert (failure.code, failure.retryable) == ("not_a_model_api", False)
    assert "/v1" in failure.message


async def test_a_compressed_reply_is_refused() -> None:
    failure = await failure_from(whole(b"\x1f\x8b", 200, "content-encoding: gzip"))

    assert (failure.code, failure.retryable) == ("unsupported_encoding", False)


async def test_the_key_that_a_server_echoes_is_taken_out() -> None:
    body = json.dumps({"error": {"message": f"bad {KEY}!", "code": KEY}}).encode()
    stream = b"data: " + body + b"\n\n"

    for script in ([whole(body, 401, f"retry-after: {KEY}")], [whole(stream)]):
        failure = await failure_from(*script)
        assert KEY not in repr(failure)
        assert "bad [redacted]!" in failure.message


#### Leaving


async def test_leaving_early_closes_the_connection_at_once() -> None:
    async with (
        serve_raw([chunked_head(), chunk(TEXT), Step.HANG]) as server,
        ChatCompletionsProvider(server.base_url) as provider,
    ):
        async with provider.stream(REQUEST) as events:
            assert await anext(events) == TextDelta("text")
            assert not server.hung_up.is_set()
        await server.hung_up.wait()


async def test_leaving_early_is_quiet_whatever_was_still_to_come() -> None:
    async with (
        serve_raw([chunked_head(), chunk(TEXT) + b"zz\r\n", Step.HANG]) as server,
        ChatCompletionsProvider(server.base_url) as provider,
    ):
        async with provider.stream(REQUEST) as events:
            await anext(events)
        await server.hung_up.wait()


@pytest.mark.parametrize(
    "script",
    [
        [Step.HANG],
        [chunked_head(), Step.HANG],
        [chunked_head(), chunk(TEXT), Step.HANG],
    ],
    ids=["in the head", "in the body", "after output"],
)
async def test_a_cancel_closes_the_connection_at_once(
    script: list[bytes | Step],
) -> None:
    async with (
        serve_raw(script) as server,
        ChatCompletionsProvider(server.base_url) as provider,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(events_of, provider)
        await server.reached.wait()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await server.hung_up.wait()


async def test_a_stream_that_is_left_cannot_be_read_on() -> None:
    async with (
        serve_raw([chunked_head(), chunk(TEXT), Step.HANG]) as server,
        ChatCompletionsProvider(server.base_url) as provider,
    ):
        async with provider.stream(REQUEST) as events:
            await anext(events)
        assert [event async for event in events] == []


async def test_entering_alone_sends_nothing() -> None:
    async with (
        serve_raw() as server,
        ChatCompletionsProvider(server.base_url) as provider,
        provider.stream(REQUEST),
    ):
        pass
    assert server.connections == 0


#### Construction


@pytest.mark.parametrize(
    ("base_url", "said"),
    [
        ("ftp://x/v1", "must start with http"),
        ("localhost:8080", "must start with http"),
        ("http://", "name a host"),
        ("http://x:port/v1", "can't be read"),
        ("http://user:hunter22@x/v1", "give the key as api_key"),
        (None, "give base_url"),
    ],
)
def test_an_unusable_address_is_refused(base_url: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        ChatCompletionsProvider(base_url)
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize("key", ["a\nb", "sch\u00fcssel", "two words", "tab\there"])
def test_an_unusable_key_is_refused_without_telling_it(key: str) -> None:
    with pytest.raises(ValueError, match="API key") as caught:
        ChatCompletionsProvider("http://x/v1", api_key=key)
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("base_url", "line"),
    [
        ("/v1", "/v1/chat/completions"),
        ("/v1/", "/v1/chat/completions"),
        ("", "/chat/completions"),
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/openai?api-version=1", "/openai/chat/completions?api-version=1"),
    ],
)
async def test_the_endpoint_is_added_to_the_address(base_url: str, line: str) -> None:
    async with serve_raw([whole(b"{}")]) as server:
        root = server.base_url.removesuffix("/v1")
        async with ChatCompletionsProvider(root + base_url) as provider:
            await events_of(provider)

    assert server.requests[0].line == f"POST {line} HTTP/1.1"


def test_it_is_known_by_its_dialect_and_host_and_never_tells_the_key() -> None:
    provider = ChatCompletionsProvider(profile="ollama", api_key=KEY)

    assert provider.id == "ollama@127.0.0.1:11434"
    assert repr(provider) == "<ChatCompletionsProvider ollama 127.0.0.1>"
    assert provider.profile is PROFILES["ollama"]
    assert ChatCompletionsProvider("http://x/v1", id="mine").id == "mine"


def test_what_it_tells_of_itself_can_be_set() -> None:
    usual = ChatCompletionsProvider("http://x")
    mine = Profile(name="mine")
    own = ChatCompletionsProvider("http://x", profile=mine, max_told_ms=90_000)

    assert (usual.replayable, usual.max_told_ms) == (True, 60_000)
    assert (own.profile, own.max_told_ms) == (mine, 90_000)
