"""The session actor: the only door to a session.

States of a session, by what it holds: no turn (idle); a turn with a run (generating);
a turn without a run, its message pending (paused: the first unresolved interaction
waits for its answer). It is a task only while something is to be done, otherwise a
hosted actor that costs nothing.

Order within a turn: user and assistant message, in the append that settles the command
→ the run's own facts → next.
"""

from __future__ import annotations

import logging
from typing import Any, Final, cast, final

import attrs

from greenroom.actors.kernel import (
    Ask,
    AskAbandoned,
    Context,
    DeadlineReached,
    Exited,
    ReplySlot,
    Started,
    Stop,
)
from greenroom.protocol import (
    InternalError,
    MessageId,
    SessionSettings,
    StorageError,
)
from greenroom.storage import (
    message_fact,
    settings_fact,
)

from ._hub import JOIN_SECONDS
from ._inbox import Accepted, Inbox
from ._input import check_parts, opening, prompt_submitted
from ._messages import (
    AnswerInteraction,
    AssignSession,
    CancelTurn,
    ChangeSettings,
    Prompt,
    TurnFailedError,
    TurnRefusedError,
    TurnResult,
    session_closing,
)
from ._session import Session
from ._settings import changed_settings, check_provider
from ._turn import AnswerClock, Turn
from ._turns import fresh_metadata, unresolved
from ._work import Work

_LOG: Final = logging.getLogger("greenroom.sessions")


