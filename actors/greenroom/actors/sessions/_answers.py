"""What an answer makes of a turn's message, as pure functions on records.

Which interaction may be answered, what the answer makes of the blocks, what is left to
do after it; and the same for a clock that ran out. The session actor makes the result
durable and does what it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import attrs
import msgspec

from greenroom.protocol import (
    STOP,
    ActionBlock,
    Answer,
    Block,
    Deny,
    Fault,
    Grant,
    InteractionEnd,
    InteractionError,
    ItemId,
    MessageRecord,
    Other,
    Reply,
    Terminal,
    ToolCallBlock,
    safe_text,
)

from ._turns import USER_FOLLOW_UP

MAX_ANSWER_CHARS: Final = 20_000

BUDGET_STOP: Final = Terminal("completed", "budget", "sent")
"""How a turn ends whose budget is not raised."""

NOBODY_ANSWERED: Final = (
    "not executed: nobody answered this in time. The user did not refuse it and may "
    "not have seen it; go on without it, or finish and say what is missing"
)

_UNANSWERED_GUARD: Final = Terminal(
    "error",
    "no_progress",
    "error",
    Fault("no_progress", "the same calls repeated, and nobody said whether to go on"),
)

After = Literal["execute", "continue", "nothing"] | Terminal


@attrs.frozen
class Answered:
    """What an answer changed, and what follows from it."""

    changed: tuple[Block, ...]
    after: After
    """execute the allowed call; continue with what is open; nothing, it stays open; or
    the turn ends so."""
    call: ItemId
    """The tool call that was asked about."""


def answer(
    message: MessageRecord | None, interaction_id: str, given: Answer
) -> Answered:
    """Return what *given* makes of the first pending interaction of the turn.

    Raises:
        InteractionError: there is no such interaction, it has its answer, it is not
            the first (INT-03), or the answer is of the wrong kind for it.
    """
    blocks = () if message is None else message.blocks
    action = _first(blocks, interaction_id)
    if action.origin == "budget":
        return _answer_budget(action, given)
    call = _call_of(action, blocks)
    if action.action == "tool_call_permission":
        return _answer_permission(action, call, given)
    if action.origin == "skill-draft-confirmation":
        return _answer_draft(action, call, given)
    return _answer_question(action, call, given)


def expire(message: MessageRecord, action: ActionBlock) -> Answered:
    """Return what it means that nobody answered *action* in time.

    It is nobody's refusal, and the model is told so.
    """
    over = msgspec.structs.replace(action, status="error", end="expired")
    if action.origin == "budget":
        return Answered((over,), BUDGET_STOP, action.id)
    call = _call_of(action, message.blocks)
    if action.stop_label is not None:
        return Answered((over,), _UNANSWERED_GUARD, call.id)
    told = msgspec.structs.replace(call, status="error", response=NOBODY_ANSWERED)
    return Answered((over, told), "continue", call.id)


#### Which one


def _first(blocks: Sequence[Block], interaction_id: str) -> ActionBlock:
    actions = [block for block in blocks if isinstance(block, ActionBlock)]
    waiting = [action for action in actions if action.status == "pending"]
    known = {action.id: action for action in actions}
    if interaction_id not in known:
        raise InteractionError(
            "unknown_interaction",
            interaction_id,
            f"there is no interaction {interaction_id[:80]!r} in this session",
        )
    if interaction_id not in {action.id for action in waiting}:
        raise too_late(known[ItemId(interaction_id)])
    if waiting[0].id != interaction_id:
        raise InteractionError(
            "out_of_order",
            interaction_id,
            f"answer {waiting[0].id!r} first; interactions are answered in order",
        )
    return waiting[0]


def ended_action(message: MessageRecord, interaction_id: str) -> ActionBlock | None:
    """Return the interaction of that id if it has its answer, or has ended."""
    for block in message.blocks:
        if isinstance(block, ActionBlock) and block.id == interaction_id:
            return None if block.status == "pending" else block
    return None


def too_late(action: ActionBlock) -> InteractionError:
    """Return what an answer to *action*, which has ended, is refused with."""
    if action.end == "expired":
        return InteractionError(
            "expired",
            action.id,
            f"interaction {action.id!r} has expired: nobody answered it in time",
        )
    return InteractionError(
        "already_answered",
        action.id,
        f"interaction {action.id!r} has its answer already",
    )


def _call_of(action: ActionBlock, blocks: Sequence[Block]) -> ToolCallBlock:
    return next(
        block
        for block in blocks
        if isinstance(block, ToolCallBlock) and block.id == action.tool_block_id
    )


#### By kind


def _answer_permission(
    action: ActionBlock, call: ToolCallBlock, given: Answer
) -> Answered:
    match given:
        case Grant():
            return _granted(action, call, None)
        case Deny(reason=reason):
            return _denied(action, call, "the user denied this call", reason)
        case _:
            raise _wrong(action, "grant or deny", given)


def _granted(action: ActionBlock, call: ToolCallBlock, said: str | None) -> Answered:
    granted = msgspec.structs.replace(
        action, status="granted", answer=said, end="granted"
    )
    # No longer stored as a success: if the call never runs, nobody may think that it
    # did (see test_a_granted_call_that_never_ran_is_no_success).
    begun = msgspec.structs.replace(call, status="pending", response=None)
    return Answered((granted, begun), "execute", call.id)


def _denied(
    action: ActionBlock, call: ToolCallBlock, told: str, reason: str
) -> Answered:
    reason = safe_text(reason)[:MAX_ANSWER_CHARS]
    because = f", saying: {reason}" if reason else ""
    refused = msgspec.structs.replace(call, status="error", response=told + because)
    denied = msgspec.structs.replace(
        action, status="denied", answer=reason or None, end="denied"
    )
    return Answered((denied, refused), "continue", call.id)


def _answer_draft(action: ActionBlock, call: ToolCallBlock, given: Answer) -> Answered:
    match given:
        case Reply(text="view"):
            # The draft is the interaction's detail.
            return Answered((), "nothing", call.id)
        case Reply(text="install"):
            return _granted(action, call, "install")
        case Reply(text="discard") | Deny(reason=""):
            return _denied(action, call, "the user discarded the draft", "")
        case Deny(reason=reason):
            return _denied(action, call, "the user discarded the draft", reason)
        case _:
            raise _wrong(action, "the reply view, install or discard", given)


def _answer_budget(action: ActionBlock, given: Answer) -> Answered:
    match given:
        case Reply():
            text, after = _checked_reply(action, given.text), "continue"
        case Deny() | Other():
            text, after = STOP, BUDGET_STOP
        case Grant():
            raise _wrong(action, "the reply raise or stop", given)
    if text == STOP:
        after = BUDGET_STOP
    return Answered((_told(action, text, "answered"),), after, action.id)


def _answer_question(
    action: ActionBlock, call: ToolCallBlock, given: Answer
) -> Answered:
    match given:
        case Reply(text=text):
            text = _checked_reply(action, text)
            told = _told(action, text, "answered")
            ends = action.stop_label is not None and text == action.stop_label
            after: After = USER_FOLLOW_UP if ends else "continue"
            return Answered((told, _with_answer(call, text)), after, call.id)
        case Other():
            told = _told(action, "other", "answered")
            result = _with_answer(call, "I will write a message of my own")
            return Answered((told, result), USER_FOLLOW_UP, call.id)
        case Deny(reason=reason):
            reason = safe_text(reason)[:MAX_ANSWER_CHARS]
            told = msgspec.structs.replace(
                action, status="denied", answer=reason or None, end="denied"
            )
            text = "the user declined to answer" + (f": {reason}" if reason else "")
            result = _with_answer(call, text)
            if not call.response:
                result = msgspec.structs.replace(result, status="error")
            return Answered((told, result), "continue", call.id)
        case _:
            raise _wrong(action, "reply, other or deny", given)


def _told(action: ActionBlock, text: str, end: InteractionEnd) -> ActionBlock:
    return msgspec.structs.replace(action, status="success", answer=text, end=end)


def _with_answer(call: ToolCallBlock, text: str) -> ToolCallBlock:
    # A call that was only asked about keeps what it brought.
    if call.response:
        said = f"{call.response}\n[the user was asked about this and said: {text}]"
        return msgspec.structs.replace(call, response=said)
    return msgspec.structs.replace(call, status="success", response=text)


def _checked_reply(action: ActionBlock, text: str) -> str:
    text = safe_text(text).strip()[:MAX_ANSWER_CHARS]
    labels = {option.label for option in action.options}
    chosen = {part.strip() for part in text.split(",")} if action.multiple else {text}
    if not text or not (action.custom or chosen <= labels):
        raise InteractionError(
            "wrong_answer",
            action.id,
            f"answer with one of: {', '.join(sorted(labels))}; got {text[:80]!r}",
        )
    return text


def _wrong(action: ActionBlock, expected: str, given: Answer) -> InteractionError:
    found = type(given).__name__.lower()
    return InteractionError(
        "wrong_answer",
        action.id,
        f"interaction {action.id!r} takes {expected}, not {found}",
    )
