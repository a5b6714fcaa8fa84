"""The session actor: the only door to a session, and the owner of its turns.

A turn is one accepted input; it may be several runs: the loop, one deferred run for
each call that the user allowed, and the loop again. The session decides which run is
next and makes durable what lies between them; a run settles itself, always (RUN-13).

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
import trio

from greenroom.actors.kernel import (
    Ask,
    AskAbandoned,
    CancelCause,
    Context,
    DeadlineReached,
    Exited,
    Failed,
    ReplySlot,
    Started,
    Stop,
)
from greenroom.actors.runs import (
    ActiveRun,
    RunNotStartedError,
    RunPlan,
    RunPorts,
    deferred_behaviour,
    loop_behaviour,
)
from greenroom.protocol import (
    InteractionEnd,
    InternalError,
    ItemId,
    MessageId,
    RunId,
    SessionId,
    SessionSettings,
    SessionState,
    StorageError,
    end_of_run,
    interrupted_terminal,
    safe_text,
)
from greenroom.storage import (
    message_fact,
    retraction_fact,
    settings_fact,
)

from ._answers import Answered, answer, expire
from ._granting import Granting
from ._held import HeldAnswers
from ._history import History
from ._hub import JOIN_SECONDS, Hub
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
)
from ._pauses import record_answer, record_stop, reopen, start_clock
from ._settings import changed_settings, check_provider
from ._turn import KEEPS_QUESTION, AnswerClock, SessionPorts, Turn, never_ran
from ._turns import fresh_metadata, unresolved
from ._unread import Unread

_LOG: Final = logging.getLogger("greenroom.sessions")

FLUSH_SECONDS: Final = 0.6
"""How long blocks of a message in progress may be unsaved (PER-05)."""


@final
@attrs.define(eq=False)
class Session:
    """The behaviour of a session actor."""

    id: SessionId
    settings: SessionSettings
    history: History
    """The transcript without the message of the turn."""
    ports: SessionPorts
    hub: Hub
    turn: Turn | None = None
    idle_seconds: float | None = None
    """Idle time after which the session is unloaded; `None`: never."""
    unread: Unread = attrs.field(factory=Unread, init=False)
    _inbox: Inbox = attrs.field(init=False)
    _held: HeldAnswers = attrs.field(factory=HeldAnswers, init=False)
    _first: object = attrs.field(default=None, init=False)
    _stopping: bool = attrs.field(default=False, init=False)
    _idle: bool = attrs.field(default=False, init=False)
    """It leaves only because nobody uses it: whoever comes to watch meanwhile stays."""
    _owes: bool = attrs.field(default=True, init=False)
    """The inbox may hold commands; looked at when there is no turn."""

    def __attrs_post_init__(self) -> None:
        self._inbox = Inbox(self.history)

    #### Hosted: nothing to do

    def handle(self, message: object, ctx: Context[Any]) -> None:
        """Wake up for any message, and go on as a task."""
        self._first = message
        ctx.cancel_deadline("idle")
        ctx.become_task(self._work)

    #### Task

    async def _work(self, ctx: Context[Any]) -> None:
        try:
            await self._work_until_rest(ctx)
        except BaseException:
            # It fails or is killed, and tells nothing more (SES-22).
            self.hub.break_off()
            raise

    async def _work_until_rest(self, ctx: Context[Any]) -> None:
        self.hub.on_delta = lambda: ctx.deadline(JOIN_SECONDS, "deltas")
        await self._take(self._first, ctx)
        while not self._at_rest:
            for message in await ctx.mailbox.receive_batch():
                await self._take(message, ctx)
        self.hub.flush()
        if self._stopping:
            await self._leave(ctx)
        elif self.idle_seconds is not None and self._may_idle:
            ctx.deadline(self.idle_seconds, "idle")

    async def _leave(self, ctx: Context[Any]) -> None:
        try:
            await self.ports.record.release()
        except StorageError as exc:
            # It was taken from us, or the store is closed: then it is free anyway.
            _LOG.warning("session %s was not released: %s", self.id, exc)
        self.hub.on_delta = None
        if not self._idle:
            self.hub.close()
        self.ports.forget()
        ctx.exit()

    @property
    def leaving(self) -> bool:
        """Whether the session is being unloaded: it takes nothing more."""
        return self._stopping

    @property
    def _may_idle(self) -> bool:
        # A question that nobody here waits for is on the tape: it can be answered by
        # loading the session again.
        turn = self.turn
        return turn is None or (turn.ref is None and not self._inbox.waiters.anybody)

    @property
    def _at_rest(self) -> bool:
        if self.turn is not None:
            return self.turn.ref is None
        return not self._owes

    async def _take(self, message: object, ctx: Context[Any]) -> None:
        try:
            await self._handle(message, ctx)
            await self._advance(ctx)
        except StorageError as exc:
            self._give_up(exc)

    async def _handle(self, message: object, ctx: Context[Any]) -> None:
        match message:
            case Started():
                await self._restore_pause(ctx)
            case Ask():
                await self._handle_ask(cast("Ask[Any]", message), ctx)
            case CancelTurn():
                await self._cancel(message, ctx)
            case Stop(cause=cause):
                self._stopping, self._owes = True, False
                await self._stop(cause, ctx)
            case Exited():
                await self._run_exited(message, ctx)
            case DeadlineReached(key="deltas"):
                self.hub.flush()
            case DeadlineReached(key="blocks"):
                self._flush_blocks(ctx)
            case DeadlineReached(key="idle"):
                self._idle = self._may_idle and not self.hub.watched
                self._stopping = self._idle
            case DeadlineReached(key=AnswerClock(interaction_id=interaction_id)):
                await self._expire(interaction_id, ctx)
            case AskAbandoned(reply=reply):
                self._forget_asker(reply)
            case _:
                _LOG.warning("session %s ignored %r", self.id, type(message).__name__)

    def _forget_asker(self, reply: ReplySlot[Any]) -> None:
        self._held.forget(reply)
        self._inbox.waiters.leave(reply)

    async def _handle_ask(self, ask: Ask[Any], ctx: Context[Any]) -> None:
        if self._stopping:
            ask.reply.set_error(
                TurnRefusedError(
                    "session_closing", "the session is being closed; open it again"
                )
            )
            return
        match ask.request:
            case Prompt() as request:
                await self._prompt(request, ask.reply)
            case AnswerInteraction():
                await self._answer_or_hold(ask, ctx)
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
        while self.turn is None and self._owes and not self._stopping:
            self._owes = await self._begin_next(ctx)

    async def _begin_next(self, ctx: Context[Any]) -> bool:
        # Returns whether the inbox may hold another command.
        if self.settings.provider not in self.ports.providers:
            # What is in it stays there until the settings name one that is set up.
            return False
        command = await self._inbox.next(self.ports.record)
        if command is not None:
            await self._begin_turn(command, ctx)
        return command is not None

    def _give_up(self, exc: StorageError) -> None:
        # The store does not take what has to be written: unload. What is on the tape
        # and in the inbox stays there, for whoever loads the session next.
        _LOG.warning("session %s is unloaded: %s", self.id, exc)
        self._stopping, self._owes = True, False
        failure = TurnFailedError(f"the turn could not be stored: {exc}")
        failure.hint = exc.hint
        failure.__cause__ = exc
        self._inbox.waiters.fail_all(failure)

    #### Input

    async def _prompt(self, request: Prompt, reply: ReplySlot[TurnResult]) -> None:
        try:
            if not self.unread.read(request):
                raise TurnRefusedError(
                    "withdrawn_command", "the command was taken back by a cancel"
                )
            check_parts(request.parts)
            self._check_prompt(request)
            await self._inbox.take_in(self.ports.record, request, reply)
        except Exception as exc:
            reply.set_error(exc)
            return
        self._owes = True

    def _check_prompt(self, request: Prompt) -> None:
        turn = self.turn
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
        check_provider(self.settings.provider, self.ports.providers)

    async def _begin_turn(self, command: Accepted, ctx: Context[Any]) -> None:
        user, message = opening(
            command.command_id,
            command.parts,
            reply_id=MessageId(ctx.ids.uuid()),
            order=self.history.next_order,
            metadata=fresh_metadata(self.settings.provider, self.settings.model),
            now=ctx.clock.now(),
        )
        facts = [message_fact(user), message_fact(message)]
        await self.ports.record.append(facts, settles=[command.command_id])
        self.ports.tell_hooks(prompt_submitted(self.id, user))
        self.history.append(user)
        self.turn = Turn(message, command.command_id)
        self._start_loop(ctx)

    #### Runs

    def _start_loop(self, ctx: Context[Any]) -> None:
        active, ports = self._make_run(ctx)
        self._spawn(active, loop_behaviour(active, ports), ctx)

    def _start_deferred(self, granting: Granting, ctx: Context[Any]) -> None:
        active, ports = self._make_run(ctx)
        active.on_dispatch = granting.settle
        self._turn().granting, call = granting, granting.call
        self._spawn(active, deferred_behaviour(active, ports, call), ctx)

    def _make_run(self, ctx: Context[Any]) -> tuple[ActiveRun, RunPorts]:
        settings, message = self.settings, self._turn().message
        run_id, view = RunId(ctx.ids.uuid()), self.history.view(self.settings)
        context = self.ports.context(settings, run_id)
        plan = RunPlan(
            run_id,
            self.id,
            settings,
            message,
            view,
            context,
            self.history.account,
        )
        active = ActiveRun.of(plan)

        def is_current(_: int) -> bool:
            return self.turn is not None and self.turn.active is active

        return active, self.ports.for_run(settings, self.hub, is_current)

    def _spawn(self, active: ActiveRun, behaviour: Any, ctx: Context[Any]) -> None:  # noqa: ANN401 - a behaviour
        turn = self._turn()
        turn.active, turn.cancelled = active, None
        turn.ref = ctx.spawn(f"run-{active.plan.run_id}", behaviour, watch=True)
        self.hub.status("generating", active.plan.run_id)
        ctx.deadline(FLUSH_SECONDS, "blocks")

    def _flush_blocks(self, ctx: Context[Any]) -> None:
        turn = self.turn
        if turn is None or turn.active is None or turn.ref is None:
            return
        if (blocks := turn.unsaved()) is not None:
            self.ports.record.cache_soon(turn.message.id, blocks)
        ctx.deadline(FLUSH_SECONDS, "blocks")

    async def _run_exited(self, exited: Exited, ctx: Context[Any]) -> None:
        turn = self.turn
        if turn is None or turn.ref is not exited.ref or turn.active is None:
            return
        active, turn.ref, turn.active = turn.active, None, None
        ctx.cancel_deadline("blocks")
        granting, turn.granting = turn.granting, None
        if granting is not None and await self._grant_failed(granting, active, ctx):
            return
        if active.result is None:
            if turn.cancelled is not None and never_ran(active, exited):
                await self._cancel_paused(turn.cancelled, ctx)
            else:
                await self._run_lost(active, exited)
            return
        turn.message = active.result.message
        if turn.message.status != "pending":
            self._end_turn()
        elif turn.cancelled is not None and not turn.stays_open:
            # The cancel came when the run had its result already.
            await self._cancel_paused(turn.cancelled, ctx)
        else:
            await self._after_run(ctx)

    async def _grant_failed(
        self, granting: Granting, active: ActiveRun, ctx: Context[Any]
    ) -> bool:
        # Returns whether the approval is open again: nothing was dispatched (TOL-26).
        failure, turn = active.failure, self._turn()
        if failure is None:
            granting.settle()
            return False
        granting.fail(failure)
        if failure.dispatch_committed:
            return False
        if active.result is None:
            turn.message = await reopen(
                self.ports.record, turn.message, granting.call, ctx.clock.now()
            )
        else:
            turn.message = active.result.message
        if turn.cancelled is not None and not turn.stays_open:
            await self._cancel_paused(turn.cancelled, ctx)
            return True
        await self._after_run(ctx)
        if self.turn is turn and turn.ref is None:
            self.hub.status("idle")
        return True

    async def _after_run(self, ctx: Context[Any]) -> None:
        for ask in self._held.take():
            await self._handle_ask(ask, ctx)
        turn = self.turn
        if turn is None or turn.ref is not None:
            return
        if unresolved(turn.message):
            await self._pause(ctx)
        else:
            self._start_loop(ctx)

    async def _run_lost(self, active: ActiveRun, exited: Exited) -> None:
        # The run could not settle itself. What the journal has stands, and the message
        # stays as it is (JRN-11): loading the session again recovers it.
        reason = exited.reason
        error = reason.error if isinstance(reason, Failed) else None
        text = safe_text(str(error or "the run ended without a result"))[:2_000]
        begun = active.registered or not isinstance(error, RunNotStartedError)
        if begun or not await self._retract_empty():
            self._stopping = True
        failure = TurnFailedError(text)
        failure.__cause__ = error
        self._fail_turn(failure)

    async def _retract_empty(self) -> bool:
        # Of a turn whose first run did not begin nothing is left. A later run's message
        # holds what the earlier ones did.
        message = self._turn().message
        if message.blocks:
            return False
        try:
            await self.ports.record.append([retraction_fact(message.id)])
        except StorageError as exc:
            _LOG.warning("message %s was not retracted: %s", message.id, exc)
            return False
        return True

    def _end_turn(self) -> None:
        turn = self._turn()
        self.history.append(turn.message)
        self._leave_turn("idle" if turn.message.status == "sent" else "error")
        self._inbox.waiters.settle(turn.command_id, TurnResult(turn.message))
        self.ports.turn_settled(self.id, self.settings)

    def _fail_turn(self, failure: TurnFailedError) -> None:
        turn = self._turn()
        self._leave_turn("error")
        self._inbox.waiters.fail(turn.command_id, failure)

    def _leave_turn(self, state: SessionState) -> None:
        self.turn, self._owes = None, not self._stopping
        self.hub.status(state)
        self._held.refuse()

    #### Interactions

    async def _pause(self, ctx: Context[Any]) -> None:
        # The clock is the run's to start, and this starts the one of what waits next.
        turn = self._turn()
        turn.message = await start_clock(
            self.ports.record, turn.message, self.settings, ctx.clock.now()
        )
        self._show_pause(ctx)

    def _show_pause(self, ctx: Context[Any]) -> None:
        first = unresolved(self._turn().message)[0]
        permission = first.action == "tool_call_permission"
        until = None
        if first.expires_at is not None:
            seconds = max(0.0, first.expires_at - ctx.clock.now())
            ctx.deadline(seconds, AnswerClock(first.id))
            until = trio.current_time() + seconds
        self.hub.status("generating")
        self.hub.waiting("permission" if permission else "question", until)

    async def _restore_pause(self, ctx: Context[Any]) -> None:
        if self.turn is not None:
            await self._pause(ctx)

    async def _answer_or_hold(self, ask: Ask[Any], ctx: Context[Any]) -> None:
        turn = self.turn
        if turn is not None and turn.ref is not None:
            self._held.hold(ask)
            return
        request = cast("AnswerInteraction", ask.request)
        try:
            self._check_provider()
            # Before anything is recorded: what follows needs all of it.
            await self.history.complete()
            message = None if turn is None else turn.message
            answered = answer(message, request.interaction_id, request.answer)
            if answered.after != "nothing":
                await self._record_answer(answered, ctx)
        except Exception as exc:
            ask.reply.set_error(exc)
            return
        if answered.after == "execute":
            self._start_deferred(Granting(answered.call, ask.reply), ctx)
            return
        ask.reply.set_value(None)
        self._follow_answer(answered, ctx)

    async def _expire(self, interaction_id: ItemId, ctx: Context[Any]) -> None:
        turn = self.turn
        if turn is None or turn.ref is not None:
            return
        for action in unresolved(turn.message)[:1]:
            if action.id == interaction_id:
                await self.history.complete()
                answered = expire(turn.message, action)
                await self._record_answer(answered, ctx)
                self._follow_answer(answered, ctx)

    async def _record_answer(self, answered: Answered, ctx: Context[Any]) -> None:
        turn, now = self._turn(), ctx.clock.now()
        before = unresolved(turn.message)[0]
        turn.message = await record_answer(
            self.ports.record, turn.message, answered, self.settings, now
        )
        ctx.cancel_deadline(AnswerClock(before.id))

    def _follow_answer(self, answered: Answered, ctx: Context[Any]) -> None:
        match answered.after:
            case "nothing" | "execute":
                pass
            case "continue" if unresolved(self._turn().message):
                self._show_pause(ctx)
            case "continue":
                self._start_loop(ctx)
            case _:
                self._end_turn()

    #### Cancel

    async def _cancel(self, message: CancelTurn, ctx: Context[Any]) -> None:
        turn, wanted = self.turn, message.command_id
        if wanted is not None and (turn is None or turn.command_id != wanted):
            await self._inbox.withdraw(self.ports.record, wanted)
        elif turn is not None and turn.ref is not None:
            self._cancel_run(message.cause)
        elif turn is not None and message.cause not in KEEPS_QUESTION:
            await self._cancel_paused(message.cause, ctx)

    async def _stop(self, cause: CancelCause, ctx: Context[Any]) -> None:
        # The end of the engine leaves a question open, for the next one to have it
        # answered. Whoever closes the session does not want it answered (INT-14).
        if self.turn is not None and self.turn.ref is not None:
            self._cancel_run(cause)
        elif self.turn is not None and cause not in KEEPS_QUESTION:
            await self._cancel_paused(cause, ctx, "closed")

    def _cancel_run(self, cause: CancelCause) -> None:
        # Whoever cancels writes nothing: the run settles itself.
        if self.turn is not None and self.turn.ref is not None:
            self.turn.cancelled = cause
            self.turn.ref.cancel(cause)

    async def _cancel_paused(
        self,
        cause: CancelCause,
        ctx: Context[Any],
        end: InteractionEnd | None = None,
    ) -> None:
        turn, word = self._turn(), cause.value
        end = end or end_of_run(interrupted_terminal(word))
        for action in unresolved(turn.message)[:1]:
            ctx.cancel_deadline(AnswerClock(action.id))
        turn.message = await record_stop(
            self.ports.record, turn.message, word, end, ctx.clock.now()
        )
        self._end_turn()

    #### Settings

    async def _change_settings(
        self,
        changes: dict[str, Any],
        reply: ReplySlot[SessionSettings],
        ctx: Context[Any],
    ) -> None:
        try:
            settings = changed_settings(self.settings, changes)
            check_provider(settings.provider, self.ports.providers)
            fact = settings_fact(settings, revision=ctx.ids.uuid())
            await self.ports.record.append([fact])
        except Exception as exc:
            reply.set_error(exc)
            return
        self.settings = settings
        # What waits in the inbox may have waited for this.
        self._owes = True
        reply.set_value(settings)

    async def _assign(
        self,
        request: AssignSession,
        reply: ReplySlot[SessionSettings],
        ctx: Context[Any],
    ) -> None:
        record = self.ports.record
        try:
            rest = "active" if self.turn is not None else await record.unfinished()
            settings = request.judge(self.settings, rest)
            fact = settings_fact(settings, revision=ctx.ids.uuid())
            await record.append([fact], before=request.keep)
        except Exception as exc:
            reply.set_error(exc)
            return
        self.settings = settings
        reply.set_value(settings)

    def _turn(self) -> Turn:
        assert self.turn is not None
        return self.turn
