"""A batch of tool calls: admitted, run and settled in the provider's order.

Every call of the batch leaves here with exactly one result, or waits for the user
(TOL-05). Calls overlap only when all of them may (TOL-06); otherwise one after the
other, and a call that has to ask does not stop those after it (INT-02).

Gates, in order: the definition exists, the arguments are an object that fits, the
tool's own precheck (validation, paths), the permission. Behind them comes the
dispatch, in the operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, final

import attrs
import msgspec
import outcome
import trio

from greenroom.actors.tools import (
    Needs,
    PermissionRequired,
    Question,
    Tool,
    ToolRefused,
    ToolResult,
    decode_arguments,
)
from greenroom.protocol import (
    MAX_ARGUMENT_CHARS,
    ActionBlock,
    BatchEnded,
    Change,
    Draft,
    InteractionOrigin,
    ItemId,
    JournalError,
    OperationId,
    QuestionOption,
    ToolCallBlock,
    permission_verdict,
    safe_text,
)

from ._operation import RunOperation, describe
from ._ports import RunPlan, RunPorts

INTERRUPTED: Final = (
    "interrupted: the turn was stopped while this call ran; what it did is not known"
)
NOT_EXECUTED: Final = "not executed: the turn was stopped before this call began"


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

    async def stop(self, handles: Sequence[OperationHandle]) -> None:
        """End the tasks of *handles* within the cleanup budget."""
        ...


@attrs.frozen
class Admitted:
    """The call may run now."""

    call: ToolCallBlock
    tool: Tool
    arguments: dict[str, Any]


@attrs.frozen
class Refused:
    """The call does not run; the model is told why (TOL-12)."""

    call: ToolCallBlock
    text: str


@attrs.frozen
class Asks:
    """The call waits for the user."""

    call: ToolCallBlock
    what: Needs | Question
    origin: InteractionOrigin


Admission = Admitted | Refused | Asks


@final
@attrs.define(eq=False)
class Batch:
    """Runs the calls of one round, or the one call of a deferred run."""

    plan: RunPlan
    ports: RunPorts
    draft: Draft
    operations: Operations
    started: int = 0

    async def run(self, calls: Sequence[ItemId]) -> BatchEnded:
        """Run *calls* and return how the batch ended.

        Raises:
            JournalError: a strict fact failed; siblings that ran have their outcome.
        """
        blocks = [self._block(item_id) for item_id in calls]
        if self._may_overlap(blocks):
            await self._run_parallel(blocks)
        else:
            for block in blocks:
                await self.run_one(block, granted=False)
        return BatchEnded(started=self.started, paused=bool(self.draft.unresolved))

    async def run_one(self, block: ToolCallBlock, *, granted: bool) -> None:
        """Admit one call and run it; *granted* means the user has said yes."""
        admission = await self._admit(block, granted=granted)
        if isinstance(admission, Admitted):
            await self._execute([admission])
        else:
            self._settle_admission(admission)

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

    async def _admit(self, block: ToolCallBlock, *, granted: bool) -> Admission:
        try:
            tool = self.ports.tools.find(block.name)
            arguments = _arguments(block)
            what = await tool.precheck(arguments, self.plan.context)
        except ToolRefused as exc:
            return Refused(block, str(exc))
        except Exception as exc:
            return Refused(block, describe(exc))
        if isinstance(what, Question):
            return Asks(block, what, "question")
        block = self._show(block, what)
        mode = self.plan.settings.permission_mode
        if not granted and permission_verdict(mode, what) == "ask":
            return Asks(block, what, "pre-check-permission")
        return Admitted(block, tool, arguments)

    def _settle_admission(self, admission: Refused | Asks) -> None:
        if isinstance(admission, Refused):
            self.finish(admission.call, ToolResult(admission.text, is_error=True))
        else:
            self._ask(admission)

    def _ask(self, asks: Asks) -> None:
        # The call is stored as a success without text while it waits, so that no tool
        # fact is made of it (INT-01).
        self._replace(asks.call, status="success", response="")
        block = _action(self.draft.new_id(), asks)
        self._changed(self.draft.add(block))

    #### Execution

    async def _run_parallel(self, blocks: Sequence[ToolCallBlock]) -> None:
        admissions = [await self._admit(block, granted=False) for block in blocks]
        for admission in admissions:
            if not isinstance(admission, Admitted):
                self._settle_admission(admission)
        await self._execute([a for a in admissions if isinstance(a, Admitted)])

    async def _execute(self, admitted: Sequence[Admitted]) -> None:
        operations = [self._operation(item) for item in admitted]
        handles = [
            self.operations.start(operation, item.tool, item.arguments)
            for operation, item in zip(operations, admitted, strict=True)
        ]
        self.started += len(handles)
        self.ports.watchers.waiting("tool")
        try:
            outcomes = [await handle.wait() for handle in handles]
        except BaseException:
            # Only a cancellation gets here: an operation's own error is a value.
            # What ends from here on is the result of a cancelled call (JRN-23).
            known = [operation.result for operation in operations]
            with trio.CancelScope(shield=True):
                await self.operations.stop(handles)
            _raise_failure(operations)
            self._interrupt(operations, known)
            raise
        finally:
            for operation in operations:
                operation.closed = True
            self.ports.watchers.waiting(None)
        self._settle(admitted, outcomes)

    def _operation(self, item: Admitted) -> RunOperation:
        block = self._replace(item.call, status="loading")
        return RunOperation(
            self.plan,
            self.ports,
            self.draft,
            block,
            OperationId(self.plan.run_id, self.draft.request_seq, block.call_id),
        )

    def _interrupt(
        self, operations: Sequence[RunOperation], known: Sequence[ToolResult | None]
    ) -> None:
        for operation, result in zip(operations, known, strict=True):
            text = INTERRUPTED if operation.dispatched else NOT_EXECUTED
            self.finish(operation.call, result or ToolResult(text, is_error=True))

    def _settle(
        self, admitted: Sequence[Admitted], outcomes: Sequence[outcome.Outcome[Any]]
    ) -> None:
        errors = [e.error if isinstance(e, outcome.Error) else None for e in outcomes]
        for error in errors:
            if isinstance(error, JournalError) and error.code != "invalid_fact":
                # No result of the batch goes to the model (JRN-13).
                raise error
        for item, ended, error in zip(admitted, outcomes, errors, strict=True):
            if isinstance(error, PermissionRequired):
                self._ask(Asks(item.call, error.needs, "post-call-permission"))
            elif error is not None:
                self.finish(item.call, ToolResult(describe(error), is_error=True))
            else:
                self.finish(item.call, ended.unwrap())

    def refuse(self, calls: Sequence[ItemId], note: str) -> None:
        """Give *calls* an error result, without checking or running them (TOL-14)."""
        for item_id in calls:
            self.finish(self._block(item_id), ToolResult(note, is_error=True))

    #### The guard against loops

    def settled(self, calls: Sequence[ItemId]) -> list[ToolCallBlock]:
        """Return *calls* as they are now, with their results."""
        return [self._block(item_id) for item_id in calls]

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
        self._replace(call, response=f"{call.response or ''}\n{note}")

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
        self._changed(self.draft.add(question))

    #### Blocks

    def finish(self, call: ToolCallBlock, result: ToolResult) -> None:
        """Give *call* its one result."""
        block = self._block(call.id)
        self._replace(
            block,
            status="error" if result.is_error else "success",
            response=result.text,
            title=result.title or block.title,
            locations=result.locations or block.locations,
            diffs=result.diffs or block.diffs,
        )

    def _show(self, block: ToolCallBlock, needs: Needs) -> ToolCallBlock:
        return self._replace(
            block,
            title=safe_text(needs.title),
            kind=needs.kind,
            locations=needs.locations,
            diffs=needs.diffs,
        )

    def _replace(self, call: ToolCallBlock, **fields: Any) -> ToolCallBlock:  # noqa: ANN401 - the block's fields
        block = msgspec.structs.replace(self._block(call.id), **fields)
        self._changed(self.draft.replace(block))
        return block

    def _changed(self, change: Change) -> None:
        self.ports.watchers.change(self.plan.run_id, self.plan.message.id, change)

    def _block(self, item_id: ItemId) -> ToolCallBlock:
        block = self.draft.block(item_id)
        assert isinstance(block, ToolCallBlock)
        return block


def _raise_failure(operations: Sequence[RunOperation]) -> None:
    # A strict fact that failed outranks the cancellation (JRN-12).
    for operation in operations:
        failure = operation.failure
        if failure is not None and failure.code != "invalid_fact":
            raise failure from None


def _arguments(block: ToolCallBlock) -> dict[str, Any]:
    if len(block.arguments) > MAX_ARGUMENT_CHARS:
        raise ToolRefused(
            f"the arguments are longer than {MAX_ARGUMENT_CHARS} characters; "
            "do the work in smaller parts"
        )
    return decode_arguments(block.arguments, dict[str, Any])


def _action(item_id: ItemId, asks: Asks) -> ActionBlock:
    what, call = asks.what, asks.call
    if isinstance(what, Question):
        return ActionBlock(
            id=item_id,
            action="question_request",
            origin=asks.origin,
            tool_block_id=call.id,
            title=safe_text(what.header),
            detail=safe_text(what.text),
            options=what.options,
            multiple=what.multiple,
            custom=what.custom,
            round=call.round,
        )
    return ActionBlock(
        id=item_id,
        action="tool_call_permission",
        origin=asks.origin,
        tool_block_id=call.id,
        title=safe_text(what.permission or what.title),
        detail=safe_text(what.detail),
        round=call.round,
    )
