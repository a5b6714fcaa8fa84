"""The run actors: one execution each, with its own identity (RUN-01).

A loop run asks the model and works until the turn ends or pauses; a deferred run
executes one call that the user allowed (INT-04). Both have the same life: the start
fact is durable before anything is done (RUN-08), whatever happens afterwards ends in
one settlement, by the run itself (RUN-13). The decisions are `RunMachine`'s; this
module performs them.
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
    AskModel,
    BatchEnded,
    Begun,
    CallsRefused,
    Counters,
    Draft,
    End,
    Fault,
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
    Terminal,
    ToolCallBlock,
    ViewBuilder,
    interrupted_terminal,
    observe,
)
from greenroom.protocol.providers import OVERFLOW_CODE

from ._attempts import AttemptIdentity, Attempts, RoundReply
from ._batch import Batch, OperationHandle
from ._operation import RunOperation, describe
from ._ports import RunPlan, RunPorts
from ._settlement import CommittedProjectionError, Progress, RunResult, Settlement

_LOG: Final = logging.getLogger("greenroom.runs")

SOFT_SECONDS: Final = 2.0
HARD_SECONDS: Final = 4.0
"""Budget of an operation's clean-up; inside the 5 s of a whole turn's cancel."""


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

    async def stop(self, handles: Sequence[OperationHandle]) -> None:
        """End every operation within one budget."""
        with self.ctx.cleanup(SOFT_SECONDS, HARD_SECONDS):
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
class Loop:
    """Asks the model and works, round after round."""

    run: Run
    machine: RunMachine
    view: ViewBuilder
    batch: Batch

    @classmethod
    def make(cls, run: Run) -> Loop:
        """Return the loop of *run*, which has not begun."""
        plan, settings = run.active.plan, run.active.plan.settings
        machine = RunMachine(
            counters=run.progress.counters,
            max_rounds=settings.max_rounds,
            tool_calls=run.progress.tool_calls,
        )
        batch = Batch(plan, run.ports, run.active.draft, ReaperOperations(run.ctx))
        return cls(run, machine, plan.view, batch)

    async def work(self) -> Terminal:
        """Perform the machine's commands until it ends."""
        begun = self._begin()
        # After the judgement, which may have put a note behind a result.
        self.view.add_rounds(self.run.active.draft.blocks)
        self.machine, command = self.machine.after(begun)
        while not isinstance(command, End):
            match command:
                case AskModel(counters=counters):
                    event = await self._ask(counters)
                case RunCalls(calls=calls):
                    event = await self._run_calls(calls)
                case RefuseCalls(calls=calls, note=note):
                    event = await self._refuse_calls(calls, note)
            self.machine, command = self.machine.after(event)
        return command.terminal

    def _begin(self) -> RunEvent:
        # A batch that paused was not judged then: its results came with the answers.
        last = self.batch.unjudged()
        if not last:
            return Begun()
        before = self.run.progress.guard
        seen = observe(before, last)
        self.run.progress.guard = seen.snapshot
        if seen.note is not None:
            self.batch.annotate(last[-1], seen.note)
        return Begun(stuck=seen.verdict == "stop")

    async def _ask(self, counters: Counters) -> RoundEnded:
        run, draft = self.run, self.run.active.draft
        run.progress.counters = counters.advance_request()
        draft.begin_round(counters.round, run.progress.counters.request_seq)
        attempts = Attempts(
            run.ports, run.ctx, draft, run.progress, self._identity(run.progress)
        )
        reply = await attempts.run(self._request())
        return self._round_ended(reply)

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
        try:
            event = await self.batch.run(calls)
        finally:
            self.run.progress.tool_calls += self.batch.started
        if not event.paused:
            event = self._judge(event, calls)
            await self._close_round()
        return event

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
        self.batch.refuse(calls, note)
        await self._close_round()
        return CallsRefused()

    async def _close_round(self) -> None:
        await self.run.settlement.record_round()
        self.view.add_rounds(self.run.active.draft.round_blocks)


def loop_behaviour(
    active: ActiveRun, ports: RunPorts
) -> Callable[[Context[Any]], Awaitable[None]]:
    """Return the behaviour of an actor that is one loop run."""

    async def behave(ctx: Context[Any]) -> None:
        run = Run.make(active, ports, ctx, "loop")
        await run.live(lambda: Loop.make(run).work())

    return behave


def deferred_behaviour(
    active: ActiveRun, ports: RunPorts, call: ItemId
) -> Callable[[Context[Any]], Awaitable[None]]:
    """Return the behaviour of an actor that runs one call the user allowed."""

    async def behave(ctx: Context[Any]) -> None:
        run = Run.make(active, ports, ctx, "deferred_tool")
        await run.live(lambda: _work_deferred(run, call))

    return behave


async def _work_deferred(run: Run, call: ItemId) -> Terminal:
    draft = run.active.draft
    draft.begin_request(1)
    batch = Batch(run.active.plan, run.ports, draft, ReaperOperations(run.ctx))
    block = draft.block(call)
    assert isinstance(block, ToolCallBlock)
    waiting = len(draft.unresolved)
    try:
        await batch.run_one(block, granted=True)
    finally:
        run.progress.tool_calls += batch.started
    if len(draft.unresolved) > waiting:
        return Terminal("paused", "interaction", "pending")
    return Terminal("completed", "tool_result", "pending")


def _fault(exc: Exception) -> Fault:
    if isinstance(exc, JournalError):
        return Fault("journal_error", str(exc))
    if getattr(exc, "code", None) == OVERFLOW_CODE:
        return Fault(OVERFLOW_CODE, str(exc))
    return Fault("pre_stream_error", describe(exc))
