"""Who a client is, what it is told without asking, and how a connection ends."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from .._events import Event
from .._ids import SessionId
from ._sessions import Cut

Scope = Literal["read", "write", "admin"]
"""What a token allows. None includes another."""

SCOPES: Final[tuple[Scope, ...]] = ("read", "write", "admin")

EVENT: Final = "_greenroom/event"
ENDED: Final = "_greenroom/ended"
AUTHENTICATE: Final = "_greenroom/authenticate"

ClientId = Annotated[str, Meta(min_length=1, max_length=64, pattern="^[!-~]+$")]
"""Printable ASCII without spaces."""


class Authenticate(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """Who the client is; where a token is needed, the first frame."""

    token: Annotated[str, Meta(max_length=4_096)] | None = None
    client_id: ClientId | None = None
    """The client's own, kept over its connections; absent: the gateway makes one."""


class Authenticated(msgspec.Struct, frozen=True, rename="camel"):
    """Who the client is, and what it may do."""

    client_id: str
    scopes: tuple[Scope, ...]
    resumed: bool
    """Sessions are still bound to this client from an earlier connection."""


class EventNotice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parameters of ``_greenroom/event``."""

    event: Event
    cut: tuple[Cut, ...] = ()
    more: bool = False
    """Another event with the same ``seq`` follows: a client keeps this one back, or its
    cursor, until the last of them is there, and is told all of them again if it comes
    back before."""


class EndedNotice(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The parameters of ``_greenroom/ended``: no more events of this session."""

    session_id: SessionId
    reason: Literal["rewound", "deleted", "unloaded", "slow", "closed"]
    after: int | None = None
    """Attach again with this cursor; absent: anew, with a snapshot."""


class CloseCode(IntEnum):
    """Why the gateway closes a connection; those from 4000 on are its own.

    After ``GOING_AWAY``, ``SLOW``, ``TIMED_OUT``, ``RATE_LIMITED`` and ``TRY_LATER`` a
    client comes back by itself, with its cursors; after the others it would get the
    same again. Who may not come in at all is told so in HTTP, before there is a
    WebSocket.
    """

    NORMAL = 1000
    GOING_AWAY = 1001
    """The gateway stops."""
    PROTOCOL_ERROR = 1002
    """What came is no frame, or none that may come there."""
    NOT_UTF8 = 1007
    """What came as text is none."""
    TOO_BIG = 1009
    """A message is longer than `MAX_FRAME_BYTES`, or in too many pieces."""
    TRY_LATER = 1013
    """There are too many connections."""
    SLOW = 4290
    """It does not read what it is sent; the reason is ``resume``."""
    UNAUTHENTICATED = 4401
    """No token, or a wrong one."""
    TIMED_OUT = 4408
    """It did not say who it is in time, or does not answer a ping."""
    RATE_LIMITED = 4429
    """Too many frames, of whatever kind."""


class Opcode(IntEnum):
    """The kinds of frames that are sent in one piece (RFC 6455, 5.2)."""

    TEXT = 0x1
    BINARY = 0x2
    CLOSE = 0x8
    PING = 0x9
    PONG = 0xA


def server_frame(payload: bytes, opcode: Opcode = Opcode.TEXT) -> bytes:
    """Return *payload* as one whole frame of a server, which is never masked.

    Raises:
        ValueError: a control frame with more than 125 bytes (RFC 6455, 5.5).
    """
    size = len(payload)
    if opcode >= Opcode.CLOSE and size > 125:
        raise ValueError(f"a control frame has at most 125 bytes, not {size}")
    first = bytes((0x80 | opcode,))
    if size < 126:
        return first + bytes((size,)) + payload
    if size < 1 << 16:
        return first + b"\x7e" + size.to_bytes(2, "big") + payload
    return first + b"\x7f" + size.to_bytes(8, "big") + payload
