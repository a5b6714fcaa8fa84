"""A price, from whoever makes prices; that may be anybody."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

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
