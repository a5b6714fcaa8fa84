"""Tool facts: calls and their results, behind the message that they are part of.

They are there to be searched and read again. A tape that refuses them is a warning:
what the message says is what counts (TAP-06).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from greenroom.protocol import (
    ActionBlock,
    Block,
    Fact,
    MessageRecord,
    ToolCallBlock,
)
from greenroom.storage import RefusedFactError, message_fact, tool_facts

_LOG: Final = logging.getLogger("greenroom.runs")


class FactWriter(Protocol):
    """The part of a session's record that this needs."""

    async def append(self, facts: Sequence[Fact]) -> None:
        """Write facts; all or none."""
        ...


async def append_revisions(
    record: FactWriter,
    revisions: Sequence[MessageRecord],
    changed: Iterable[Block],
    blocks: Iterable[Block],
) -> None:
    """Write *revisions* of a message, and facts of those *changed* calls that ended.

    *blocks* are all of the message: a call whose question waits has not ended.

    Raises:
        StorageError: not even the message is written.
    """
    facts = [message_fact(each) for each in revisions]
    tools = _finished(revisions[-1], changed, blocks)
    try:
        await record.append([*facts, *tools])
    except RefusedFactError as exc:
        if not tools:
            raise
        await record.append(facts)
        _LOG.warning("calls of %s have no tool facts: %s", revisions[-1].id, exc)


def _finished(
    message: MessageRecord, changed: Iterable[Block], blocks: Iterable[Block]
) -> list[Fact]:
    asked = {
        block.tool_block_id
        for block in blocks
        if isinstance(block, ActionBlock) and block.status == "pending"
    }
    return [
        fact
        for block in changed
        if isinstance(block, ToolCallBlock)
        and block.status in ("success", "error")
        and block.id not in asked
        for fact in tool_facts(message.id, block)
    ]
