"""From facts to the durable events that watchers see.

The live feed and a replay from a cursor use this one function, so a watcher that
was away sees exactly what it would have seen (law: snapshot and follow share one
cursor).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ._errors import CorruptStoreError
from ._events import (
    CompactionChanged,
    Event,
    InputsChanged,
    InteractionSettled,
    MessageRetracted,
    MessagesChanged,
    Plan,
    PlanUpdated,
    SessionSettings,
    SessionUpdated,
    StreamCompleted,
    StreamFailed,
)
from ._facts import TapeEntry
from ._ids import MessageId
from ._messages import ActionBlock, MessageRecord, interaction_end
from ._pending import PendingInput
from .context import SUMMARY_RESET, Boundary, boundary_of


def events_of(entry: TapeEntry) -> tuple[Event, ...]:
    """Return the durable events that *entry* means; most entries mean none.

    Raises:
        CorruptStoreError: the payload of a fact that watchers see can't be read.
    """
    try:
        return _events_of(entry)
    except msgspec.DecodeError as exc:
        raise CorruptStoreError(
            f"entry {entry.seq} of session {entry.session_id!r} can't be read: {exc}"
        ) from exc


def _events_of(entry: TapeEntry) -> tuple[Event, ...]:
    session_id, seq, payload = entry.session_id, entry.seq, entry.fact.payload
    match entry.fact.name:
        case "message/recorded":
            message = msgspec.json.decode(payload, type=MessageRecord)
            changed = MessagesChanged(session_id=session_id, seq=seq, message=message)
            return changed, *_settled(changed), *_end_of_stream(changed)
        case "message/retracted":
            gone = msgspec.json.decode(payload, type=_Retracted).message_id
            return (MessageRetracted(session_id=session_id, seq=seq, message_id=gone),)
        case "plan/updated":
            plan = msgspec.json.decode(payload, type=Plan)
            return (PlanUpdated(session_id=session_id, seq=seq, plan=plan),)
        case "session/configured":
            settings = msgspec.json.decode(payload, type=SessionSettings)
            return (SessionUpdated(session_id=session_id, seq=seq, settings=settings),)
        case "input/recorded":
            row = msgspec.json.decode(payload, type=PendingInput)
            return (InputsChanged(session_id=session_id, seq=seq, input=row),)
        case _:
            boundary = boundary_of(entry)
            return () if boundary is None else (_compaction(entry, boundary),)


class _Retracted(msgspec.Struct, rename="camel"):
    message_id: MessageId


def _compaction(entry: TapeEntry, boundary: Boundary) -> CompactionChanged:
    state = boundary.state
    untold = "summarized" if state.summary and not state.reason else "boundary_only"
    reset = "reset" if boundary.name == SUMMARY_RESET else untold
    return CompactionChanged(
        session_id=entry.session_id,
        seq=entry.seq,
        trigger=boundary.name.partition("/")[2],
        outcome=reset if state.restores is None else "undone",
        cursor=boundary.cursor,
        tokens_before=state.tokens_before,
        tokens_after=state.tokens_after,
        summary=state.summary,
        reason=state.reason,
    )


def _settled(changed: MessagesChanged) -> Iterator[InteractionSettled]:
    # A revision carries a block only when it changed, and an interaction that has
    # ended does not change any more: so each end is told once.
    for block in changed.message.blocks:
        if isinstance(block, ActionBlock) and (end := interaction_end(block)):
            yield InteractionSettled(
                session_id=changed.session_id,
                seq=changed.seq,
                message_id=changed.message.id,
                interaction_id=block.id,
                end=end,
            )


def _end_of_stream(changed: MessagesChanged) -> Iterator[Event]:
    message = changed.message
    if message.role == "user" or message.status == "pending":
        return
    make = StreamFailed if message.status == "error" else StreamCompleted
    yield make(session_id=changed.session_id, seq=changed.seq, message=message)
