"""Answers to a pause (INT-03, INT-04, INT-09), and what ends one without an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ._errors import GreenroomError
from ._events import SessionSettings
from ._ids import ItemId
from ._messages import ActionBlock, Block, InteractionEnd, QuestionOption, ToolCallBlock
from ._run import Terminal

MAX_QUESTIONS: Final = 10
"""Questions that the model may ask in one turn (INT-15)."""

TOO_MANY_QUESTIONS: Final = (
    f"not asked: this turn has asked its {MAX_QUESTIONS} questions; "
    "go on with what you know, or finish and say what is missing"
)

INHERITED: Final = "no result: an earlier run of this turn left the call without one"

DRAFT_OPTIONS: Final = (
    QuestionOption("view", "show it, and decide later"),
    QuestionOption("install"),
    QuestionOption("discard"),
)
"""The answers to a draft of a skill (INT-10); ``view`` leaves it pending."""


class Grant(msgspec.Struct, frozen=True, tag="grant"):
    """The user allows this one call."""


class Deny(msgspec.Struct, frozen=True, tag="deny"):
    """The user refuses this one call; the reason reaches the model."""

    reason: str = ""


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """The answer to a question: labels of options, or the user's own text."""

    text: str


class Other(msgspec.Struct, frozen=True, tag="other"):
    """The user will write a message of their own instead (INT-09)."""


Answer = Grant | Deny | Reply | Other


class InteractionError(GreenroomError):
    """An answer that can't be taken; nothing has changed.

    ``code`` is ``unknown_interaction``, ``already_answered``, ``expired``,
    ``out_of_order`` or ``wrong_answer``.
    """

    def __init__(self, code: str, interaction_id: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.interaction_id = interaction_id


def questions_asked(blocks: Sequence[Block]) -> int:
    """Return how many questions the model asked in the turn with *blocks*."""
    return sum(
        isinstance(block, ActionBlock)
        and block.origin == "question"
        and block.stop_label is None
        for block in blocks
    )


def started_clock(
    action: ActionBlock, settings: SessionSettings, now: float
) -> ActionBlock:
    """Return *action* with the time at which it ends unanswered, if it has one.

    The clock starts when the interaction is the next to be answered, and once: it is
    stored with it, and a restart does not start it anew.
    """
    permission = action.action == "tool_call_permission"
    seconds = settings.permission_seconds if permission else settings.question_seconds
    if seconds is None or action.expires_at is not None:
        return action
    return msgspec.structs.replace(action, expires_at=now + seconds)


def loose_ends(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Return the blocks that may not wait or grow while a turn is paused (INT-11).

    Only permissions and questions may be pending then. The call that one of them is
    about is stored as a success without text.
    """
    return tuple(
        block
        for block in blocks
        if block.status in ("pending", "loading") and not isinstance(block, ActionBlock)
    )


def inherited_ends(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Return as errors the blocks that an earlier run left without an end (INT-12)."""
    return tuple(
        _given_up(block) for block in blocks if block.status in ("pending", "loading")
    )


def _given_up(block: Block) -> Block:
    match block:
        case ToolCallBlock(response=None):
            return msgspec.structs.replace(block, status="error", response=INHERITED)
        case ActionBlock():
            return msgspec.structs.replace(block, status="error", end="interrupted")
        case _:
            return msgspec.structs.replace(block, status="error")


def end_of_run(terminal: Terminal) -> InteractionEnd:
    """Return how an interaction ends that its run gives up with *terminal*."""
    match terminal.stop_reason:
        case "process_exit":
            return "process_exit"
        case "shutdown":
            return "closed"
        case _:
            return "cancelled"


def reopened(blocks: Sequence[Block], call: ItemId) -> tuple[Block, ...]:
    """Return the blocks that change when the grant of *call* is taken back.

    For a call that was allowed and then not dispatched: nothing has happened, so the
    same approval waits again (TOL-26).
    """
    granted = [
        block
        for block in blocks
        if isinstance(block, ActionBlock)
        and block.tool_block_id == call
        and block.status == "granted"
    ]
    calls = [b for b in blocks if isinstance(b, ToolCallBlock) and b.id == call]
    waits = [
        msgspec.structs.replace(b, status="pending", end=None) for b in granted[-1:]
    ]
    asked = [
        msgspec.structs.replace(b, status="success", response="")
        for b in calls
        if waits
    ]
    return (*waits, *asked)
