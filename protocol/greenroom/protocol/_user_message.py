"""From what the user said to the message that the transcript keeps of it."""

from __future__ import annotations

from ._canonical import safe_text
from ._ids import ItemId, MessageId
from ._messages import (
    Block,
    ImageBlock,
    InputReceipt,
    MessageMetadata,
    MessageRecord,
    MessageStatus,
    TextBlock,
    TextPart,
)
from ._pending import Parts


def user_blocks(message_id: str, parts: Parts) -> tuple[Block, ...]:
    """Return the blocks of a user's message."""
    return tuple(
        TextBlock(id=ItemId(f"{message_id}.{number}"), text=safe_text(part.text))
        if isinstance(part, TextPart)
        else ImageBlock(
            id=ItemId(f"{message_id}.{number}"),
            media_type=part.media_type,
            data=part.data,
        )
        for number, part in enumerate(parts)
    )


def user_message(
    message_id: MessageId,
    parts: Parts,
    *,
    order: int,
    now: float,
    status: MessageStatus = "sent",
    receipt: InputReceipt | None = None,
) -> MessageRecord:
    """Return the user's message that says *parts*."""
    return MessageRecord(
        id=message_id,
        order_seq=order,
        role="user",
        status=status,
        blocks=user_blocks(message_id, parts),
        metadata=MessageMetadata(input_receipt=receipt),
        created_at=now,
        updated_at=now,
    )


def command_of(message: MessageRecord) -> str:
    """Return the command that brought the user's *message*."""
    receipt = message.metadata.input_receipt
    if receipt is None or receipt.input_id is None:
        return message.id
    return receipt.input_id
