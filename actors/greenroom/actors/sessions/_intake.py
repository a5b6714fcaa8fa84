"""How input comes in, and what the user does with it before it is let in (PIN).

The rows are a value (`PendingInputs`); each step is made durable first and adopted
then. Everything that is put in is a row, but for one thing: a prompt to an idle
session with empty lanes goes straight to its turn. Called by the session's actor
alone, so that one admission order is all there is (SES-17).
"""

from __future__ import annotations

import logging
from typing import Any, Final, Literal, final

import attrs

from greenroom.actors.kernel import Context, ReplySlot
from greenroom.protocol import (
    Command,
    InputChange,
    InputRefusedError,
    MessageId,
    MessageRecord,
    PendingInput,
    PromptCommand,
    SteerCommand,
    StorageError,
    Wake,
    canonical_json,
    command_of,
)
from greenroom.storage import InboxCommand, Posted, message_fact, retraction_fact

from ._commands import arrival_facts, put_in, read_command, withdrawal_fact
from ._input import steer_message
from ._input_steps import stepped, write_inputs
from ._messages import (
    AcceptedInput,
    InputStep,
    PutIn,
    TurnRefusedError,
    TurnResult,
)
from ._opening import keep_claim
from ._session import Session

_LOG: Final = logging.getLogger("greenroom.sessions")

MAX_ADMITTED: Final = 100
"""Commands of an earlier owner that are read at once."""

Taken = InputChange | Literal["straight"] | None
"""What is to be made durable of a command that is new; ``None``: it is not new."""


