"""How the messages of a turn come onto the tape, each in its place (SES-19).

The preparation of a turn says when; the session's actor does it, so that nothing else
changes what waits in the meantime. The user's message takes the command out of the
inbox, and in its stead there is a claim until the assistant's message is there: what
dies in between never began, and has its turn again (PIN-14).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import msgspec

from greenroom.actors.kernel import Request
from greenroom.protocol import Fact, InputChange, MessageRecord, RunId
from greenroom.storage import message_fact

from ._input import prompt_submitted
from ._input_steps import write_inputs
from ._messages import TurnRefusedError
from ._session import Session
from ._turn import Opened, Turn


@attrs.frozen
class SayInput(Request[None]):
    """Put the user's messages of the turn on the tape. From its preparation alone."""

    run_id: RunId
    indicator: tuple[Fact, ...] = ()
    """Stands before them: the history is to be compacted for this turn."""


@attrs.frozen
class BeginReply(Request[None]):
    """Put the assistant's message on the tape: the turn's run is next."""

    run_id: RunId


async def open_turn(
    session: Session, request: SayInput | BeginReply, now: float
) -> None:
    """Do what the preparation of the turn asks.

    Raises:
        TurnRefusedError: another turn, or none, is prepared by now.
        StorageError: nothing was written.
    """
    turn = session.turn
    active = None if turn is None else turn.active
    if turn is None or active is None or active.plan.run_id != request.run_id:
        raise TurnRefusedError("turn_ended", "the turn that was prepared is over")
    match request:
        case SayInput(indicator=indicator):
            await _say(session, turn, now, indicator)
        case BeginReply():
            await _begin_reply(session, turn, now)


async def finish_opening(session: Session, now: float) -> None:
    """Put on the tape what is missing of a turn that was cancelled before its run.

    Raises:
        StorageError: not all of it was written.
    """
    turn = session.turn
    assert turn is not None
    if turn.opened is Opened.NOTHING:
        await _say(session, turn, now)
    tell_submitted(session, turn)
    if turn.opened is not Opened.REPLY:
        await _begin_reply(session, turn, now)


def tell_submitted(session: Session, turn: Turn) -> None:
    """Tell hooks, once, what the user has said; it is on the tape."""
    if turn.opened is Opened.SAID:
        turn.opened = Opened.SUBMITTED
        for message in turn.claimed.messages:
            session.ports.tell_hooks(prompt_submitted(session.id, message))


async def keep_claim(session: Session, now: float) -> None:
    """Put the claim of a prompt on the tape that is prepared, and is still a command.

    Before anything else comes in, which would be in front of it after a restart.

    Raises:
        StorageError: nothing was written.
    """
    turn = session.turn
    if turn is not None and turn.opened is Opened.NOTHING:
        await _write_with_claim(session, turn, (), now)


async def _say(
    session: Session, turn: Turn, now: float, indicator: Sequence[Fact] = ()
) -> None:
    if turn.opened is not Opened.NOTHING:
        # The messages of a steer are there since it was claimed (PIN-05).
        if indicator:
            await session.ports.record.append(indicator)
        return
    messages = turn.claimed.messages
    facts = [*indicator, *map(message_fact, messages)]
    await _write_with_claim(session, turn, facts, now)
    turn.opened = Opened.SAID
    add_said(session, messages)


async def _write_with_claim(
    session: Session, turn: Turn, facts: Sequence[Fact], now: float
) -> None:
    # The claim goes before them, if it is not there yet.
    claim, inputs = turn.claimed, session.inputs
    if not claim.is_straight(inputs):
        await write_inputs(session, InputChange(inputs), facts)
        return
    change = inputs.claim_at_once(
        claim.input_id,
        claim.parts,
        message_id=claim.messages[0].id,
        reply=turn.message.id,
        now=now,
    )
    settles, first = [claim.input_id], claim.arrived
    await write_inputs(session, change, facts, settles, first=first)


def add_said(session: Session, messages: Sequence[MessageRecord]) -> None:
    """Add the user's messages of a turn, which are on the tape, to the history."""
    for message in messages:
        session.history.append(sent(message))


def sent(message: MessageRecord) -> MessageRecord:
    """Return *message* as the turn it is for shows it."""
    return msgspec.structs.replace(message, status="sent")


async def _begin_reply(session: Session, turn: Turn, now: float) -> None:
    claim, change = turn.claimed, InputChange(session.inputs)
    if claim.kind == "steer":
        # Reserved, and written, with its claim.
        turn.opened = Opened.REPLY
    else:
        if claim.kind == "send":
            # Somebody waits for this turn, and is told if it fails: it is theirs now.
            change = session.inputs.settle(claim.input_id, "delivered", now=now)
        await write_inputs(session, change, [message_fact(turn.message)])
        turn.opened = Opened.REPLY
    await session.ports.record.clear_plan()
