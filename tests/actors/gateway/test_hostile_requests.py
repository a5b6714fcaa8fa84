"""Requests and messages that are made to hurt: what they get, and that others go on."""

from __future__ import annotations

import json
import os

import pytest
import trio
from kit.gateway import bare_gateway, connected, raw_answer, served
from kit.rehearsal import open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.endpoints.gateway import _gateway
from greenroom.gateway import open_gateway

HOST = "Host: localhost\r\n"
UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
LIST = '{"jsonrpc":"2.0","id":1,"method":"_greenroom/session/list","params":{}}'


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


#### Over plain HTTP


HEADS = {
    "two lengths": (
        "GET /healthz HTTP/1.1",
        "Content-Length: 1\r\nContent-Length: 2",
        400,
    ),
    "a list of lengths": ("GET /healthz HTTP/1.1", "Content-Length: 1, 2", 400),
    "no length": ("GET /healthz HTTP/1.1", "Content-Length: -1", 400),
    "an odd coding": ("GET /healthz HTTP/1.1", "Transfer-Encoding: x, chunked", 501),
    "two codings": (
        "GET /healthz HTTP/1.1",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        501,
    ),
    "a folded header": ("GET /healthz HTTP/1.1", "X: a\r\n b", 200),
    "a name with a space": ("GET /healthz HTTP/1.1", "X : a", 400),
    "a zero in a header": ("GET /healthz HTTP/1.1", "X: a\0b", 400),
    "a bare end of line": ("GET /healthz HTTP/1.1", "X: a\rY: b", 400),
    "two hosts": ("GET /healthz HTTP/1.1", "Host: evil.example", 400),
    "a target with another host": ("GET http://evil.example/ HTTP/1.1", "X: a", 404),
    "a way through": ("CONNECT localhost:80 HTTP/1.1", "X: a", 405),
    "an upgrade with a body": ("GET /acp HTTP/1.1", UPGRADE + "Content-Length: 5", 400),
    "an upgrade with pieces": (
        "GET /acp HTTP/1.1",
        UPGRADE + "Transfer-Encoding: chunked",
        400,
    ),
    "an upgrade of an old kind": ("GET /acp HTTP/1.0", UPGRADE.strip(), 400),
    "an upgrade to two things": ("GET /acp HTTP/1.1", UPGRADE + "Upgrade: h2c", 400),
    "thousands of headers": ("GET /healthz HTTP/1.1", "\r\n".join(["a:"] * 3_900), 200),
    "more headers": ("GET /healthz HTTP/1.1", "\r\n".join(["a:"] * 4_100), 431),
}


@pytest.mark.parametrize("name", HEADS)
async def test_a_head_that_can_be_read_in_two_ways_is_read_in_none(
    tmp_path, name, autojump_clock
):
    line, headers, code = HEADS[name]
    head = f"{line}\r\n{HOST}{headers}\r\n\r\n".encode()
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
    ):
        begun = trio.current_time()
        answer = await raw_answer(gateway, head)
        assert trio.current_time() == begun, "nobody waited"
        assert (status(answer), answer.count(b"HTTP/1.1 ")) == (code, 1)
        await wait_all_tasks_blocked()
        assert (gateway.connections, len(gateway._waiting)) == (0, 0)


@pytest.mark.parametrize(
    "first",
    [
        f"GET /healthz HTTP/1.1\r\n{HOST}\r\n",
        f"GET /healthz HTTP/1.1\r\n{HOST}Content-Length: 0\r\n\r\n",
        f"GET /healthz HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        f"GET /nothing HTTP/1.1\r\n{HOST}\r\n",
    ],
)
async def test_what_comes_behind_a_request_is_no_other_one(first):
    second = (
        f"GET /metrics HTTP/1.1\r\n{HOST}\r\n" + f"GET /acp HTTP/1.1\r\n{UPGRADE}\r\n"
    )
    async with bare_gateway() as gateway:
        answer = await raw_answer(gateway, (first + second).encode())
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"greenroom_" not in answer


async def test_no_extension_is_agreed_whatever_is_offered(tmp_path):
    offered = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"
    request = f"GET /acp HTTP/1.1\r\n{HOST}{UPGRADE}{offered}\r\n"
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
    ):
        answer = await raw_answer(gateway, request.encode())
    assert status(answer) == 101
    assert b"extensions" not in answer.lower()


async def test_no_ping_comes_before_the_answer_to_the_handshake(tmp_path, monkeypatch):
    shake_hands = _gateway._shake_hands
    request = f"GET /acp HTTP/1.1\r\n{HOST}{UPGRADE}\r\n"
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
    ):

        async def late(*arguments):
            assert gateway.connections == 1
            await gateway._ping_all()
            return await shake_hands(*arguments)

        monkeypatch.setattr(_gateway, "_shake_hands", late)
        answer = await raw_answer(gateway, request.encode())
    assert answer.startswith(b"HTTP/1.1 101 ")


