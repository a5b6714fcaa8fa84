"""The turn that a session works on: its runs, its pause, and its end.

A turn is one accepted input; it may be several runs: the loop, one deferred run for
each call that the user allowed, and the loop again. What lies between them is made
durable here; a run settles itself, always (RUN-13). Everything is called by the
session's actor, one thing at a time.
"""

from __future__ import annotations

import logging
from typing import Any, Final, cast, final

import attrs
import trio

from greenroom.actors.backend import (
    ActiveRun,
    Behaviour,
    RunNotStartedError,
    RunPlan,
    RunPorts,
)
from greenroom.actors.kernel import Ask, CancelCause, Context, Exited, Failed
from greenroom.actors.logs import LogIds, bind_log_ids
from greenroom.protocol import (
    InteractionEnd,
    ItemId,
    MessageRecord,
    RunId,
    SessionId,
    SessionSettings,
    SessionState,
    StorageError,
    TurnEnd,
    ViewBuilder,
    Wake,
    end_of_run,
    interrupted_terminal,
    safe_text,
    spent_on,
)

from ._answers import Answered, answer, ended_action, expire, too_late
from ._compaction import with_compaction
from ._granting import Granting
from ._held import HeldAnswers
from ._messages import (
    AnswerInteraction,
    TurnFailedError,
    TurnResult,
    session_closing,
)
from ._opening import finish_opening
from ._pauses import record_answer, record_stop, reopen, start_clock
from ._preparation import Preparation
from ._session import Session
from ._settings import check_provider
from ._turn import KEEPS_QUESTION, AnswerClock, Due, Opened, Turn, never_ran
from ._turns import billed, unresolved

_LOG: Final = logging.getLogger("greenroom.sessions")

FLUSH_SECONDS: Final = 0.6
"""How long blocks of a message in progress may be unsaved (PER-05)."""


