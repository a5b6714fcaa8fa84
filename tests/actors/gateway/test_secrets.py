"""Tokens, right ones and nearly right ones: nothing that is kept or shown has them."""

from __future__ import annotations

import json
import logging

import pytest
from kit.gateway import connected, raw_answer, served
from kit.rehearsal import open_stage, replies
from trio.testing import memory_stream_pair
from trio_websocket import ConnectionClosed

from greenroom.actors.endpoints.gateway._access import Access, Token
from greenroom.actors.endpoints.gateway._frames import Flusher, FrameOutbox
from greenroom.actors.endpoints.gateway._head import HeadReader
from greenroom.actors.endpoints.gateway._stream import WebSocketStream
from greenroom.actors.logs import JsonLines
from greenroom.actors.providers import Call, Halt, Say
from greenroom.testing import Fail

SECRET = "5ecre7-0123456789abcdef0123456789"
NEARLY = (SECRET[:-1], SECRET + "x", SECRET.upper(), SECRET[:-1] + "0", SECRET * 20)
STEM = SECRET[:16]
"""What all of them have in common, but for their case."""

UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
AUTHENTICATE = "_greenroom/authenticate"


def request(target: str, extra: str = "", host: str = "localhost") -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{extra}\r\n".encode()


def heads(token: str) -> list[bytes]:
    """Requests with a token in every place that somebody might put it."""
    header = f"Authorization: Bearer {token}\r\n"
    return [
        request("/metrics", header),
        request("/acp", UPGRADE + header),
        request("/acp", UPGRADE + header * 2),
        request("/acp", UPGRADE + header.replace("Bearer", "Basic")),
        request("/acp", UPGRADE + f"Authorization: {token}\r\n"),
        request("/acp", UPGRADE + f"Authorization : Bearer {token}\r\n"),
        request("/acp", UPGRADE + f"Sec-WebSocket-Protocol: {token}, bad,,\r\n"),
        request("/acp", UPGRADE.replace("dGhlIHNhbXBsZSBub25jZQ==", token)),
        request("/acp", UPGRADE + f"Origin: http://{token}.example\r\n"),
        request("/healthz", header, host=f"{token}.example"),
        request(f"/{token}"),
        request(f"/acp?token={token}", UPGRADE),
        request(f"/metrics?token={token}"),
        request(f"http://{token}@localhost/metrics"),
        f"{token} / HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
        f"GET / HTTP/1.1\r\nHost: localhost\r\n{token}\r\n\r\n".encode(),
        f"GET / HTTP/{token}\r\n\r\n".encode(),
    ]


def messages(token: str) -> list[str]:
    """First messages, and later ones, that say the token in one way or another."""
    asked = {"jsonrpc": "2.0", "id": 1, "method": AUTHENTICATE}
    said = json.dumps(asked | {"params": {"token": token}})
    return [
        said,
        said.replace("2.0", "1.0"),
        said[:-2],
        said.replace('"id": 1', '"id": {}'),
        said.replace('"token"', '"Token"'),
        said.replace(AUTHENTICATE, "_greenroom/nothing"),
        said.replace(AUTHENTICATE, "authenticate"),
        json.dumps(asked | {"params": {"token": [token]}}),
        json.dumps(asked | {"params": [token]}),
        json.dumps(asked | {"params": token}),
        json.dumps([said]),
        token,
    ]


class Kept(logging.Handler):
    """Every record of every logger, as text and as JSON."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.as_json = JsonLines()

    def emit(self, record: logging.LogRecord) -> None:
        plain = logging.Formatter("%(name)s %(message)s %(args)s").format(record)
        self.lines += (plain, self.as_json.format(record))

    @property
    def text(self) -> str:
        return "\n".join(self.lines).lower()


@pytest.fixture
def kept(caplog):
    caplog.set_level(logging.DEBUG)
    handler = Kept()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize(
    ("token", "is_open"), [(SECRET, True), *((t, False) for t in (SECRET, *NEARLY))]
)
async def test_no_token_is_in_what_is_answered_logged_or_counted(
    tmp_path, kept, token, is_open
):
    access = Access("127.0.0.1", () if is_open else (Token.of(SECRET),))
    script = replies(
        [Call("missing", {}), Halt("tool_use")],
        [Fail("refused", code="bad_request", status=400)],
        [Say("done"), Halt()],
    )
    async with open_stage(tmp_path, script) as stage:
        shown: list[str] = []
        async with served(stage.engine, access) as gateway:
            for head in heads(token):
                answered = await raw_answer(gateway, head)
                assert answered.startswith(b"HTTP/1.1 ")
                shown.append(answered.decode("latin-1"))
            shown += [await said(gateway, message) for message in messages(token)]
            async with connected(gateway) as client:
                if not is_open:
                    await client.call(AUTHENTICATE, token=SECRET)
                session_id = stage.session.id
                await client.call("_greenroom/session/attach", sessionId=session_id)
                for number in "12":
                    await client.ask(
                        "_greenroom/prompt",
                        sessionId=session_id,
                        content="go",
                        commandId=number,
                    )
                await client.websocket.send_message(messages(token)[1])
                await client.call("_greenroom/session/list")
                shown.append(json.dumps(client.received))
            right = f"Authorization: Bearer {SECRET}\r\n"
            counted = await raw_answer(gateway, request("/metrics", right))
            assert b" 200 " in counted
            shown += (counted.decode(), repr(gateway), repr(gateway._access))
        traces = [
            await stage.engine.session(session_id).traces(m.id)
            for m in await stage.engine.session(session_id).messages()
        ]
        shown.append(repr(traces))
    assert kept.lines, "something was logged"
    for text in (*shown, kept.text):
        assert STEM not in text.lower()


async def test_what_has_read_a_token_shows_it_to_nobody(nursery):
    header = f"Authorization: Bearer {SECRET}\r\n"
    reader = HeadReader()
    head = reader.feed(request("/acp", UPGRADE + header) + SECRET.encode())
    assert head is not None
    assert head.bearer == SECRET
    ours, _ = memory_stream_pair()
    outbox = FrameOutbox(ours, Flusher(nursery))
    stream = WebSocketStream(ours, outbox, head.raw, head.behind, 0.0)
    assert SECRET not in repr((reader, head, stream))


async def said(gateway, message: str) -> str:
    """What a client is told that begins with *message*."""
    async with connected(gateway) as client:
        await client.websocket.send_message(message)
        try:
            await client.request("_greenroom/session/list")
            await client.until(lambda: len(client.received) > 1)
        except (ConnectionClosed, AssertionError):
            pass
        closed = client.websocket.closed
        return json.dumps(client.received) + repr(closed)
