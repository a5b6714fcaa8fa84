"""The session actor: the only door to a session.

States of a session, by what it holds: no turn (idle); a turn with a run (generating);
a turn without a run, its message pending (paused: the first unresolved interaction
waits for its answer). It is a task only while something is to be done, otherwise a
hosted actor that costs nothing.

Order within a turn: its preparation, which puts the user's and the assistant's message
on the tape (`_preparation`) → the run's own facts → next.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any, Final, TypeVar, cast, final

import attrs

from greenroom.actors.context import Compacted
from greenroom.actors.kernel import (
    Ask,
    AskAbandoned,
    CancelCause,
    Context,
    DeadlineReached,
    Exited,
    ReplySlot,
    Started,
    Stop,
)
from greenroom.actors.logs import LogIds, bind_log_ids
from greenroom.protocol import (
    Command,
    InputChange,
    InternalError,
    PendingInput,
    PromptCommand,
    SessionSettings,
    SteerCommand,
    StorageError,
    Wake,
)
from greenroom.storage import settings_fact

from ._compaction import (
    CompactSession,
    UndoCompaction,
    compaction_ended,
    start_compaction,
    stop_compaction,
    undo_compaction,
)
from ._drain import Drain
from ._hub import JOIN_SECONDS
from ._input import check_parts
from ._intake import Intake
from ._messages import (
    AcceptedInput,
    AnswerInteraction,
    AssignSession,
    CancelTurn,
    ChangeInputs,
    ChangeSettings,
    InputStep,
    Prompt,
    PutIn,
    TurnFailedError,
    TurnRefusedError,
    TurnResult,
    session_closing,
)
from ._opening import BeginReply, SayInput, open_turn
from ._rewind import ClearSession, RewindSession, clear, rewind
from ._session import Session
from ._settings import changed_settings, check_provider
from ._turn import AnswerClock
from ._turns import unresolved
from ._work import Work

T = TypeVar("T")

_LOG: Final = logging.getLogger("greenroom.sessions")


@final
@attrs.define(eq=False)
class SessionActor:
    """The behaviour of a session actor."""

    session: Session
    _work: Work = attrs.field(init=False)
    _intake: Intake = attrs.field(init=False)
    _drain: Drain = attrs.field(init=False)
    _first: object = attrs.field(default=None, init=False)
    _idle: bool = attrs.field(default=False, init=False)
    """It leaves only because nobody uses it: whoever comes to watch meanwhile stays."""

    def __attrs_post_init__(self) -> None:
        self._work = Work(self.session)
        self._intake = Intake(self.session)
        self._drain = Drain(self.session)

    #### Hosted: nothing to do

    def handle(self, message: object, ctx: Context[Any]) -> None:
        """Wake up for any message, and go on as a task."""
        self._first = message
        ctx.cancel_deadline("idle")
        ctx.become_task(self._live)

    #### Task

    async def _live(self, ctx: Context[Any]) -> None:
        bind_log_ids(LogIds(self.session.id))
        try:
            await self._live_until_rest(ctx)
        except BaseException:
            # It fails or is killed, and tells nothing more (SES-22).
            self.session.hub.break_off()
            self.session.ports.preparing(None)
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
            await self._drain.settle(ctx.clock.now())
            await self._advance(ctx)
        except StorageError as exc:
            self._give_up(exc)

    async def _handle(self, message: object, ctx: Context[Any]) -> None:
        match message:
            case Started():
                await self._work.restore_pause(ctx)
                await self._intake.restore(ctx.clock.now())
            case Ask():
                await self._handle_ask(cast("Ask[Any]", message), ctx)
            case CancelTurn():
                await self._cancel(message, ctx)
            case Stop(cause=cause):
                self.session.leaving, self.session.wake = True, None
                stop_compaction(self.session, cause)
                await self._work.stop(cause, ctx)
            case Exited():
                await self._exited(message, ctx)
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

    async def _exited(self, exited: Exited, ctx: Context[Any]) -> None:
        if compaction_ended(self.session, exited):
            # What was taken in meanwhile has its turn now.
            self.session.wake_up(Wake.COMPLETED)
        else:
            await self._work.run_exited(exited, ctx)

    def _forget_asker(self, reply: ReplySlot[Any]) -> None:
        self._work.held.forget(reply)
        self.session.waiters.leave(reply)

    async def _handle_ask(self, ask: Ask[Any], ctx: Context[Any]) -> None:
        if isinstance(ask.request, SayInput | BeginReply):
            opening = open_turn(self.session, ask.request, ctx.clock.now())
            await _settle(ask.reply, opening)
            return
        if self.session.leaving:
            ask.reply.set_error(session_closing())
            return
        match ask.request:
            case Prompt() as request:
                await self._prompt(request, ask.reply, ctx)
            case PutIn() as request:
                await self._put_in(request, ask.reply, ctx)
            case ChangeInputs(step=step):
                await self._change_inputs(step, ask.reply, ctx)
            case AnswerInteraction():
                await self._work.answer_or_hold(ask, ctx)
            case ChangeSettings(changes=changes):
                await self._change_settings(changes, ask.reply, ctx)
            case AssignSession() as request:
                await self._assign(request, ask.reply, ctx)
            case RewindSession() as request:
                await _settle(ask.reply, rewind(self.session, request, ctx.ids))
            case CompactSession() as request:
                self._compact(request, ask.reply, ctx)
            case UndoCompaction():
                await _settle(ask.reply, undo_compaction(self.session))
            case ClearSession():
                await _settle(ask.reply, clear(self.session, ctx.ids))
            case other:
                ask.reply.set_error(
                    InternalError(f"a session takes no {type(other).__name__}")
                )

    async def _advance(self, ctx: Context[Any]) -> None:
        # The one place that lets the next in.
        session = self.session
        while session.is_free and session.wake is not None and not session.leaving:
            if session.settings.provider not in session.ports.providers:
                # It waits until the settings name one that is set up.
                session.wake = None
                return
            await self._intake.admit(ctx.clock.now())
            if await self._drain.let_in(ctx):
                self._work.start_loop(ctx)

    def _give_up(self, exc: StorageError) -> None:
        # The store does not take what has to be written: unload. What is on the tape
        # and in the inbox stays there, for whoever loads the session next.
        _LOG.warning("session %s is unloaded: %s", self.session.id, exc)
        session = self.session
        session.leaving, session.wake = True, None
        session.ports.preparing(None)
        if session.turn is None and session.hub.state == "generating":
            # Its turn was being opened.
            session.hub.status("error")
        failure = TurnFailedError(f"the turn could not be stored: {exc}")
        failure.hint = exc.hint
        failure.__cause__ = exc
        self.session.waiters.fail_all(failure)

    #### Input

    async def _prompt(
        self, request: Prompt, reply: ReplySlot[TurnResult], ctx: Context[Any]
    ) -> None:
        command_id, now = request.command_id, ctx.clock.now()
        command = PromptCommand(request.parts)
        try:
            known = await self._check(request, command)
            taken = await self._intake.take_prompt(
                command_id, command, reply, now, known=known
            )
        except Exception as exc:
            reply.set_error(exc)
            return
        if isinstance(taken, InputChange):
            await self._intake.adopt(
                taken, command_id, command, now, endpoint=request.endpoint
            )
        elif taken == "straight" and await self._drain.let_straight_in(request, ctx):
            self._work.start_loop(ctx)

    async def _check(self, request: Prompt | PutIn, command: Command) -> bool:
        # Returns whether it is known by its id already.
        was_wanted = self.session.unread.read(request)
        check_parts(command.parts)
        known = await self._intake.is_known(request.command_id)
        # Sent again: whoever asks joins it, or is told how it ended.
        if not known and not was_wanted:
            raise TurnRefusedError(
                "withdrawn_command", "the command was taken back by a cancel"
            )
        if isinstance(command, PromptCommand):
            if not known:
                self._check_interaction()
            if not known or self._intake.waits(request.command_id):
                self._check_provider()
        return known

    def _check_interaction(self) -> None:
        turn = self.session.turn
        if turn is not None and unresolved(turn.message):
            raise TurnRefusedError(
                "interaction_pending",
                "answer or cancel the pending interaction before the next prompt",
            )

    def _check_provider(self) -> None:
        check_provider(self.session.settings.provider, self.session.ports.providers)

    async def _put_in(
        self, request: PutIn, reply: ReplySlot[AcceptedInput], ctx: Context[Any]
    ) -> None:
        command_id, command, now = request.command_id, request.command, ctx.clock.now()
        try:
            known = await self._check(request, command)
            taken = await self._intake.put_in(request, now, known=known)
            if isinstance(taken, InputChange):
                await self._intake.adopt(
                    taken, command_id, command, now, endpoint=request.endpoint
                )
        except Exception as exc:
            reply.set_error(exc)
            return
        reply.set_value(self._intake.state_of(command_id))
        if isinstance(command, SteerCommand):
            self._work.make_way()

    async def _change_inputs(
        self,
        step: InputStep,
        reply: ReplySlot[tuple[PendingInput, ...]],
        ctx: Context[Any],
    ) -> None:
        try:
            rows = await self._intake.change(step, ctx)
        except Exception as exc:
            reply.set_error(exc)
            return
        reply.set_value(rows)
        if self.session.inputs.steers:
            self._work.make_way()

    async def _cancel(self, message: CancelTurn, ctx: Context[Any]) -> None:
        turn, wanted = self.session.turn, message.command_id
        if wanted is not None and (turn is None or not turn.takes(wanted)):
            await self._intake.withdraw(wanted, ctx.clock.now())
            return
        stop_compaction(self.session, message.cause)
        await self._work.cancel(message.cause, ctx)
        if wanted is None and message.cause is CancelCause.USER_STOP:
            await self._intake.hold(ctx.clock.now())

    def _compact(
        self, request: CompactSession, reply: ReplySlot[Compacted], ctx: Context[Any]
    ) -> None:
        try:
            start_compaction(self.session, request, reply, ctx)
        except Exception as exc:
            reply.set_error(exc)

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
        # What waits may have waited for this.
        self.session.wake_up(Wake.COMPLETED)
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


async def _settle(reply: ReplySlot[T], work: Awaitable[T]) -> None:
    try:
        reply.set_value(await work)
    except Exception as exc:
        reply.set_error(exc)
