"""The loop run: asks the model and works until the turn ends or pauses.

The decisions are `RunMachine`'s; this module performs them. The life around it is that
of every run (`_life`). A turn's first run begins with a view that was made for it; one
that goes on with a turn adds what memory said, and makes room, by itself (SES-19).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, final

import attrs

from greenroom.actors.backend import ActiveRun, RunPorts, excess_of, request_of
from greenroom.actors.kernel import Context
from greenroom.protocol import (
    NOTHING_FITS,
    OUTPUT_CUT,
    AskModel,
    BatchEnded,
    Begun,
    Block,
    BudgetExcess,
    BudgetReached,
    CallsRefused,
    Counters,
    End,
    Fault,
    Faulted,
    ItemId,
    MessageMetadata,
    ModelRequest,
    RefuseCalls,
    RoundEnded,
    RunCalls,
    RunEvent,
    RunMachine,
    StorageError,
    Terminal,
    ToolCallBlock,
    ViewBuilder,
    inherited_ends,
    observe,
    told,
)
from greenroom.protocol.providers import OVERFLOW_CODE
from greenroom.storage import FencedError, contribution_fact

from ._allowance import budget_question
from ._attempt import AttemptIdentity, ProviderRaisedError
from ._attempts import Attempts
from ._batch import Batch
from ._exchange import Exchange, RoundReply
from ._fitting import Fitting
from ._life import Run, make_batch
from ._settlement import Progress

_LOG: Final = logging.getLogger("greenroom.runs")

CALL_CUT: Final = "not executed: the reply ended before this call was whole"


@final
@attrs.define(eq=False)
class Loop:
    """Asks the model and works, round after round."""

    run: Run
    machine: RunMachine
    view: ViewBuilder
    batch: Batch

    @classmethod
    def make(cls, run: Run) -> Loop:
        """Return the loop of *run*, which has not begun."""
        plan = run.active.plan
        machine = RunMachine(
            counters=run.progress.counters,
            max_rounds=plan.max_rounds,
            tool_calls=run.progress.tool_calls,
        )
        batch = make_batch(run, lambda: plan.view.messages)
        return cls(run, machine, plan.view, batch)

    async def work(self) -> Terminal:
        """Perform the machine's commands until it ends."""
        is_prepared = self.run.active.is_prepared
        if not is_prepared:
            self.view.begin_turn(self.run.active.plan.message)
            await self._remember()
        await self._end_inherited()
        begun = await self._begin()
        # After the judgement, which may have put a note behind a result.
        self.view.add_resumed(self.run.active.draft.blocks)
        if not is_prepared:
            await self._make_room()
        self.machine, command = self.machine.after(begun)
        while not isinstance(command, End):
            match command:
                case AskModel(counters=counters):
                    event = await self._ask_within_budget(counters)
                case RunCalls(calls=calls):
                    event = await self._run_calls(calls)
                case RefuseCalls(calls=calls, note=note):
                    event = await self._refuse_calls(calls, note)
            self.machine, command = self.machine.after(event)
            if isinstance(event, BatchEnded) and isinstance(command, AskModel):
                await self._refresh()
        return command.terminal

    async def _make_room(self) -> None:
        # Before anything is sent, so that no sequence of recovery is spent on it. What
        # may ask nothing more has its question first, and goes on as another run.
        recovery, spent = self.run.ports.recovery, self.run.settlement.metadata()
        if recovery is not None and self._excess(spent) is None:
            self.run.ports.preparing("compaction")
            await recovery.begin(self._request())

    async def _remember(self) -> None:
        plan, ports = self.run.active.plan, self.run.ports
        ports.preparing("memory")
        made = None if ports.contribute is None else await ports.contribute(plan)
        if made is not None:
            self.view.prefix_user(told(made))
            ports.record.append_soon([contribution_fact(made)])

    async def _end_inherited(self) -> None:
        ends = inherited_ends(self.run.active.draft.blocks)
        for block in ends:
            self.batch.calls.put(block)
        if ends:
            await self._close_round()

    async def _begin(self) -> RunEvent:
        # A batch that paused was not judged then: its results came with the answers.
        last = self.batch.unjudged()
        if not last:
            return Begun()
        before = self.run.progress.guard
        seen = observe(before, last)
        self.run.progress.guard = seen.snapshot
        if seen.note is not None:
            self.batch.annotate(last[-1], seen.note)
        # Its results were never fitted either: they came one by one (INT-06).
        calls = [call.id for call in last]
        if await self._fit(calls, self.run.active.draft.blocks) is not None:
            return Faulted(Fault(OVERFLOW_CODE, NOTHING_FITS), overflow=True)
        return Begun(stuck=seen.verdict == "stop")

    async def _ask_within_budget(self, counters: Counters) -> RunEvent:
        draft, metadata = self.run.active.draft, self.run.settlement.metadata()
        excess = self._excess(metadata)
        if excess is None:
            return await self._ask(counters)
        question = budget_question(draft.new_id(), excess, metadata.provider_rounds)
        self.batch.calls.add(question)
        return BudgetReached()

    def _excess(self, metadata: MessageMetadata) -> BudgetExcess | None:
        active = self.run.active
        return excess_of(active.plan, metadata, active.draft.blocks)

    async def _ask(self, counters: Counters) -> RoundEnded:
        run, draft = self.run, self.run.active.draft
        run.progress.counters = counters.advance_request()
        draft.begin_round(counters.round, run.progress.counters.request_seq)
        identity = self._identity(run.progress)
        exchange = Exchange(
            identity.run_id,
            identity.message_id,
            draft,
            run.progress,
            run.ports.watchers,
            run.ctx.clock.now,
        )
        attempts = Attempts(
            run.ports,
            run.ctx,
            run.progress,
            identity,
            exchange.take,
            self._advance,
            self.view.reject,
            self.view,
        )
        try:
            await attempts.run(self._request())
        except ProviderRaisedError as exc:
            exchange.take(exc.failure)
        except BaseException:
            # A cut batch is settled as one, also by a cancel that came behind its stop.
            heard = attempts.stop_before_abort
            if heard is not None and heard.reason == "max_tokens":
                calls = [call.id for call in draft.open_calls]
                self.batch.calls.refuse(calls, OUTPUT_CUT)
            raise
        return self._round_ended(exchange.reply)

    def _advance(self) -> None:
        # Another payload for the same round (TRY-22).
        progress = self.run.progress
        progress.counters = progress.counters.advance_request()
        self.run.active.draft.begin_request(progress.counters.request_seq)

    def _identity(self, progress: Progress) -> AttemptIdentity:
        plan = self.run.active.plan
        first = progress.counters.request_seq == 1
        resumed = plan.message.metadata.provider_rounds + 1 == progress.counters.round
        return AttemptIdentity(
            run_id=plan.run_id,
            message_id=plan.message.id,
            provider=plan.settings.provider,
            model=plan.settings.model,
            origin="chat" if first else "resume" if resumed else "tool_loop",
            session_id=plan.session_id,
        )

    def _request(self) -> ModelRequest:
        return request_of(self.run.active.plan, self.run.ports.tools)

    def _round_ended(self, reply: RoundReply) -> RoundEnded:
        draft = self.run.active.draft
        completed = tuple(call.id for call in draft.completed_calls)
        cut = tuple(
            block.id
            for block in draft.round_blocks
            if isinstance(block, ToolCallBlock) and block.id not in completed
        )
        return RoundEnded(
            reply.stop,
            completed,
            cut,
            has_blocks=bool(draft.blocks),
            failure=reply.failure,
            overflow=reply.overflow,
            counters=self.run.progress.counters,
        )

    async def _run_calls(self, calls: tuple[ItemId, ...]) -> BatchEnded:
        self.batch.started = 0
        cut = [c.id for c in self.run.active.draft.open_calls if c.id not in calls]
        self.batch.calls.refuse(cut, CALL_CUT)
        # Known before the first dispatch, so that after a crash everybody can be told
        # which call is in doubt.
        self.run.keep_blocks()
        try:
            event = await self.batch.run(calls)
        finally:
            self.run.progress.tool_calls += self.batch.started
        if event.paused:
            return event
        fatal = await self._fit(calls, self.run.active.draft.round_blocks)
        if fatal is not None:
            return attrs.evolve(event, fatal=fatal)
        event = self._judge(event, calls)
        if not event.ends:
            await self._close_round()
        return event

    async def _fit(
        self, calls: Sequence[ItemId], blocks: Sequence[Block]
    ) -> Fault | None:
        budget = self.run.ports.context_budget
        if budget is None or not calls:
            return None
        fitting = Fitting(
            self.run.active.plan,
            budget,
            self.run.ports.tools.definitions,
            self.batch.calls,
            blocks,
            self.view,
            self.batch.kept,
        )
        return await fitting.fit(calls)

    def _judge(self, event: BatchEnded, calls: tuple[ItemId, ...]) -> BatchEnded:
        settled = self.batch.settled(calls)
        seen = observe(self.run.progress.guard, settled)
        self.run.progress.guard = seen.snapshot
        if seen.note is not None:
            self.batch.annotate(settled[-1], seen.note)
        if seen.verdict == "ask":
            self.batch.ask_to_go_on(settled[-1], seen.snapshot.repeated_calls_count)
        return attrs.evolve(
            event,
            stuck=seen.verdict == "stop",
            paused=seen.verdict == "ask",
            steered=self.run.ports.steer_waiting(),
        )

    async def _refuse_calls(self, calls: tuple[ItemId, ...], note: str) -> CallsRefused:
        self.batch.calls.refuse(calls, note)
        await self._close_round()
        return CallsRefused()

    async def _close_round(self) -> None:
        try:
            await self.run.settlement.record_round()
        except FencedError:
            raise
        except StorageError as exc:
            # The next revision holds these blocks too (TOL-02).
            run_id = self.run.active.plan.run_id
            _LOG.warning("a round of run %s was not stored: %s", run_id, exc)
        self.view.add_rounds(self.run.active.draft.round_blocks)

    async def _refresh(self) -> None:
        # What has changed is the list of tools and the instructions; what was said
        # stays byte for byte (TOL-23).
        refresh = self.run.ports.refresh
        if refresh is None:
            return
        try:
            fresh = await refresh()
        except Exception as exc:
            run_id = self.run.active.plan.run_id
            _LOG.warning("the tools of run %s were not refreshed: %s", run_id, exc)
            return
        if fresh is not None:
            self.run.use(fresh)
            self.batch.use(self.run.ports)


def loop_behaviour(
    active: ActiveRun, ports: RunPorts
) -> Callable[[Context[Any]], Awaitable[None]]:
    """Return the behaviour of an actor that is one loop run."""

    async def behave(ctx: Context[Any]) -> None:
        run = Run.make(active, ports, ctx, "loop")
        await run.live(lambda: Loop.make(run).work())

    return behave
