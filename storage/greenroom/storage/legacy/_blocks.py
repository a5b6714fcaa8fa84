"""What a message of the older system holds, in our blocks.

Pure. Two forms come in: rows of blocks with a column for each field, and JSON with
other names for the same; both are made `OldBlock`s first. Nothing is refused: what has
no meaning here becomes text or is left out.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import attrs
import msgspec

from greenroom.protocol import (
    MAX_SAFE_INTEGER,
    ActionBlock,
    Block,
    BlockStatus,
    ErrorBlock,
    ImageBlock,
    ItemId,
    MessageMetadata,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    safe_text,
)

MAX_BLOCKS: Final = 5_000
"""Of one message; further ones are left out."""

_NO_RESULT: Final = "no result was kept"
_SHORT: Final = 500
_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_COUNTS: Final = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "totalTokens": "total_tokens",
    "cachedInputTokens": "cached_tokens",
}


@attrs.frozen
class OldBlock:
    """One block, whichever form it was kept in."""

    kind: str
    status: str = ""
    text: str = ""
    call_id: str = ""
    tool: str = ""
    arguments: str = ""
    response: str | None = None
    action: str = ""
    media_type: str = ""


def blocks_of(
    old: Sequence[OldBlock], message_id: str, *, in_progress: bool
) -> tuple[Block, ...]:
    """Return *old* as blocks of the message *message_id*.

    Only one *in_progress* has calls that wait for their result.
    """
    made = (
        _block(each, ItemId(f"{message_id}.{number}"), in_progress=in_progress)
        for number, each in enumerate(old[:MAX_BLOCKS])
    )
    return tuple(block for block in made if block is not None)


def blocks_in(content: str) -> list[OldBlock] | None:
    """Return the blocks in a message's JSON; ``None`` when it can't be read.

    A list of blocks, an object with a text, or a string.
    """
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return None
    if isinstance(value, list):
        return _json_blocks(cast("list[Any]", value))
    if isinstance(value, dict):
        return _user_blocks(cast("dict[str, Any]", value))
    return [_said(value)] if value else []


def metadata_of(text: str) -> MessageMetadata:
    """Return what is known of how a message was made."""
    try:
        value = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return MessageMetadata()
    if not isinstance(value, dict):
        return MessageMetadata()
    old = cast("dict[str, Any]", value)
    counts: dict[str, Any] = {
        ours: old[theirs]
        for theirs, ours in _COUNTS.items()
        if type(old.get(theirs)) is int and 0 <= old[theirs] <= MAX_SAFE_INTEGER
    }
    return MessageMetadata(
        model=_text(old.get("model"))[:_SHORT] or None,
        provider=_text(old.get("provider"))[:_SHORT] or None,
        message_type="compaction" if old.get("messageType") == "compaction" else None,
        **counts,
    )


#### From JSON


def _user_blocks(content: Mapping[str, Any]) -> list[OldBlock]:
    said = content.get("content", content.get("text"))
    if isinstance(said, list):
        return _json_blocks(cast("list[Any]", said))
    found = [_said(said)] if said else []
    files, links = content.get("files"), content.get("links")
    found += [file_note(_text(_object(each).get("name"))) for each in _list(files)]
    found += [_said(each) for each in _list(links)]
    return found


def file_note(name: str) -> OldBlock:
    """Return the block that says a file was attached; its content stays behind."""
    return OldBlock("content", text=f"[file {name[:_SHORT]}]")


def _json_blocks(members: list[Any]) -> list[OldBlock]:
    return [
        _said(each) if isinstance(each, str) else _from_json(_object(each))
        for each in members[:MAX_BLOCKS]
    ]


def _said(value: object) -> OldBlock:
    return OldBlock("content", text=_text(value))


def _from_json(value: dict[str, Any]) -> OldBlock:
    call = _object(value.get("tool_call"))
    image = _object(value.get("image_data"))
    response = call.get("response")
    return OldBlock(
        kind=_text(value.get("type")) or "content",
        status=_text(value.get("status")),
        text=_text(image.get("data")) or _text(value.get("content", value.get("text"))),
        call_id=_text(call.get("id")),
        tool=_text(call.get("name")),
        arguments=_text(call.get("params")),
        response=None if response is None else _text(response),
        action=_text(value.get("action_type")),
        media_type=_text(image.get("mimeType")),
    )


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value)[:MAX_BLOCKS] if isinstance(value, list) else []


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return safe_text(value)
    return msgspec.json.encode(value).decode()


#### To blocks


def _block(old: OldBlock, name: ItemId, *, in_progress: bool) -> Block | None:
    match old.kind:
        case "reasoning_content" | "reasoning":
            return ReasoningBlock(id=name, text=old.text) if old.text else None
        case "tool_call":
            return _call(old, name, in_progress=in_progress)
        case "action":
            return _action(old, name)
        case "image":
            return _image(old, name)
        case "error":
            return ErrorBlock(id=name, code="legacy", text=old.text)
        case _:
            return TextBlock(id=name, text=old.text) if old.text else None


def _call(old: OldBlock, name: ItemId, *, in_progress: bool) -> ToolCallBlock:
    # A call with a result has ended, whatever was written beside it.
    status: BlockStatus = "error" if old.status == "error" else "success"
    response = old.response
    if response is None and in_progress and old.status == "loading":
        status = "loading"
    elif response is None and in_progress:
        status = "pending"
    elif response is None:
        status, response = "error", _NO_RESULT
    return ToolCallBlock(
        id=name,
        call_id=old.call_id[:_SHORT] or name,
        name=old.tool[:_SHORT] or "unknown",
        arguments=old.arguments or "{}",
        status=status,
        response=response,
    )


def _action(old: OldBlock, name: ItemId) -> ActionBlock | None:
    # Nothing waits: who would have answered is gone, and an answer would have effects.
    statuses: dict[str, BlockStatus] = {
        "granted": "granted",
        "denied": "denied",
        "success": "success",
    }
    status = statuses.get(old.status, "error")
    end = "interrupted" if status == "error" else None
    match old.action:
        case "tool_call_permission":
            return ActionBlock(
                id=name,
                action="tool_call_permission",
                origin="pre-check-permission",
                tool_block_id=name,
                title=old.text[:_SHORT],
                status=status,
                end=end,
            )
        case "question_request":
            return ActionBlock(
                id=name,
                action="question_request",
                origin="question",
                tool_block_id=name,
                title=old.text[:_SHORT],
                status=status,
                end=end,
            )
        case _:
            return None


def _image(old: OldBlock, name: ItemId) -> Block:
    data = old.text.partition("base64,")[2] or old.text
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        data = ""
    if not data or old.media_type not in _IMAGES:
        return TextBlock(id=name, text="[image that can't be shown]")
    return ImageBlock(id=name, media_type=old.media_type, data=data)
