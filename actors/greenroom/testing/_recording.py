"""A tool that notes how it was called, and behaves as it is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, final

import attrs
import trio

from greenroom.actors.tools import (
    Needs,
    Operation,
    Question,
    ToolContext,
    ToolResult,
)
from greenroom.protocol import ToolDefinition


@final
@attrs.define(eq=False)
class RecordingTool:
    """A tool for tests: every call is kept, nothing happens.

    It dispatches and then returns `result`, after `gate` if there is one; a `body` is
    run instead of all that, and dispatches for itself.
    """

    name: str = "probe"
    result: str | None = None
    """What it answers; ``None``: its name and the call's ``n``."""
    permission: str | None = None
    """What the user is asked before each call."""
    read_only: bool = False
    parallel_safe: bool = False
    body: Callable[[dict[str, Any], Operation], Awaitable[ToolResult]] | None = None
    refuse: Exception | None = None
    """Raised by the precheck."""
    question: Question | None = None
    """Asked instead of running."""
    gate: trio.Event | None = None
    """Waited for between dispatch and result."""
    reached: trio.Event = attrs.field(factory=trio.Event)
    """Set when a call has dispatched."""
    calls: list[dict[str, Any]] = attrs.field(factory=list[dict[str, Any]])
    """The arguments of each call that dispatched, in order."""
    operations: list[Operation] = attrs.field(factory=list[Operation])
    """Every operation that was begun, in order."""

    @property
    def definition(self) -> ToolDefinition:
        """What the model sees: any object is taken."""
        return ToolDefinition(self.name, f"{self.name}, for tests", {"type": "object"})

    async def precheck(
        self, arguments: dict[str, Any], context: ToolContext
    ) -> Needs | Question:
        """Refuse, ask, or say what is needed; as told."""
        await trio.lowlevel.checkpoint()
        if self.refuse is not None:
            raise self.refuse
        if self.question is not None:
            return self.question
        return Needs(permission=self.permission, title=self.name, kind="other")

    async def run(self, arguments: dict[str, Any], operation: Operation) -> ToolResult:
        """Note the call and answer."""
        self.operations.append(operation)
        if self.body is not None:
            return await self.body(arguments, operation)
        await operation.dispatch()
        self.calls.append(arguments)
        self.reached.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.result is not None:
            return ToolResult(self.result)
        return ToolResult(f"result of {self.name} {arguments.get('n', '')}".strip())
