"""What a restart makes of pending input, as facts (PIN-14, JRN-22).

The rows are decided in `greenroom.protocol`; what belongs to them in the transcript
follows here: a steer that was read has its messages sent, one that becomes a queued
input loses them, one without a message gets it. A turn that died between the user's
message and the assistant's never began: the message leaves, the input waits (SES-19).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from greenroom.protocol import (
    Fact,
    InputReceipt,
    MessageId,
    PendingInput,
    SessionId,
    recovered_inputs,
    user_message,
)

from ._store import Reader
from .names import input_fact, message_fact, retraction_fact


def input_recovery_facts(reader: Reader, scope: SessionId, now: float) -> list[Fact]:
    """Return the facts that settle what a dead owner left; none when it left none."""
    before = reader.pending_inputs(scope)
    change = recovered_inputs(
        before,
        lambda row: _began(reader, scope, row),
        now=now,
        half_open=lambda row: bool(_half_open(reader, scope, row)),
    )
    facts = [input_fact(row) for row in change.revisions]
    for row in before.rows:
        if row.mode == "steer":
            facts += _steer_facts(reader, scope, row, now)
        else:
            facts += map(retraction_fact, _half_open(reader, scope, row))
    return facts


def _began(reader: Reader, scope: SessionId, row: PendingInput) -> bool:
    # A row without a reserved reply had both messages in one append.
    reply = row.assistant_message_id
    if reply is None:
        return bool(_said(reader, scope, row))
    return reader.message(scope, reply) is not None


def _half_open(
    reader: Reader, scope: SessionId, row: PendingInput
) -> tuple[MessageId, ...]:
    if row.state != "claimed" or _began(reader, scope, row):
        return ()
    return _said(reader, scope, row)


def _said(reader: Reader, scope: SessionId, row: PendingInput) -> tuple[MessageId, ...]:
    return tuple(
        each for each in row.message_ids if reader.message(scope, each) is not None
    )


def _steer_facts(
    reader: Reader, scope: SessionId, row: PendingInput, now: float
) -> Iterator[Fact]:
    found = [reader.message(scope, each) for each in row.message_ids]
    messages = [message for message in found if message is not None]
    if row.state == "claimed":
        for message in messages:
            if message.status == "pending":
                sent = msgspec.structs.replace(message, status="sent", updated_at=now)
                yield message_fact(sent)
    elif row.state == "blocked":
        yield from (retraction_fact(message.id) for message in messages)
    elif not row.message_ids:
        newest = reader.messages(scope, limit=1)
        yield message_fact(
            user_message(
                MessageId(f"{row.id}.message"),
                row.parts or (),
                order=newest[-1].order_seq + 1 if newest else 1,
                now=now,
                status="pending",
                receipt=InputReceipt(mode="steer", input_id=row.id),
            )
        )
