"""A tool made of an argument type and two functions.

The built-in tools and those made by `tool` are all of this one class. Arguments
are converted at both doors: a deferred run comes back with what was stored, and
judges it again (TOL-24).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, final

import attrs

from greenroom.protocol import ToolDefinition

from ._arguments import convert_arguments, object_schema
from ._port import Doubt, Needs, Operation, Question, ToolContext, ToolResult

A = TypeVar("A")


@final
@attrs.frozen
class TypedTool(Generic[A]):
    """A tool whose arguments are an ``A``."""

    definition: ToolDefinition
    arguments: type[A]
    check: Callable[[A, ToolContext], Awaitable[Needs | Question]]
    perform: Callable[[A, Operation], Awaitable[ToolResult]]
    read_only: bool = False
    parallel_safe: bool = False
    find_out: Callable[[Doubt], Awaitable[ToolResult | None]] | None = None

    async def precheck(
        self, arguments: dict[str, Any], context: ToolContext
    ) -> Needs | Question:
        """See `Tool.precheck`."""
        return await self.check(convert_arguments(arguments, self.arguments), context)

    async def run(self, arguments: dict[str, Any], operation: Operation) -> ToolResult:
        """See `Tool.run`."""
        value = convert_arguments(arguments, self.arguments)
        return await self.perform(value, operation)

    async def reconcile(self, doubt: Doubt) -> ToolResult | None:
        """See `Reconciling.reconcile`; not known when the tool has no way to tell."""
        return None if self.find_out is None else await self.find_out(doubt)


def define(name: str, description: str, arguments: type[Any]) -> ToolDefinition:
    """Return the definition of a tool whose arguments are an *arguments*."""
    return ToolDefinition(
        name=name, description=description, parameters=object_schema(arguments)
    )
