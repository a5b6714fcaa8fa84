"""Decisions about a turn's message, as pure functions on records.

What waits in it, how changed blocks become part of it, how it is given up and ended.
The session actor makes the result durable.
"""

from __future__ import annotations

from typing import Final

import msgspec

from greenroom.protocol import (
    ActionBlock,
    Block,
    ErrorBlock,
    Fault,
    InteractionEnd,
    ItemId,
    MessageMetadata,
    MessageRecord,
    SessionSettings,
    Terminal,
    ToolCallBlock,
    Usage,
    WaitReason,
    started_clock,
    with_usage,
)

USER_FOLLOW_UP: Final = Terminal("completed", "user_follow_up", "sent")
"""How a turn ends whose user answers with a message of their own (INT-09)."""


def unresolved(message: MessageRecord) -> tuple[ActionBlock, ...]:
    """Return the interactions of *message* that wait, in order."""
    return tuple(
        block
        for block in message.blocks
        if isinstance(block, ActionBlock) and block.status == "pending"
    )


def wait_reason(action: ActionBlock) -> WaitReason:
    """Return what a session waits for whose *action* waits for an answer."""
    return "permission" if action.action == "tool_call_permission" else "question"


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


def give_up(
    message: MessageRecord, note: str, end: InteractionEnd
) -> tuple[Block, ...]:
    """Return the blocks that change when every open interaction is given up."""
    waiting = unresolved(message)
    asked = {action.tool_block_id for action in waiting}
    changed: list[Block] = [
        msgspec.structs.replace(action, status="error", end=end) for action in waiting
    ]
    changed += [
        msgspec.structs.replace(block, status="error", response=note)
        for block in message.blocks
        if isinstance(block, ToolCallBlock)
        and (block.id in asked or block.response is None)
    ]
    return tuple(changed)


def with_clock(
    message: MessageRecord, settings: SessionSettings, now: float
) -> tuple[ActionBlock, ...]:
    """Return the interaction that is next to be answered, its clock started.

    Nothing when its clock runs already, or the session has none for its kind.
    """
    for action in unresolved(message)[:1]:
        started = started_clock(action, settings, now)
        if started is not action:
            return (started,)
    return ()


def billed(
    message: MessageRecord, usage: Usage | None, cost: float | None
) -> MessageRecord:
    """Return *message* with what was used for its turn before it had a run."""
    metadata = msgspec.structs.replace(with_usage(message.metadata, usage), cost=cost)
    return msgspec.structs.replace(message, metadata=metadata)


def fresh_metadata(provider: str, model: str) -> MessageMetadata:
    """Return the metadata of a message that no run has touched."""
    return MessageMetadata(provider=provider, model=model)
