"""The run actors: one execution each, with its own identity (RUN-01).

A loop run asks the model and works until the turn ends or pauses; a deferred run
executes one call that the user allowed (`_deferred`). Both have the same life: the
start fact is durable before anything is done (RUN-08), whatever happens afterwards
ends in one settlement, by the run itself (RUN-13). The decisions are `RunMachine`'s;
this module performs them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, final

import attrs
import trio

from greenroom.actors.kernel import Context
from greenroom.actors.tools import Tool
from greenroom.protocol import (
    NOTHING_FITS,
    OUTPUT_CUT,
    AskModel,
    BatchEnded,
    Begun,
    Block,
    BudgetReached,
    CallsRefused,
    ChatMessage,
    Counters,
    Draft,
    End,
    Fault,
    Faulted,
    GreenroomError,
    ItemId,
    JournalError,
    ModelRequest,
    RefuseCalls,
    RoundEnded,
    RunCalls,
    RunEvent,
    RunKind,
    RunMachine,
    RunStarted,
    StorageError,
    Terminal,
    ToolCallBlock,
    ViewBuilder,
    in_revisions,
    inherited_ends,
    interrupted_terminal,
    observe,
    told,
)
from greenroom.protocol.providers import OVERFLOW_CODE
from greenroom.storage import FencedError, contribution_fact

from ._admission import Gates
from ._allowance import budget_question, excess_of
from ._attempts import AttemptIdentity, Attempts, ProviderRaisedError
from ._batch import Batch, OperationHandle
from ._calls import CallBlocks
from ._exchange import Exchange, RoundReply
from ._fitting import Fitting
from ._hook_events import session_start
from ._operation import RunOperation, describe
from ._ports import Prepared, Refreshed, RunPlan, RunPorts
from ._review import ModelReviewer
from ._settlement import CommittedProjectionError, Progress, RunResult, Settlement

_LOG: Final = logging.getLogger("greenroom.runs")

CALL_CUT: Final = "not executed: the reply ended before this call was whole"

SOFT_SECONDS: Final = 2.0
HARD_SECONDS: Final = 4.0
"""Budget of an operation's clean-up; inside the 5 s of a whole turn's cancel."""


class DeferredJournalError(JournalError):
    """A strict fact of a granted call failed; nothing is tried again (TOL-26).

    Before the dispatch nothing has happened, and the approval is open again.
    """

    def __init__(
        self, cause: Exception, *, dispatch_committed: bool, outcome_committed: bool
    ) -> None:
        so_far = (
            "the call was not run, and its approval is open again"
            if not dispatch_committed
            else "the call ran and its outcome is recorded"
            if outcome_committed
            else "the call may have run, and what became of it is not recorded"
        )
        super().__init__(getattr(cause, "code", "journal_error"), f"{cause}; {so_far}")
        self.dispatch_committed = dispatch_committed
        self.outcome_committed = outcome_committed


class RunNotStartedError(GreenroomError):
    """The start fact is not durable, so nothing was run (RUN-08)."""

    code = "run_not_started"


@final
@attrs.define(eq=False)
class ReaperOperations:
    """Runs operations at the kernel's reaper."""

    ctx: Context[Any]

    def start(
        self, operation: RunOperation, tool: Tool, arguments: dict[str, Any]
    ) -> OperationHandle:
        """Start the operation's task."""
        name = f"op-{operation.id.request_seq},{operation.call.call_id}"
        return self.ctx.reaper.start(
            operation.perform, tool, arguments, name=name, parent=self.ctx.ref
        )

    async def stop(
        self, handles: Sequence[OperationHandle], waiting: Callable[[float], None]
    ) -> None:
        """End every operation within one budget, whose end *waiting* is told."""
        with self.ctx.cleanup(SOFT_SECONDS, HARD_SECONDS) as cleanup:
            waiting(cleanup.deadline)
            async with trio.open_nursery() as nursery:
                for handle in handles:
                    nursery.start_soon(handle.stop, SOFT_SECONDS, HARD_SECONDS)


