"""One connection: who it is, what it may send, and how it ends."""

from __future__ import annotations

import json
import logging
from contextlib import suppress

import pytest
import trio
from hypothesis import given, settings, strategies as st
from kit.gateway import bare_gateway, connected, raw_answer, served
from kit.rehearsal import Probe, open_stage, replies
from trio.testing import memory_stream_pair, wait_all_tasks_blocked
from trio_websocket import ConnectionClosed

from greenroom.actors.endpoints.gateway import _connection, _gateway, _inflow
from greenroom.actors.endpoints.gateway._access import Access, Token
from greenroom.actors.providers import Call, Halt, Say
from greenroom.protocol.gateway import CloseCode
from greenroom.testing import RehearsalProvider, open_test_engine

SECRET = "0123456789abcdef" * 2
READER = "fedcba9876543210" * 2
DONE = [Say("done"), Halt()]
GUARDED = Access("0.0.0.0", (Token.of(SECRET), Token.of(READER, ["read"])), True)


async def until_closed(client) -> int | None:
    await client.ended.wait()
    return client.close_code


#### Who it is


async def test_the_first_message_may_hold_the_token(tmp_path):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine, GUARDED) as gateway,
        connected(gateway) as client,
    ):
        told = await client.call(
            "_greenroom/authenticate", token=READER, clientId="phone"
        )
        assert told == {"clientId": "phone", "scopes": ["read"], "resumed": False}
        await client.call("_greenroom/session/list")
        assert await client.refused("_greenroom/authenticate", token=SECRET) == "-32600"


async def test_the_header_may_hold_the_token(tmp_path):
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine, GUARDED) as gateway,
        connected(gateway, headers=headers) as client,
    ):
        assert await client.call("_greenroom/session/list")


@pytest.mark.parametrize(
    "message",
    [
        {"method": "_greenroom/session/list", "id": 1},
        {"method": "initialize", "id": 1, "params": {"protocolVersion": 1}},
        {"method": "_greenroom/authenticate", "id": 1},
        {"method": "_greenroom/authenticate", "id": 1, "params": {"token": "x" * 32}},
        {"method": "_greenroom/authenticate", "id": 1, "params": {"token": 7}},
        {"method": "_greenroom/authenticate", "id": 1, "params": {"token": "x" * 9999}},
    ],
)
async def test_without_a_token_the_connection_ends_and_nothing_is_said(
    tmp_path, caplog, message
):
    caplog.set_level(logging.DEBUG, "greenroom")
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine, GUARDED) as gateway,
        connected(gateway) as client,
    ):
        await client.send(**message)
        assert await until_closed(client) == CloseCode.UNAUTHENTICATED
        assert client.received == []
    assert "x" * 32 not in caplog.text


async def test_a_token_that_does_not_come_is_not_waited_for(tmp_path, autojump_clock):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine, GUARDED) as gateway,
        connected(gateway) as client,
    ):
        assert await until_closed(client) == CloseCode.TIMED_OUT
        spent = trio.current_time()
        assert spent == pytest.approx(_connection.AUTHENTICATE_SECONDS, abs=3)


async def test_what_is_no_message_gives_no_more_time_for_the_token(
    tmp_path, autojump_clock
):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine, GUARDED) as gateway,
        connected(gateway) as client,
    ):
        await client.websocket.send_message(b"binary")
        with trio.fail_after(_connection.AUTHENTICATE_SECONDS + 3):
            assert await until_closed(client) == CloseCode.TIMED_OUT


