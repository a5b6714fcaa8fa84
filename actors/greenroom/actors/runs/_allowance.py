"""Whether a run may send its next request: what was used, and the question about it."""

from __future__ import annotations

from greenroom.actors.backend import RunPlan
from greenroom.protocol import (
    STOP,
    ActionBlock,
    Block,
    BudgetExcess,
    ItemId,
    MessageMetadata,
    find_excess,
    question_of,
    raises,
    spent_of,
)


def excess_of(
    plan: RunPlan, metadata: MessageMetadata, blocks: tuple[Block, ...]
) -> BudgetExcess | None:
    """Return the limit, of the turn or else of the session, that is used up.

    *metadata* and *blocks* are those of the turn's message as it is now.
    """
    settings, session = plan.settings, plan.account.after(metadata, blocks)
    return find_excess(
        settings.turn_budget, "turn", spent_of(metadata), raises(blocks, "turn")
    ) or find_excess(settings.session_budget, "session", session.spent, session.raised)


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
