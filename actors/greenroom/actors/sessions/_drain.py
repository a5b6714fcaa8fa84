"""How input is let into its turn, and settled behind it (PIN-08 to PIN-11).

One at a time. Order of a queued turn: claim → attachments → its preparation, which ends
with the assistant's message (`_preparation`) → the run → the claim is settled behind
the run's terminal (JRN-24). A process that dies in between leaves a claim, which the
next one settles (PIN-14).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final, final

import attrs
import msgspec

from greenroom.actors.kernel import Context
from greenroom.protocol import (
    Fact,
    InputChange,
    MessageId,
    MessageRecord,
    PendingInput,
    StorageError,
    next_input,
)
from greenroom.storage import message_fact, retraction_fact

from ._commands import arrival_facts
from ._input import pending_reply, prompt_message, queued_message, read_message
from ._input_steps import write_inputs
from ._messages import InputBlockedError, Prompt
from ._opening import add_said
from ._session import Session
from ._turn import Claim, Due, Opened, Turn
from ._turns import fresh_metadata

_LOG: Final = logging.getLogger("greenroom.sessions")


@final
@attrs.define(eq=False)
class Drain:
    """Opens the turns of what waits in a session."""

    session: Session
    _kept_back: frozenset[str] | None = attrs.field(default=None, init=False)
    """What waits behind the message that the user said to write (INT-09)."""

    async def let_in(self, ctx: Context[Any]) -> bool:
        """Open the turn of what is next, if it may have one; whether it was opened.

        Raises:
            StorageError: not written; what waited is as it was.
        """
        row = self._next()
        if row is None:
            return False
        self.session.hub.status("generating")
        if row.mode == "steer":
            await self._let_in_steer(row, ctx)
        else:
            await self._let_in_queued(row, ctx)
        return self._was_opened()

    async def let_straight_in(self, request: Prompt, ctx: Context[Any]) -> bool:
        """Open the turn of a prompt that nothing waits before; whether it was opened.

        Raises:
            StorageError: not written; its command stays in the inbox.
        """
        session, now = self.session, ctx.clock.now()
        command_id, parts = request.command_id, request.parts
        arrived = arrival_facts(command_id, request.endpoint, now)
        session.hub.status("generating")
        session.ports.preparing("attachments")
        if reasons := session.ports.attachments(parts, session.settings):
            queued = session.inputs.enqueue(command_id, parts, now=now, sent=True)
            blocked = queued.inputs.block(command_id, reasons, now=now).inputs
            change = InputChange(blocked, (blocked.find(command_id),))
            await write_inputs(session, change, settles=[command_id], first=arrived)
            self._tell_blocked(command_id, reasons)
            return self._was_opened()
        user = prompt_message(command_id, parts, order=session.next_order, now=now)
        reply = self._reply(user.order_seq + 1, ctx)
        claim = Claim(command_id, "send", (user,), parts, tuple(arrived))
        self._open(reply, claim)
        return self._was_opened()

    def _next(self) -> PendingInput | None:
        session, wake = self.session, self.session.wake
        session.wake = None
        if wake is None:
            return None
        return next_input(
            session.inputs,
            wake,
            state="error" if session.failed else "idle",
            kept_back=self._behind_follow_up(),
        )

    def _behind_follow_up(self) -> frozenset[str] | None:
        since = self.session.history.awaits_user_since
        if since is None:
            self._kept_back = None
        elif self._kept_back is None:
            # The first look after the answer, or after a restart.
            rows = self.session.inputs.rows
            self._kept_back = frozenset(r.id for r in rows if r.created_at <= since)
        return self._kept_back

    async def _let_in_queued(self, row: PendingInput, ctx: Context[Any]) -> None:
        session, now = self.session, ctx.clock.now()
        session.ports.preparing("claim")
        # A message that was retracted never comes back, so its id is used up.
        message_id = MessageId(ctx.ids.uuid() if row.returned else row.id)
        user = queued_message(row, message_id, order=session.next_order, now=now)
        reply = self._reply(user.order_seq + 1, ctx)
        claimed = session.inputs.claim(
            row.id, now=now, message_id=message_id, reply=reply.id
        )
        await self._claim(claimed)
        session.ports.preparing("attachments")
        if reasons := session.ports.attachments(row.parts or (), session.settings):
            await self._block(row, reasons, now)
            return
        kind = "send" if row.sent else "queue"
        self._open(reply, Claim(row.id, kind, (user,), row.parts or ()))

    async def _let_in_steer(self, row: PendingInput, ctx: Context[Any]) -> None:
        session, now = self.session, ctx.clock.now()
        session.ports.preparing("attachments")
        # Before the claim, which a steer does not give back (PIN-05).
        if reasons := session.ports.attachments(row.parts or (), session.settings):
            await self._block(row, reasons, now)
            return
        session.ports.preparing("claim")
        read = tuple(read_message(message, now) for message in session.steered)
        reply = self._reply(session.next_order, ctx)
        claimed = session.inputs.claim(row.id, now=now, reply=reply.id)
        await self._claim(claimed, map(message_fact, (*read, reply)))
        session.steered = []
        add_said(session, read)
        claim = Claim(row.id, "steer", read, row.parts or ())
        self._open(reply, claim, Opened.SAID)

    async def _claim(self, claimed: InputChange, facts: Iterable[Fact] = ()) -> None:
        # A claim that is on disk has its turn also if telling of it raises: nobody
        # else would settle it (PIN-10).
        try:
            await write_inputs(self.session, claimed, facts)
        except StorageError:
            raise
        except Exception as exc:
            input_id = claimed.revisions[0].id
            _LOG.warning("the claim of input %r was not told: %r", input_id, exc)
            self.session.inputs = claimed.inputs

    async def _block(
        self, row: PendingInput, reasons: Sequence[str], now: float
    ) -> None:
        change = self.session.inputs.block(row.id, reasons, now=now)
        await write_inputs(self.session, change)
        self._tell_blocked(row.id, reasons)

    def _tell_blocked(self, input_id: str, reasons: Sequence[str]) -> None:
        self.session.waiters.fail(input_id, InputBlockedError(input_id, reasons))

    def _reply(self, order: int, ctx: Context[Any]) -> MessageRecord:
        settings = self.session.settings
        metadata = fresh_metadata(settings.provider, settings.model)
        message_id = MessageId(ctx.ids.uuid())
        return pending_reply(message_id, order, metadata, ctx.clock.now())

    def _open(
        self, reply: MessageRecord, claim: Claim, opened: Opened = Opened.NOTHING
    ) -> None:
        self.session.turn = Turn(reply, claim.input_id, claim=claim, opened=opened)

    def _was_opened(self) -> bool:
        session = self.session
        if session.turn is None:
            session.ports.preparing(None)
            session.hub.status("error" if session.failed else "idle")
        return session.turn is not None

    #### Settling

    async def settle(self, now: float) -> None:
        """Settle the claim whose run has ended, once (PIN-10, PIN-11), and tell so.

        Raises:
            StorageError: not written; loading the session again settles it.
        """
        due, self.session.due = self.session.due, None
        if due is not None:
            await self._settle_due(due, now)
        self.session.tell_settled()

    async def _settle_due(self, due: Due, now: float) -> None:
        try:
            await self._settle(due, now)
        finally:
            if due.failure is not None:
                self.session.waiters.fail_each(due.claim.commands, due.failure)

    async def _settle(self, due: Due, now: float) -> None:
        inputs, claim = self.session.inputs, due.claim
        change, facts = InputChange(inputs), list[Fact]()
        retracted, settles = list[MessageRecord](), list[str]()
        first: tuple[Fact, ...] = ()
        match claim.kind:
            case "steer":
                change = inputs.settle(claim.input_id, "delivered", now=now)
                facts = [message_fact(_sent(m, now)) for m in claim.messages]
                retracted = [due.reply] if due.undone else []
            case "queue" if not due.failed:
                change = inputs.settle(claim.input_id, "delivered", now=now)
            case "send" if not due.undone:
                return
            case _ if not claim.is_straight(inputs):
                # The turn is taken back; what the journal has of it stays.
                retracted = due.written
                change = inputs.settle(
                    claim.input_id,
                    "released" if due.unwritten else "returned",
                    now=now,
                    retracts=bool(retracted),
                )
            case _ if due.unwritten:
                return  # its command is in the inbox
            case _:
                retracted = due.written
                if not retracted:
                    settles, first = [claim.input_id], claim.arrived
                change = inputs.give_back(claim.input_id, claim.parts, now=now)
        facts += (retraction_fact(message.id) for message in retracted)
        await write_inputs(self.session, change, facts, settles, first=first)
        self.session.history.retract(retracted)


def _sent(message: MessageRecord, now: float) -> MessageRecord:
    return msgspec.structs.replace(message, status="sent", updated_at=now)
