"""One physical attempt over HTTP: an async iterator over its events.

It goes through four states, each left once: nothing sent, body, rest of the body
behind the reply, over. Every wait happens inside `__anext__`, in a cancel scope of
its own with the deadline of the clock it is on, so nothing is held across a yield.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from enum import Enum, auto
from typing import Any, Final, Literal, final

import attrs
import httpx2
import trio

from greenroom.protocol import CONTROL_EVENTS, ProviderFailure, StreamEvent
from greenroom.protocol.providers import (
    BodyDecoder,
    failure_from_response,
    make_failure,
)

from ._clocks import Clocks
from ._faults import failure_from_transport
from ._port import Waiting

MAX_ERROR_BYTES: Final = 64 * 1024
ERROR_BODY_SECONDS: Final = 5.0
"""The status is known already: what explains it is not worth a long wait."""

MAX_DRAIN_BYTES: Final = 64 * 1024
DRAIN_SECONDS: Final = 1.0
"""Behind the end of a reply comes the end of the body, after which the connection
can be used again; beyond this a new connection is cheaper."""

TimeoutCode = Literal[
    "connect_timeout", "first_byte_timeout", "idle_timeout", "content_idle_timeout"
]
_SILENCE: Final[Mapping[TimeoutCode, str]] = {
    "connect_timeout": "no connection to the provider",
    "first_byte_timeout": "no answer from the provider",
    "idle_timeout": "not a byte from the provider",
    "content_idle_timeout": "nothing but heartbeats from the provider",
}


class _State(Enum):
    UNSENT = auto()
    BODY = auto()
    REST = auto()
    OVER = auto()


@final
@attrs.define(eq=False)
class EventStream:
    """The events of one attempt. Only the task that iterates may close it."""

    _client: httpx2.AsyncClient
    _request: httpx2.Request
    _decoder: BodyDecoder
    _clocks: Clocks
    _waiting: Waiting
    _redact: Callable[[ProviderFailure], ProviderFailure]
    _state: _State = attrs.field(default=_State.UNSENT, init=False)
    _ready: deque[StreamEvent] = attrs.field(factory=deque[StreamEvent], init=False)
    _response: httpx2.Response | None = attrs.field(default=None, init=False)
    _chunks: AsyncGenerator[bytes, None] | None = attrs.field(default=None, init=False)
    # What is left of the content clock; only waiting takes from it.
    _content_left: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._content_left = self._clocks.content_idle

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> StreamEvent:
        """Return the next event; a checkpoint only when it has to wait for it."""
        while not self._ready:
            if self._state is _State.OVER:
                raise StopAsyncIteration
            self._ready.extend(await self._step())
        event = self._ready.popleft()
        return self._redact(event) if isinstance(event, ProviderFailure) else event

    async def aclose(self) -> None:
        """Close the connection, unless the whole body was read."""
        self._state = _State.OVER
        chunks, response = self._chunks, self._response
        self._chunks = self._response = None
        try:
            if chunks is not None:
                await _abandon(chunks)
        finally:
            if response is not None:
                await response.aclose()

    async def _step(self) -> list[StreamEvent]:
        match self._state:
            case _State.UNSENT:
                return await self._send()
            case _State.BODY:
                return await self._read()
            case _:
                await self._drain()
                return []

    #### Sending

    async def _send(self) -> list[StreamEvent]:
        code: TimeoutCode = "connect_timeout"
        deadline = trio.current_time() + self._clocks.connect
        self._waiting("connect", deadline)
        with trio.CancelScope(deadline=deadline) as scope:

            async def trace(event: str, info: dict[str, Any]) -> None:
                # The one moment that the client tells of only in this way: from
                # here on it is the server's silence and not the network's.
                nonlocal code
                if event.endswith(".send_request_headers.started"):
                    code = "first_byte_timeout"
                    scope.deadline = trio.current_time() + self._clocks.first_byte
                    self._waiting("first_byte", scope.deadline)

            self._request.extensions["trace"] = trace
            try:
                self._response = await self._client.send(self._request, stream=True)
            except httpx2.TransportError as error:
                return await self._end(failure_from_transport(error))
        if self._response is None:
            return await self._end(self._silent(code))
        return await self._judge(self._response)

    async def _judge(self, response: httpx2.Response) -> list[StreamEvent]:
        self._chunks = response.aiter_raw()
        if not response.is_success:
            body = await self._error_body(self._chunks)
            failure = failure_from_response(
                response.status_code, _headers(response), body
            )
            return await self._end(failure)
        problem = _problem(response)
        if problem is not None:
            return await self._end(problem)
        self._state = _State.BODY
        return []

    async def _error_body(self, chunks: AsyncGenerator[bytes, None]) -> bytes:
        body = bytearray()
        with trio.move_on_after(ERROR_BODY_SECONDS):
            try:
                while len(body) < MAX_ERROR_BYTES:
                    chunk = await anext(chunks, None)
                    if chunk is None:
                        break
                    body += chunk
            except httpx2.TransportError:
                # What came has to do; the status is the news.
                pass
        return bytes(body[:MAX_ERROR_BYTES])

    #### Reading

    async def _read(self) -> list[StreamEvent]:
        assert self._chunks is not None
        limit = min(self._clocks.idle, self._content_left)
        started = trio.current_time()
        self._waiting("stream", started + limit)
        chunk: bytes | None = None
        with trio.CancelScope(deadline=started + limit) as scope:
            try:
                chunk = await anext(self._chunks, None)
            except httpx2.TransportError as error:
                return await self._break(error)
        if scope.cancelled_caught:
            is_idle = self._clocks.idle <= self._content_left
            code: TimeoutCode = "idle_timeout" if is_idle else "content_idle_timeout"
            return await self._end(self._silent(code))
        if chunk is None:
            return await self._end(*self._decoder.finish())
        events = self._take(chunk, trio.current_time() - started)
        if any(isinstance(event, ProviderFailure) for event in events):
            # A server that goes on with what is lost is told so by the close.
            return await self._end(*events)
        return events

    def _take(self, chunk: bytes, waited: float) -> list[StreamEvent]:
        events = self._decoder.feed(chunk)
        if any(not isinstance(event, CONTROL_EVENTS) for event in events):
            self._content_left = self._clocks.content_idle
        else:
            self._content_left -= waited
        if self._decoder.is_over:
            self._state = _State.REST
        return events

    async def _break(self, error: httpx2.TransportError) -> list[StreamEvent]:
        if self._decoder.has_finish_reason:
            # The reply was whole; only the farewell is missing.
            return await self._end(*self._decoder.finish())
        return await self._end(failure_from_transport(error))

    async def _drain(self) -> None:
        left = MAX_DRAIN_BYTES
        with trio.move_on_after(DRAIN_SECONDS):
            try:
                while self._chunks is not None and left > 0:
                    chunk = await anext(self._chunks, None)
                    if chunk is None:
                        break
                    left -= len(chunk)
            except httpx2.TransportError:
                pass
        await self.aclose()

    async def _end(self, *events: StreamEvent) -> list[StreamEvent]:
        await self.aclose()
        return list(events)

    def _silent(self, code: TimeoutCode) -> ProviderFailure:
        seconds = getattr(self._clocks, code.removesuffix("_timeout"))
        message = f"{_SILENCE[code]} for {seconds:g} s"
        return make_failure(message, code, retryable=True)


async def _abandon(chunks: AsyncGenerator[bytes, None]) -> None:
    # The client's byte streams are async generators inside one another, and closing
    # the outer one leaves the inner ones to the garbage collector. A cancelled read
    # ends them all, and closes the socket on its way.
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            async for _ in chunks:
                pass
        except httpx2.TransportError:
            pass


def _headers(response: httpx2.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


def _problem(response: httpx2.Response) -> ProviderFailure | None:
    kind = response.headers.get("content-type", "").lower()
    if kind.startswith("text/html"):
        text = (
            "the server answered with a web page instead of a reply; "
            "check base_url, which usually ends in /v1"
        )
        return make_failure(
            text, "not_a_model_api", status=response.status_code, retryable=False
        )
    coding = response.headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        # Never asked for, and a small body could unpack to one without end.
        text = f"the server compressed its reply ({coding[:40]!r}) without being asked"
        return make_failure(text, "unsupported_encoding", retryable=False)
    return None
