"""The rehearsal provider: plays a script instead of asking a model.

Deterministic and offline: the provider that is used when no model is configured,
and the base of anybody's tests. A script is a list of replies; each request plays
the next one, whatever it asks. A reply is a list of cues, and says exactly what a
peer would do on the wire: text, thinking, calls, usage, a stop, a fault, a pause.

A script is data: `load_script` reads one from JSON, so that a test, a demo or a bug
report can carry one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, final

import attrs
import msgspec
import trio

from greenroom.protocol import (
    MAX_SERVER_DELAY_MS,
    GreenroomError,
    ModelRequest,
    ProviderFailure,
    ReasoningDelta,
    Stop,
    StopReason,
    StreamEvent,
    TextDelta,
    ToolCallChunk,
    ToolCallEnd,
    ToolCallStart,
    Usage,
    UsageReported,
    canonical_json,
)

from ._port import Waiting, ignore_waiting

MAX_SCRIPT_BYTES: Final = 4 << 20


class ScriptError(GreenroomError):
    """A script can't be played."""

    code = "script_error"


#### Cues


class Say(msgspec.Struct, frozen=True, tag="say", forbid_unknown_fields=True):
    """Stream text, in pieces of ``chunk`` characters (0: in one)."""

    text: str
    chunk: int = 0


class Think(msgspec.Struct, frozen=True, tag="think", forbid_unknown_fields=True):
    """Stream thinking; ``options`` are what must come back with it."""

    text: str
    options: dict[str, Any] | None = None


class Call(msgspec.Struct, frozen=True, tag="call", forbid_unknown_fields=True):
    """Call a tool. ``arguments`` as text are sent as they are, JSON or not."""

    name: str
    arguments: dict[str, Any] | str = ""
    id: str = ""
    """Empty: ``call_`` and the number of the call in the script."""
    cut: bool = False
    """The call is announced but never finished."""


class Use(msgspec.Struct, frozen=True, tag="use", forbid_unknown_fields=True):
    """Report usage."""

    input: int
    output: int
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None


class Halt(msgspec.Struct, frozen=True, tag="stop", forbid_unknown_fields=True):
    """Stop with this reason; nothing of the reply is played after it."""

    reason: StopReason = "complete"


class Fail(msgspec.Struct, frozen=True, tag="fail", forbid_unknown_fields=True):
    """Report a failure as an adapter would."""

    message: str
    code: str | None = None
    status: int | None = None
    retryable: bool | None = None
    headers: dict[str, str] = {}


class Raise(msgspec.Struct, frozen=True, tag="raise", forbid_unknown_fields=True):
    """Raise out of the stream, as an adapter with a bug would."""

    message: str


class Pause(msgspec.Struct, frozen=True, tag="pause", forbid_unknown_fields=True):
    """Say nothing for so many seconds of the injected clock."""

    seconds: float


class Hang(msgspec.Struct, frozen=True, tag="hang", forbid_unknown_fields=True):
    """Say nothing for ever."""


class End(msgspec.Struct, frozen=True, tag="end", forbid_unknown_fields=True):
    """Close the connection here, with no stop."""


Cue = Say | Think | Call | Use | Halt | Fail | Raise | Pause | Hang | End
Reply = Sequence[Cue]
Script = Sequence[Reply] | Callable[[ModelRequest], Reply]
"""Replies in order, or a function from the request to its reply."""


def load_script(text: str | bytes) -> list[list[Cue]]:
    """Return the script that JSON *text* holds: a list of lists of cues.

    Raises:
        ScriptError: too large, not JSON, or a cue or key that does not exist.
    """
    if len(text) > MAX_SCRIPT_BYTES:
        raise ScriptError(f"script is larger than {MAX_SCRIPT_BYTES} bytes")
    try:
        return msgspec.json.decode(text, type=list[list[Cue]])
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ScriptError(f"script can't be read: {exc}") from exc


@final
@attrs.define(eq=False)
class RehearsalProvider:
    """Plays *script*; every request it got is kept in ``requests``."""

    script: Script
    id: str = attrs.field(default="rehearsal", kw_only=True)
    replayable: bool = attrs.field(default=True, kw_only=True)
    max_told_ms: int = attrs.field(default=MAX_SERVER_DELAY_MS, kw_only=True)
    requests: list[ModelRequest] = attrs.field(factory=list[ModelRequest], init=False)
    """Every payload, in the order they were sent."""
    active: int = attrs.field(default=0, init=False)
    """Streams that are open now."""
    _calls: int = attrs.field(default=0, init=False)

    def stream(
        self, request: ModelRequest, *, waiting: Waiting = ignore_waiting
    ) -> AbstractAsyncContextManager[AsyncIterator[StreamEvent]]:
        """Play the next reply of the script. It has no clock, so nothing waits."""
        return self._stream(request)

    @asynccontextmanager
    async def _stream(
        self, request: ModelRequest
    ) -> AsyncGenerator[AsyncIterator[StreamEvent]]:
        reply = self._next_reply(request)
        self.requests.append(request)
        self.active += 1
        events = self._play(reply)
        try:
            yield events
        finally:
            self.active -= 1
            await events.aclose()

    def _next_reply(self, request: ModelRequest) -> Reply:
        if callable(self.script):
            return self.script(request)
        number = len(self.requests)
        if number < len(self.script):
            return self.script[number]
        return [Fail(f"the script has only {number} replies", code="script_ended")]

    async def _play(self, reply: Reply) -> AsyncGenerator[StreamEvent]:
        index = 0
        for cue in reply:
            await trio.lowlevel.checkpoint()
            match cue:
                case Pause(seconds=seconds):
                    await trio.sleep(seconds)
                case Hang():
                    await trio.sleep_forever()
                case Raise(message=message):
                    raise RuntimeError(message)
                case End():
                    return
                case _:
                    for event in self._events(cue, index):
                        yield event
            index += isinstance(cue, Call)
            if isinstance(cue, Halt):
                return

    def _events(self, cue: Cue, index: int) -> list[StreamEvent]:
        match cue:
            case Say(text=text, chunk=chunk):
                return [TextDelta(piece) for piece in _pieces(text, chunk)]
            case Think(text=text, options=options):
                return [ReasoningDelta(text, options)]
            case Call():
                return self._call(cue, index)
            case Use():
                return [UsageReported(usage=_usage(cue))]
            case Halt(reason=reason):
                return [Stop(reason=reason, raw=reason)]
            case Fail():
                return [
                    ProviderFailure(
                        message=cue.message,
                        code=cue.code,
                        status=cue.status,
                        retryable=cue.retryable,
                        headers=cue.headers,
                    )
                ]
            case _:
                return []

    def _call(self, cue: Call, index: int) -> list[StreamEvent]:
        self._calls += 1
        call_id = cue.id or f"call_{self._calls}"
        raw = cue.arguments
        text = raw if isinstance(raw, str) else canonical_json(raw)
        start = ToolCallStart(index=index, id=call_id, name=cue.name)
        chunk = ToolCallChunk(index=index, text=text)
        if cue.cut:
            return [start, chunk]
        end = ToolCallEnd(
            index=index, id=call_id, name=cue.name, arguments=text or "{}"
        )
        return [start, chunk, end]


def _pieces(text: str, chunk: int) -> list[str]:
    if chunk < 1:
        return [text]
    return [text[start : start + chunk] for start in range(0, len(text), chunk)]


def _usage(cue: Use) -> Usage:
    return Usage(
        input=cue.input,
        output=cue.output,
        total=cue.input + cue.output,
        cache_read=cue.cache_read,
        cache_write=cue.cache_write,
        reasoning=cue.reasoning,
    )
