"""Putting a Skill to use from within a turn.

The tool has no effect of its own: that its call succeeded is on the tape, and that is
the activation. So it takes effect after its outcome is durable and for the next round
(SKL-03), holds through a pause and a restart, and is over with the turn's message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Final

import msgspec

from greenroom.actors.tools import (
    Operation,
    Tool,
    ToolRefused,
    tool,
)
from greenroom.protocol import Block, ToolCallBlock

ACTIVATE: Final = "activate_skill"

GUIDANCE: Final = (
    "Skills hold instructions for a kind of work. When one fits what is asked, call"
    f" {ACTIVATE} with its name first: from the next step on its instructions stand"
    " above, and its files can be read, until the end of this turn."
)


class _Arguments(msgspec.Struct):
    name: str


def activated(blocks: Iterable[Block]) -> frozenset[str]:
    """Return the names that calls in *blocks* of a turn have put to use."""
    return frozenset(
        name
        for block in blocks
        if isinstance(block, ToolCallBlock)
        and block.name == ACTIVATE
        and block.status == "success"
        and block.response
        for name in _named(block.arguments)
    )


def _named(arguments: str) -> list[str]:
    try:
        return [msgspec.json.decode(arguments, type=_Arguments).name]
    except (msgspec.DecodeError, RecursionError):
        return []


def activation_tool(is_offered: Callable[[str], bool]) -> Tool:
    """Return the tool for the names that *is_offered* knows."""

    @tool(name=ACTIVATE, read_only=True, parallel_safe=False, kind="think")
    async def activate_skill(
        operation: Operation,
        name: Annotated[str, msgspec.Meta(description="The Skill, as it is listed")],
    ) -> str:
        """Put a Skill to use for the rest of this turn."""
        if not is_offered(name):
            raise ToolRefused(
                f"there is no Skill {name[:80]!r} here; only those that are listed can"
                " be put to use"
            )
        await operation.dispatch()
        return f"the Skill {name} is in use from the next step on"

    return activate_skill
