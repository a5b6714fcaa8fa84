"""What answers may be no gateway, or a broken one: each way ends in a typed error."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from kit.remote import Peer, client_of, of_bytes, of_peer
from trio.testing import MockClock

from greenroom.actors.endpoints.client._link import PING_SECONDS, PONG_SECONDS
from greenroom.client import (
    CallError,
    ConnectionLostError,
    GatewayClosedError,
    GatewayProtocolError,
    GatewayRefusedError,
    SilentGatewayError,
    UnreachableGatewayError,
)
from greenroom.protocol import GreenroomError
from greenroom.protocol.gateway import (
    MAX_FRAME_BYTES,
    ForkSession,
    ListSessions,
    OneSession,
    PromptResult,
    SendPrompt,
    SessionList,
)

LIST = ("session/list", ListSessions(), SessionList)
PROMPT = ("prompt", SendPrompt("s", "hello", "one"), PromptResult)
ENDED = {"messageId": "m", "outcome": "completed", "stopReason": "x", "text": "t"}


async def enters(handle: Any) -> None:
    async with client_of(handle):
        raise AssertionError("it was let in")


def status(code: int, body: str = "") -> bytes:
    head = f"HTTP/1.1 {code} So\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", GatewayProtocolError),
        (b"\x00\xff" * 200, GatewayProtocolError),
        (b"SSH-2.0-OpenSSH_9.6\r\n", GatewayProtocolError),
        (status(200, "hello"), GatewayRefusedError),
        (status(403, "pages of that origin may not connect"), GatewayRefusedError),
        (b"HTTP/1.1 403 No\r\nX: " + b"x" * 200_000, GatewayProtocolError),
        (
            b"HTTP/1.1 403 No\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 200_000,
            GatewayProtocolError,
        ),
    ],
)
async def test_what_is_no_gateway_is_told_at_once(
    answer, error, autojump_clock: MockClock
):
    before = trio.current_time()
    with pytest.raises(error):
        await enters(of_bytes(answer))
    assert trio.current_time() - before < 1


async def test_a_missing_token_says_where_to_put_one(autojump_clock: MockClock):
    with pytest.raises(GatewayRefusedError, match="a token is needed") as refused:
        await enters(of_bytes(status(401, "a token is needed")))
    assert "GREENROOM_TOKEN" in str(refused.value.hint)


async def test_a_gateway_that_starts_is_waited_for(autojump_clock: MockClock):
    served = 0

    async def handle(stream: Any) -> None:
        nonlocal served
        served += 1
        await (of_peer(greeted) if served > 3 else of_bytes(status(503)))(stream)

    async def greeted(peer: Peer) -> None:
        await peer.greet()
        await trio.sleep_forever()

    async with client_of(handle) as client:
        assert client.scopes == {"read", "write"}
    assert served == 4


async def test_a_gateway_that_never_starts_is_given_up(autojump_clock: MockClock):
    with pytest.raises(GatewayRefusedError):
        await enters(of_bytes(status(503)))


async def test_a_handshake_without_an_answer_has_a_deadline(autojump_clock: MockClock):
    with pytest.raises(UnreachableGatewayError, match="does not answer"):
        await enters(of_bytes(b"HTTP/1.1 101 ", closes=False))


async def test_a_client_that_is_not_greeted_goes(autojump_clock: MockClock):
    async def silent(peer: Peer) -> None:
        await trio.sleep_forever()

    with pytest.raises(UnreachableGatewayError, match="who we are"):
        await enters(of_peer(silent))


async def greeted_then(handle: Any, request: Any = LIST) -> Any:
    async def act(peer: Peer) -> None:
        await peer.greet()
        await handle(peer, (await peer.next())["id"])
        await trio.sleep_forever()

    async with client_of(of_peer(act)) as client:
        return await client.call(*request)


@pytest.mark.parametrize(
    "text",
    [
        "garbage",
        "[]",
        '{"jsonrpc":"2.0","id":9,"method":"fs/read_text_file","params":{}}',
        '{"jsonrpc":"2.0","method":"_greenroom/event","params":{"event":{"type":"no"}}}',
        '{"jsonrpc":"2.0","method":"_greenroom/ended","params":7}',
        '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}',
        "[" * 100_000,
    ],
)
async def test_what_is_no_message_ends_the_connection_for_good(
    text, autojump_clock: MockClock
):
    async def act(peer: Peer, number: int) -> None:
        await peer.websocket.send_message(text)

    with pytest.raises(GatewayProtocolError):
        await greeted_then(act)


async def test_answers_that_nobody_waits_for_and_binary_frames_are_let_be(
    autojump_clock: MockClock,
):
    async def act(peer: Peer, number: int) -> None:
        await peer.websocket.send_message(b"\x00")
        for wrong in (number + 1, -1, f"{number}", 1.5, 10**30):
            await peer.say(id=wrong, result={"sessions": "no"})
        await peer.say(method="_greenroom/unheard_of", params={"x": 1})
        await peer.say(id=number, result={"sessions": [], "new": "member"})
        await peer.say(id=number, result={"sessions": "again"})

    assert (await greeted_then(act)).sessions == ()


async def test_a_result_of_another_type_is_the_gateways_fault(
    autojump_clock: MockClock,
):
    async def act(peer: Peer, number: int) -> None:
        await peer.say(id=number, result={"sessions": 7})

    with pytest.raises(GatewayProtocolError, match="session/list"):
        await greeted_then(act)


async def test_a_frame_that_is_too_long_ends_the_connection(
    autojump_clock: MockClock,
):
    async def act(peer: Peer, number: int) -> None:
        await peer.websocket.send_message("x" * (MAX_FRAME_BYTES + 1))

    with pytest.raises(GatewayClosedError) as closed:
        await greeted_then(act)
    assert closed.value.close_code == 1009


async def test_a_request_without_an_answer_has_a_deadline(autojump_clock: MockClock):
    async def act(peer: Peer, number: int) -> None:
        while True:
            await peer.next()

    with pytest.raises(SilentGatewayError):
        await greeted_then(act)


@pytest.mark.parametrize(
    "data", [None, 7, {"code": 7, "hint": []}, {"code": "no_such"}]
)
async def test_a_refusal_has_the_engines_code_if_there_is_one(
    data, autojump_clock: MockClock
):
    async def act(peer: Peer, number: int) -> None:
        error = {"code": -32_000, "message": "no", "data": data}
        await peer.say(id=number, error=error)

    with pytest.raises(CallError) as refused:
        await greeted_then(act)
    expected = "no_such" if data == {"code": "no_such"} else "request_error"
    assert (refused.value.code, refused.value.hint) == (expected, None)


@pytest.mark.parametrize("code", [1001, 1006, 1011, 1012, 1013, 4290, 4408, 4429])
async def test_after_a_passing_close_a_prompt_is_sent_again(
    code, autojump_clock: MockClock
):
    peers: list[Peer] = []
    changes: list[bool] = []

    async def act(peer: Peer) -> None:
        peers.append(peer)
        await peer.greet()
        request = await peer.next()
        if len(peers) > 1:
            await peer.say(id=request["id"], result=ENDED)
        elif code == 1006:
            await peer.websocket._stream.aclose()
        else:
            await peer.websocket.aclose(code)
        await trio.sleep_forever()

    async with client_of(of_peer(act), on_change=changes.append) as client:
        assert (await client.call(*PROMPT)).text == "t"
    sent = [peer.asked[-1]["params"] for peer in peers]
    assert sent[0] == sent[1]
    assert changes[:2] == [False, True]


@pytest.mark.parametrize("code", [1000, 1002, 1003, 1007, 1008, 1009, 4401, 4999])
async def test_after_any_other_close_it_is_over(code, autojump_clock: MockClock):
    async def act(peer: Peer, number: int) -> None:
        await peer.websocket.aclose(code, "because")

    with pytest.raises(GreenroomError) as closed:
        await greeted_then(act, PROMPT)
    assert isinstance(closed.value, GatewayClosedError)
    assert closed.value.close_code == code


async def test_what_may_not_be_sent_again_is_told_to_be_unknown(
    autojump_clock: MockClock,
):
    async def act(peer: Peer, number: int) -> None:
        await peer.websocket.aclose(1001)

    with pytest.raises(ConnectionLostError):
        await greeted_then(act, ("session/fork", ForkSession("s"), OneSession))


async def test_a_gateway_that_lets_in_and_throws_out_is_given_up(
    autojump_clock: MockClock,
):
    visits: list[float] = []

    async def act(peer: Peer) -> None:
        visits.append(trio.current_time())
        await peer.greet()
        await peer.websocket.aclose(1001)

    with pytest.raises(UnreachableGatewayError):
        async with client_of(of_peer(act)) as client:
            await client.call(*PROMPT)
    # Slower and slower, up to a bound.
    assert 100 < len(visits) < 300
    assert visits[-1] - visits[-2] >= 5


class Deaf(trio.abc.Stream):
    """A stream whose machine is gone without a word, once `is_gone`."""

    def __init__(self, inner: trio.abc.Stream) -> None:
        self.inner = inner
        self.is_gone = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self.is_gone:
            await trio.sleep_forever()
        return bytes(await self.inner.receive_some(max_bytes))

    async def send_all(self, data: Any) -> None:
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self.inner.aclose()


async def test_a_gateway_that_fell_silent_is_left(autojump_clock: MockClock):
    streams: list[Deaf] = []
    times: list[float] = []

    async def act(peer: Peer) -> None:
        times.append(trio.current_time())
        await peer.greet()
        request = await peer.next()
        if len(times) == 1:
            streams[0].is_gone = True
        else:
            await peer.say(id=request["id"], result=ENDED)
        await trio.sleep_forever()

    async def handle(stream: Any) -> None:
        streams.append(Deaf(stream))
        await of_peer(act)(streams[-1])

    async with client_of(handle) as client:
        assert (await client.call(*PROMPT)).text == "t"
    assert PONG_SECONDS <= times[1] - times[0] <= PING_SECONDS + PONG_SECONDS + 5


@attrs.define(eq=False)
class Mute(trio.abc.Stream):
    """A stream on which nothing can be sent any more, and nothing comes."""

    inner: trio.abc.Stream
    is_broken: bool = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self.inner.receive_some(max_bytes))

    async def send_all(self, data: Any) -> None:
        if self.is_broken:
            raise trio.BrokenResourceError
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self.inner.aclose()


async def test_what_can_not_be_sent_is_lost_when_the_connection_has_ended(
    autojump_clock: MockClock,
):
    # If it were lost before, asking again would meet the same connection at once.
    async def answering(peer: Peer) -> None:
        await peer.greet()
        await peer.say(id=(await peer.next())["id"], result={"sessions": []})
        await trio.sleep_forever()

    streams: list[Mute] = []

    def mute(stream: trio.abc.Stream) -> Mute:
        streams.append(Mute(stream))
        return streams[-1]

    async with client_of(of_peer(answering), wrap=mute) as client:
        link = await client.linked()
        streams[0].is_broken = True
        with pytest.raises(ConnectionLostError):
            await link.request("session/list", {})
        assert link.ended.is_set()
        assert await client.call(*LIST) == SessionList(())


async def test_the_types_of_a_method_are_those_of_the_table(autojump_clock: MockClock):
    async def act(peer: Peer) -> None:
        await peer.greet()
        await trio.sleep_forever()

    async with client_of(of_peer(act)) as client:
        with pytest.raises(TypeError, match="SessionList"):
            await client.call("session/list", ListSessions(), OneSession)


#### A gateway that stops, or has much to do


def refusal(code: str) -> dict[str, Any]:
    return {"code": -32000, "message": "not now", "data": {"code": code}}


async def test_what_a_stopping_gateway_refuses_is_asked_of_the_next_one(
    autojump_clock: MockClock,
):
    peers: list[Peer] = []

    async def act(peer: Peer) -> None:
        peers.append(peer)
        await peer.greet()
        request = await peer.next()
        if len(peers) > 1:
            await peer.say(id=request["id"], result=ENDED)
        else:
            await peer.say(id=request["id"], error=refusal("gateway_stopped"))
            await peer.websocket.aclose(1001)
        await trio.sleep_forever()

    async with client_of(of_peer(act)) as client:
        assert (await client.call(*PROMPT)).text == "t"
    sent = [peer.asked[-1]["params"] for peer in peers]
    assert sent[0] == sent[1]


async def test_a_session_that_is_followed_is_attached_to_until_it_can_be(
    autojump_clock: MockClock,
):
    asked: list[Any] = []

    async def act(peer: Peer) -> None:
        await peer.greet()
        while True:
            request = await peer.next()
            asked.append(request["params"])
            if len(asked) == 1:
                await peer.say(id=request["id"], result={"seq": 3})
                await peer.websocket.aclose(1001)
                return
            if len(asked) == 2:
                no = refusal("deadline_exceeded")
                await peer.say(id=request["id"], error=no)
                continue
            await peer.say(id=request["id"], result={"seq": 3})
            ended = {"sessionId": "s", "reason": "deleted"}
            await peer.say(method="_greenroom/ended", params=ended)

    async with (
        client_of(of_peer(act)) as client,
        client.attach("s", after=3) as attachment,
    ):
        assert [type(item).__name__ async for item in attachment] == ["Attached"]
    # The last one says that it follows no more.
    assert [params.get("after") for params in asked] == [3, 3, 3, None]


async def test_one_that_can_not_be_attached_to_at_first_is_an_error(
    autojump_clock: MockClock,
):
    async def act(peer: Peer) -> None:
        await peer.greet()
        no = refusal("deadline_exceeded")
        await peer.say(id=(await peer.next())["id"], error=no)
        await trio.sleep_forever()

    async with (
        client_of(of_peer(act)) as client,
        client.attach("s", after=3) as attachment,
    ):
        with pytest.raises(CallError, match="not now"):
            await anext(attachment)
