"""What a fork of a session is made of: its title, and copies of finished messages.

Pure. A copy shares no identity with its original: neither the message's id nor those
of its items, and no run or operation is named that belongs to another tape. It tells
nothing of what the original cost, which the fork did not spend.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ._ids import ItemId, MessageId
from ._messages import (
    ActionBlock,
    Block,
    MessageMetadata,
    MessageRecord,
    ToolCallBlock,
)

MAX_FORK_TITLE: Final = 60

_SUFFIX: Final = " - Fork"
_NOT_KEPT: Final = "the session was forked before this call had a result"


def fork_title(title: str) -> str:
    """Return the title of a fork of a session that is called *title* (SES-23)."""
    return f"{title}{_SUFFIX}"[:MAX_FORK_TITLE]


def forked_message(
    record: MessageRecord, new_id: MessageId, order_seq: int, rounds: int | None = None
) -> MessageRecord:
    """Return *record* as the message *new_id* of another session.

    A call without a result gets one that says so, and nothing of it waits for anybody.
    With *rounds* only the first so many are in it, and nothing is told of its end.
    """
    said = record.metadata
    blocks = [b for b in record.blocks if rounds is None or b.round <= rounds]
    kept = MessageMetadata(
        provider_rounds=said.provider_rounds if rounds is None else rounds,
        model=said.model,
        provider=said.provider,
        message_type=said.message_type,
        compaction_status=said.compaction_status,
        summary_updated_at=said.summary_updated_at,
    )
    if len(blocks) == len(record.blocks):
        kept = msgspec.structs.replace(
            kept,
            run_outcome=said.run_outcome,
            run_stop_reason=said.run_stop_reason,
            error_code=said.error_code,
            error_text=said.error_text,
        )
    return msgspec.structs.replace(
        record,
        id=new_id,
        order_seq=order_seq,
        blocks=tuple(_copied(block, record.id, new_id) for block in blocks),
        metadata=kept,
    )


def _copied(block: Block, old: MessageId, new: MessageId) -> Block:
    made = msgspec.structs.replace(block, id=_moved(block.id, old, new))
    is_open = block.status in ("pending", "loading")
    match made:
        case ToolCallBlock():
            response = made.response
            if is_open or response is None:
                response = _NOT_KEPT if response is None else response
                made = msgspec.structs.replace(made, status="error", note=_NOT_KEPT)
            return msgspec.structs.replace(made, response=response, in_doubt=None)
        case ActionBlock():
            call = _moved(made.tool_block_id, old, new)
            end = "interrupted" if is_open else made.end
            return msgspec.structs.replace(
                made,
                tool_block_id=call,
                end=end,
                expires_at=None,
                status="error" if is_open else made.status,
            )
        case _:
            status = "error" if is_open else made.status
            return msgspec.structs.replace(made, status=status)


def _moved(item: ItemId, old: MessageId, new: MessageId) -> ItemId:
    return ItemId(new + item[len(old) :]) if item.startswith(old) else item
