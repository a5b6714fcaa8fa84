"""The blocks of a run's tool calls: shown to watchers whenever they change.

Everything that gives a call its one result goes through `CallBlocks.finish`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import attrs
import msgspec

from greenroom.actors.backend import RunPlan, Watchers
from greenroom.actors.tools import Needs, ToolResult
from greenroom.protocol import Block, Change, Draft, ItemId, ToolCallBlock, safe_text

from ._operation import bounded


@final
@attrs.define(eq=False)
class CallBlocks:
    """The tool calls in the draft of a run's message."""

    plan: RunPlan
    watchers: Watchers
    draft: Draft

    def get(self, item_id: ItemId) -> ToolCallBlock:
        """Return a call as it is now."""
        block = self.draft.block(item_id)
        assert isinstance(block, ToolCallBlock)
        return block

    def finish(self, call: ToolCallBlock, result: ToolResult) -> None:
        """Give *call* its one result, safe and bounded wherever it comes from."""
        result = bounded(result)
        block = self.get(call.id)
        self.replace(
            block,
            status="error" if result.is_error else "success",
            response=result.text,
            title=result.title or block.title,
            locations=result.locations or block.locations,
            diffs=result.diffs or block.diffs,
        )

    def refuse(self, calls: Sequence[ItemId], note: str) -> None:
        """Give *calls* an error result, without checking or running them (TOL-14)."""
        for item_id in calls:
            self.finish(self.get(item_id), ToolResult(note, is_error=True))

    def show(self, call: ToolCallBlock, needs: Needs) -> ToolCallBlock:
        """Show what *call* is about."""
        return self.replace(
            call,
            title=safe_text(needs.title),
            kind=needs.kind,
            locations=needs.locations,
            diffs=needs.diffs,
        )

    def replace(self, call: ToolCallBlock, **fields: Any) -> ToolCallBlock:  # noqa: ANN401 - the block's fields
        """Change fields of *call*."""
        block = msgspec.structs.replace(self.get(call.id), **fields)
        self._changed(self.draft.replace(block))
        return block

    def put(self, block: Block) -> None:
        """Put *block* in the place of the one with its id."""
        self._changed(self.draft.replace(block))

    def add(self, block: Block) -> None:
        """Put *block* behind everything else."""
        self._changed(self.draft.add(block))

    def _changed(self, change: Change) -> None:
        self.watchers.change(self.plan.run_id, self.plan.message.id, change)
