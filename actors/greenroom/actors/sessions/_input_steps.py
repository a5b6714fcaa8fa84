"""What the user does with pending input, as steps on the rows and their messages.

Pure but for `write_inputs`, which makes a step durable and adopts it then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

import attrs

from greenroom.protocol import (
    Fact,
    InputChange,
    MessageId,
    MessageRecord,
    TextBlock,
    TextPart,
    Wake,
    command_of,
)
from greenroom.storage import input_fact

from ._attachments import without_images
from ._input import check_parts, steer_message
from ._messages import (
    DegradeInput,
    DeleteInput,
    EditInput,
    InputStep,
    MoveInput,
    PromoteInput,
    ReleaseInputs,
    RetryInput,
)
from ._session import Session


@attrs.frozen
class Stepped:
    """What a step changes, beside the rows, and what it lets happen."""

    change: InputChange
    wake: Wake | None = None
    """``None``: nothing more may be let in because of it."""
    messages: tuple[MessageRecord, ...] = ()
    """Messages of a steer that are new."""
    retracted: tuple[MessageId, ...] = ()
    withdrawn: tuple[str, ...] = ()
    """Commands that are gone; somebody may wait for them."""


async def write_inputs(
    session: Session,
    change: InputChange,
    facts: Iterable[Fact] = (),
    settles: Sequence[str] = (),
    *,
    first: Iterable[Fact] = (),
) -> None:
    """Make *change* and *facts* durable in one append, then adopt the rows.

    *first* are facts that stand on the tape before those of the rows.

    Raises:
        StorageError: nothing was written, and nothing has changed.
    """
    every = [*first, *map(input_fact, change.revisions), *facts]
    if every or settles:
        await session.ports.record.append(every, settles)
    session.inputs = change.inputs


def stepped(
    session: Session, step: InputStep, new_id: Callable[[], str], now: float
) -> Stepped:
    """Return what *step* makes of what waits in *session*.

    Raises:
        InputRefusedError: it can't be made.
        TurnRefusedError: what an input is to say can't be said.
    """
    inputs = session.inputs
    match step:
        case EditInput(input_id=input_id, parts=parts):
            check_parts(parts)
            blocked = inputs.find(input_id).state == "blocked"
            change = inputs.edit(input_id, parts, now=now)
            return Stepped(change, Wake.ENQUEUE if blocked else None)
        case MoveInput(input_id=input_id, to=to):
            return Stepped(inputs.move(input_id, to, now=now))
        case DeleteInput(input_id=input_id):
            return _deleted(session, input_id, now)
        case PromoteInput(input_id=input_id):
            return _promoted(session, input_id, new_id, now)
        case RetryInput(input_id=input_id):
            return Stepped(inputs.retry(input_id, now=now), Wake.ENQUEUE)
        case DegradeInput(input_id=input_id):
            return _degraded(session, input_id, new_id, now)
        case ReleaseInputs():
            return Stepped(inputs.release(now=now), Wake.MANUAL)
        case _:
            assert_never(step)


def _deleted(session: Session, input_id: str, now: float) -> Stepped:
    row = session.inputs.find(input_id)
    said = session.steered if row.mode == "steer" else []
    return Stepped(
        session.inputs.delete(input_id, now=now),
        # What was blocked behind it may go on.
        Wake.COMPLETED,
        retracted=tuple(message.id for message in said),
        withdrawn=(input_id, *map(command_of, said)),
    )


def _promoted(
    session: Session, input_id: str, new_id: Callable[[], str], now: float
) -> Stepped:
    row = session.inputs.find(input_id)
    # The id of a message that was retracted is used up.
    message_id = MessageId(new_id() if row.returned else row.id)
    message = steer_message(
        message_id,
        row.parts or (),
        order=session.next_order,
        now=now,
        input_id=None if message_id == row.id else row.id,
    )
    change = session.inputs.promote(input_id, message_id, now=now)
    return Stepped(change, Wake.MANUAL, messages=(message,))


# The messages of a steer are in the transcript, images and all: each that has some is
# replaced by one that says what is left.
def _degraded(
    session: Session, input_id: str, new_id: Callable[[], str], now: float
) -> Stepped:
    row = session.inputs.find(input_id)
    left = without_images(input_id, row.parts or ())
    if row.mode == "queue":
        change = session.inputs.degrade(input_id, left, now=now)
        return Stepped(change, Wake.ENQUEUE)
    kept = [m for m in session.steered if len(_texts(m)) == len(m.blocks)]
    rest = [m for m in session.steered if m not in kept]
    less = [
        steer_message(
            MessageId(new_id()),
            _texts(message),
            order=message.order_seq,
            now=now,
            input_id=command_of(message),
        )
        for message in rest
        if _texts(message)
    ]
    ids = tuple(m.id for m in sorted([*kept, *less], key=lambda m: m.order_seq))
    change = session.inputs.degrade(input_id, left, now=now, message_ids=ids)
    gone = tuple(message.id for message in rest)
    return Stepped(change, Wake.ENQUEUE, messages=tuple(less), retracted=gone)


def _texts(message: MessageRecord) -> tuple[TextPart, ...]:
    return tuple(
        TextPart(block.text) for block in message.blocks if isinstance(block, TextBlock)
    )