@final
@attrs.define(eq=False)
class Work:
    """Works on a session's turn."""

    session: Session
    held: HeldAnswers = attrs.field(factory=HeldAnswers, init=False)

    #### Runs

    def start_loop(self, ctx: Context[Any]) -> None:
        """Begin the turn's next run; the first one begins with its preparation."""
        active, ports = self._make_run(ctx)
        session, turn = self.session, self._turn()
        if turn.claim is None:
            behaviour = session.ports.backend.turn(active, ports)
        else:
            behaviour = Preparation(session, turn, active, ports, ctx.ref).behave
        self._spawn(active, behaviour, ctx)

    def _start_deferred(self, granting: Granting, ctx: Context[Any]) -> None:
        active, ports = self._make_run(ctx)
        active.on_dispatch = granting.settle
        self._turn().granting = granting
        behaviour = self.session.ports.backend.granted(active, ports, granting.call)
        self._spawn(active, behaviour, ctx)

    def _make_run(self, ctx: Context[Any]) -> tuple[ActiveRun, RunPorts]:
        settings, message = self.session.settings, self._turn().message
        run_id, view = RunId(ctx.ids.uuid()), self._view(settings)
        view.unread = lambda: [m.order_seq for m in self.session.steered]
        context = self.session.ports.context(settings, run_id)
        plan = RunPlan(run_id, self.session.id, settings, message, view, context)
        if self._turn().claim is None:
            plan = attrs.evolve(plan, account=self.session.history.account)
        active = ActiveRun.of(plan)

        def is_current(_: int) -> bool:
            return self.session.turn is not None and self.session.turn.active is active

        session = self.session
        ports = session.ports.for_run(settings, session.hub, is_current)
        ports = with_compaction(session, active, ports)
        waiting = ports.steer_waiting
        return active, attrs.evolve(
            ports, steer_waiting=lambda: waiting() or session.inputs.steers
        )

    def _view(self, settings: SessionSettings) -> ViewBuilder:
        if self._turn().claim is None:
            return self.session.history.view(settings)
        # Its preparation fills it.
        view = ViewBuilder(settings.provider, settings.model)
        view.add_system(settings.system_prompt)
        return view

    def make_way(self) -> None:
        """Cancel the run for newer input, if nothing has come of the turn yet.

        Otherwise it makes way at its next settled batch (PIN-06); a backend without
        batches is cancelled in any case (PIN-07).
        """
        turn = self.session.turn
        if turn is None or turn.active is None or turn.cancelled is not None:
            return
        if self.session.ports.steers_by_cancel or not turn.active.draft.blocks:
            self._cancel_run(CancelCause.PENDING_INPUT)

    def _spawn(
        self, active: ActiveRun, behaviour: Behaviour, ctx: Context[Any]
    ) -> None:
        turn = self._turn()
        turn.active, turn.cancelled = active, None
        plan = active.plan
        whose = LogIds(plan.session_id, plan.message.id, plan.run_id)

        async def behave(run: Context[Any]) -> None:
            bind_log_ids(whose)
            await behaviour(run)

        turn.ref = ctx.spawn(f"run-{plan.run_id}", behave, watch=True)
        self.session.hub.status("generating", active.plan.run_id)
        ctx.deadline(FLUSH_SECONDS, "blocks")

    def flush_blocks(self, ctx: Context[Any]) -> None:
        """Keep what streams in, in case this process dies (PER-05)."""
        turn = self.session.turn
        if turn is None or turn.active is None or turn.ref is None:
            return
        if (blocks := turn.unsaved()) is not None:
            self.session.ports.record.cache_soon(turn.message.id, blocks)
        ctx.deadline(FLUSH_SECONDS, "blocks")

    async def run_exited(self, exited: Exited, ctx: Context[Any]) -> None:
        """Go on from where a run has left the turn."""
        turn = self.session.turn
        if turn is None or turn.ref is not exited.ref or turn.active is None:
            return
        active, turn.ref, turn.active = turn.active, None, None
        self.session.ports.preparing(None)
        ctx.cancel_deadline("blocks")
        granting, turn.granting = turn.granting, None
        if granting is not None and await self._grant_failed(granting, active, ctx):
            return
        if active.result is None:
            if turn.cancelled is not None and never_ran(active, exited):
                await self._end_unbegun(active, turn.cancelled, ctx)
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

    async def _end_unbegun(
        self, active: ActiveRun, cause: CancelCause, ctx: Context[Any]
    ) -> None:
        turn = self._turn()
        await finish_opening(self.session, ctx.clock.now())
        if active.early is not None:
            turn.message = billed(turn.message, *active.early)
        await self._cancel_paused(cause, ctx)

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
                self.session.ports.record, turn.message, granting.call, ctx.clock.now()
            )
        else:
            turn.message = active.result.message
        if turn.cancelled is not None and not turn.stays_open:
            await self._cancel_paused(turn.cancelled, ctx)
            return True
        await self._after_run(ctx)
        if self.session.turn is turn and turn.ref is None:
            self.session.hub.status("idle")
        return True

    async def _after_run(self, ctx: Context[Any]) -> None:
        for ask in self.held.take():
            if self.session.leaving:
                ask.reply.set_error(session_closing())
            else:
                await self.answer_or_hold(ask, ctx)
        turn = self.session.turn
        if turn is None or turn.ref is not None:
            return
        self._settle_claim(failed=False)
        if unresolved(turn.message):
            await self._pause(ctx)
        else:
            self.start_loop(ctx)

    async def _run_lost(self, active: ActiveRun, exited: Exited) -> None:
        # The run could not settle itself. What the journal has stands, and the message
        # stays as it is (JRN-11): loading the session again recovers it.
        reason, turn = exited.reason, self._turn()
        error = reason.error if isinstance(reason, Failed) else None
        text = safe_text(str(error or "the run ended without a result"))[:2_000]
        begun = active.registered or not isinstance(error, RunNotStartedError)
        failure = TurnFailedError(text)
        failure.__cause__ = error
        if isinstance(error, StorageError) and turn.opened < Opened.REPLY:
            self._unload(active, error)
        elif begun or turn.claim is None:
            # A later run's message holds what the earlier ones did.
            self.session.leaving = True
            self._leave_turn("error")
            self.session.waiters.fail_each(turn.commands, failure)
        else:
            # Of a turn whose first run did not begin nothing is left (PIN-11).
            self.session.due = attrs.evolve(self._undone(active), failure=failure)
            self._leave_turn("error")

    def _end_turn(self) -> None:
        turn = self._turn()
        self.session.history.append(turn.message)
        metadata, is_sent = turn.message.metadata, turn.message.status == "sent"
        self._settle_claim(failed=metadata.run_outcome == "error")
        # What the user stopped has not failed.
        is_well = is_sent or metadata.run_stop_reason == "user_stop"
        self._leave_turn("idle" if is_well else "error")
        for command_id in turn.commands:
            self.session.waiters.settle(command_id, TurnResult(turn.message))
        # Told when its claim is settled: until then it may be taken back (PIN-11).
        self.session.ended = True
        self.session.ports.tell_hooks(_turn_end(self.session.id, turn.message))

    def _unload(self, active: ActiveRun, error: StorageError) -> None:
        # The store does not take the turn's messages: the input waits for whoever loads
        # the session next.
        failure = TurnFailedError(f"the turn could not be stored: {error}")
        failure.hint, failure.__cause__ = error.hint, error
        self.session.leaving = True
        self.session.due = attrs.evolve(self._undone(active), unwritten=True)
        self._leave_turn("error")
        self.session.waiters.fail_all(failure)

    def _undone(self, active: ActiveRun) -> Due:
        turn = self._turn()
        if active.early is not None:
            usage, cost = active.early
            spent = spent_on(None if usage is None else usage.total, cost)
            self.session.history.bill(spent)
        return Due(
            turn.claimed, turn.message, failed=True, undone=True, opened=turn.opened
        )

    def _settle_claim(self, *, failed: bool) -> None:
        # A turn that went on after its first run is not taken back any more.
        turn = self._turn()
        if turn.claim is not None:
            self.session.due = Due(turn.claim, turn.message, failed=failed)
            turn.claim = None

    def _leave_turn(self, state: SessionState) -> None:
        session = self.session
        session.turn, session.failed = None, state == "error"
        session.wake_up(Wake.COMPLETED)
        session.hub.status(state)
        self.held.refuse()

    #### Interactions

    async def _pause(self, ctx: Context[Any]) -> None:
        # The clock is the run's to start, and this starts the one of what waits next.
        turn = self._turn()
        turn.message = await start_clock(
            self.session.ports.record,
            turn.message,
            self.session.settings,
            ctx.clock.now(),
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
        self.session.hub.status("generating")
        self.session.hub.waiting("permission" if permission else "question", until)

    async def restore_pause(self, ctx: Context[Any]) -> None:
        """Go on waiting for the answer that the turn waited for when it was loaded."""
        if self.session.turn is not None:
            await self._pause(ctx)

    async def answer_or_hold(self, ask: Ask[Any], ctx: Context[Any]) -> None:
        """Take an answer; while a run goes on it waits for its end.

        Unless somebody was faster: what has its answer gets no other one.
        """
        turn = self.session.turn
        request = cast("AnswerInteraction", ask.request)
        if turn is not None and turn.ref is not None:
            ended = ended_action(turn.message, request.interaction_id)
            if ended is None:
                self.held.hold(ask)
            else:
                ask.reply.set_error(too_late(ended))
            return
        try:
            self._check_provider()
            # Before anything is recorded: what follows needs all of it.
            await self.session.history.complete()
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

    async def expire(self, interaction_id: ItemId, ctx: Context[Any]) -> None:
        """End an interaction that nobody has answered in time."""
        turn = self.session.turn
        if turn is None or turn.ref is not None:
            return
        for action in unresolved(turn.message)[:1]:
            if action.id == interaction_id:
                await self.session.history.complete()
                answered = expire(turn.message, action)
                await self._record_answer(answered, ctx)
                self._follow_answer(answered, ctx)

    async def _record_answer(self, answered: Answered, ctx: Context[Any]) -> None:
        turn, now = self._turn(), ctx.clock.now()
        before = unresolved(turn.message)[0]
        turn.message = await record_answer(
            self.session.ports.record,
            turn.message,
            answered,
            self.session.settings,
            now,
        )
        ctx.cancel_deadline(AnswerClock(before.id))

    def _follow_answer(self, answered: Answered, ctx: Context[Any]) -> None:
        match answered.after:
            case "nothing" | "execute":
                pass
            case "continue" if unresolved(self._turn().message):
                self._show_pause(ctx)
            case "continue":
                self.start_loop(ctx)
            case _:
                self._end_turn()

    #### Cancel

    async def cancel(self, cause: CancelCause, ctx: Context[Any]) -> None:
        """End the turn; a question stays open if somebody else may answer it."""
        turn = self.session.turn
        if turn is not None and turn.ref is not None:
            self._cancel_run(cause)
        elif turn is not None and cause not in KEEPS_QUESTION:
            await self._cancel_paused(cause, ctx)

    async def stop(self, cause: CancelCause, ctx: Context[Any]) -> None:
        """End the turn because the session is unloaded."""
        # The end of the engine leaves a question open, for the next one to have it
        # answered. Whoever closes the session does not want it answered (INT-14).
        if self.session.turn is not None and self.session.turn.ref is not None:
            self._cancel_run(cause)
        elif self.session.turn is not None and cause not in KEEPS_QUESTION:
            await self._cancel_paused(cause, ctx, "closed")

    def _cancel_run(self, cause: CancelCause) -> None:
        # Whoever cancels writes nothing: the run settles itself.
        if self.session.turn is not None and self.session.turn.ref is not None:
            self.session.turn.cancelled = cause
            self.session.turn.ref.cancel(cause)

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
            self.session.ports.record, turn.message, word, end, ctx.clock.now()
        )
        self._end_turn()

    def _check_provider(self) -> None:
        session = self.session
        check_provider(session.settings.provider, session.ports.providers)

    def _turn(self) -> Turn:
        assert self.session.turn is not None
        return self.session.turn


def _turn_end(session_id: SessionId, message: MessageRecord) -> TurnEnd:
    outcome = message.metadata.run_outcome or "error"
    return TurnEnd(session_id=session_id, message_id=message.id, outcome=outcome)
