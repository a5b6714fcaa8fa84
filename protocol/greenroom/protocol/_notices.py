"""What observers are told beside the hooks' events: sessions, and attempts (PER-08).

An observer makes spans, metrics or records of it. Like a hook it looks on; unlike one
it is told at once, in the task that speaks, and so it must neither wait nor raise.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ._hooks import HookEvent
from ._ids import MessageId, RunId, SessionId
from ._journal import RunOutcome
from ._messages import Usage


class SessionLoaded(msgspec.Struct, frozen=True, kw_only=True):
    """A session is in memory, and may work."""

    session_id: SessionId


class SessionUnloaded(msgspec.Struct, frozen=True, kw_only=True):
    """It is not any more."""

    session_id: SessionId


class AttemptStart(msgspec.Struct, frozen=True, kw_only=True):
    """A request is about to be sent, once more or for the first time."""

    session_id: SessionId
    run_id: RunId
    message_id: MessageId
    request_seq: int
    attempt: int
    provider: str
    model: str


class FirstChunk(msgspec.Struct, frozen=True, kw_only=True):
    """The first of what an attempt's reply is made of has come."""

    session_id: SessionId
    run_id: RunId


class AttemptEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it, as the tape has it or is about to."""

    session_id: SessionId
    run_id: RunId
    message_id: MessageId
    request_seq: int
    attempt: int
    status: str
    """``completed``, ``error``, ``context_overflow`` or ``aborted``."""
    stop_reason: str | None
    error: str | None
    """The code of its failure, or what kind it was."""
    retries: bool
    """The same is sent again."""
    usage: Usage | None


class SideRequestStart(msgspec.Struct, frozen=True, kw_only=True):
    """A side request is sent: for a summary, or for the review of a call."""

    session_id: SessionId
    request_id: str
    purpose: Literal["compaction", "review"]
    run_id: RunId | None = None
    """The run that it serves; ``None``: the user has asked for the compaction."""
    message_id: MessageId | None = None
    provider: str
    model: str


class SideRequestEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    session_id: SessionId
    request_id: str
    status: Literal["completed", "error", "aborted"]
    stop_reason: str | None = None
    error: str | None = None
    """The code of its failure."""
    usage: Usage | None = None


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A turn is over: its message is finished, whatever it came to."""

    session_id: SessionId
    message_id: MessageId
    outcome: RunOutcome


Notice = (
    HookEvent
    | SessionLoaded
    | SessionUnloaded
    | AttemptStart
    | FirstChunk
    | AttemptEnd
    | SideRequestStart
    | SideRequestEnd
    | TurnEnd
)
"""Everything that an observer is told."""
