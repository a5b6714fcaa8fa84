"""The run of one call that the user allowed (INT-04, TOL-24).

It has an identity of its own and judges everything again, now: the tool list, the
arguments, the tool's own checks, the permission mode. Its terminals are fixed (TOL-25):

- the tool asks, and nothing was dispatched: paused/``interaction``;
- it asks after its dispatch: error/``post_dispatch_permission``;
- it is refused or fails before its dispatch: error/``pre_dispatch_error``;
- it has a result, be it an error: completed/``tool_result``;
- a cancel: aborted, with a result that was known kept as outcome.

A strict fact that fails is reported with what was committed before it, and nothing is
tried again (TOL-26). Before the dispatch nothing has happened, so the approval is open
again; after it the message ends as an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, final

import attrs

from greenroom.actors.backend import (
    ActiveRun,
    DeferredJournalError,
    RunNotStartedError,
    RunPorts,
)
from greenroom.actors.kernel import Context
from greenroom.protocol import (
    MAX_TOOL_CALLS,
    TOO_MANY_CALLS,
    ChatMessage,
    ItemId,
    JournalError,
    Terminal,
    reopened,
)

from ._batch import Batch
from ._life import Run, make_batch

JOURNAL_ERROR: Final = "journal_error"

DISPATCHED_BEFORE: Final = ("duplicate_dispatch", "conflicting_fact")
"""What a journal answers that has a dispatch of this operation already."""


@final
@attrs.define(eq=False)
class Deferred:
    """Runs one granted call."""

    run: Run
    batch: Batch
    call: ItemId

    async def work(self) -> Terminal:
        """Run the call and return how that ended.

        Raises:
            JournalError: a strict fact failed behind the dispatch.
        """
        # What is in force now, and not when the call was asked for (TOL-24).
        self.batch.use(self.run.ports)
        draft = self.run.active.draft
        draft.begin_request(1)
        waiting = len(draft.unresolved)
        try:
            await self._run_call()
        except JournalError as exc:
            return self._journal_failed(exc)
        finally:
            self.run.progress.tool_calls += self.batch.started
        return self._terminal(asks=len(draft.unresolved) > waiting)

    async def _run_call(self) -> None:
        if self.run.progress.tool_calls >= MAX_TOOL_CALLS:
            self.batch.calls.refuse([self.call], TOO_MANY_CALLS)
            return
        await self.batch.run_one(self.batch.calls.get(self.call), granted=True)

    def _terminal(self, *, asks: bool) -> Terminal:
        operation = self.batch.latest
        if asks:
            return Terminal("paused", "interaction", "pending")
        if operation is not None and operation.asked_late:
            return Terminal("error", "post_dispatch_permission", "pending")
        if operation is None or (operation.raised and not operation.dispatched):
            return Terminal("error", "pre_dispatch_error", "pending")
        return Terminal("completed", "tool_result", "pending")

    def _journal_failed(self, exc: JournalError) -> Terminal:
        failure = self.report(exc)
        if failure.dispatch_committed:
            raise failure from exc
        for block in reopened(self.run.active.draft.blocks, self.call):
            self.batch.calls.put(block)
        return Terminal("error", JOURNAL_ERROR, "pending")

    def report(self, exc: Exception) -> DeferredJournalError:
        """Note which strict fact failed, and what was durable by then."""
        operation, active = self.batch.latest, self.run.active
        if active.failure is None:
            before = getattr(exc, "code", "") in DISPATCHED_BEFORE
            active.failure = DeferredJournalError(
                exc,
                dispatch_committed=before
                or (operation is not None and operation.dispatched),
                outcome_committed=operation is not None
                and operation.dispatched
                and operation.result is not None,
            )
        return active.failure


def deferred_behaviour(
    active: ActiveRun, ports: RunPorts, call: ItemId
) -> Callable[[Context[Any]], Awaitable[None]]:
    """Return the behaviour of an actor that runs one call the user allowed."""

    async def behave(ctx: Context[Any]) -> None:
        deferred = _deferred(Run.make(active, ports, ctx, "deferred_tool"), call)
        try:
            await deferred.run.live(deferred.work)
        except (JournalError, RunNotStartedError) as exc:
            # The first or the last of its strict facts.
            raise deferred.report(exc) from exc

    return behave


def _deferred(run: Run, call: ItemId) -> Deferred:
    active = run.active

    def conversation() -> tuple[ChatMessage, ...]:
        view = active.plan.view.fork()
        view.add_rounds(active.draft.blocks)
        return view.messages

    batch = make_batch(run, conversation)
    batch.on_dispatch = active.on_dispatch
    return Deferred(run, batch, call)
