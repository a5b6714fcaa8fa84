"""User input at the session's boundary: checked and made canonical, once (SES-16)."""

from __future__ import annotations

import base64
import binascii
from typing import Final

import msgspec

from greenroom.protocol import (
    MAX_BLOCK_BYTES,
    MAX_HOOK_TEXT,
    ImagePart,
    InputReceipt,
    MessageId,
    MessageMetadata,
    MessageRecord,
    Parts,
    PendingInput,
    SessionId,
    TextBlock,
    TextPart,
    UserPromptSubmit,
    canonical_json,
    user_message,
)

from ._messages import TurnRefusedError

MAX_TEXT_CHARS: Final = 200_000
"""Text of one prompt; more belongs into a file that the agent reads."""

MAX_IMAGE_CHARS: Final = 700_000
"""Base64 of the images of one prompt: what still fits a fact."""

MAX_PARTS: Final = 64

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


def prompt_message(
    command_id: str, parts: Parts, *, order: int, now: float
) -> MessageRecord:
    """Return the message of a prompt that went straight to its turn: it has its id."""
    return user_message(MessageId(command_id), parts, order=order, now=now)


def queued_message(
    row: PendingInput, message_id: MessageId, *, order: int, now: float
) -> MessageRecord:
    """Return the message that a row of the queue has while its turn runs."""
    receipt = InputReceipt(
        mode="queue",
        read_at=now,
        input_id=None if message_id == row.id else row.id,
    )
    parts = row.parts or ()
    return user_message(message_id, parts, order=order, now=now, receipt=receipt)


def steer_message(
    message_id: MessageId,
    parts: Parts,
    *,
    order: int,
    now: float,
    input_id: str | None = None,
) -> MessageRecord:
    """Return the message of a steer, which nobody has read yet (PIN-03)."""
    receipt = InputReceipt(mode="steer", input_id=input_id)
    return user_message(
        message_id, parts, order=order, now=now, status="pending", receipt=receipt
    )


def read_message(message: MessageRecord, now: float) -> MessageRecord:
    """Return the *message* of a steer once its turn begins (PIN-05)."""
    receipt = message.metadata.input_receipt or InputReceipt(mode="steer")
    receipt = msgspec.structs.replace(receipt, read_at=now)
    metadata = msgspec.structs.replace(message.metadata, input_receipt=receipt)
    return msgspec.structs.replace(message, metadata=metadata, updated_at=now)


def pending_reply(
    message_id: MessageId, order: int, metadata: MessageMetadata, now: float
) -> MessageRecord:
    """Return the assistant's message that a turn begins with."""
    return MessageRecord(
        id=message_id,
        order_seq=order,
        role="assistant",
        status="pending",
        metadata=metadata,
        created_at=now,
        updated_at=now,
    )


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
