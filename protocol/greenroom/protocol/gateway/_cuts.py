"""What is too long for a frame is cut, and told where the rest is to be had.

A message may have any number of blocks, and a page any number of long messages; a
frame may not. So a message gets a share of a frame: first the longest fields of its
blocks are shortened, then, if that is not enough, its first blocks are left out. Each
loss is told as a `Cut`. All pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from .._events import (
    Event,
    Interaction,
    MessagesChanged,
    Snapshot,
    StreamCompleted,
    StreamFailed,
    StreamUpdated,
)
from .._ids import MessageId, SessionId
from .._messages import (
    ActionBlock,
    Block,
    ImagePart,
    MessageRecord,
    TextPart,
    ToolCallBlock,
)
from .._pending import PendingInput
from ..jsonrpc import encode_json
from ._bounds import MAX_FRAME_BYTES
from ._clients import EVENT, EventNotice
from ._sessions import Attached, BlockSlice, Cut, MessagePage, OneMessage

MESSAGE_BYTES: Final = 1 << 20
"""The share of one message in a frame."""

PAGE_BYTES: Final = 2 << 20
"""The messages of one page; the rest of the frame is for what goes with them."""

INPUTS_BYTES: Final = 512 << 10
"""The inputs that wait, in a snapshot or a list."""

MAX_INTERACTIONS: Final = 32
"""Of those that wait, the next ones: they are answered in their order."""

_LIMITS: Final = (65_536, 8_192, 1_024)
"""Characters that are left of a field, the first that makes the message fit."""

_TEXTS: Final = ("text", "data", "arguments", "response", "detail", "answer")
_WHOLE: Final = ("diffs", "options", "locations")
"""What is no text is left out whole."""

_HEAD: Final = b'{"jsonrpc":"2.0","method":"' + EVENT.encode() + b'","params":'
_EVENT_HEAD: Final = _HEAD + b'{"event":'
_MORE_END: Final = b',"more":true}}'


#### Messages


def fit_message(
    record: MessageRecord, budget: int = MESSAGE_BYTES
) -> tuple[MessageRecord, tuple[Cut, ...]]:
    """Return *record* so that it takes at most *budget* bytes, and what was cut.

    What is not in blocks is small, and counts with them.
    """
    if _size(record) <= budget:
        return record, ()
    cuts: list[tuple[Block, tuple[Cut, ...]]] = []
    for limit in _LIMITS:
        cuts = [_shortened(record.id, block, limit) for block in record.blocks]
        shorter = msgspec.structs.replace(record, blocks=tuple(b for b, _ in cuts))
        if _size(shorter) <= budget:
            return shorter, tuple(cut for _, of in cuts for cut in of)
    kept = list(_last_that_fit(cuts, budget - _size(_bare(record))))
    left_out = Cut(message_id=record.id, field="blocks", total=len(record.blocks))
    blocks = tuple(block for block, _ in reversed(kept))
    some = msgspec.structs.replace(record, blocks=blocks)
    return some, (left_out, *(cut for _, of in reversed(kept) for cut in of))


def page_of(
    records: Sequence[MessageRecord], *, older: bool, budget: int = PAGE_BYTES
) -> MessagePage:
    """Return the newest of *records*, oldest first, that go into a page.

    *older* says that there are more before them.
    """
    kept: list[tuple[MessageRecord, tuple[Cut, ...]]] = []
    room = budget
    for record in reversed(records):
        fitted = fit_message(record, min(MESSAGE_BYTES, budget))
        room -= _size(fitted[0])
        if kept and room < 0:
            break
        kept.append(fitted)
    kept.reverse()
    more = older or len(kept) < len(records)
    return MessagePage(
        messages=tuple(record for record, _ in kept),
        next=kept[0][0].order_seq if kept and more else None,
        cut=tuple(cut for _, cuts in kept for cut in cuts),
    )


def message_from(
    record: MessageRecord, offset: int, budget: int = MESSAGE_BYTES
) -> OneMessage:
    """Return *record* with its blocks from *offset* on, as many as go into a frame."""
    room = budget - _size(_bare(record))
    kept: list[tuple[Block, tuple[Cut, ...]]] = []
    for block in record.blocks[offset:]:
        fitted: tuple[Block, tuple[Cut, ...]] = (block, ())
        if _size(block) >= room:
            if kept:
                break
            fitted = _shortened(record.id, block, _LIMITS[-1])
        room -= _size(fitted[0]) + 1
        kept.append(fitted)
    end = offset + len(kept)
    blocks = tuple(block for block, _ in kept)
    return OneMessage(
        message=msgspec.structs.replace(record, blocks=blocks),
        total=len(record.blocks),
        next=end if end < len(record.blocks) else None,
        cut=tuple(cut for _, cuts in kept for cut in cuts),
    )


def slice_of(
    record: MessageRecord, block_id: str, field: str, offset: int, limit: int
) -> BlockSlice | None:
    """Return a slice of a field of a block, by its name on the wire; ``None``: none."""
    block = next((block for block in record.blocks if block.id == block_id), None)
    value = getattr(block, field, None) if field in (*_TEXTS, *_WHOLE) else None
    if value is None:
        return None
    text = value if isinstance(value, str) else encode_json(value).decode()
    return BlockSlice(text[offset : offset + limit], len(text))


def _shortened(
    message_id: MessageId, block: Block, limit: int
) -> tuple[Block, tuple[Cut, ...]]:
    changes: dict[str, Any] = {}
    cuts: list[Cut] = []
    for field, value, total in _long_fields(block, limit):
        changes[field] = value
        cuts.append(
            Cut(message_id=message_id, block_id=block.id, field=field, total=total)
        )
    return (msgspec.structs.replace(block, **changes) if cuts else block), tuple(cuts)


def _long_fields(block: Block, limit: int) -> Iterator[tuple[str, Any, int]]:
    for field in _TEXTS:
        value: object = getattr(block, field, None)
        if isinstance(value, str) and len(value) > limit:
            yield field, value[:limit], len(value)
    for field in _WHOLE:
        value = getattr(block, field, None)
        if value and (size := len(encode_json(value))) > limit:
            yield field, None if isinstance(value, dict) else (), size


def _last_that_fit(
    cuts: Sequence[tuple[Block, tuple[Cut, ...]]], room: int
) -> Iterator[tuple[Block, tuple[Cut, ...]]]:
    for block, of in reversed(cuts):
        room -= _size(block) + sum(map(_size, of)) + 2
        if room < 0:
            return
        yield block, of


def _bare(record: MessageRecord) -> MessageRecord:
    return msgspec.structs.replace(record, blocks=())


def _size(value: object) -> int:
    return len(encode_json(value))


#### Where a client begins


def attached(
    snapshot: Snapshot | None,
    seq: int,
    interactions: Iterable[Interaction],
    budget: int = PAGE_BYTES,
) -> Attached:
    """Return what a client that attaches is answered; its events come after *seq*."""
    waiting = tuple(interactions)
    if snapshot is None:
        return Attached(seq=seq, interactions=waiting)
    first = snapshot.messages[0].order_seq if snapshot.messages else 1
    page = page_of(snapshot.messages, older=first > 1, budget=budget)
    inputs, shorter = fit_inputs(snapshot.inputs)
    return Attached(
        snapshot=msgspec.structs.replace(
            snapshot, messages=page.messages, inputs=inputs
        ),
        seq=seq,
        interactions=waiting,
        older=page.next is not None,
        cut=(*page.cut, *shorter),
    )


def interactions_of(
    session_id: SessionId, messages: Sequence[MessageRecord]
) -> tuple[Interaction, ...]:
    """Return what waits for an answer in *messages*, the next one first.

    It is in the newest of the assistant's, and there may be the user's behind it.
    """
    newest = next((m for m in reversed(messages) if m.role == "assistant"), None)
    blocks = () if newest is None else newest.blocks
    return tuple(
        _interaction(session_id, newest, block)
        for block in blocks
        if newest is not None
        and isinstance(block, ActionBlock)
        and block.status == "pending"
    )[:MAX_INTERACTIONS]


def _interaction(
    session_id: SessionId, message: MessageRecord, action: ActionBlock
) -> Interaction:
    calls = (b for b in message.blocks if isinstance(b, ToolCallBlock))
    tool = next((call for call in calls if call.id == action.tool_block_id), None)
    limit = _LIMITS[1]
    return Interaction(
        session_id=session_id,
        message_id=message.id,
        block=_shortened(message.id, action, limit)[0],
        tool=None if tool is None else _shortened(message.id, tool, limit)[0],
    )


#### What waits


def fit_inputs(
    rows: Sequence[PendingInput], budget: int = INPUTS_BYTES
) -> tuple[tuple[PendingInput, ...], tuple[Cut, ...]]:
    """Return *rows* so that they go into a frame with other things, and what was cut.

    Text is shortened, and images keep their type alone.
    """
    if sum(map(_size, rows)) <= budget:
        return tuple(rows), ()
    fitted = [_fit_input(row) for row in rows]
    return tuple(row for row, _ in fitted), tuple(c for _, cuts in fitted for c in cuts)


def _fit_input(row: PendingInput) -> tuple[PendingInput, tuple[Cut, ...]]:
    if row.parts is None or (total := _size(row.parts)) <= _LIMITS[1]:
        return row, ()
    room = _LIMITS[1]
    parts: list[TextPart | ImagePart] = []
    for part in row.parts:
        if isinstance(part, ImagePart):
            parts.append(ImagePart(part.media_type, ""))
        elif room:
            parts.append(TextPart(text := part.text[:room]))
            room -= len(text)
    cut = Cut(input_id=row.id, field="parts", total=total)
    return msgspec.structs.replace(row, parts=tuple(parts)), (cut,)


#### Events


def event_message(event: Event, json: bytes, *, more: bool = False) -> bytes:
    """Return the notification of *event*, whose JSON is *json*: the same for everyone.

    *more* says that another one with its ``seq`` follows. Only one that is too long
    for a frame is encoded again, with less in it.
    """
    end = _MORE_END if more else b"}}"
    if len(json) + len(_EVENT_HEAD) + len(end) <= MAX_FRAME_BYTES:
        return _EVENT_HEAD + json + end
    event, cut = _fit_event(event)
    return _HEAD + encode_json(EventNotice(event, cut, more)) + b"}"


def _fit_event(event: Event) -> tuple[Event, tuple[Cut, ...]]:
    match event:
        case MessagesChanged() | StreamCompleted() | StreamFailed():
            message, cut = fit_message(event.message)
            return msgspec.structs.replace(event, message=message), cut
        case StreamUpdated():
            return _fit_update(event)
        case _:
            # Made from one fact, which is smaller than a frame.
            return event, ()


def _fit_update(event: StreamUpdated) -> tuple[Event, tuple[Cut, ...]]:
    limit = _LIMITS[0]
    block, cut = event.block, ()
    if block is not None:
        block, cut = _shortened(event.message_id, block, limit)
    total = event.offset + len(event.text)
    if len(event.text) > limit:
        field = "response" if event.kind == "tool_output" else "text"
        cut += (
            Cut(
                message_id=event.message_id,
                block_id=event.item_id,
                field=field,
                total=total,
            ),
        )
    return msgspec.structs.replace(event, text=event.text[:limit], block=block), cut
