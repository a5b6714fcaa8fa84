"""What plain HTTP gets, and heads that are none."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from hypothesis import given, settings, strategies as st
from kit.gateway import bare_gateway, connected, raw_answer, served
from kit.rehearsal import open_stage, replies
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from greenroom.actors.endpoints.gateway import _gateway
from greenroom.actors.endpoints.gateway._access import Access, Token
from greenroom.actors.endpoints.gateway._head import (
    MAX_HEAD_BYTES,
    HeadError,
    HeadReader,
)
from greenroom.actors.endpoints.gateway._metrics import metrics_text

SECRET = "0123456789abcdef" * 2
UPGRADE = (
    "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def get(path: str, extra: str = "", host: str = "localhost", method: str = "GET"):
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{extra}\r\n".encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (get("/healthz"), 200),
        (get("/readyz"), 503),
        (get("/"), 200),
        (get("/metrics"), 200),
        (get("/console/../../etc/passwd"), 404),
        (get("/nothing"), 404),
        (get("/healthz", host="evil.example"), 403),
        (get("/", method="POST"), 405),
        (get("/?token=abc"), 400),
        (get("/acp?access_token=abc", UPGRADE), 400),
        (get("/acp"), 426),
        (get("/acp", method="POST"), 426),
        (get("/", UPGRADE), 404),
        (get("/acp", UPGRADE), 503),
        (get("/acp", UPGRADE + "Origin: http://evil.example\r\n"), 403),
        (get("/acp", UPGRADE.replace("13", "8")), 426),
        (get("/acp", UPGRADE.replace("dGhl", "")), 426),
        (get("/acp", UPGRADE.replace("Connection", "X")), 400),
        (get("/acp", UPGRADE + "Origin: http://localhost\r\nOrigin: x\r\n"), 400),
        (get("/acp", UPGRADE + "Sec-WebSocket-Key: " + "A" * 24 + "\r\n"), 400),
        (get("/acp", UPGRADE + "Sec-WebSocket-Protocol: \xe4\r\n"), 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01", 400),
        (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n", 400),
        (get("/", "X: " + "x" * MAX_HEAD_BYTES + "\r\n"), 431),
    ],
)
async def test_a_request_gets_one_answer_and_the_connection_ends(request_, code):
    async with bare_gateway() as gateway:
        answer = await raw_answer(gateway, request_)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status(answer) == code
    assert b"Connection: close" in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"nosniff" in head


async def test_only_the_head_is_sent_to_who_asks_for_the_head():
    async with bare_gateway() as gateway:
        whole = await raw_answer(gateway, get("/"))
        head = await raw_answer(gateway, get("/", method="HEAD"))
    assert whole.startswith(head)
    assert head.endswith(b"\r\n\r\n")


async def test_the_page_may_load_nothing_from_elsewhere():
    async with bare_gateway() as gateway:
        head, _, body = (await raw_answer(gateway, get("/"))).partition(b"\r\n\r\n")
    assert b"default-src 'none'" in head
    assert b"http:" not in body.replace(b"http://www.w3.org", b"")


@pytest.mark.parametrize("secret", [None, "wrong" * 5, SECRET])
async def test_counts_are_for_those_with_a_token_where_there_is_one(secret):
    access = Access("127.0.0.1", (Token.of(SECRET),))
    extra = "" if secret is None else f"Authorization: Bearer {secret}\r\n"
    async with bare_gateway(access) as gateway:
        assert status(await raw_answer(gateway, get("/healthz"))) == 200
        counted = await raw_answer(gateway, get("/metrics", extra))
        refused = await raw_answer(gateway, get("/acp", UPGRADE + extra))
    assert status(counted) == (200 if secret == SECRET else 401)
    wrong = secret not in (None, SECRET)
    assert status(refused) == (401 if wrong else 503)


async def test_the_gateway_is_ready_while_it_serves(tmp_path):
    async with open_stage(tmp_path, replies()) as stage, bare_gateway() as gateway:
        async with gateway.serving(stage.engine):
            assert status(await raw_answer(gateway, get("/readyz"))) == 200
            async with connected(gateway):
                counted = (await raw_answer(gateway, get("/metrics"))).decode()
                assert "\ngreenroom_gateway_connections 1\n" in counted
                assert "\ngreenroom_sessions_loaded 1\n" in counted
        assert status(await raw_answer(gateway, get("/readyz"))) == 503


def test_metrics_are_text_that_prometheus_reads():
    text = metrics_text({"a b": 1.5, "x_total": 3}, {1000: 2, 4290: 1})
    assert text == (
        "# TYPE greenroom_a_b gauge\ngreenroom_a_b 1.5\n"
        "# TYPE greenroom_x_total counter\ngreenroom_x_total 3\n"
        "# TYPE greenroom_gateway_closed_total counter\n"
        'greenroom_gateway_closed_total{code="1000"} 2\n'
        'greenroom_gateway_closed_total{code="4290"} 1\n'
    )


async def test_a_head_that_does_not_come_ends_in_time(autojump_clock):
    async with bare_gateway() as gateway:
        begun = trio.current_time()
        assert await raw_answer(gateway, b"GET / HTTP/1.1\r\nX: ", eof=False) == b""
        spent = trio.current_time() - begun
    assert spent == pytest.approx(_gateway.HEAD_SECONDS, abs=0.1)


async def test_who_sends_a_byte_now_and_then_gets_no_more_time(autojump_clock):
    async with bare_gateway() as gateway:
        ours, theirs = memory_stream_pair()
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gateway.handle, theirs)
            with suppress(trio.BrokenResourceError):
                for byte in b"GET / HTTP/1.1\r\nX: " + b"x" * 100:
                    await ours.send_all(bytes([byte]))
                    await trio.sleep(1)
        assert trio.current_time() - begun < _gateway.HEAD_SECONDS + 2


async def test_the_oldest_of_too_many_that_wait_has_to_go(monkeypatch):
    monkeypatch.setattr(_gateway, "MAX_WAITING", 3)
    async with bare_gateway() as gateway, trio.open_nursery() as nursery:
        streams = []
        for _ in range(5):
            ours, theirs = memory_stream_pair()
            nursery.start_soon(gateway.handle, theirs)
            await wait_all_tasks_blocked()
            streams.append(ours)
        for gone in streams[:2]:
            assert await gone.receive_some() == b""
        # A slot is there for whoever means it.
        answer = await raw_answer(gateway, get("/healthz"))
        assert status(answer) == 200
        for stream in streams:
            await stream.aclose()


async def test_too_many_connections_are_refused_until_one_ends(tmp_path):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine, max_connections=1) as gateway,
    ):
        async with connected(gateway) as client:
            assert status(await raw_answer(gateway, get("/acp", UPGRADE))) == 503
            await client.call("_greenroom/session/list")
        await wait_all_tasks_blocked()
        assert gateway.connections == 0
        async with connected(gateway) as client:
            await client.call("_greenroom/session/list")


#### Heads, without a gateway


@given(st.binary(max_size=200), st.lists(st.integers(0, 60), max_size=6))
@settings(max_examples=200)
def test_any_bytes_are_a_head_or_an_error_or_too_few(data, cuts):
    reader = HeadReader()
    statuses = []
    try:
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if (head := reader.feed(data[start:end])) is not None:
                assert head.method.isascii()
                break
    except HeadError as error:
        statuses.append(error.status)
    assert all(400 <= status < 600 for status in statuses)


@given(st.integers(1, 120))
def test_a_head_is_the_same_however_it_is_cut(size):
    data = get("/acp?a=b", UPGRADE + "Authorization: Bearer abc\r\n") + b"\x81\x80rest"
    reader = HeadReader()
    for start in range(0, len(data), size):
        head = reader.feed(data[start : start + size])
        if head is not None:
            break
    assert head is not None
    assert (head.path, head.query, head.bearer) == ("/acp", "a=b", "abc")
    assert head.wants_websocket
    assert head.raw + head.behind == data[: start + size]
    assert head.raw.endswith(b"\r\n\r\n")
