"""What is read of a session only when the whole of it is asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import msgspec

from greenroom.protocol import MessageId, MessageRecord, SessionId, Spent, spent_on
from greenroom.storage import MODEL_CALLED, ModelCalled, Reader

MAX_HISTORY: Final = 100_000
"""Messages of one session that are loaded at most."""

_PAGE: Final = 500


@attrs.frozen
class Earlier:
    """What a session had before the messages that are known."""

    records: list[MessageRecord]
    """The messages before those, oldest first."""
    retracted: list[tuple[MessageId, int]]
    """Every message that was taken back, with its place."""
    spent: Spent = attrs.field(factory=Spent)
    """What was used by no turn."""


ReadBefore = Callable[[int | None], Awaitable[Earlier]]
"""Reads what is before a place, or everything."""


def read_earlier(reader: Reader, scope: SessionId, before: int | None) -> Earlier:
    """Return what the session *scope* had before the place *before*, or all of it."""
    return Earlier(
        _messages(reader, scope, before),
        reader.retracted_messages(scope),
        _spent(reader, scope),
    )


def _messages(
    reader: Reader, scope: SessionId, before: int | None
) -> list[MessageRecord]:
    pages: list[list[MessageRecord]] = []
    while len(pages) * _PAGE < MAX_HISTORY:
        page = reader.messages(scope, before, _PAGE)
        pages.append(page)
        if len(page) < _PAGE:
            break
        before = page[0].order_seq
    return [record for page in reversed(pages) for record in page]


def _spent(reader: Reader, scope: SessionId) -> Spent:
    spent, before = Spent(), None
    while calls := reader.named(scope, MODEL_CALLED, before=before, limit=_PAGE):
        for entry in calls:
            call = msgspec.json.decode(entry.fact.payload, type=ModelCalled)
            asked = call.usage is not None or call.status == "completed"
            if asked and not _is_counted(reader, scope, call.message_id):
                tokens = None if call.usage is None else call.usage.total
                spent = spent.plus(spent_on(tokens, call.cost))
        before = calls[-1].seq
    return spent


def _is_counted(reader: Reader, scope: SessionId, message_id: MessageId | None) -> bool:
    # By the turn that it was for: one that never began leaves no message.
    return message_id is not None and reader.message(scope, message_id) is not None
