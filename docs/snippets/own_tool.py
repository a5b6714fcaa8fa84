"""Three tools of one's own: a simple one, one that asks, one that dispatches itself."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from greenroom.engine import Operation, ToolRefused, ToolResult, tool

STOCK = {"apple": 3, "pear": 0}
SHIPPED: dict[str, str] = {}


@tool(read_only=True, kind="search")
async def stock(fruit: Annotated[str, Meta(description="Its name, singular")]) -> str:
    """Tell how many of a fruit are in stock."""
    return f"{STOCK.get(fruit, 0)} of {fruit}"


def what_to_ask(fruit: str, count: int = 1) -> str | None:
    """Ask only for big orders."""
    return f"order {count} of {fruit}" if count > 10 else None


@tool(permission=what_to_ask)
def order(fruit: str, count: Annotated[int, Meta(ge=1, le=100)] = 1) -> dict[str, int]:
    """Order fruit."""
    # Not async: it runs in a worker thread, and may block.
    STOCK[fruit] = STOCK.get(fruit, 0) + count
    return {fruit: STOCK[fruit]}


@tool(permission="ship fruit to the customer")
async def ship(operation: Operation, fruit: str) -> ToolResult:
    """Ship one fruit."""
    if not STOCK.get(fruit):
        raise ToolRefused(f"there is no {fruit!r} in stock; order some first")
    # Durable from here on: the fruit may be under way.
    await operation.dispatch()
    operation.progress("packing …")
    # A service that knows the key ships nothing twice.
    SHIPPED[operation.idempotency_key] = fruit
    STOCK[fruit] -= 1
    return ToolResult(f"{STOCK[fruit]} left", title=f"shipped one {fruit}")
