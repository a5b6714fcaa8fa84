"""One side of a JSON-RPC connection, without I/O.

*Rule 1*: everything that changes the state of the connection is in this file.
*Rule 2*: it does not know which side it is, nor what a method means.

Theory of operation. `receive_data` takes bytes (none: the peer has closed),
`next_event` returns what they mean, one at a time, until `NEED_DATA`. What is sent
comes out as bytes. Ids are numbered for each direction on its own: our requests wait
in a table until their response comes, the peer's until ours went out. Each has exactly
one response: a second one from the peer is ignored, a second one from us is an error
of ours. A line that is no message yields `Invalid` and leaves everything as it was;
only one that is too long ends the connection.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Final, final

import attrs
import msgspec
from msgspec import UNSET, Raw, UnsetType

from .._canonical import safe_json, safe_text
from .._errors import LocalProtocolError, RemoteProtocolError
from ._framing import MAX_MESSAGE_BYTES, LineBuffer, MessageTooLargeError
from ._messages import (
    Closed,
    ErrorCode,
    ErrorObject,
    Failure,
    Id,
    Invalid,
    Notification,
    Request,
    Response,
    Withdrawn,
    encode_json,
)

MAX_OPEN: Final = 1_024
"""Requests that may wait for their response, in each direction, where nobody says."""

MAX_ID_CHARS: Final = 1_024
MAX_LOGGED_CHARS: Final = 200
CANCEL_METHOD: Final = "$/cancel_request"

_EMPTY: Final = Raw(b"{}")
_NULL: Final = b"null"
_BATCH: Final = "batches are not supported: send one message in each line"


class NeedData(Enum):
    """Everything that came has been told."""

    NEED_DATA = "need data"


NEED_DATA: Final = NeedData.NEED_DATA

Event = Request | Notification | Withdrawn | Response | Failure | Invalid | Closed


class _Envelope(msgspec.Struct):
    jsonrpc: str
    id: Raw | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class _Cancel(msgspec.Struct, rename="camel"):
    request_id: Id


class _InvalidLine(Exception):
    # Carries what `Invalid` says; never leaves this file.
    def __init__(self, code: ErrorCode, message: str, request_id: Id = None) -> None:
        super().__init__(message)
        self.error = ErrorObject(code, message)
        self.reply = _line(id=request_id, error=self.error)


@final
@attrs.define(eq=False)
class Connection:
    """A connection to one peer."""

    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_open: int = MAX_OPEN
    """Requests that may wait for their response, in each direction."""
    _lines: LineBuffer = attrs.field(init=False)
    _asked: dict[int, str] = attrs.field(factory=dict[int, str], init=False)
    """Our requests without a response, and their methods."""
    _open: set[bytes] = attrs.field(factory=set[bytes], init=False)
    """Ids of the peer's requests without a response, as canonical JSON."""
    _last_id: int = attrs.field(default=-1, init=False)
    _ended: bool = attrs.field(default=False, init=False)
    _error: RemoteProtocolError | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._lines = LineBuffer(self.max_message_bytes)

    #### Receiving

    def receive_data(self, data: bytes) -> None:
        """Take bytes of the peer in; none means that it has closed its end."""
        if self._ended:
            return
        self._lines.feed(data)
        self._ended = not data

    def next_event(self) -> Event | NeedData:
        """Return the next thing that the peer said."""
        while self._error is None:
            try:
                line = self._lines.next_line()
            except MessageTooLargeError as exc:
                self._error = exc
                break
            if line is None:
                break
            event = self._process(line)
            if event is not None:
                return event
        if self._error is None and not self._ended:
            return NEED_DATA
        return self._close()

    def receive_message(self, message: bytes) -> Event | None:
        """Return what one message means; ``None``: nothing.

        For a transport that keeps messages apart by itself, in the place of
        `receive_data` and `next_event`.
        """
        return self._process(message)

    def _close(self) -> Closed:
        self._ended = True
        unanswered = tuple(self._asked)
        self._asked.clear()
        if self._error is None:
            return Closed(unanswered)
        error = ErrorObject(ErrorCode.INVALID_REQUEST, str(self._error))
        return Closed(unanswered, self._error, _line(id=None, error=error))

    #### Sending

    def request(self, method: str, params: object) -> tuple[int, bytes]:
        """Return the id of a new request, and its bytes.

        Raises:
            LocalProtocolError: no answer can come any more, or too many are awaited.
        """
        if self._ended:
            raise LocalProtocolError(f"can't send {method!r}: the peer has closed")
        if len(self._asked) >= self.max_open:
            raise LocalProtocolError(
                f"can't send {method!r}: {self.max_open} requests wait for their "
                "response"
            )
        self._last_id += 1
        self._asked[self._last_id] = method
        return self._last_id, _line(id=self._last_id, method=method, params=params)

    def notify(self, method: str, params: object) -> bytes:
        """Return the bytes of a notification."""
        return _line(method=method, params=params)

    def respond(self, request_id: Id, result: object) -> bytes:
        """Return the bytes of the result of a request of the peer's.

        Raises:
            LocalProtocolError: there is no such request, or it has its response.
        """
        self._close_request(request_id)
        return _line(id=request_id, result=result)

    def refuse(self, request_id: Id, error: ErrorObject) -> bytes:
        """Return the bytes of an error in the place of a result.

        Raises:
            LocalProtocolError: there is no such request, or it has its response.
        """
        self._close_request(request_id)
        return _line(id=request_id, error=error)

    def withdraw(self, request_id: int) -> bytes:
        """Forget a request of ours and return the bytes that tell the peer so.

        There are none when its response has come. One that comes yet is ignored.
        """
        if self._asked.pop(request_id, None) is None:
            return b""
        return self.notify(CANCEL_METHOD, {"requestId": request_id})

    def _close_request(self, request_id: Id) -> None:
        try:
            self._open.remove(encode_json(request_id))
        except KeyError:
            raise LocalProtocolError(
                f"can't answer request {request_id!r}: it is not open"
            ) from None

    #### Lines

    def _process(self, line: bytes) -> Event | None:
        try:
            return self._event(_envelope(line))
        except _InvalidLine as invalid:
            shown = safe_text(line[:MAX_LOGGED_CHARS].decode(errors="replace"))
            return Invalid(invalid.error, shown, invalid.reply)

    def _event(self, envelope: _Envelope) -> Event | None:
        if isinstance(envelope.method, UnsetType):
            return self._reply(envelope)
        params = envelope.params
        if isinstance(params, UnsetType) or bytes(params) == _NULL:
            params = _EMPTY
        if isinstance(envelope.id, UnsetType):
            return self._told(envelope.method, params)
        return self._asked_by_peer(_id(envelope.id), envelope.method, params)

    def _asked_by_peer(self, request_id: Id, method: str, params: Raw) -> Request:
        key = encode_json(request_id)
        if key in self._open:
            # Refused under no id: the one it has belongs to the first.
            raise _InvalidLine(
                ErrorCode.INVALID_REQUEST, f"request id {request_id!r} is in use"
            )
        if len(self._open) >= self.max_open:
            raise _InvalidLine(
                ErrorCode.INVALID_REQUEST,
                f"{self.max_open} requests are open already; wait for some of them",
                request_id,
            )
        self._open.add(key)
        return Request(request_id, method, params)

    def _told(self, method: str, params: Raw) -> Event | None:
        if method != CANCEL_METHOD:
            return Notification(method, params)
        try:
            wanted = msgspec.json.decode(params, type=_Cancel).request_id
            return Withdrawn(wanted) if encode_json(wanted) in self._open else None
        except msgspec.DecodeError:
            return None

    def _reply(self, envelope: _Envelope) -> Event | None:
        error = _present(envelope.error)
        request_id = None if isinstance(envelope.id, UnsetType) else _id(envelope.id)
        if request_id is None:
            if error is None:
                problem = "a message needs a method or an id"
                raise _InvalidLine(ErrorCode.INVALID_REQUEST, problem)
            return Failure(None, _error(error))
        # Exactly the number that was sent: 1.0 is another id.
        if not isinstance(request_id, int) or request_id not in self._asked:
            return None
        del self._asked[request_id]
        if error is not None:
            return Failure(request_id, _error(error))
        if isinstance(envelope.result, UnsetType):
            problem = "the response has neither a result nor an error"
            return Failure(request_id, ErrorObject(ErrorCode.INTERNAL_ERROR, problem))
        return Response(request_id, _present(envelope.result) or _EMPTY)


