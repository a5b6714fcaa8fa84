"""What a JSON-RPC connection yields, and the error codes both sides share."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import attrs
import msgspec

from .._canonical import safe_json
from .._errors import RemoteProtocolError

Id = int | float | str | None
"""The id of a request. Version 1 of the protocols above echoes whatever came."""


class ErrorCode(IntEnum):
    """The codes of JSON-RPC, and that of a request that was cancelled."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    REQUEST_CANCELLED = -32800


class ErrorObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request has no result. Any integer is a code."""

    code: int
    message: str
    data: Any = None


@attrs.frozen
class Request:
    """The peer asks, and waits for exactly one response."""

    id: Id
    method: str
    params: msgspec.Raw


@attrs.frozen
class Notification:
    """The peer tells, and waits for nothing."""

    method: str
    params: msgspec.Raw


@attrs.frozen
class Withdrawn:
    """The peer no longer needs the answer to its request, which it still gets."""

    id: Id


@attrs.frozen
class Response:
    """The result of a request of ours."""

    id: int
    result: msgspec.Raw


@attrs.frozen
class Failure:
    """A request of ours failed; with no id, the peer complains about a line."""

    id: int | None
    error: ErrorObject


@attrs.frozen
class Invalid:
    """A line that is no message, or a request that can't be taken."""

    error: ErrorObject
    line: str
    """How the line began, for a log."""
    reply: bytes
    """What an agent sends. A client had better not: to answer what an agent printed
    by accident starts a quarrel of errors."""


@attrs.frozen
class Closed:
    """Nothing more comes."""

    unanswered: tuple[int, ...]
    """Requests of ours that never will be."""
    error: RemoteProtocolError | None = None
    """Why, when it was not the peer who closed."""
    reply: bytes = b""
    """What an agent sends before it closes, then."""


def encode_json(value: object) -> bytes:
    """Return *value* as JSON; text that can't be encoded is replaced, not refused."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, builtin_types=(msgspec.Raw,))
        return msgspec.json.encode(safe_json(plain))
