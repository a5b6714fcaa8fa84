"""Results of a settled batch, made to fit the model's context window (TOL-17, INT-06).

First the long outputs of commands go into files (TOL-16), then results are downgraded
from the last one backwards. A file whose preview is downgraded is deleted: nothing
names it any more.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

import attrs
import msgspec
import trio

from greenroom.actors.backend import ContextBudget, RunPlan
from greenroom.actors.tools import ToolResult, kept_output
from greenroom.protocol import (
    NOTHING_FITS,
    Block,
    ChatMessage,
    Fault,
    ItemId,
    ToolCallBlock,
    ToolDefinition,
    ViewBuilder,
    fitted_results,
    is_note,
    sha256_hex,
)

from ._calls import CallBlocks

DO_NOT_FIT: Final = Fault("tool_error", NOTHING_FITS)


@final
@attrs.define(eq=False)
class Fitting:
    """Fits the results of one batch into the requests that carry them."""

    plan: RunPlan
    budget: ContextBudget
    tools: Sequence[ToolDefinition]
    calls: CallBlocks
    blocks: Sequence[Block]
    """What the message adds to the view, the batch's calls included."""
    view: ViewBuilder
    kept: dict[ItemId, Path]
    """The files that hold what a call's result is a preview of."""

    async def fit(self, ids: Sequence[ItemId]) -> Fault | None:
        """Change results of the calls *ids* until they fit; say if they can't."""
        if self._fits(ids, self._texts(ids)):
            return None
        await self._offload(ids)
        before = self._texts(ids)
        fitted = fitted_results(before, lambda texts: self._fits(ids, texts))
        after = ("",) * len(ids) if fitted is None else fitted
        for item_id, old, new in zip(ids, before, after, strict=True):
            if new != old:
                await self._downgrade(item_id, new)
        return DO_NOT_FIT if fitted is None else None

    def _texts(self, ids: Sequence[ItemId]) -> list[str]:
        return [self.calls.get(item_id).response or "" for item_id in ids]

    def _fits(self, ids: Sequence[ItemId], texts: Sequence[str]) -> bool:
        messages = self._messages(dict(zip(ids, texts, strict=True)))
        return self.budget.fits(messages, self.tools)

    def _messages(self, texts: dict[ItemId, str]) -> tuple[ChatMessage, ...]:
        view = self.view.fork()
        view.add_rounds(
            [
                msgspec.structs.replace(block, response=texts[block.id])
                if isinstance(block, ToolCallBlock) and block.id in texts
                else block
                for block in self.blocks
            ]
        )
        return view.messages

    async def _offload(self, ids: Sequence[ItemId]) -> None:
        # Commands show all they printed as long as there is room for it.
        for item_id in reversed(ids):
            call = self.calls.get(item_id)
            text = call.response or ""
            long = len(text) > self.plan.context.inline_chars
            if call.kind != "execute" or not long or item_id in self.kept:
                continue
            await self._keep(call, text)
            if self._fits(ids, self._texts(ids)):
                return

    async def _keep(self, call: ToolCallBlock, text: str) -> None:
        name = f"output-{sha256_hex(call.id)[:24]}.txt"
        result = await kept_output(text, self.plan.context.scratch / name, ends=True)
        if result.kept is not None:
            self.kept[call.id] = result.kept
        failed = result.is_error or call.status == "error"
        self.calls.finish(call, ToolResult(result.text, is_error=failed))

    async def _downgrade(self, item_id: ItemId, text: str) -> None:
        call = self.calls.get(item_id)
        failed = is_note(text) or call.status == "error"
        self.calls.replace(call, response=text, status="error" if failed else "success")
        path = self.kept.pop(item_id, None)
        if path is not None:
            await trio.to_thread.run_sync(_delete, path, self.plan.context.scratch)


def _delete(path: Path, scratch: Path) -> None:
    # The path comes from a tool: only what lies in the run's own folder is ours.
    if path.parent != scratch:
        return
    # If that fails it is gone, or stays as a file that nothing names.
    with contextlib.suppress(OSError):
        os.unlink(path)