@final
@attrs.define(eq=False)
class Intake:
    """Takes in what is put into a session."""

    session: Session

    async def take_prompt(
        self,
        command_id: str,
        command: PromptCommand,
        reply: ReplySlot[TurnResult],
        now: float,
        *,
        known: bool,
    ) -> Taken:
        """Make a prompt durable and let *reply* wait for its turn.

        Sent again, and so *known*, it waits for the turn that it began, or is answered
        at once.

        Raises:
            TurnRefusedError: not taken.
            StorageError: not written.
        """
        taken: Taken = None
        if not known:
            await keep_claim(self.session, now)
            taken = (
                "straight" if self._is_clear else self._room(command_id, command, now)
            )
        if await self._post(command_id, command, known=known):
            self.session.waiters.add(command_id, reply)
            return taken
        self._join(command_id, reply)
        return None

    async def put_in(self, request: PutIn, now: float, *, known: bool) -> Taken:
        """Make an input durable that is queued, or said to the turn that runs.

        Once alone: one that is *known* is there.

        Raises:
            InputRefusedError: no room, or another turn runs than the one meant.
            TurnRefusedError: not taken.
            StorageError: not written.
        """
        command_id, command = request.command_id, request.command
        taken = None
        if not known:
            self._check_turn(command)
            await keep_claim(self.session, now)
            taken = put_in(self.session.inputs, command_id, command, now)
        return taken if await self._post(command_id, command, known=known) else None

    async def adopt(
        self,
        change: InputChange,
        command_id: str,
        command: Command,
        now: float,
        *,
        endpoint: str = "",
    ) -> None:
        """Make a row of a command that is in the inbox, and say where it came in.

        If it can't be written it stays there, and is taken in later.
        """
        try:
            await self._adopt(change, command_id, command, now, endpoint)
        except StorageError as exc:
            _LOG.warning("command %r stays in the inbox: %s", command_id, exc)
            self.session.owes = True
        self.session.wake_up(Wake.ENQUEUE)

    async def _adopt(
        self,
        change: InputChange,
        command_id: str,
        command: Command,
        now: float,
        endpoint: str = "",
    ) -> None:
        session, said = self.session, list[MessageRecord]()
        if isinstance(command, SteerCommand):
            said = [
                steer_message(
                    MessageId(command_id),
                    command.parts,
                    order=session.next_order,
                    now=now,
                )
            ]
        facts = map(message_fact, said)
        await write_inputs(
            session,
            change,
            facts,
            settles=[command_id],
            first=arrival_facts(command_id, endpoint, now),
        )
        session.steered += said

    def _check_turn(self, command: Command) -> None:
        if not isinstance(command, SteerCommand) or command.expected_turn is None:
            return
        turn = self.session.turn
        if turn is None or turn.message.id != command.expected_turn:
            raise InputRefusedError(
                "turn_changed",
                f"the turn of message {command.expected_turn[:80]!r} does not run",
                hint="look at what has become of it, then say it again",
            )

    def _room(self, command_id: str, command: Command, now: float) -> InputChange:
        try:
            return put_in(self.session.inputs, command_id, command, now)
        except InputRefusedError as exc:
            raise TurnRefusedError(
                "too_many_commands", f"{exc}; let some prompts finish first"
            ) from exc

    async def _post(self, command_id: str, command: Command, *, known: bool) -> bool:
        # Whether it is new.
        body = canonical_json(command)
        posted = await self.session.ports.record.post(command_id, body)
        if not isinstance(posted, Posted):
            if posted.same_body:
                return False
            raise _conflicting(command_id, "was sent before with other input")
        if known:
            error = _conflicting(command_id, "is the id of another message")
            await self._drop(command_id, error)
            raise error
        return True

    def _join(self, command_id: str, reply: ReplySlot[TurnResult]) -> None:
        session = self.session
        answered = session.history.reply_to(command_id)
        if answered is not None:
            reply.set_value(TurnResult(answered))
        elif session.owes or self._is_open(command_id):
            session.waiters.add(command_id, reply)
        else:
            raise _withdrawn("its turn failed, or it was taken back or cleared away")

    #### What an owner before this one had not taken in

    async def restore(self, now: float) -> None:
        """Take in what is left of an earlier owner, and let go on what goes on."""
        await self.admit(now)
        rows = self.session.inputs.rows
        if any(row.sent or row.mode == "steer" for row in rows):
            self.session.wake_up(Wake.ENQUEUE)

    async def admit(self, now: float) -> None:
        """Make rows of the commands in the inbox, as far as there is room."""
        while self.session.owes:
            commands = await self.session.ports.record.commands(limit=MAX_ADMITTED)
            if not commands:
                self.session.owes = False
            for command in commands:
                if not await self._admit(command, now):
                    return

    async def _admit(self, posted: InboxCommand, now: float) -> bool:
        # Whether there was room.
        command_id = posted.command_id
        try:
            if await self.is_known(command_id):
                raise _conflicting(command_id, "is the id of another message")
            command = read_command(posted)
            self._check_turn(command)
            said_at = posted.posted_at
            change = put_in(self.session.inputs, command_id, command, said_at)
        except (TurnRefusedError, InputRefusedError) as exc:
            if exc.code in ("queue_full", "steer_full"):
                return False
            await self._drop(command_id, exc)
            return True
        await self._adopt(change, command_id, command, now)
        self.session.wake_up(Wake.ENQUEUE)
        return True

    async def _drop(self, command_id: str, error: Exception) -> None:
        _LOG.warning("command %r was dropped: %s", command_id, error)
        fact = withdrawal_fact(command_id)
        await self.session.ports.record.append([fact], settles=[command_id])
        self.session.waiters.fail(command_id, error)

    #### What the user does with it

    async def change(
        self, step: InputStep, ctx: Context[Any]
    ) -> tuple[PendingInput, ...]:
        """Make *step* and return what waits then.

        Raises:
            InputRefusedError: it can't be made; nothing has changed.
            TurnRefusedError: what an input is to say can't be said.
            StorageError: not written.
        """
        session = self.session
        made = stepped(session, step, ctx.ids.uuid, ctx.clock.now())
        retracted = map(retraction_fact, made.retracted)
        facts = [*retracted, *map(message_fact, made.messages)]
        await write_inputs(session, made.change, facts)
        session.history.retract(m for m in session.steered if m.id in made.retracted)
        kept = [m for m in session.steered if m.id not in made.retracted]
        session.steered = sorted([*kept, *made.messages], key=lambda m: m.order_seq)
        for command_id in made.withdrawn:
            session.waiters.fail(command_id, _withdrawn("it was deleted"))
        if made.wake is not None:
            session.wake_up(made.wake)
        return session.inputs.rows

    async def hold(self, now: float) -> None:
        """Keep what waits, after the user stopped the turn."""
        await write_inputs(self.session, self.session.inputs.hold(now=now))

    async def withdraw(self, command_id: str, now: float) -> None:
        """Take back a prompt that somebody waits for; its turn has not begun."""
        session, row = self.session, self._row_of(command_id)
        if command_id not in session.waiters:
            return
        if row is not None and (row.mode == "steer" or row.state == "claimed"):
            return
        error = _withdrawn("it was taken back")
        try:
            if row is None:
                await self._drop(command_id, error)
                return
            await write_inputs(session, session.inputs.delete(command_id, now=now))
        except StorageError as exc:
            # Then it has its turn, as if nobody had taken it back.
            _LOG.warning("command %r was not taken back: %s", command_id, exc)
            return
        session.waiters.fail(command_id, error)
        session.wake_up(Wake.COMPLETED)

    #### What became of an input

    def state_of(self, command_id: str) -> AcceptedInput:
        """Return where an input stands that was taken in."""
        row = self._row_of(command_id)
        if row is not None:
            return AcceptedInput(row.id, row.delivery, row)
        if self.session.owes:
            return AcceptedInput(command_id, "waiting", None)
        gone = self._is_open(command_id) or self.session.history.took(command_id)
        return AcceptedInput(command_id, "delivered" if gone else "deleted", None)

    async def is_known(self, command_id: str) -> bool:
        """Whether something was put in under this id, or a message has it.

        Raises:
            StorageError: the transcript can't be read.
        """
        history = self.session.history
        await history.complete()
        if self._is_open(command_id) or history.took(command_id):
            return True
        return history.holds(command_id)

    def waits(self, command_id: str) -> bool:
        """Whether what was put in under this id has still to begin its turn."""
        row = self._row_of(command_id)
        return row is not None and row.state != "claimed"

    @property
    def _is_clear(self) -> bool:
        session = self.session
        busy = session.turn is not None or session.compacting is not None
        return not busy and not session.inputs.rows and not session.owes

    def _is_open(self, command_id: str) -> bool:
        turn = self.session.turn
        if turn is not None and turn.takes(command_id):
            return True
        return self._row_of(command_id) is not None

    def _row_of(self, command_id: str) -> PendingInput | None:
        steered = {command_of(message) for message in self.session.steered}
        for row in self.session.inputs.rows:
            if row.id == command_id or command_id in row.message_ids:
                return row
            if row.mode == "steer" and command_id in steered:
                return row
        return None


def _conflicting(command_id: str, why: str) -> TurnRefusedError:
    return TurnRefusedError("conflicting_command", f"command {command_id[:80]!r} {why}")


def _withdrawn(why: str) -> TurnRefusedError:
    return TurnRefusedError(
        "withdrawn_command",
        f"this command has no turn: {why}; send the input as a new command",
    )
