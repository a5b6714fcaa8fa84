"""User input at the session's boundary: checked and made canonical, once (SES-16)."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from greenroom.protocol import (
    MAX_BLOCK_BYTES,
    MAX_HOOK_TEXT,
    Block,
    ImageBlock,
    ImagePart,
    ItemId,
    MessageId,
    MessageMetadata,
    MessageRecord,
    SessionId,
    TextBlock,
    TextPart,
    UserPromptSubmit,
    canonical_json,
    safe_text,
)

from ._messages import TurnRefusedError

MAX_TEXT_CHARS: Final = 200_000
"""Text of one prompt; more belongs into a file that the agent reads."""

MAX_IMAGE_CHARS: Final = 700_000
"""Base64 of the images of one prompt: what still fits a fact."""

MAX_PARTS: Final = 64
Parts = tuple[TextPart | ImagePart, ...]
"""The input of one turn."""

IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")


def check_parts(parts: Parts) -> None:
    """Check the input of a turn.

    Raises:
        TurnRefusedError: empty, too large, or an image that is none.
    """
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    images = [part for part in parts if isinstance(part, ImagePart)]
    if not images and not any(text.strip() for text in texts):
        raise TurnRefusedError("empty_message", "the message is empty")
    if len(parts) > MAX_PARTS or sum(map(len, texts)) > MAX_TEXT_CHARS:
        raise TurnRefusedError(
            "message_too_large",
            f"a message may have {MAX_PARTS} parts and {MAX_TEXT_CHARS} characters; "
            "put more into a file in the workspace",
        )
    if sum(len(image.data) for image in images) > MAX_IMAGE_CHARS:
        raise TurnRefusedError(
            "message_too_large",
            f"images of a message may have {MAX_IMAGE_CHARS} characters of base64",
        )
    if len(canonical_json(parts).encode()) > MAX_BLOCK_BYTES:
        raise TurnRefusedError(
            "message_too_large",
            f"a message may have {MAX_BLOCK_BYTES} bytes as JSON; "
            "put more into a file in the workspace",
        )
    for image in images:
        _check_image(image)


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


def opening(
    command_id: str,
    parts: Parts,
    *,
    reply_id: MessageId,
    order: int,
    metadata: MessageMetadata,
    now: float,
) -> tuple[MessageRecord, MessageRecord]:
    """Return the two messages that a turn begins with: the input, and its reply.

    The user's message has the id of its command.
    """
    user = MessageRecord(
        id=MessageId(command_id),
        order_seq=order,
        role="user",
        status="sent",
        blocks=user_blocks(command_id, parts),
        created_at=now,
        updated_at=now,
    )
    reply = MessageRecord(
        id=reply_id,
        order_seq=order + 1,
        role="assistant",
        status="pending",
        metadata=metadata,
        created_at=now,
        updated_at=now,
    )
    return user, reply


def prompt_submitted(session_id: SessionId, user: MessageRecord) -> UserPromptSubmit:
    """Return that the *user*'s message is on the tape, for hooks."""
    said = "\n\n".join(b.text for b in user.blocks if isinstance(b, TextBlock))
    return UserPromptSubmit(
        session_id=session_id, message_id=user.id, text=said[:MAX_HOOK_TEXT]
    )


def _check_image(image: ImagePart) -> None:
    try:
        known = image.media_type in IMAGE_TYPES
        base64.b64decode(image.data, validate=True)
    except (binascii.Error, ValueError):
        known = False
    if not known:
        raise TurnRefusedError(
            "bad_image", f"an image must be base64 of one of {', '.join(IMAGE_TYPES)}"
        )
