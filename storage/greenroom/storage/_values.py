"""Values of the store contract: what goes in, and what comes back.

What is expected to happen is one of these, never an error: a session that another
member holds, a token that is no longer current, a head that has moved.
"""

from __future__ import annotations

from typing import Final, Literal

import attrs
import msgspec

from greenroom.protocol import (
    MessageId,
    RunId,
    SessionId,
    SessionSettings,
    TapeEntry,
)

MAX_PAGE_BYTES: Final = 8 << 20
"""Payloads and metas in one page; one entry is always returned."""

MAX_FACTS: Final = 1_000
"""Facts in one append, and commands it settles."""

MAX_OPEN_COMMANDS: Final = 1_000
"""Unsettled commands of one session."""


SNIPPET: Final = 120
"""Characters of a hit's snippet."""


@attrs.frozen
class Member:
    """One incarnation of one process; the only thing that is renewed."""

    id: str
    node: str
    """For people: host, process id and program."""
    addr: str
    ttl: float
    """Seconds a beat is good for."""


@attrs.frozen
class Grant:
    """The right to write one session, as long as the token is current."""

    scope: SessionId
    token: int
    head: int
    """The head when the grant was made."""
    member_id: str


@attrs.frozen
class Owner:
    """Who holds a session, for display."""

    member_id: str
    node: str
    addr: str


@attrs.frozen
class Held:
    """Another living member owns the session."""

    scope: SessionId
    owner: Owner


@attrs.frozen
class MemberLost:
    """This incarnation was declared dead: cancel every actor, join anew."""

    member_id: str


@attrs.frozen
class Appended:
    """The facts are on the tape."""

    head: int
    seqs: tuple[int, ...]
    """The place of each fact, in order; that of the older one where it existed."""
    created: tuple[bool, ...]
    """False where the provenance key was there already (TAP-02)."""


@attrs.frozen
class Receipt:
    """A strict fact is durable."""

    seq: int
    head: int
    created: bool
    """False when an equal fact was there already (JRN-07)."""


@attrs.frozen
class Fenced:
    """The token is no longer current: somebody else owns the session."""

    scope: SessionId
    token: int


@attrs.frozen
class HeadMoved:
    """The head is not the expected one; nothing was written."""

    scope: SessionId
    head: int


@attrs.frozen
class Posted:
    """The command is in the inbox."""


@attrs.frozen
class Seen:
    """A command with this id was there already."""

    same_body: bool


@attrs.frozen
class InboxCommand:
    """One unsettled command."""

    command_id: str
    body: str
    posted_at: float


@attrs.frozen
class Page:
    """A run of entries, oldest first."""

    entries: tuple[TapeEntry, ...]
    head: int
    """The session's head in the same read; 0 when there is no such session."""


class SessionRow(msgspec.Struct, frozen=True):
    """A session in the list; a struct, because lists are made of many."""

    id: SessionId
    settings: SessionSettings
    created_at: float
    updated_at: float
    head: int
    message_count: int
    input_tokens: int | None
    output_tokens: int | None
    has_open_interaction: bool
    """An unresolved permission or question (SES-04)."""
    archived_at: float | None = None
    """When the session was put away; ``None`` when it is not."""

    @property
    def state(self) -> Literal["idle", "generating"]:
        """What a session shows that is not loaded; never stored (SES-04)."""
        return "generating" if self.has_open_interaction else "idle"


class MessageHit(msgspec.Struct, frozen=True):
    """A message that holds all words of a query; a struct, as a row of a list is."""

    session_id: SessionId
    message_id: MessageId
    order_seq: int
    role: Literal["user", "assistant"]
    title: str
    """The session's."""
    snippet: str
    """Up to `SNIPPET` characters of what was said, around a word that was found."""
    updated_at: float


@attrs.frozen
class OpenRun:
    """A run that started and has no terminal (JRN-18)."""

    session_id: SessionId
    run_id: RunId
    entries: tuple[TapeEntry, ...]
    """Every journal entry that names the run, in order."""
