"""One tool operation: from its dispatch fact to its known outcome.

*Rule 1*: the effect comes after `dispatch` returned, which is after the fact is on
disk. *Rule 2*: a known outcome is on disk before anybody sees the result (JRN-10),
also when the run was cancelled meanwhile (JRN-23). *Rule 3*: a journal failure
outranks whatever the tool made of it (JRN-12).

The operation's task lives with the reaper, so a tool that does not end never holds up
its run; when the run has ended, the journal refuses whatever such a tool still tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, final

import attrs
import msgspec
import trio

from greenroom.actors.backend import RunPlan, RunPorts
from greenroom.actors.logs import bind_operation
from greenroom.actors.tools import (
    DEFAULT_TOOL_SECONDS,
    PermissionRequired,
    Tool,
    ToolContext,
    ToolRefused,
    ToolResult,
    received_result,
)
from greenroom.protocol import (
    Change,
    Diff,
    DispatchCommitted,
    Draft,
    GreenroomError,
    InternalError,
    JournalError,
    Location,
    OperationId,
    PlanEntry,
    ToolCallBlock,
    ToolOutcome,
    ToolTarget,
    safe_text,
    sha256_hex,
)

from ._hook_events import post_tool_use

MAX_RESULT_CHARS: Final = 100_000
"""What a tool may tell the model; the rest is cut with a note."""

LOCAL_TARGET: Final = ToolTarget("greenroom")


def _unheard() -> None:
    pass


class StaleOperationError(GreenroomError):
    """The run of the operation has ended; nothing more may happen in its name."""

    code = "stale_operation"


@final
@attrs.define(eq=False)
class RunOperation:
    """An `Operation` of a run (see the tools' port)."""

    plan: RunPlan
    ports: RunPorts
    draft: Draft
    call: ToolCallBlock
    id: OperationId
    timeout: float = DEFAULT_TOOL_SECONDS
    """Seconds it may take; then it is cancelled, and has failed."""
    granted: bool = False
    """Somebody has allowed this call."""
    on_dispatch: Callable[[], None] = _unheard
    """Told when the dispatch is on disk."""
    closed: bool = False
    """The run takes nothing more from this operation."""
    dispatched: bool = False
    raised: bool = False
    """The tool did not return."""
    asked_late: bool = False
    """It asked for a permission after its dispatch (JRN-14)."""
    failure: JournalError | None = None
    result: ToolResult | None = None
    """What the tool made of it, once that is known and on disk."""
    _output: int = 0

    @property
    def idempotency_key(self) -> str:
        """Equal for equal operations, in whatever process."""
        return self.id.idempotency_key

    @property
    def context(self) -> ToolContext:
        """The surroundings of the run."""
        return self.plan.context

    async def dispatch(self, target: ToolTarget | None = None) -> None:
        """Commit the dispatch fact; after it the effect may happen.

        Raises:
            JournalError: the fact is not on disk, or was there before.
            StaleOperationError: the run has ended.
            InternalError: called twice.
        """
        if self.dispatched:
            raise InternalError(f"operation {self.call.call_id!r} dispatched twice")
        if self.closed:
            raise StaleOperationError("can't dispatch: the run of this call has ended")
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            await self._commit_dispatch(target or LOCAL_TARGET)
        except JournalError as exc:
            self.failure = exc
            raise
        if self.closed:
            # Left behind meanwhile: the run has told what it knew.
            raise StaleOperationError("can't go on: the run of this call has ended")
        self.on_dispatch()

    async def _commit_dispatch(self, target: ToolTarget) -> None:
        record = DispatchCommitted(
            operation=self.id,
            message_id=self.plan.message.id,
            tool_name=self.call.name,
            tool_source="agent",
            arguments_hash=sha256_hex(self.call.arguments),
            target=target,
        )
        if not await self.ports.record.commit(record):
            raise JournalError(
                "duplicate_dispatch",
                f"operation {self.call.call_id!r} was dispatched before",
            )
        self.dispatched = True

    def progress(self, text: str) -> None:
        """Show *text* to watchers."""
        if self.closed or not text:
            return
        text = safe_text(text)
        self.ports.watchers.output(
            self.plan.run_id, self.plan.message.id, self.call.id, self._output, text
        )
        self._output += len(text)

    def report(
        self,
        *,
        title: str | None = None,
        locations: Sequence[Location] = (),
        diffs: Sequence[Diff] = (),
    ) -> None:
        """Tell watchers what the call turned out to be about."""
        if self.closed:
            return
        block = self.draft.block(self.call.id)
        assert isinstance(block, ToolCallBlock)
        told = received_result(
            ToolResult("", False, tuple(locations), tuple(diffs), title)
        )
        change = self.draft.replace(
            msgspec.structs.replace(
                block,
                title=block.title if told.title is None else told.title,
                locations=told.locations or block.locations,
                diffs=told.diffs or block.diffs,
            )
        )
        self._changed(change)

    async def update_plan(self, entries: tuple[PlanEntry, ...]) -> int:
        """Replace the session's plan."""
        if self.closed:
            raise StaleOperationError("can't plan: the run of this call has ended")
        return await self.ports.record.update_plan(entries)

    async def perform(self, tool: Tool, arguments: dict[str, Any]) -> ToolResult:
        """Run *tool* and make its outcome durable. The body of the operation's task.

        Raises:
            PermissionRequired: the tool asks, and has done nothing.
            JournalError: a strict fact could not be committed.
        """
        bind_operation(f"{self.id.request_seq},{self.call.call_id}")
        try:
            result = received_result(await self._run(tool, arguments))
        except trio.Cancelled:
            raise
        except PermissionRequired as exc:
            if not self.dispatched:
                raise
            raise await self._refuse_late_question(exc) from exc
        except Exception as exc:
            self.raised = True
            result = ToolResult(text=describe(exc), is_error=True)
        if self.failure is not None:
            raise self.failure
        result = bounded(result)
        if self.dispatched:
            await self._commit_outcome(result)
        self.result = result
        if not self.closed:
            self.ports.tell_hooks(post_tool_use(self.plan, self.call, result))
        return result

    async def _run(self, tool: Tool, arguments: dict[str, Any]) -> ToolResult:
        with trio.move_on_after(self.timeout):
            return await tool.run(arguments, self)
        self.raised = True
        return ToolResult(self.timed_out("was ended"), is_error=True)

    def left_behind(self) -> ToolResult:
        """Return the result of a call that does not even end when it is stopped."""
        text = self.timed_out("did not end when it was stopped")
        return self.result or ToolResult(text, is_error=True)

    def timed_out(self, what: str) -> str:
        """Return what the model is told of a call that took too long."""
        known = "what it did is not known" if self.dispatched else "it did nothing"
        return f"the tool took more than {self.timeout:g} s and {what}; {known}"

    async def _refuse_late_question(self, exc: PermissionRequired) -> JournalError:
        # JRN-14: the effect may have happened, so the question comes too late.
        self.asked_late = True
        await self._commit_outcome(ToolResult(text=str(exc), is_error=True))
        return JournalError(
            "invalid_fact",
            f"tool {self.call.name!r} asked for a permission after its dispatch",
        )

    async def _commit_outcome(self, result: ToolResult) -> None:
        record = ToolOutcome(
            operation=self.id,
            response_hash=sha256_hex(result.text),
            is_error=result.is_error,
        )
        # What is known is kept, also when the run was cancelled meanwhile (JRN-23).
        try:
            with trio.CancelScope(shield=True):
                await self.ports.record.commit(record)
        except JournalError as exc:
            self.failure = exc
            raise

    def _changed(self, change: Change) -> None:
        self.ports.watchers.change(self.plan.run_id, self.plan.message.id, change)


def describe(exc: BaseException) -> str:
    """Return what the model is told of a tool that raised."""
    if isinstance(exc, ToolRefused):
        return str(exc)
    name = type(exc).__name__
    try:
        text = str(exc).strip()
    except Exception:
        # An error that can't even say what it is.
        text = ""
    return f"the tool failed: {name}: {text}" if text else f"the tool failed: {name}"


def bounded(result: ToolResult) -> ToolResult:
    """Return *result* with its text safe and within `MAX_RESULT_CHARS`."""
    text = safe_text(result.text)
    if len(text) > MAX_RESULT_CHARS:
        left = len(text) - MAX_RESULT_CHARS
        text = f"{text[:MAX_RESULT_CHARS]}\n[{left} more characters left out]"
    return attrs.evolve(result, text=text)