ENDS = ("in the head", "an answer", "after the upgrade", "in a frame")


async def test_connections_one_after_the_other_leave_no_descriptor(tmp_path):
    async with (
        open_stage(tmp_path, replies()) as stage,
        open_gateway(stage.engine, port=0) as gateway,
    ):
        before = len(os.listdir("/dev/fd"))
        for number in range(160):
            await visit(gateway.port, ENDS[number % len(ENDS)])
        with trio.fail_after(20):
            while gateway.connections or gateway._waiting:
                await wait_all_tasks_blocked()
                await trio.lowlevel.checkpoint()
        assert len(os.listdir("/dev/fd")) == before
        assert sum(gateway._closed.values()) == gateway._accepted == 80


async def visit(port: int, end: str) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        if end == "in the head":
            await stream.send_all(b"GET / HT")
            return
        path, extra = ("/healthz", "") if end == "an answer" else ("/acp", UPGRADE)
        await stream.send_all(f"GET {path} HTTP/1.1\r\n{HOST}{extra}\r\n".encode())
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 ")
        if end == "in a frame":
            await stream.send_all(b"\x81\xfe\xff")


#### Messages


def with_params(params: str, method: str = "_greenroom/session/get") -> str:
    return f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}'


DEEP = 100_000
BOMBS = {
    "a deep list": ("[" * DEEP + "]" * DEEP, -32700),
    "a deep list that does not end": ("[" * DEEP, -32700),
    "a deep object": ('{"a":' * DEEP + "1" + "}" * DEEP, -32600),
    "deep parameters": (with_params('{"a":' * DEEP + "1" + "}" * DEEP), None),
    "deep parameters of ours": (
        with_params('{"sessionId":' * DEEP + "1" + "}" * DEEP),
        None,
    ),
    "a number of a megabyte": (
        with_params(f'{{"sessionId":{"9" * (1 << 20)}}}'),
        -32602,
    ),
    "a fraction of a megabyte": (
        with_params(f'{{"sessionId":"S","after":0.{"9" * (1 << 20)}}}'),
        -32602,
    ),
    "an exponent": (with_params('{"sessionId":"S","after":1e999999999}'), -32602),
    "an id of a megabyte": (
        f'{{"jsonrpc":"2.0","id":{"9" * (1 << 20)},"method":"x"}}',
        -32600,
    ),
    "a method of a megabyte": (with_params("{}", "x" * (1 << 20)), None),
    "a batch": (f"[{LIST},{LIST}]", -32600),
    "a batch of nothing": ("[]", -32600),
    "a big batch": ("[" + ",".join([LIST] * 5_000) + "]", -32600),
    "no text": ('{"jsonrpc":"2.0","id":1,"method":"\udc80"}', None),
    "NaN": (with_params('{"sessionId":NaN}'), -32700),
    "a mark before it": ("\ufeff" + LIST, -32700),
    "a zero": ("\0", -32700),
    "nothing": ("", -32700),
    **{
        f"the id {wild}": (LIST.replace('"id":1', f'"id":{wild}'), code)
        for wild, code in (
            ("{}", -32600),
            ("[]", -32600),
            ("true", -32600),
            ('[{"a":[1]}]', -32600),
            (json.dumps("x" * 2_000), -32600),
        )
    },
}


@pytest.mark.parametrize("name", BOMBS)
async def test_a_message_that_is_made_to_hurt_is_refused_in_a_few_words(tmp_path, name):
    text, code = BOMBS[name]
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
    ):
        data = text.encode(errors="replace")
        await client.websocket.send_message(data.decode())
        await client.until(lambda: client.received)
        (answer,) = client.received
        assert code is None or answer["error"]["code"] == code, answer
        assert len(json.dumps(answer)) < 2_000
        client.received.clear()
        await client.call("_greenroom/session/list")


@pytest.mark.parametrize(
    "told", ["null", "1.5", "-0", "1e3", '"\\ud800"', '"a\\u0000b"', "9007199254740993"]
)
async def test_an_id_comes_back_as_it_was_or_not_at_all(tmp_path, told):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
    ):
        await client.websocket.send_message(LIST.replace('"id":1', f'"id":{told}'))
        await client.until(lambda: client.received)
        (answer,) = client.received
        if "result" in answer:
            wanted = json.loads(told)
            assert answer["id"] in (wanted, "\ufffd")
            assert type(answer["id"]) is type(wanted)
        else:
            assert answer["error"]["code"] == -32600


async def test_of_two_members_with_one_name_all_that_look_see_the_same(tmp_path):
    twice = (
        '{"jsonrpc":"2.0","id":1,"method":"_greenroom/session/delete",'
        '"method":"_greenroom/session/list","params":{"sessionId":"x"},"params":{}}'
    )
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
    ):
        await client.websocket.send_message(twice)
        await client.until(lambda: client.received)
        assert client.received[0]["result"]["sessions"]
