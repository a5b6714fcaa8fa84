"""Requests about sessions: finding, making, following and reading them.

Parameters are strict: a member that is not known is refused, so that nobody sends a
``dryRun`` to a gateway that does not know it and has it done. Results may gain members.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from .._events import (
    Interaction,
    SessionSettings,
    SessionState,
    Snapshot,
    WaitReason,
)
from .._ids import ItemId, MessageId, SessionId
from .._messages import MessageRecord
from ._bounds import MAX_SLICE, Count, FilePath, Id, LongText, Place, ShortText


class SessionKey(msgspec.Struct, frozen=True, rename="camel"):
    """Where a page of the list ended."""

    updated_at: float
    id: Id


class SessionItem(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """A session in the list; looking at it loads nothing."""

    id: SessionId
    settings: SessionSettings
    head: int
    """The newest entry of its tape."""
    created_at: float
    updated_at: float
    message_count: int
    archived_at: float | None = None
    """Absent: it is not put away."""
    state: SessionState
    status_version: int = 0
    """0 while it is not loaded in this gateway."""
    waiting_for: WaitReason | None = None
    has_open_interaction: bool = False
    """A permission or question waits for an answer."""
    is_loaded: bool = False
    input_tokens: int | None = None
    output_tokens: int | None = None


class SessionRef(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"
):
    """Names a session."""

    session_id: Id


class ListSessions(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """Sessions, last used first."""

    limit: Count = 50
    before: SessionKey | None = None
    """`next` of the page before."""
    agent: Id | None = None
    archived: bool | None = None
    """Absent: both."""
    title: ShortText = ""
    """Only those with this text in their title."""


class SessionList(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page; without ``next`` it is the last one."""

    sessions: tuple[SessionItem, ...]
    next: SessionKey | None = None


class CreateSession(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """What is absent is the agent's; the workspace is a folder of the gateway."""

    workspace: FilePath | None = None
    agent: Id | None = None
    title: ShortText = ""
    provider: Id | None = None
    model: Id | None = None
    permission_mode: Literal["default", "auto_approve", "full_access"] | None = None
    system_prompt: LongText | None = None
    max_rounds: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class OneSession(msgspec.Struct, frozen=True):
    """A session that was made, or changed."""

    session: SessionItem


class Attach(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """Follow a session: `Attached`, then `EventNotice` without gap or duplicate."""

    session_id: Id
    after: Place | None = None
    """What this client has seen; absent: begin with a snapshot."""
    incarnation: Id | None = None
    """The snapshot's that ``after`` goes on from: after a clear it is refused."""


class Cut(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """A field that is longer than what was sent of it; `ReadBlock` has it whole."""

    message_id: MessageId | None = None
    block_id: ItemId | None = None
    """Absent: of the message itself, of which the first blocks are left out."""
    input_id: str | None = None
    """Of an input that waits: what it says is shortened, so it can't be edited from
    what was sent."""
    field: str
    """As on the wire. ``blocks`` of a message: `ReadMessage` has them."""
    total: int
    """Characters that it has; for ``blocks`` how many there are."""


class Attached(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the events begin: right after ``seq``."""

    snapshot: Snapshot | None = None
    """Absent when a cursor was given."""
    seq: int
    interactions: tuple[Interaction, ...] = ()
    """What waits for an answer, the next one first."""
    older: bool = False
    """There are messages before those of the snapshot."""
    cut: tuple[Cut, ...] = ()


class ReadMessages(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """The newest messages before ``before``, by their ``orderSeq``."""

    session_id: Id
    before: Place | None = None
    limit: Count = 50


class MessagePage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Messages, oldest first; with ``next`` there are older ones before it."""

    messages: tuple[MessageRecord, ...]
    next: int | None = None
    cut: tuple[Cut, ...] = ()


class ReadMessage(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """One message, of its blocks those from ``offset`` on that go into a frame."""

    session_id: Id
    message_id: Id
    offset: Place = 0


class OneMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message with a part of its blocks; with ``next`` more follow from there."""

    message: MessageRecord
    total: int
    """Blocks that it has."""
    next: int | None = None
    cut: tuple[Cut, ...] = ()


class ReadBlock(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """A slice of a field of a block, in characters; see `Cut`."""

    session_id: Id
    message_id: Id
    block_id: Id
    field: Id = "text"
    offset: Place = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_SLICE)] = MAX_SLICE


class BlockSlice(msgspec.Struct, frozen=True):
    """The slice; what is no text is sliced as JSON."""

    text: str
    total: int


class SearchMessages(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """Messages that hold all words of a query."""

    query: Annotated[str, Meta(min_length=1, max_length=2_000)]
    session_id: Id | None = None
    limit: Annotated[int, Meta(ge=1, le=50)] = 12


class SearchHit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message that was found."""

    session_id: SessionId
    message_id: MessageId
    order_seq: int
    role: Literal["user", "assistant"]
    title: str
    """The session's."""
    snippet: str
    updated_at: float


class SearchResult(msgspec.Struct, frozen=True):
    """The best first."""

    hits: tuple[SearchHit, ...]


class Configure(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"
):
    """Change settings, by their names in `SessionSettings`; ``null`` unsets one."""

    session_id: Id
    changes: dict[str, Any]


class Settings(msgspec.Struct, frozen=True):
    """The settings in force."""

    settings: SessionSettings


class Nothing(msgspec.Struct, frozen=True):
    """It is done, and there is nothing to say."""
