"""The life that every run has, whatever it does with it (RUN-01).

The start fact is durable before anything is done (RUN-08), whatever happens afterwards
ends in one settlement, by the run itself (RUN-13).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, final

import attrs
import trio

from greenroom.actors.backend import (
    ActiveRun,
    Refreshed,
    RunNotStartedError,
    RunPorts,
    SideRequests,
    adopt,
    with_resources,
)
from greenroom.actors.kernel import Context
from greenroom.protocol import (
    ChatMessage,
    Counters,
    Fault,
    JournalError,
    RunKind,
    RunStarted,
    StorageError,
    Terminal,
    in_revisions,
    interrupted_terminal,
)
from greenroom.protocol.providers import OVERFLOW_CODE

from ._admission import Gates
from ._at_reaper import ReaperOperations
from ._batch import Batch
from ._calls import CallBlocks
from ._hook_events import session_start
from ._operation import describe
from ._review import ModelReviewer
from ._settlement import CommittedProjectionError, Progress, Settlement

_LOG: Final = logging.getLogger("greenroom.runs")


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
        if active.early is not None:
            progress.bill(*active.early)
        active.bill = progress.bill
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
        self.ports = await with_resources(self.active, self.ports)
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
        self.ports.preparing("request numbers")
        try:
            seq = await last_request(plan.message.id)
        except StorageError as exc:
            raise RunNotStartedError(f"run {plan.run_id} can't start: {exc}") from exc
        counters = self.progress.counters
        self.progress.counters = attrs.evolve(
            counters, request_seq=max(seq, counters.request_seq)
        )

    def use(self, fresh: Refreshed) -> None:
        """Go on with other tools, instructions and readable folders (TOL-23)."""
        self.ports = adopt(self.active.plan, self.ports, fresh)

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
        self.ports.preparing("start fact")
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
                f"the run failed and could not settle: {second}", [exc, second]
            ) from None
        _LOG.warning("run %s failed: %s", self.active.plan.run_id, fault.text)

    async def _finish(self, terminal: Terminal) -> None:
        self.active.result = await self.settlement.settle(terminal)

    def _interrupted(self) -> Terminal:
        cause = self.ctx.cancel_cause
        return interrupted_terminal("parent" if cause is None else cause.value)


def make_batch(run: Run, conversation: Callable[[], Sequence[ChatMessage]]) -> Batch:
    """Return what runs the calls of *run*."""
    plan, ports, ctx = run.active.plan, run.ports, run.ctx
    reviewer = ports.reviewer or ModelReviewer(
        ports.provider,
        plan.settings.model,
        ctx.clock.now,
        ctx.ids.random,
        ports.gate,
        run.progress.spend,
        partial(
            SideRequests,
            ports.tell_hooks,
            ctx.ids.uuid,
            "review",
            plan.session_id,
            plan.run_id,
            plan.message.id,
        ),
    )
    calls = CallBlocks(plan, ports.watchers, run.active.draft)
    operations = ReaperOperations(ctx)
    gates = Gates(plan, ports, calls, reviewer, operations, conversation)
    return Batch(plan, ports, run.active.draft, operations, calls, gates)


def _fault(exc: Exception) -> Fault:
    if isinstance(exc, JournalError):
        return Fault("journal_error", str(exc))
    if getattr(exc, "code", None) == OVERFLOW_CODE:
        return Fault(OVERFLOW_CODE, str(exc))
    return Fault("pre_stream_error", describe(exc))