@final
@attrs.define(eq=False)
class SessionActor:
    """The behaviour of a session actor."""

    session: Session
    _work: Work = attrs.field(init=False)
    _inbox: Inbox = attrs.field(init=False)
    _first: object = attrs.field(default=None, init=False)
    _idle: bool = attrs.field(default=False, init=False)
    """It leaves only because nobody uses it: whoever comes to watch meanwhile stays."""

    def __attrs_post_init__(self) -> None:
        self._work = Work(self.session)
        self._inbox = Inbox(self.session.history, self.session.waiters)

    #### Hosted: nothing to do

    def handle(self, message: object, ctx: Context[Any]) -> None:
        """Wake up for any message, and go on as a task."""
        self._first = message
        ctx.cancel_deadline("idle")
        ctx.become_task(self._live)

    #### Task

    async def _live(self, ctx: Context[Any]) -> None:
        try:
            await self._live_until_rest(ctx)
        except BaseException:
            # It fails or is killed, and tells nothing more (SES-22).
            self.session.hub.break_off()
            raise

    async def _live_until_rest(self, ctx: Context[Any]) -> None:
        self.session.hub.on_delta = lambda: ctx.deadline(JOIN_SECONDS, "deltas")
        await self._take(self._first, ctx)
        while not self.session.at_rest:
            for message in await ctx.mailbox.receive_batch():
                await self._take(message, ctx)
        self.session.hub.flush()
        if self.session.leaving:
            await self._leave(ctx)
        elif self.session.idle_seconds is not None and self.session.may_idle:
            ctx.deadline(self.session.idle_seconds, "idle")

    async def _leave(self, ctx: Context[Any]) -> None:
        try:
            await self.session.ports.record.release()
        except StorageError as exc:
            # It was taken from us, or the store is closed: then it is free anyway.
            _LOG.warning("session %s was not released: %s", self.session.id, exc)
        self.session.hub.on_delta = None
        if not self._idle:
            self.session.hub.close()
        self.session.ports.forget()
        ctx.exit()

    async def _take(self, message: object, ctx: Context[Any]) -> None:
        try:
            await self._handle(message, ctx)
            await self._advance(ctx)
        except StorageError as exc:
            self._give_up(exc)

    async def _handle(self, message: object, ctx: Context[Any]) -> None:
        match message:
            case Started():
                await self._work.restore_pause(ctx)
            case Ask():
                await self._handle_ask(cast("Ask[Any]", message), ctx)
            case CancelTurn():
                await self._cancel(message, ctx)
            case Stop(cause=cause):
                self.session.leaving, self.session.owes = True, False
                await self._work.stop(cause, ctx)
            case Exited():
                await self._work.run_exited(message, ctx)
            case DeadlineReached(key="deltas"):
                self.session.hub.flush()
            case DeadlineReached(key="blocks"):
                self._work.flush_blocks(ctx)
            case DeadlineReached(key="idle"):
                self._idle = self.session.may_idle and not self.session.hub.watched
                self.session.leaving = self._idle
            case DeadlineReached(key=AnswerClock(interaction_id=interaction_id)):
                await self._work.expire(interaction_id, ctx)
            case AskAbandoned(reply=reply):
                self._forget_asker(reply)
            case _:
                _LOG.warning(
                    "session %s ignored %r", self.session.id, type(message).__name__
                )

    def _forget_asker(self, reply: ReplySlot[Any]) -> None:
        self._work.held.forget(reply)
        self.session.waiters.leave(reply)

    async def _handle_ask(self, ask: Ask[Any], ctx: Context[Any]) -> None:
        if self.session.leaving:
            ask.reply.set_error(session_closing())
            return
        match ask.request:
            case Prompt() as request:
                await self._prompt(request, ask.reply)
            case AnswerInteraction():
                await self._work.answer_or_hold(ask, ctx)
            case ChangeSettings(changes=changes):
                await self._change_settings(changes, ask.reply, ctx)
            case AssignSession() as request:
                await self._assign(request, ask.reply, ctx)
            case other:
                ask.reply.set_error(
                    InternalError(f"a session takes no {type(other).__name__}")
                )

    async def _advance(self, ctx: Context[Any]) -> None:
        # The one place that starts the next turn.
        while (
            self.session.turn is None and self.session.owes and not self.session.leaving
        ):
            self.session.owes = await self._begin_next(ctx)

    async def _begin_next(self, ctx: Context[Any]) -> bool:
        # Returns whether the inbox may hold another command.
        if self.session.settings.provider not in self.session.ports.providers:
            # What is in it stays there until the settings name one that is set up.
            return False
        command = await self._inbox.next(self.session.ports.record)
        if command is not None:
            await self._begin_turn(command, ctx)
        return command is not None

    def _give_up(self, exc: StorageError) -> None:
        # The store does not take what has to be written: unload. What is on the tape
        # and in the inbox stays there, for whoever loads the session next.
        _LOG.warning("session %s is unloaded: %s", self.session.id, exc)
        self.session.leaving, self.session.owes = True, False
        failure = TurnFailedError(f"the turn could not be stored: {exc}")
        failure.hint = exc.hint
        failure.__cause__ = exc
        self.session.waiters.fail_all(failure)

    #### Input

    async def _prompt(self, request: Prompt, reply: ReplySlot[TurnResult]) -> None:
        try:
            if not self.session.unread.read(request):
                raise TurnRefusedError(
                    "withdrawn_command", "the command was taken back by a cancel"
                )
            check_parts(request.parts)
            self._check_prompt(request)
            await self._inbox.take_in(self.session.ports.record, request, reply)
        except Exception as exc:
            reply.set_error(exc)
            return
        self.session.owes = True

    def _check_prompt(self, request: Prompt) -> None:
        turn = self.session.turn
        if turn is not None and turn.command_id == request.command_id:
            # Sent again: one more waits for the turn that it began.
            return
        if turn is not None and unresolved(turn.message):
            raise TurnRefusedError(
                "interaction_pending",
                "answer or cancel the pending interaction before the next prompt",
            )
        self._check_provider()

    def _check_provider(self) -> None:
        check_provider(self.session.settings.provider, self.session.ports.providers)

    async def _begin_turn(self, command: Accepted, ctx: Context[Any]) -> None:
        session = self.session
        user, message = opening(
            command.command_id,
            command.parts,
            reply_id=MessageId(ctx.ids.uuid()),
            order=self.session.history.next_order,
            metadata=fresh_metadata(session.settings.provider, session.settings.model),
            now=ctx.clock.now(),
        )
        facts = [message_fact(user), message_fact(message)]
        await self.session.ports.record.append(facts, settles=[command.command_id])
        self.session.ports.tell_hooks(prompt_submitted(self.session.id, user))
        self.session.history.append(user)
        self.session.turn = Turn(message, command.command_id)
        self._work.start_loop(ctx)

    async def _cancel(self, message: CancelTurn, ctx: Context[Any]) -> None:
        turn, wanted = self.session.turn, message.command_id
        if wanted is not None and (turn is None or turn.command_id != wanted):
            await self._inbox.withdraw(self.session.ports.record, wanted)
        else:
            await self._work.cancel(message.cause, ctx)

    #### Settings

    async def _change_settings(
        self,
        changes: dict[str, Any],
        reply: ReplySlot[SessionSettings],
        ctx: Context[Any],
    ) -> None:
        try:
            settings = changed_settings(self.session.settings, changes)
            check_provider(settings.provider, self.session.ports.providers)
            fact = settings_fact(settings, revision=ctx.ids.uuid())
            await self.session.ports.record.append([fact])
        except Exception as exc:
            reply.set_error(exc)
            return
        self.session.settings = settings
        # What waits in the inbox may have waited for this.
        self.session.owes = True
        reply.set_value(settings)

    async def _assign(
        self,
        request: AssignSession,
        reply: ReplySlot[SessionSettings],
        ctx: Context[Any],
    ) -> None:
        record = self.session.ports.record
        try:
            rest = (
                "active" if self.session.turn is not None else await record.unfinished()
            )
            settings = request.judge(self.session.settings, rest)
            fact = settings_fact(settings, revision=ctx.ids.uuid())
            await record.append([fact], before=request.keep)
        except Exception as exc:
            reply.set_error(exc)
            return
        self.session.settings = settings
        reply.set_value(settings)