async def test_who_has_not_said_who_it_is_waits_where_the_oldest_has_to_go(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(_gateway, "MAX_WAITING", 1)
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine, GUARDED) as gateway,
        connected(gateway) as known,
    ):
        await known.call("_greenroom/authenticate", token=SECRET)
        async with connected(gateway) as waits, connected(gateway) as last:
            await last.call("_greenroom/authenticate", token=SECRET)
            assert await until_closed(waits) == CloseCode.TRY_LATER
            await known.call("_greenroom/session/list")


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("_greenroom/session/create", {}),
        ("_greenroom/agent/reset", {"id": "x"}),
        ("session/new", {"cwd": "/tmp", "mcpServers": []}),
        ("session/prompt", {"sessionId": "x", "prompt": []}),
        ("session/set_mode", {"sessionId": "x", "modeId": "default"}),
    ],
)
async def test_a_token_allows_what_its_scopes_say(tmp_path, method, params):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine, GUARDED) as gateway,
        connected(gateway) as client,
    ):
        await client.call("_greenroom/authenticate", token=READER)
        await client.call("initialize", protocolVersion=1)
        assert await client.refused(method, **params) == "forbidden"


#### What it may send


async def test_each_message_is_answered_or_is_none_and_the_next_one_works(tmp_path):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
    ):
        for text in ("nonsense", "[]", "{}", "null", "[" * 10_000, '{"jsonrpc":"2.0"}'):
            await client.websocket.send_message(text)
        await client.websocket.send_message(b"binary is no message")
        pretty = {"jsonrpc": "2.0", "id": "a\nb", "method": "_greenroom/session/list"}
        await client.websocket.send_message(json.dumps(pretty, indent=2))
        await client.until(lambda: any(m.get("id") == "a\nb" for m in client.received))
        errors = [m["error"]["code"] for m in client.received if "error" in m]
        assert len(errors) == 6
        assert await client.refused("_greenroom/nothing") == "-32601"
        assert await client.refused("_greenroom/session/get") == "-32602"
        assert await client.refused("nothing") == "-32600"


async def test_a_message_that_is_too_long_ends_its_connection_alone(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(_gateway, "MAX_FRAME_BYTES", 10_000)
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as other,
        connected(gateway) as client,
    ):
        await client.websocket.send_message("x" * 10_001)
        assert await until_closed(client) == CloseCode.TOO_BIG
        await other.call("_greenroom/session/list")


async def test_too_many_messages_end_their_connection_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(_inflow, "FRAME_BURST", 20)
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as other,
        connected(gateway) as client,
    ):
        with suppress(ConnectionClosed):
            for _ in range(200):
                await client.request("_greenroom/session/list")
        assert await until_closed(client) == CloseCode.RATE_LIMITED
        await other.call("_greenroom/session/list")


async def test_more_requests_than_anybody_waits_for_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_connection, "MAX_UNANSWERED", 2)
    gate = trio.Event()
    script = replies([Call("probe", {}), Halt("tool_use")], DONE)
    async with (
        open_stage(
            tmp_path, script, Probe(gate=gate), permission_mode="full_access"
        ) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
    ):
        prompt = {"sessionId": stage.session.id, "content": "go", "commandId": "c"}
        first = await client.request("_greenroom/prompt", **prompt)
        second = await client.request("_greenroom/prompt", **prompt)
        assert await client.refused("_greenroom/session/list") == "-32600"
        gate.set()
        assert (await client.response(first))["result"]["text"] == "done"
        assert (await client.response(second))["result"]["text"] == "done"
        await client.call("_greenroom/session/list")


#### How it ends


async def test_a_client_that_answers_pings_stays_and_one_that_does_not_goes(
    tmp_path, autojump_clock
):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
        connected(gateway, wrap=Deaf) as deaf,
    ):
        await trio.sleep(10 * _gateway.SILENT_SECONDS)
        await client.call("_greenroom/session/list")
        assert gateway.connections == 1
        assert not client.ended.is_set()
        await deaf.stream.aclose()


class Deaf(trio.abc.Stream):
    """A peer that is gone without a word, after the handshake."""

    def __init__(self, inner):
        self.inner = inner
        self.reads = 0

    async def receive_some(self, max_bytes=None):
        self.reads += 1
        if self.reads > 1:
            await trio.sleep_forever()
        return await self.inner.receive_some(max_bytes)

    async def send_all(self, data):
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self):
        await self.inner.wait_send_all_might_not_block()

    async def aclose(self):
        await self.inner.aclose()


