"""Decisions about a turn's message, as pure functions on records.

Which interaction may be answered, what an answer makes of the blocks, what is left to
do after it. The session actor makes the result durable and starts what it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import attrs
import msgspec

from greenroom.protocol import (
    ActionBlock,
    Answer,
    Block,
    Deny,
    ErrorBlock,
    Fault,
    Grant,
    InteractionError,
    ItemId,
    MessageMetadata,
    MessageRecord,
    Other,
    Reply,
    Terminal,
    ToolCallBlock,
    safe_text,
)

MAX_ANSWER_CHARS: Final = 20_000

USER_FOLLOW_UP: Final = Terminal("completed", "user_follow_up", "sent")
"""How a turn ends whose user answers with a message of their own (INT-09)."""

Next = Literal["execute", "continue", "wait_for_user"]


@attrs.frozen
class Answered:
    """What an answer changed, and what follows from it."""

    changed: tuple[Block, ...]
    next: Next
    """execute the allowed call; continue with what is open; or end the turn."""
    call: ItemId
    """The tool call that was asked about."""


def unresolved(message: MessageRecord) -> tuple[ActionBlock, ...]:
    """Return the interactions of *message* that wait, in order."""
    return tuple(
        block
        for block in message.blocks
        if isinstance(block, ActionBlock) and block.status == "pending"
    )


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
    call = next(
        block
        for block in blocks
        if isinstance(block, ToolCallBlock) and block.id == action.tool_block_id
    )
    if action.action == "tool_call_permission":
        return _answer_permission(action, call, given)
    return _answer_question(action, call, given)


def merged(message: MessageRecord, changed: tuple[Block, ...]) -> MessageRecord:
    """Return *message* with *changed* blocks in the places of those they replace."""
    by_id = {block.id: block for block in changed}
    blocks = tuple(by_id.pop(block.id, block) for block in message.blocks)
    return msgspec.structs.replace(message, blocks=blocks + tuple(by_id.values()))


def ended(message: MessageRecord, terminal: Terminal) -> MessageRecord:
    """Return *message* ended with *terminal* and without a run of its own."""
    fault = terminal.fault
    metadata = msgspec.structs.replace(
        message.metadata,
        run_outcome=terminal.outcome,
        run_stop_reason=terminal.stop_reason,
        error_code=None if fault is None else fault.code,
        error_text=None if fault is None else fault.text,
    )
    return msgspec.structs.replace(
        message, status=terminal.message_status, metadata=metadata
    )


def fault_block(message: MessageRecord, fault: Fault) -> ErrorBlock:
    """Return the block that says at the end of *message* what went wrong."""
    return ErrorBlock(
        id=ItemId(f"{message.id}.{len(message.blocks)}"),
        code=fault.code,
        text=fault.text,
        round=message.metadata.provider_rounds,
    )


def give_up(message: MessageRecord, note: str) -> tuple[Block, ...]:
    """Return the blocks that change when every open interaction is given up."""
    waiting = unresolved(message)
    asked = {action.tool_block_id for action in waiting}
    changed: list[Block] = [
        msgspec.structs.replace(action, status="error") for action in waiting
    ]
    changed += [
        msgspec.structs.replace(block, status="error", response=note)
        for block in message.blocks
        if isinstance(block, ToolCallBlock)
        and (block.id in asked or block.response is None)
    ]
    return tuple(changed)


def fresh_metadata(provider: str, model: str) -> MessageMetadata:
    """Return the metadata of a message that no run has touched."""
    return MessageMetadata(provider=provider, model=model)


def _first(blocks: Sequence[Block], interaction_id: str) -> ActionBlock:
    actions = [block for block in blocks if isinstance(block, ActionBlock)]
    waiting = [action for action in actions if action.status == "pending"]
    if interaction_id not in {action.id for action in actions}:
        raise InteractionError(
            "unknown_interaction",
            interaction_id,
            f"there is no interaction {interaction_id!r} in this session",
        )
    if interaction_id not in {action.id for action in waiting}:
        raise InteractionError(
            "already_answered",
            interaction_id,
            f"interaction {interaction_id!r} has its answer already",
        )
    if waiting[0].id != interaction_id:
        raise InteractionError(
            "out_of_order",
            interaction_id,
            f"answer {waiting[0].id!r} first; interactions are answered in order",
        )
    return waiting[0]


def _answer_permission(
    action: ActionBlock, call: ToolCallBlock, given: Answer
) -> Answered:
    match given:
        case Grant():
            granted = msgspec.structs.replace(action, status="granted")
            # No longer stored as a success: if the call never runs, nobody may think
            # that it did (see test_a_granted_call_that_never_ran_is_no_success).
            begun = msgspec.structs.replace(call, status="pending", response=None)
            return Answered((granted, begun), "execute", call.id)
        case Deny(reason=reason):
            reason = safe_text(reason)[:MAX_ANSWER_CHARS]
            because = f", saying: {reason}" if reason else ""
            refused = msgspec.structs.replace(
                call, status="error", response=f"the user denied this call{because}"
            )
            denied = msgspec.structs.replace(
                action, status="denied", answer=reason or None
            )
            return Answered((denied, refused), "continue", call.id)
        case _:
            raise _wrong(action, "grant or deny", given)


def _answer_question(
    action: ActionBlock, call: ToolCallBlock, given: Answer
) -> Answered:
    match given:
        case Reply(text=text):
            text = _checked_reply(action, text)
            told = msgspec.structs.replace(action, status="success", answer=text)
            result = _with_answer(call, text)
            ends = action.stop_label is not None and text == action.stop_label
            after: Next = "wait_for_user" if ends else "continue"
            return Answered((told, result), after, call.id)
        case Other():
            told = msgspec.structs.replace(action, status="success", answer="other")
            result = _with_answer(call, "I will write a message of my own")
            return Answered((told, result), "wait_for_user", call.id)
        case Deny(reason=reason):
            told = msgspec.structs.replace(
                action, status="denied", answer=reason or None
            )
            text = "the user declined to answer" + (f": {reason}" if reason else "")
            result = _with_answer(call, text)
            if not call.response:
                result = msgspec.structs.replace(result, status="error")
            return Answered((told, result), "continue", call.id)
        case _:
            raise _wrong(action, "reply, other or deny", given)


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