@final
@attrs.define(eq=False)
class ActiveRun:
    """What a session can see of a run that goes on, and its result after it."""

    plan: RunPlan
    draft: Draft
    registered: bool = False
    """The start fact is durable (JRN-08)."""
    result: RunResult | None = None
    failure: DeferredJournalError | None = None
    """Which strict fact of a deferred run failed."""
    on_dispatch: Callable[[], None] = attrs.field(default=lambda: None)
    """Called when the dispatch of a deferred call is durable."""

    @classmethod
    def of(cls, plan: RunPlan) -> ActiveRun:
        """Return a run that is to do *plan* and has not begun."""
        return cls(plan, Draft.resume(plan.message.id, plan.message.blocks))


@final
@attrs.define(eq=False)
class Run:
    """The life that every run has; `work` is what it does with it."""

    active: ActiveRun
    ports: RunPorts
    ctx: Context[Any]
    kind: RunKind
    progress: Progress
    settlement: Settlement

    @classmethod
    def make(
        cls, active: ActiveRun, ports: RunPorts, ctx: Context[Any], kind: RunKind
    ) -> Run:
        """Return a run that has not begun, its counters where the message's are."""
        metadata = active.plan.message.metadata
        progress = Progress(
            started_at=ctx.clock.now(),
            counters=Counters(metadata.provider_rounds, metadata.request_seq),
            tool_calls=metadata.tool_calls,
            guard=metadata.no_progress_tool_loop,
            price=ports.cost,
        )
        settlement = Settlement(
            active.plan, ports, active.draft, progress, ctx.clock.now
        )
        return cls(active, ports, ctx, kind, progress, settlement)

    async def live(self, work: Callable[[], Awaitable[Terminal]]) -> None:
        """Start, work, settle. Leaves the result in the active run.

        Raises:
            RunNotStartedError: the start fact is not durable.
            JournalError: the run could not be settled; recovery will.
            ExceptionGroup: it failed, and could not be settled either (RUN-12).
            CommittedProjectionError: the terminal is durable, the message is not.
        """
        await self._continue_numbers()
        await self._prepare()
        await self._begin()
        try:
            terminal = await work()
        except CommittedProjectionError:
            raise
        except Exception as exc:
            await self._settle_fault(exc)
            return
        except BaseException:
            # A cancellation, bare or in a group: a nursery somewhere below may have
            # wrapped it together with what it met on the way.
            with self.ctx.cleanup():
                await self._finish(self._interrupted())
            raise
        with self.ctx.cleanup():
            await self._finish(terminal)

    async def _continue_numbers(self) -> None:
        # What a run before this one sent may be known from other facts alone: it may
        # have ended before the message said so (RUN-04).
        plan, last_request = self.active.plan, self.ports.last_request
        if not plan.resumes or last_request is None:
            return
        try:
            seq = await last_request(plan.message.id)
        except StorageError as exc:
            raise RunNotStartedError(f"run {plan.run_id} can't start: {exc}") from exc
        counters = self.progress.counters
        self.progress.counters = attrs.evolve(
            counters, request_seq=max(seq, counters.request_seq)
        )

    async def _prepare(self) -> None:
        # Before the start fact: a run that lacks its resources does not begin (RUN-07).
        plan, prepare = self.active.plan, self.ports.prepare
        if prepare is None:
            return
        try:
            prepared = await prepare(plan, self.ports.tools)
        except Exception as exc:
            raise RunNotStartedError(f"run {plan.run_id} can't start: {exc}") from exc
        first = prepared.at(self.active.draft.blocks)
        refresh = self.ports.refresh or _Renewed(prepared, self.active.draft, first)
        self.ports = attrs.evolve(self.ports, refresh=refresh)
        self.use(first)

    def use(self, fresh: Refreshed) -> None:
        """Go on with other tools, instructions and readable folders (TOL-23)."""
        self.ports = attrs.evolve(self.ports, tools=fresh.tools)
        self.active.plan.view.replace_system(fresh.instructions)
        if fresh.readable is not None:
            self.active.plan.context.readable.folders = fresh.readable

    def keep_blocks(self) -> None:
        """Keep what the tape does not have yet, in case the process dies."""
        message_id, draft = self.active.plan.message.id, self.active.draft
        self.ports.record.cache_soon(message_id, in_revisions(draft.unsaved)[0])

    async def _begin(self) -> None:
        plan = self.active.plan
        record = RunStarted(
            run_id=plan.run_id, message_id=plan.message.id, run_kind=self.kind
        )
        created = False
        try:
            # Shielded, so that a run is either not begun or settled by itself.
            with trio.CancelScope(shield=True):
                created = await self.ports.record.commit(record)
        except JournalError as exc:
            raise RunNotStartedError(f"run {plan.run_id} can't start: {exc}") from exc
        if not created:
            raise RunNotStartedError(f"run {plan.run_id} was started before")
        self.active.registered = True
        self.ports.tell_hooks(session_start(plan))

    async def _settle_fault(self, exc: Exception) -> None:
        fault = _fault(exc)
        overflow = fault.code == OVERFLOW_CODE
        reason = "context_window" if overflow else fault.code
        terminal = Terminal("error", reason, "error", fault)
        try:
            with self.ctx.cleanup():
                await self._finish(terminal)
        except Exception as second:
            # Both are told, with their types (RUN-12).
            raise ExceptionGroup(
                "the run failed and could not settle", [exc, second]
            ) from None
        _LOG.warning("run %s failed: %s", self.active.plan.run_id, fault.text)

    async def _finish(self, terminal: Terminal) -> None:
        self.active.result = await self.settlement.settle(terminal)

    def _interrupted(self) -> Terminal:
        cause = self.ctx.cancel_cause
        return interrupted_terminal("parent" if cause is None else cause.value)


