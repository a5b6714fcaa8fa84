"""The question about a limit that is used up."""

from __future__ import annotations

from greenroom.protocol import (
    STOP,
    ActionBlock,
    BudgetExcess,
    ItemId,
    question_of,
)


def budget_question(
    item_id: ItemId,
    excess: BudgetExcess,
    round: int,  # noqa: A002 - the field's word
) -> ActionBlock:
    """Return the interaction that asks what is to happen now."""
    title, detail, options = question_of(excess)
    return ActionBlock(
        id=item_id,
        action="question_request",
        origin="budget",
        tool_block_id=item_id,
        title=title,
        detail=detail,
        options=options,
        custom=False,
        stop_label=STOP,
        excess=excess,
        round=round,
    )
