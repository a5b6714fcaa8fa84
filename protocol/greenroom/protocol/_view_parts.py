"""What a view is made of, as values: its parts, and what is not in it, with reasons."""

from __future__ import annotations

from typing import Literal

import attrs
import msgspec

from ._ids import MessageId

ContributionKind = Literal["memory_context", "directive_context"]
IncludedReason = Literal[
    "system_prompt",
    "pinned_first_user",
    "summary_checkpoint",
    "reconstruction_checkpoint",
    "selected_history",
    "new_user_input",
    "memory_context",
    "directive_context",
    "resume_target",
    "tool_loop_message",
]
ExcludedReason = Literal[
    "before_summary_cursor",
    "compaction_indicator",
    "pending_not_context_history",
    "out_of_budget",
    "empty_after_formatting",
    "superseded",
    "retracted",
]


"""``retracted``: it was taken back, and nothing is at its place; ``superseded``: it
was, and another message has its place now."""


@attrs.frozen
class Part:
    """Why a stretch of the messages of a request is in it."""

    reason: IncludedReason
    role: Literal["system", "user", "assistant", "mixed"]
    start: int
    """Number of its first message in the request."""
    count: int
    """Messages; 0 for what is inside the message at *start*."""
    message_id: MessageId | None = None
    orders: tuple[int, int] | None = None
    """The first and the last place in the transcript that it is of."""
    digest: str | None = None
    """SHA-256 of a text that is from no message."""


@attrs.frozen
class Excluded:
    """Messages of the transcript that a request does not carry."""

    first: int
    """Place in the transcript."""
    last: int
    count: int
    reason: ExcludedReason


@attrs.frozen
class Contribution:
    """A text that is from no message, and in which capacity it is there."""

    kind: ContributionKind
    text: str


@attrs.frozen
class SyntheticPart:
    """A section of a checkpoint, known by its hash (CTX-02)."""

    kind: Literal["summary_checkpoint", "reconstruction_checkpoint"]
    digest: str


class SkillContext(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A Skill that is part of the instructions."""

    name: str
    content_hash: str


@attrs.frozen
class TurnStart:
    """Where a turn of the history begins."""

    order: int
    index: int
    """Number of its first message behind those that stand in front of the history."""