def _line(**members: object) -> bytes:
    return encode_json({"jsonrpc": "2.0", **members}) + b"\n"


def _present(raw: Raw | UnsetType) -> Raw | None:
    return None if isinstance(raw, UnsetType) or bytes(raw) == _NULL else raw


#### Decoding


def _envelope(line: bytes) -> _Envelope:
    try:
        # Raw members are skipped, not decoded, so their text is checked here.
        line.decode()
        envelope = _decoded(line)
    except msgspec.ValidationError as exc:
        raise _misshapen(line, exc) from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise _InvalidLine(ErrorCode.PARSE_ERROR, f"not JSON: {exc}") from exc
    except RecursionError as exc:
        problem = "the message is nested too deeply"
        raise _InvalidLine(ErrorCode.INVALID_REQUEST, problem) from exc
    if envelope.jsonrpc != "2.0":
        raise _InvalidLine(ErrorCode.INVALID_REQUEST, 'jsonrpc must be "2.0"')
    return envelope


def _misshapen(line: bytes, exc: msgspec.ValidationError) -> _InvalidLine:
    # The wrong type is found before the end of the line is looked at.
    try:
        msgspec.json.decode(line, type=Raw)
    except (msgspec.DecodeError, RecursionError) as broken:
        return _InvalidLine(ErrorCode.PARSE_ERROR, f"not JSON: {broken}")
    if line.startswith(b"["):
        return _InvalidLine(ErrorCode.INVALID_REQUEST, _BATCH)
    problem = f"not a request, a notification or a response: {exc}"
    return _InvalidLine(ErrorCode.INVALID_REQUEST, problem)