@final
@attrs.define(eq=False)
class _Renewed:
    """A refresh from the run's own snapshot; quiet as long as nothing has changed."""

    prepared: Prepared
    draft: Draft
    last: Refreshed

    async def __call__(self) -> Refreshed | None:
        fresh = self.prepared.at(self.draft.blocks)
        if fresh == self.last:
            return None
        self.last = fresh
        return fresh


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
        await self._remember()
        await self._end_inherited()
        begun = await self._begin()
        # After the judgement, which may have put a note behind a result.
        self.view.add_rounds(self.run.active.draft.blocks)
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

    async def _remember(self) -> None:
        plan, ports = self.run.active.plan, self.run.ports
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
        excess = excess_of(self.run.active.plan, metadata, draft.blocks)
        if excess is None:
            return await self._ask(counters)
        question = budget_question(draft.new_id(), excess, metadata.provider_rounds)
        self.batch.calls.add(question)
        return BudgetReached()

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
        )

    def _request(self) -> ModelRequest:
        settings = self.run.active.plan.settings
        return ModelRequest(
            model=settings.model,
            messages=self.view.messages,
            tools=self.run.ports.tools.definitions,
            max_output_tokens=settings.max_output_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            reasoning_effort=settings.reasoning_effort,
            verbosity=settings.verbosity,
        )

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


def make_batch(run: Run, conversation: Callable[[], Sequence[ChatMessage]]) -> Batch:
    """Return what runs the calls of *run*."""
    plan, ports, ctx = run.active.plan, run.ports, run.ctx
    reviewer = ports.reviewer or ModelReviewer(
        ports.provider,
        plan.settings.model,
        ctx.clock.now,
        ctx.ids.random,
        ports.gate,
    )
    calls = CallBlocks(plan, ports.watchers, run.active.draft)
    gates = Gates(plan, ports, calls, reviewer, conversation)
    return Batch(plan, ports, run.active.draft, ReaperOperations(ctx), calls, gates)


def loop_behaviour(
    active: ActiveRun, ports: RunPorts
) -> Callable[[Context[Any]], Awaitable[None]]:
    """Return the behaviour of an actor that is one loop run."""

    async def behave(ctx: Context[Any]) -> None:
        run = Run.make(active, ports, ctx, "loop")
        await run.live(lambda: Loop.make(run).work())

    return behave


def _fault(exc: Exception) -> Fault:
    if isinstance(exc, JournalError):
        return Fault("journal_error", str(exc))
    if getattr(exc, "code", None) == OVERFLOW_CODE:
        return Fault(OVERFLOW_CODE, str(exc))
    return Fault("pre_stream_error", describe(exc))