async def test_a_gateway_that_stops_tells_its_clients_and_lets_nobody_in(tmp_path):
    gate = trio.Event()
    script = replies([Call("probe", {}), Halt("tool_use")], DONE)
    async with (
        open_stage(
            tmp_path, script, Probe(gate=gate), permission_mode="full_access"
        ) as stage,
        bare_gateway() as gateway,
    ):
        async with trio.open_nursery() as nursery:
            async with gateway.serving(stage.engine):
                clients = [await nursery.start(visitor, gateway) for _ in range(3)]
                await clients[0].request(
                    "_greenroom/prompt",
                    sessionId=stage.session.id,
                    content="go",
                    commandId="c",
                )
                await wait_all_tasks_blocked()
            for client in clients:
                assert await until_closed(client) == CloseCode.GOING_AWAY
            assert gateway.connections == 0
            assert not gateway.is_ready
            nursery.cancel_scope.cancel()
        # The turn is not the clients'; it ends with the gateway's own tasks.
        status = stage.engine.status(stage.session.id)
        assert status is not None
        assert status.state == "generating"
        async with gateway.serving(stage.engine), connected(gateway) as client:
            await client.call("_greenroom/session/attach", sessionId=stage.session.id)
            gate.set()
            await client.until_idle()


async def visitor(gateway, task_status):
    async with connected(gateway) as client:
        task_status.started(client)
        await client.ended.wait()


async def test_a_ping_that_comes_while_the_gateway_closes_is_no_failure(
    tmp_path, caplog, autojump_clock
):
    async with (
        open_stage(tmp_path, replies()) as stage,
        served(stage.engine) as gateway,
        trio.open_nursery() as nursery,
    ):
        ours, theirs = memory_stream_pair()
        nursery.start_soon(gateway.handle, theirs)
        await ours.send_all(UPGRADE)
        await wait_all_tasks_blocked()
        (connection,) = gateway._connections.values()
        connection.close(CloseCode.GOING_AWAY, "")
        await ours.send_all(masked(0x89, b"ping"))
        async for _ in ours:
            pass
    assert "failed" not in caplog.text


async def test_a_client_that_does_not_say_goodbye_does_not_hold_the_gateway(
    tmp_path, autojump_clock
):
    async with (
        open_stage(tmp_path, replies()) as stage,
        bare_gateway() as gateway,
        trio.open_nursery() as nursery,
    ):
        async with gateway.serving(stage.engine):
            await nursery.start(deaf_visitor, gateway)
            begun = trio.current_time()
        assert trio.current_time() - begun <= _gateway.STOP_SECONDS
        assert gateway.connections == 0
        nursery.cancel_scope.cancel()


async def deaf_visitor(gateway, task_status):
    async with connected(gateway, wrap=Deaf) as client:
        task_status.started(client)
        await trio.sleep_forever()


#### Hostile frames


UPGRADE = (
    b"GET /acp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
FRAMES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.text(max_size=30).map(lambda t: masked(0x81, t.encode())),
        st.sampled_from(
            [b"\x81\xfe\xff\xff", b"\x88\x80\0\0\0\0", b"\x89\x80\0\0\0\0"]
        ),
        st.integers(0, 255).map(lambda first: masked(first, b"{}")),
        st.sampled_from(["[1]", '{"id":1}', "\ud83d", "null"]).map(
            lambda t: masked(0x81, t.encode(errors="surrogatepass"))
        ),
        st.just(b"\x81\xff" + b"\xff" * 8 + b"\0\0\0\0"),
    ),
    max_size=8,
)


def masked(first: int, payload: bytes) -> bytes:
    return bytes([first, 0x80 | len(payload), 0, 0, 0, 0]) + payload


@given(FRAMES)
@settings(max_examples=60)
def test_no_bytes_of_one_client_hurt_another(frames):
    async def main():
        async with (
            open_test_engine(None, RehearsalProvider([])) as engine,
            served(engine) as gateway,
            connected(gateway) as other,
        ):
            answer = await raw_answer(gateway, UPGRADE + b"".join(frames))
            assert answer.startswith(b"HTTP/1.1 101 ")
            await other.call("_greenroom/session/list")

    trio.run(main)
