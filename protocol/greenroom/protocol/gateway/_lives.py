"""Requests about a session as a whole: fork, move, rewind, compact, delete."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from .._ids import MessageId, SessionId
from .._messages import Diff
from ._bounds import FilePath, Id, LongText

MAX_LISTED: Final = 5_000
"""Of what was done at once, so many are told one by one."""


class ForkSession(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """A session that begins with what was sent in this one, up to a message.

    With ``rounds`` only so many of that message, an answer: requests to the model with
    the results of their calls.
    """

    session_id: Id
    through: Id | None = None
    rounds: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class ArchiveSession(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"
):
    """Put a session away, or take it back."""

    session_id: Id
    archived: bool


class MoveSession(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"
):
    """Give a session to another agent."""

    session_id: Id
    agent: Id


class AssessMove(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `MoveAll` would do with the sessions of an agent."""

    agent: Id


class MoveSample(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """One session that would be moved, or bars the move."""

    session_id: SessionId
    title: str
    blocked: Literal["active", "pending-input"] | None = None


class MoveImpact(msgspec.Struct, frozen=True, kw_only=True):
    """How many sessions would be moved, deleted because empty, and bar the move."""

    moved: int
    deleted: int
    blocked: int
    samples: tuple[MoveSample, ...]


class MoveAll(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Give all sessions of an agent to another one; empty ones are deleted."""

    agent: Id
    target: Id


class MovedAll(msgspec.Struct, frozen=True):
    """What was done."""

    moved: int
    deleted: int


class Rewind(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """Take the conversation back; ``through`` is the last message then."""

    session_id: Id
    through: Id | None = None
    """Absent: to the beginning."""
    files: bool = False
    dry_run: bool = False


class RestoredFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is done with a file."""

    path: str
    action: str
    reason: str = ""
    diff: Diff | None = None


class RewindResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was taken back, or would be."""

    through: MessageId | None = None
    count: int
    """Messages that are taken back."""
    messages: tuple[MessageId, ...]
    """The first `MAX_LISTED` of them, in order."""
    files: tuple[RestoredFile, ...] = ()
    commands: int = 0
    """Calls whose effects can't be taken back."""
    done: bool


class Compact(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """Hide what was said behind a summary."""

    session_id: Id
    focus: LongText = ""


class CompactResult(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """What came of it; without a summary ``why`` says why."""

    outcome: str
    why: str = ""
    tokens_before: int = 0
    tokens_after: int = 0


class Undone(msgspec.Struct, frozen=True):
    """Whether there was a compaction to undo."""

    undone: bool


class ImportLegacy(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """Take the conversations of an older system's database over."""

    path: FilePath
    """On the gateway's machine."""
    workspace: FilePath
    """The folder of the conversations that name none."""
    dry_run: bool = False


class ImportedThread(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """What became of one conversation."""

    id: str
    title: str
    messages: int
    outcome: str
    reason: str = ""


class ImportResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of each conversation."""

    total: int
    threads: tuple[ImportedThread, ...]
    """The first `MAX_LISTED`."""
    problem_count: int
    problems: tuple[str, ...]
