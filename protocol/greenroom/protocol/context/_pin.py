"""The user's first message, kept in front of a history that does not hold it.

A manifest names it and does not copy it: by message and place, by the hash of what was
said and by that of what is sent (CTX-32).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .._canonical import canonical_json, sha256_hex
from .._ids import MessageId
from .._messages import MessageRecord


class PinnedUser(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a manifest says of the pinned message."""

    message_id: MessageId
    order_seq: int
    source_revision: str
    """Which revision of the message, by status and time."""
    source_content_hash: str
    """SHA-256 of what the user said."""
    content_hash: str
    """SHA-256 of the message as it is sent."""
    prefix_hash: str
    """Of all messages of the request up to it."""


def first_user(records: Iterable[MessageRecord]) -> MessageRecord | None:
    """Return the first effective message of the user among *records*, in order."""
    return next(
        (r for r in records if r.role == "user" and r.status != "pending"), None
    )


def pinned_user(
    record: MessageRecord, *, content_hash: str, prefix_hash: str
) -> PinnedUser:
    """Return the descriptor of *record*, which stands in front."""
    return PinnedUser(
        message_id=record.id,
        order_seq=record.order_seq,
        source_revision=f"{record.status}:{record.updated_at!r}",
        source_content_hash=sha256_hex(canonical_json(record.blocks)),
        content_hash=content_hash,
        prefix_hash=prefix_hash,
    )


def inherited_pin(before: PinnedUser | None, now: PinnedUser | None) -> bool:
    """Whether a later request of a turn still has the pin of its first one (CTX-34).

    Same revision, same words, same identity, and the same messages up to it; else the
    reference is dropped.
    """
    return before is not None and before == now
