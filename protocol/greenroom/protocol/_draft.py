"""The assistant message while it is being made.

*Rule 1*: everything that changes the blocks of a message in progress is in this
file. *Rule 2*: it knows neither provider nor client; stream events come in, `Change`
values for watchers come out, and `take_changed` hands out what the tape does not
have yet.

Ids of items are the message's id and a number, so they need no randomness and are
the same after a reload. A call's id is made unique within its request here: what the
provider sent is data, not identity (TOL-01).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, final

import attrs
import msgspec

from ._canonical import safe_json, safe_text
from ._ids import ItemId, MessageId
from ._messages import (
    ActionBlock,
    Block,
    ErrorBlock,
    ImageBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
)
from ._stream import (
    ImageData,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    ToolCallChunk,
    ToolCallEnd,
    ToolCallStart,
)

MAX_ITEM_CHARS: Final = 100_000
"""Text beyond it goes into a next block, so that a block always fits a fact."""

MAX_ARGUMENT_CHARS: Final = 200_000
"""Longer arguments are cut and the call is refused, with the reason."""

MAX_ROUND_CHARS: Final = 4_000_000
"""What one response may hold besides its calls; the rest is dropped, with a note."""

_ITEM_CHARS: Final = 500
"""What an item costs of it, so that many small ones are bounded too."""

ROUND_FULL: Final = "\n[cut here: the reply is too long to be kept]"

MAX_CALLS_PER_ROUND: Final = 128
MAX_CALL_ID_CHARS: Final = 200
MAX_NAME_CHARS: Final = 128

ItemKind = Literal["text", "reasoning", "tool_call", "action", "error"]


@attrs.frozen
class Change:
    """What happened to one item: it grew by ``text``, or is now ``block``."""

    item_id: ItemId
    kind: ItemKind
    offset: int = 0
    text: str = ""
    block: Block | None = None


@attrs.define(eq=False)
class _OpenItem:
    # The newest text or reasoning item. Deltas are joined when somebody looks, so a
    # long answer does not cost the square of its length.
    kind: Literal["text", "reasoning"]
    position: int
    parts: list[str] = attrs.field(factory=list[str])
    length: int = 0
    options: dict[str, Any] | None = None


@attrs.define(eq=False)
class _OpenCall:
    position: int
    parts: list[str] = attrs.field(factory=list[str])
    length: int = 0
    done: bool = False


@final
@attrs.define(eq=False)
class Draft:
    """The blocks of one assistant message, as far as they are known."""

    message_id: MessageId
    round: int = 0
    request_seq: int = 0
    _blocks: list[Block] = attrs.field(factory=list[Block])
    _changed: dict[int, None] = attrs.field(factory=dict[int, None])
    revision: int = attrs.field(default=0, init=False)
    """Grows with every change."""
    _open: _OpenItem | None = None
    _calls: dict[int, _OpenCall] = attrs.field(factory=dict[int, _OpenCall])
    _call_ids: set[str] = attrs.field(factory=set[str])
    _round_start: int = 0
    _round_room: int = MAX_ROUND_CHARS

    @classmethod
    def resume(cls, message_id: MessageId, blocks: Sequence[Block]) -> Draft:
        """Return a draft that goes on with the blocks of a stored message."""
        draft = cls(message_id)
        draft._blocks = list(blocks)
        draft._round_start = len(blocks)
        return draft

    #### Reading

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Every block, in order."""
        self._join()
        return tuple(self._blocks)

    @property
    def round_blocks(self) -> tuple[Block, ...]:
        """The blocks of this round."""
        self._join()
        return tuple(self._blocks[self._round_start :])

    @property
    def completed_calls(self) -> tuple[ToolCallBlock, ...]:
        """Calls of this round whose arguments are whole, in the provider's order."""
        self._join()
        whole = {call.position for call in self._calls.values() if call.done}
        return tuple(
            block
            for position, block in enumerate(self._blocks)
            if position in whole and isinstance(block, ToolCallBlock)
        )

    @property
    def open_calls(self) -> tuple[ToolCallBlock, ...]:
        """Every call without a result, of any round."""
        self._join()
        return tuple(
            block
            for block in self._blocks
            if isinstance(block, ToolCallBlock) and block.response is None
        )

    @property
    def unresolved(self) -> tuple[ActionBlock, ...]:
        """Permissions and questions without an answer, in order."""
        return tuple(
            block
            for block in self._blocks
            if isinstance(block, ActionBlock) and block.status == "pending"
        )

    def block(self, item_id: ItemId) -> Block | None:
        """Return one block by its id."""
        position = self._position(item_id)
        if position is None:
            return None
        self._join()
        return self._blocks[position]

    @property
    def unsaved(self) -> tuple[Block, ...]:
        """The blocks that `take_changed` would return."""
        self._join()
        return tuple(self._blocks[position] for position in sorted(self._changed))

    def take_changed(self) -> tuple[Block, ...]:
        """Return the blocks that changed since the last time, in order."""
        changed = self.unsaved
        self._changed.clear()
        return changed

    def give_back(self, blocks: Iterable[Block]) -> None:
        """Mark *blocks* as changed again: what took them was not stored."""
        for block in blocks:
            position = self._position(block.id)
            if position is not None:
                self._touch(position)

    #### Changing

    def begin_round(self, round: int, request_seq: int) -> None:  # noqa: A002 - the field's word
        """Start the blocks of the next model response."""
        self._close()
        self.round = round
        self.request_seq = request_seq
        self._round_start = len(self._blocks)
        self._round_room = MAX_ROUND_CHARS
        self._calls.clear()
        self._call_ids.clear()

    def begin_request(self, request_seq: int) -> None:
        """Go on in the same round with another payload."""
        self.request_seq = request_seq

    def apply(self, event: StreamEvent) -> list[Change]:
        """Take one stream event in and return what changed."""
        match event:
            case TextDelta(text=text, options=options):
                return self._grow("text", text, options)
            case ReasoningDelta(text=text, options=options):
                return self._grow("reasoning", text, options)
            case ToolCallStart():
                return self._start_call(event.index, event.id, event.name)
            case ToolCallChunk():
                return self._grow_call(event.index, event.text)
            case ToolCallEnd():
                return self._end_call(event)
            case ImageData():
                return self._add_image(event)
            case _:
                return []

    def add(self, block: Block) -> Change:
        """Put a block at the end."""
        self._close()
        self._touch(len(self._blocks))
        self._blocks.append(block)
        return _changed(block)

    def replace(self, block: Block) -> Change:
        """Put *block* in the place of the one with its id."""
        position = self._position(block.id)
        if position is None:
            raise KeyError(block.id)
        self._join()
        self._blocks[position] = block
        self._touch(position)
        return _changed(block)

    def new_id(self) -> ItemId:
        """Return the id of the next block."""
        self._close()
        return self._id(len(self._blocks))

    #### Inside

    def _touch(self, position: int) -> None:
        self._changed[position] = None
        self.revision += 1

    def _id(self, position: int) -> ItemId:
        return ItemId(f"{self.message_id}.{position}")

    def _position(self, item_id: ItemId) -> int | None:
        prefix, _, number = item_id.rpartition(".")
        if prefix != self.message_id or not number.isdecimal():
            return None
        position = int(number)
        return position if position < len(self._blocks) else None

    def _grow(
        self,
        kind: Literal["text", "reasoning"],
        text: str,
        options: dict[str, Any] | None,
    ) -> list[Change]:
        if self._round_room <= 0:
            return []
        text = self._within_round(safe_text(text))
        changes: list[Change] = []
        for piece in _pieces(text) or [""]:
            item = self._open
            full = item is not None and item.length + len(piece) > MAX_ITEM_CHARS
            if item is None or item.kind != kind or full:
                if not piece and options is None:
                    continue
                item = self._open_item(kind)
            changes.append(
                Change(self._id(item.position), kind, item.length, text=piece)
            )
            item.parts.append(piece)
            item.length += len(piece)
            if options is not None:
                item.options = safe_json(options)
            self._touch(item.position)
        return changes

    def _within_round(self, text: str) -> str:
        room, self._round_room = self._round_room, self._round_room - len(text)
        return text if len(text) < room else text[:room] + ROUND_FULL

    def _open_item(self, kind: Literal["text", "reasoning"]) -> _OpenItem:
        self._close()
        self._round_room -= _ITEM_CHARS
        position = len(self._blocks)
        make = TextBlock if kind == "text" else ReasoningBlock
        self._blocks.append(
            make(id=self._id(position), text="", round=self.round, status="loading")
        )
        self._open = _OpenItem(kind, position)
        return self._open

    def _join(self) -> None:
        item = self._open
        if item is not None:
            item.parts = ["".join(item.parts)]
            self._blocks[item.position] = msgspec.structs.replace(
                self._blocks[item.position], text=item.parts[0], options=item.options
            )
        for call in self._calls.values():
            if not call.done and call.parts:
                call.parts = ["".join(call.parts)]
                self._blocks[call.position] = msgspec.structs.replace(
                    self._blocks[call.position], arguments=call.parts[0]
                )

    def _close(self) -> None:
        item = self._open
        if item is None:
            return
        self._join()
        self._open = None
        self._blocks[item.position] = msgspec.structs.replace(
            self._blocks[item.position], status="success"
        )
        self._touch(item.position)

    def _start_call(self, index: int, call_id: str, name: str) -> list[Change]:
        if index in self._calls or len(self._calls) >= MAX_CALLS_PER_ROUND:
            return []
        self._close()
        position = len(self._blocks)
        block = ToolCallBlock(
            id=self._id(position),
            call_id=self._unique_call_id(call_id),
            name=safe_text(name)[:MAX_NAME_CHARS],
            arguments="",
            round=self.round,
            request_seq=self.request_seq,
        )
        self._blocks.append(block)
        self._calls[index] = _OpenCall(position)
        self._touch(position)
        return [_changed(block)]

    def _grow_call(self, index: int, text: str) -> list[Change]:
        call = self._calls.get(index)
        if call is None or call.done:
            return []
        text = safe_text(text)[: max(0, MAX_ARGUMENT_CHARS + 1 - call.length)]
        if not text:
            return []
        change = Change(self._id(call.position), "tool_call", call.length, text=text)
        call.parts.append(text)
        call.length += len(text)
        self._touch(call.position)
        return [change]

    def _end_call(self, event: ToolCallEnd) -> list[Change]:
        changes = self._start_call(event.index, event.id, event.name)
        call = self._calls.get(event.index)
        if call is None or call.done:
            return changes
        self._join()
        call.done = True
        arguments = safe_text(event.arguments)
        block = msgspec.structs.replace(
            self._blocks[call.position],
            name=safe_text(event.name)[:MAX_NAME_CHARS],
            # One character more than allowed: the gate sees that it was cut.
            arguments=arguments[: MAX_ARGUMENT_CHARS + 1],
            options=None if event.options is None else safe_json(event.options),
        )
        self._blocks[call.position] = block
        self._touch(call.position)
        return [*changes, _changed(block)]

    def _unique_call_id(self, call_id: str) -> str:
        wanted = safe_text(call_id)[:MAX_CALL_ID_CHARS] or f"call_{len(self._calls)}"
        unique, number = wanted, 2
        while unique in self._call_ids:
            unique, number = f"{wanted}-{number}", number + 1
        self._call_ids.add(unique)
        return unique

    def _add_image(self, event: ImageData) -> list[Change]:
        if len(event.data) > self._round_room:
            return []
        self._round_room -= len(event.data) + _ITEM_CHARS
        block = ImageBlock(
            id=self.new_id(),
            media_type=event.media_type,
            data=event.data,
            round=self.round,
        )
        return [self.add(block)]


def _pieces(text: str) -> list[str]:
    return [
        text[start : start + MAX_ITEM_CHARS]
        for start in range(0, len(text), MAX_ITEM_CHARS)
    ]


def _changed(block: Block) -> Change:
    return Change(block.id, item_kind(block), block=block)


def item_kind(block: Block) -> ItemKind:
    """Return what kind of item *block* is to watchers."""
    match block:
        case TextBlock() | ImageBlock():
            return "text"
        case ReasoningBlock():
            return "reasoning"
        case ToolCallBlock():
            return "tool_call"
        case ActionBlock():
            return "action"
        case ErrorBlock():
            return "error"