def _decoded(line: bytes) -> _Envelope:
    try:
        return msgspec.json.decode(line, type=_Envelope)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # A lone surrogate is legal in JSON, and JavaScript sends it; it is replaced.
        if b"\\ud" not in line and b"\\uD" not in line:
            raise
        return msgspec.json.decode(_without_surrogates(line), type=_Envelope)


def _without_surrogates(line: bytes) -> bytes:
    try:
        return msgspec.json.encode(safe_json(json.loads(line)))
    except ValueError as exc:
        raise msgspec.DecodeError(str(exc)) from exc


def _id(raw: Raw) -> Id:
    problem = f"an id is a string or a number of {MAX_ID_CHARS} characters, or null"
    try:
        found = msgspec.json.decode(raw, type=Id)
    except msgspec.DecodeError as exc:
        raise _InvalidLine(ErrorCode.INVALID_REQUEST, problem) from exc
    if len(str(found)) > MAX_ID_CHARS:
        raise _InvalidLine(ErrorCode.INVALID_REQUEST, problem)
    return found


def _error(raw: Raw) -> ErrorObject:
    try:
        return msgspec.json.decode(raw, type=ErrorObject)
    except (msgspec.DecodeError, RecursionError):
        shown = bytes(raw)[:MAX_LOGGED_CHARS].decode(errors="replace")
        problem = f"the peer sent an error that is none: {shown}"
        return ErrorObject(ErrorCode.INTERNAL_ERROR, problem)
