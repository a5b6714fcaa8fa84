"""Blocks and revisions that fit a fact, whatever they hold.

JSON may need six bytes for a character, so a bound in characters is not one in bytes.
What is too large is cut with a note; the tape never refuses what a run has to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, assert_never

import msgspec

from ._messages import (
    ActionBlock,
    Block,
    ErrorBlock,
    ImageBlock,
    MessageRecord,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
)

MAX_BLOCK_BYTES: Final = 800_000
"""Encoded; leaves room for the header of a revision in a fact."""

_CUT_CHARS: Final = 40_000
_CUT_NOTE: Final = "\n[cut here: too large to be kept]"


def fit_block(block: Block) -> Block:
    """Return *block*, cut so that it fits a fact."""
    if _size(block) <= MAX_BLOCK_BYTES:
        return block
    match block:
        case ToolCallBlock():
            return _fit_call(block)
        case TextBlock() | ReasoningBlock():
            cut = msgspec.structs.replace(block, text=_cut(block.text), options=None)
        case ErrorBlock():
            cut = msgspec.structs.replace(block, text=_cut(block.text))
        case ActionBlock():
            cut = msgspec.structs.replace(
                block, title=_cut(block.title), detail=_cut(block.detail)
            )
        case ImageBlock():
            cut = msgspec.structs.replace(block, data="")
        case _:
            assert_never(block)
    return cut


def _fit_call(block: ToolCallBlock) -> Block:
    # The least needed goes first: what was shown, then what was said.
    plain = msgspec.structs.replace(block, diffs=(), options=None)
    if _size(plain) <= MAX_BLOCK_BYTES:
        return plain
    return msgspec.structs.replace(
        plain,
        arguments=_cut(block.arguments),
        response=None if block.response is None else _cut(block.response),
        locations=(),
        title=block.title[:200],
    )


def in_revisions(blocks: Iterable[Block]) -> list[tuple[Block, ...]]:
    """Return *blocks* in groups that each fit a fact; one empty group for none."""
    groups: list[tuple[Block, ...]] = [()]
    room = MAX_BLOCK_BYTES
    for block in map(fit_block, blocks):
        size = _size(block) + 1
        if size > room and groups[-1]:
            groups.append(())
            room = MAX_BLOCK_BYTES
        groups[-1] += (block,)
        room -= size
    return groups


def revisions(record: MessageRecord, changed: Iterable[Block]) -> list[MessageRecord]:
    """Return the revisions that make *record*, of which *changed* blocks are new.

    Only the last one ends a message, so that its end is told once, when it is whole.
    """
    *earlier, last = in_revisions(changed)
    parts = [
        msgspec.structs.replace(record, status="pending", blocks=blocks)
        for blocks in earlier
    ]
    return [*parts, msgspec.structs.replace(record, blocks=last)]


def _cut(text: str) -> str:
    return text if len(text) <= _CUT_CHARS else text[:_CUT_CHARS] + _CUT_NOTE


def _size(block: Block) -> int:
    return len(msgspec.json.encode(block))
