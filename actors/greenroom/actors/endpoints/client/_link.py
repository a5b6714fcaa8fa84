"""One connection to a gateway: from its handshake to its end.

One task reads and one asks whether the gateway is still there. Nothing that comes waits
for whoever it is for: an answer is kept in the slot of its request, an event in the
feed of its session. What is no message of the protocol ends the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

import attrs
import msgspec
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from greenroom.protocol import GreenroomError, LocalProtocolError, SessionId
from greenroom.protocol.gateway import (
    ENDED,
    EVENT,
    MAX_FRAME_BYTES,
    CloseCode,
    EndedNotice,
    EventNotice,
)
from greenroom.protocol.jsonrpc import (
    Connection,
    ErrorObject,
    Failure,
    Invalid,
    Notification,
    Request,
    Response,
)

from ._errors import (
    COMES_BACK,
    CallError,
    ConnectionLostError,
    GatewayClosedError,
    GatewayProtocolError,
)
from ._feed import Feed, attached_of

MAX_UNANSWERED: Final = 64
"""Requests without an answer; the gateway takes no more of one connection."""

PING_SECONDS: Final = 20.0
PONG_SECONDS: Final = 20.0
"""Without a pong in this time the gateway is gone: only who asks learns that."""

SEND_SECONDS: Final = 20.0
"""A gateway reads; one that does not in this time is gone."""

_RETRY_LATER: Final = "the connection was lost"


@attrs.define(eq=False)
class _Slot:
    # A request that waits for its answer.
    feed: Feed | None
    done: trio.Event = attrs.field(factory=trio.Event)
    result: msgspec.Raw | None = None
    error: GreenroomError | None = None


@final
@attrs.define(eq=False)
class Link:
    """A connection that is up, until ``ended`` is set."""

    _websocket: WebSocketConnection
    _sever: Callable[[], None]
    """Ends the connection at once, without a word."""
    error: GreenroomError | None = attrs.field(default=None, init=False)
    """Why it ended, if it is of no use to connect again."""
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    _protocol: Connection = attrs.field(init=False)
    _slots: dict[int, _Slot] = attrs.field(factory=dict[int, _Slot], init=False)
    _feeds: dict[SessionId, Feed] = attrs.field(
        factory=dict[SessionId, Feed], init=False
    )

    def __attrs_post_init__(self) -> None:
        self._protocol = Connection(max_open=MAX_UNANSWERED)

    #### Asking

    async def request(
        self, method: str, params: object, feed: Feed | None = None
    ) -> msgspec.Raw:
        """Ask, and return the result; with a *feed* it is told what follows.

        Raises:
            CallError: the gateway refuses.
            ConnectionLostError: the connection ended first.
            LocalProtocolError: too much is asked at once, or at a time.
        """
        if self.ended.is_set():
            raise ConnectionLostError(_RETRY_LATER)
        number, message = self._protocol.request(method, params)
        slot = self._slots[number] = _Slot(feed)
        try:
            await self._send(method, message)
            await slot.done.wait()
        finally:
            self._slots.pop(number, None)
            self._protocol.withdraw(number)
        if slot.error is not None:
            raise slot.error
        assert slot.result is not None
        return slot.result

    def forget(self, feed: Feed) -> None:
        """Tell this feed nothing more."""
        if self._feeds.get(feed.session_id) is feed:
            del self._feeds[feed.session_id]

    async def _send(self, method: str, message: bytes) -> None:
        if len(message) > MAX_FRAME_BYTES:
            raise LocalProtocolError(
                f"{method} would take {len(message):,} bytes, and a frame has at most "
                f"{MAX_FRAME_BYTES:,}"
            )
        # A frame of which a part was sent can't be taken back. If the connection is
        # closed the reader ends, too, and tells whoever waits for an answer: before
        # that there is nothing to come back to.
        until = trio.current_time() + SEND_SECONDS
        with (
            trio.CancelScope(shield=True, deadline=until) as sending,
            suppress(ConnectionClosed),
        ):
            await self._websocket.send_message(message.decode())
        if sending.cancelled_caught:
            self._sever()
            raise ConnectionLostError("the gateway does not read")

    #### Serving

    async def serve(self) -> None:
        """Take what comes until the connection ends."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ping)
                await self._read()
                nursery.cancel_scope.cancel()
        finally:
            self._finish()

    async def _read(self) -> None:
        try:
            while True:
                message = await self._websocket.get_message()
                if isinstance(message, str):
                    self._take(message.encode())
        except ConnectionClosed as exc:
            self.error = _why_closed(exc)
        except GatewayProtocolError as exc:
            self.error = exc
            await self._websocket.aclose(CloseCode.PROTOCOL_ERROR)

    async def _ping(self) -> None:
        while True:
            await trio.sleep(PING_SECONDS)
            with trio.move_on_after(PONG_SECONDS) as waiting:
                try:
                    await self._websocket.ping()
                except ConnectionClosed:
                    return
            if waiting.cancelled_caught:
                self._sever()

    def _finish(self) -> None:
        self.ended.set()
        for slot in self._slots.values():
            slot.error = slot.error or ConnectionLostError(_RETRY_LATER)
            slot.done.set()
        for feed in self._feeds.values():
            feed.finish("lost")

    def _take(self, data: bytes) -> None:
        match self._protocol.receive_message(data):
            case Response(id=number, result=result):
                self._answer(number, result)
            case Failure(id=int(number), error=error):
                self._refuse(number, error)
            case Notification(method=method, params=params):
                self._tell(method, params, len(data))
            case Failure(error=error):
                raise GatewayProtocolError(
                    f"the gateway does not understand us: {error.message[:200]}"
                )
            case Invalid(error=error):
                raise GatewayProtocolError(
                    f"the gateway sent what is no message: {error.message[:200]}"
                )
            case Request(method=method):
                raise GatewayProtocolError(
                    f"the gateway asked for {method[:100]!r}, which no gateway does"
                )
            case _:
                # An answer to what nobody waits for any more.
                pass

    def _answer(self, number: int, result: msgspec.Raw) -> None:
        slot = self._slots.get(number)
        if slot is None:
            return
        slot.result = result
        slot.done.set()
        if slot.feed is not None:
            try:
                slot.feed.begin(attached_of(result))
            except (msgspec.DecodeError, RecursionError) as exc:
                raise _wrong("the answer to an attach", exc) from exc
            # At once: the next message may be its first event.
            self._feeds[slot.feed.session_id] = slot.feed

    def _refuse(self, number: int, error: ErrorObject) -> None:
        slot = self._slots.get(number)
        if slot is not None:
            slot.error = CallError(error)
            slot.done.set()

    def _tell(self, method: str, params: msgspec.Raw, size: int) -> None:
        try:
            if method == EVENT:
                notice = msgspec.json.decode(params, type=EventNotice)
                feed = self._feeds.get(notice.event.session_id)
                if feed is not None:
                    feed.put(notice, size)
            elif method == ENDED:
                ended = msgspec.json.decode(params, type=EndedNotice)
                feed = self._feeds.pop(ended.session_id, None)
                if feed is not None:
                    feed.ended(ended)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise _wrong(method, exc) from exc


def _why_closed(closed: ConnectionClosed) -> GreenroomError | None:
    reason = closed.reason
    if reason is None or reason.code in COMES_BACK:
        return None
    return GatewayClosedError(reason.code, reason.reason)


def _wrong(what: str, exc: Exception) -> GatewayProtocolError:
    return GatewayProtocolError(f"{what} can't be read: {str(exc)[:200]}")
