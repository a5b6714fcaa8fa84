"""What a turn costs, and whether that is still within its limits."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from greenroom.protocol import (
    Block,
    BudgetExcess,
    MessageMetadata,
    find_excess,
    raises,
    spent_of,
)

from ._ports import RunPlan

_LOG: Final = logging.getLogger("greenroom.runs")


def known_cost(price: Callable[[], float | None]) -> float | None:
    """Return what *price* returns, if that can be a price; ``None``: it is not known.

    Whoever makes a price may not end a turn: what it raises is logged.
    """
    try:
        cost = price()
        return cost if cost is not None and 0 <= cost < math.inf else None
    except Exception as exc:
        _LOG.warning("the price of a request is not known: %s", exc)
        return None


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
