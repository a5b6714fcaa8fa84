"""What a run may use, from the configuration: its budget, and the model's price."""

from __future__ import annotations

import trio

from greenroom.engine import Budget, Price, Prices

from ._config import Config
from ._exit import CliError


def budget_of(config: Config) -> Budget | None:
    """Return what each turn may use before the user is asked; 0 means no limit."""
    budget = Budget(
        tokens=config.budget_tokens or None,
        money=config.budget_money or None,
        seconds=config.budget_seconds or None,
    )
    return None if budget == Budget() else budget


async def start_prices(config: Config, nursery: trio.Nursery) -> Prices:
    """Return what *config* says that its model costs; the public list comes later.

    It takes a moment to load, which nothing has to wait for: the first reply takes
    longer.

    Raises:
        CliError: only one half of a price is configured.
    """
    given = (config.price_input, config.price_output)
    if None in given and given != (None, None):
        raise CliError(
            "a price has two halves",
            hint="configure both price_input and price_output, or neither",
        )
    prices = Prices()
    if (
        config.model
        and config.price_input is not None
        and config.price_output is not None
    ):
        price = Price(input=config.price_input, output=config.price_output)
        prices = Prices({config.model: price})
    else:
        nursery.start_soon(_load, prices)
    await trio.lowlevel.checkpoint()
    return prices


async def _load(prices: Prices) -> None:
    await trio.to_thread.run_sync(prices.load, abandon_on_cancel=True)
