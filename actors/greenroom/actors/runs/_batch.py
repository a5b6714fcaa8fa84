"""A batch of tool calls: admitted, run and settled in the provider's order.

Every call of the batch leaves here with exactly one result, or waits for the user
(TOL-05). Calls overlap only when all of them may (TOL-06); otherwise one after the
other, and a call that has to ask does not stop those after it (INT-02).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, final

import attrs
import outcome
import trio

from greenroom.actors.backend import RunPlan, RunPorts
from greenroom.actors.tools import (
    PermissionRequired,
    Tool,
    ToolRefused,
    ToolResult,
)
from greenroom.protocol import (
    ActionBlock,
    BatchEnded,
    Draft,
    ItemId,
    OperationId,
    QuestionOption,
    ToolCallBlock,
)

from ._admission import Admitted, Asks, Gates, Refused, action_block
from ._calls import CallBlocks
from ._hook_events import pre_tool_use
from ._operation import RunOperation, describe

INTERRUPTED: Final = (
    "interrupted: the turn was stopped while this call ran; what it did is not known"
)
NOT_EXECUTED: Final = "not executed: the turn was stopped before this call began"
NOT_RECORDED: Final = (
    "the call ran, but what became of it could not be recorded; what it did is not"
    " known"
)


class OperationHandle(Protocol):
    """A running operation, as the reaper hands it out."""

    async def wait(self) -> outcome.Outcome[Any]:
        """Return how it ended; cancelling the wait leaves it running."""
        ...

    async def stop(self, soft: float, hard: float) -> object:
        """Cancel it and wait a bounded time; what does not end is abandoned."""
        ...


class Operations(Protocol):
    """Where operations run."""

    def start(
        self, operation: RunOperation, tool: Tool, arguments: dict[str, Any]
    ) -> OperationHandle:
        """Start *operation*'s task at the reaper."""
        ...

    async def stop(
        self, handles: Sequence[OperationHandle], waiting: Callable[[float], None]
    ) -> None:
        """End the tasks of *handles* within the cleanup budget.

        *waiting* is told when that ends, in trio's time.
        """
        ...


