"""Tool calls from their pieces: one rule for every dialect.

A piece belongs to the call that is open at its index; without an index, to the call
with its id, or to the last one. It opens a new call instead when it brings another
id, or when it brings a name although that call's arguments are already whole. Ids and
names are never overwritten with nothing and never joined; arguments are. The
original text of the arguments is kept: whether it is JSON is not judged here, except
to know that a call is whole.

A call is announced when its id and its name are known, at the latest at the end.
Indexes of the events are our own: servers reuse theirs.
"""

from __future__ import annotations

import json
from typing import Any, Final, final

import attrs

from .._canonical import safe_json
from .._errors import RemoteProtocolError
from .._stream import StreamEvent, ToolCallChunk, ToolCallEnd, ToolCallStart
from ._wire import as_object, as_text, decode_object

MAX_CALLS: Final = 128
"""Calls in one response; a run may start no more of them (TOL-07)."""

MAX_WORD: Final = 256
"""Characters of an id or a name."""

MAX_CHECKS: Final = 4 * MAX_CALLS
"""How often arguments are parsed to tell a new call from a repeated name, so that
a stream of repeated names does not cost the square of its length."""


class TooManyCallsError(RemoteProtocolError):
    """The response holds more tool calls than one may."""

    code = "too_many_tool_calls"

    def __init__(self) -> None:
        super().__init__(f"the response holds more than {MAX_CALLS} tool calls")


@attrs.define(eq=False)
class _Call:
    index: int
    key: int | None
    id: str = ""
    name: str = ""
    parts: list[str] = attrs.field(factory=list[str])
    extra: object = None
    announced: bool = False

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def is_whole(self) -> bool:
        return is_whole(self.text)


@attrs.frozen
class _Piece:
    key: int | None
    id: str
    name: str
    arguments: str
    extra: object


@final
class CallAssembly:
    """The tool calls of one response."""

    def __init__(self, salt: str = "") -> None:
        self._salt = salt
        self._calls: list[_Call] = []
        self._at: dict[int | None, _Call] = {}
        self._by_id: dict[tuple[int | None, str], _Call] = {}
        self._checks = 0

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def are_whole(self) -> bool:
        """Whether each call could be run as it stands."""
        return all(call.is_whole or not call.parts for call in self._calls)

    def feed(self, entry: object) -> list[StreamEvent]:
        """Take one entry of ``tool_calls`` in.

        Raises:
            TooManyCallsError: it opens one call too many.
        """
        piece = _read(entry)
        if not (piece.id or piece.name or piece.arguments):
            return []
        call = self._call_for(piece)
        if piece.id and not call.id:
            call.id = piece.id
            self._by_id.setdefault((call.key, call.id), call)
            self._by_id.setdefault((None, call.id), call)
        call.name = call.name or piece.name
        call.extra = call.extra or piece.extra
        if piece.arguments:
            call.parts.append(piece.arguments)
        if call.announced:
            return _chunk(call, piece.arguments)
        return self._announce(call) if call.id and call.name else []

    def close(self, *, normal: bool) -> list[StreamEvent]:
        """End the response: announce what is left and end what is complete.

        After a *normal* stop every call is over, with whatever text came; otherwise
        a call whose arguments are not whole was cut and does not end.
        """
        events: list[StreamEvent] = []
        for call in self._calls:
            if not call.announced:
                call.id = call.id or self._made_up_id(call.index)
                events += self._announce(call)
            if normal or call.is_whole:
                events.append(_end(call))
        return events

    def _call_for(self, piece: _Piece) -> _Call:
        known = self._by_id.get((piece.key, piece.id)) if piece.id else None
        if known is not None:
            return known
        call = self._at.get(piece.key)
        if call is None or self._is_another(call, piece):
            return self._open(piece.key)
        return call

    def _is_another(self, call: _Call, piece: _Piece) -> bool:
        if piece.id and (call.id or piece.key is None):
            return piece.id != call.id
        # A name that only repeats itself brings no arguments.
        if not piece.name or not (piece.name != call.name or piece.arguments):
            return False
        self._checks += 1
        return self._checks <= MAX_CHECKS and call.is_whole

    def _open(self, key: int | None) -> _Call:
        if len(self._calls) >= MAX_CALLS:
            raise TooManyCallsError
        call = _Call(index=len(self._calls), key=key)
        self._calls.append(call)
        self._at[key] = call
        # What comes without an index goes on with the last call, whatever its index.
        self._at[None] = call
        return call

    def _announce(self, call: _Call) -> list[StreamEvent]:
        call.announced = True
        start = ToolCallStart(index=call.index, id=call.id, name=call.name)
        return [start, *_chunk(call, call.text)]

    def _made_up_id(self, index: int) -> str:
        return f"call_{self._salt}_{index}" if self._salt else f"call_{index}"


def is_whole(arguments: str) -> bool:
    """Whether *arguments* are one complete JSON object."""
    text = arguments.strip()
    return text.endswith("}") and decode_object(text) is not None


def _read(entry: object) -> _Piece:
    raw = as_object(entry)
    function = as_object(raw.get("function"))
    key = raw.get("index")
    return _Piece(
        key=key if isinstance(key, int) and not isinstance(key, bool) else None,
        id=as_text(raw.get("id"))[:MAX_WORD],
        name=as_text(function.get("name"))[:MAX_WORD],
        arguments=_arguments(function.get("arguments")),
        extra=safe_json(raw.get("extra_content")),
    )


def _arguments(value: object) -> str:
    if isinstance(value, dict | list):
        return as_text(json.dumps(value, ensure_ascii=False))
    return as_text(value)


def _chunk(call: _Call, text: str) -> list[StreamEvent]:
    return [ToolCallChunk(index=call.index, text=text)] if text else []


def _end(call: _Call) -> ToolCallEnd:
    options: dict[str, Any] | None = None
    if call.extra:
        options = {"extra_content": call.extra}
    return ToolCallEnd(
        index=call.index,
        id=call.id,
        name=call.name,
        arguments=call.text if call.text.strip() else "{}",
        options=options,
    )