@final
@attrs.define(eq=False)
class Batch:
    """Runs the calls of one round, or the one call of a deferred run."""

    plan: RunPlan
    ports: RunPorts
    draft: Draft
    operations: Operations
    calls: CallBlocks
    gates: Gates
    on_dispatch: Callable[[], None] = attrs.field(default=lambda: None)
    started: int = 0
    """Calls that began to execute (TOL-08)."""
    latest: RunOperation | None = None
    """The operation that began last."""
    kept: dict[ItemId, Path] = attrs.field(factory=dict[ItemId, Path])
    """Files that hold what a result is a preview of."""

    async def run(self, calls: Sequence[ItemId]) -> BatchEnded:
        """Run *calls* and return how the batch ended.

        Raises:
            JournalError: a strict fact failed; siblings that ran have their outcome.
        """
        blocks = [self.calls.get(item_id) for item_id in calls]
        if self._may_overlap(blocks):
            await self._run_parallel(blocks)
        else:
            for block in blocks:
                await self.run_one(block, granted=False)
        return BatchEnded(started=self.started, paused=bool(self.draft.unresolved))

    async def run_one(self, block: ToolCallBlock, *, granted: bool) -> None:
        """Admit one call and run it; *granted* means the user has said yes."""
        admission = await self.gates.admit(block, granted=granted)
        if isinstance(admission, Admitted):
            await self._execute([admission])
        else:
            self._settle_admission(admission)

    def use(self, ports: RunPorts) -> None:
        """Go on with other *ports*; what runs keeps those it has."""
        self.ports = self.gates.ports = ports

    #### Admission

    def _may_overlap(self, blocks: Sequence[ToolCallBlock]) -> bool:
        if len(blocks) < 2 or self.plan.settings.permission_mode != "full_access":
            return False
        return all(self._is_parallel_safe(block.name) for block in blocks)

    def _is_parallel_safe(self, name: str) -> bool:
        try:
            tool = self.ports.tools.find(name)
        except ToolRefused:
            return False
        return tool.read_only and tool.parallel_safe

    def _settle_admission(self, admission: Refused | Asks) -> None:
        if isinstance(admission, Refused):
            result = ToolResult(admission.text, is_error=True)
            self.calls.finish(admission.call, result)
        else:
            self._ask(admission)

    def _ask(self, asks: Asks) -> None:
        # Stored as a success without text, so that no tool fact is made of it.
        self.calls.replace(asks.call, status="success", response="")
        self.calls.add(action_block(self.draft.new_id(), asks))

    #### Execution

    async def _run_parallel(self, blocks: Sequence[ToolCallBlock]) -> None:
        admissions = [await self.gates.admit(block, granted=False) for block in blocks]
        for admission in admissions:
            if not isinstance(admission, Admitted):
                self._settle_admission(admission)
        await self._execute([a for a in admissions if isinstance(a, Admitted)])

    async def _execute(self, admitted: Sequence[Admitted]) -> None:
        for item in admitted:
            if not item.again:
                self.ports.tell_hooks(pre_tool_use(self.plan, item.call))
        operations = [self._operation(item) for item in admitted]
        handles = [
            self.operations.start(operation, item.tool, item.arguments)
            for operation, item in zip(operations, admitted, strict=True)
        ]
        self.started += sum(not item.again for item in admitted)
        ends = _ends(admitted)
        self.ports.watchers.waiting("tool", min(ends, default=None))
        try:
            outcomes = [
                await _outcome(handle, operation, end)
                for handle, operation, end in zip(
                    handles, operations, ends, strict=True
                )
            ]
        except BaseException:
            # Only a cancellation gets here: an operation's own error is a value.
            # What ends from here on is the result of a cancelled call (JRN-23).
            known = [operation.result for operation in operations]
            with trio.CancelScope(shield=True):
                await self.operations.stop(handles, self._cleaning_up)
            self._raise_failure(operations)
            self._interrupt(operations, known)
            raise
        finally:
            for operation in operations:
                operation.closed = True
            self.ports.watchers.waiting(None)
        await self._settle(admitted, operations, outcomes)

    def _operation(self, item: Admitted) -> RunOperation:
        block = self.calls.replace(item.call, status="loading")
        self.latest = RunOperation(
            self.plan,
            self.ports,
            self.draft,
            block,
            OperationId(self.plan.run_id, self.draft.request_seq, block.call_id),
            timeout=item.needs.timeout,
            granted=item.granted,
            on_dispatch=self.on_dispatch,
        )
        return self.latest

    def _cleaning_up(self, until: float) -> None:
        self.ports.watchers.waiting("cleanup", until)

    def _interrupt(
        self, operations: Sequence[RunOperation], known: Sequence[ToolResult | None]
    ) -> None:
        for operation, result in zip(operations, known, strict=True):
            text = INTERRUPTED if operation.dispatched else NOT_EXECUTED
            self._finish(operation.call, result or ToolResult(text, is_error=True))

    async def _settle(
        self,
        admitted: Sequence[Admitted],
        operations: Sequence[RunOperation],
        outcomes: Sequence[outcome.Outcome[Any]],
    ) -> None:
        self._raise_failure(operations)
        questions: list[tuple[Admitted, PermissionRequired]] = []
        for item, ended in zip(admitted, outcomes, strict=True):
            error = ended.error if isinstance(ended, outcome.Error) else None
            if isinstance(error, PermissionRequired):
                questions.append((item, error))
            elif error is not None:
                self._finish(item.call, ToolResult(describe(error), is_error=True))
            else:
                self._finish(item.call, ended.unwrap())
        # Last: what is known has its place before anything is waited for again.
        for item, error in questions:
            await self._settle_question(item, error)

    async def _settle_question(self, item: Admitted, asked: PermissionRequired) -> None:
        admission = await self.gates.ask_again(item, asked.needs)
        if isinstance(admission, Admitted):
            await self._execute([admission])
        else:
            self._settle_admission(admission)

    def _finish(self, call: ToolCallBlock, result: ToolResult) -> None:
        if result.kept is not None:
            self.kept[call.id] = result.kept
        self.calls.finish(call, result)

    def _raise_failure(self, operations: Sequence[RunOperation]) -> None:
        # A strict fact that failed outranks everything else (JRN-12), and no result of
        # the batch goes to the model (JRN-13).
        for operation in operations:
            failure = operation.failure
            if failure is not None and failure.code != "invalid_fact":
                self._hide(operations)
                raise failure from None

    def _hide(self, operations: Sequence[RunOperation]) -> None:
        for operation in operations:
            text = NOT_RECORDED if operation.dispatched else NOT_EXECUTED
            self.calls.finish(operation.call, ToolResult(text, is_error=True))

    #### The guard against loops

    def settled(self, calls: Sequence[ItemId]) -> list[ToolCallBlock]:
        """Return *calls* as they are now, with their results."""
        return [self.calls.get(item_id) for item_id in calls]

    def unjudged(self) -> list[ToolCallBlock]:
        """Return the calls of the round that an answer was waited for in, if any."""
        newest = self.draft.blocks[-1].round if self.draft.blocks else 0
        blocks = [block for block in self.draft.blocks if block.round == newest]
        if any(isinstance(b, ActionBlock) and b.stop_label for b in blocks):
            # The question was the guard's own: it has seen this batch.
            return []
        return [block for block in blocks if isinstance(block, ToolCallBlock)]

    def annotate(self, call: ToolCallBlock, note: str) -> None:
        """Put *note* behind the result of *call*."""
        self.calls.replace(call, response=f"{call.response or ''}\n{note}")

    def ask_to_go_on(self, call: ToolCallBlock, count: int) -> None:
        """Ask the user whether calls that repeat shall go on."""
        question = ActionBlock(
            id=self.draft.new_id(),
            action="question_request",
            origin="question",
            tool_block_id=call.id,
            title="The same calls again and again",
            detail=f"The model made the same calls {count} times. Shall it go on?",
            options=(QuestionOption("go on"), QuestionOption("stop")),
            stop_label="stop",
            round=call.round,
        )
        self.calls.add(question)


def _ends(admitted: Sequence[Admitted]) -> list[float]:
    now = trio.current_time()
    return [now + item.needs.timeout + item.needs.cleanup for item in admitted]


async def _outcome(
    handle: OperationHandle, operation: RunOperation, end: float
) -> outcome.Outcome[Any]:
    with trio.move_on_at(end):
        return await handle.wait()
    # It was cancelled when its time was over, and does not even end then: from here on
    # nothing may happen in its name.
    operation.closed = operation.raised = True
    await handle.stop(0.0, 0.0)
    return outcome.Value(operation.left_behind())
