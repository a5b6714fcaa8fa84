from __future__ import annotations

import pytest
import trio

from greenroom.cli._budget import budget_of, start_prices
from greenroom.cli._config import load_config
from greenroom.cli._exit import CliError
from greenroom.engine import Budget
from greenroom.protocol import Usage

USAGE = Usage(input=1_000_000, output=1_000_000, total=2_000_000)


def config_of(tmp_path, **flags):
    return load_config(flags=flags, environ={}, file=tmp_path / "none.toml")


def test_without_limits_there_is_no_budget(tmp_path):
    assert budget_of(config_of(tmp_path)) is None
    zero = config_of(tmp_path, budget_tokens=0, budget_money=0.0, budget_seconds=0.0)
    assert budget_of(zero) is None


def test_limits_of_the_configuration_are_the_turns_budget(tmp_path):
    config = config_of(tmp_path, budget_tokens=5, budget_money=0.5)
    assert budget_of(config) == Budget(tokens=5, money=0.5)


async def test_a_configured_price_is_that_of_the_configured_model(tmp_path):
    config = config_of(tmp_path, model="m1", price_input=1.0, price_output=2.0)
    async with trio.open_nursery() as nursery:
        prices = await start_prices(config, nursery)
    assert prices.cost("anybody", "m1", USAGE) == pytest.approx(3.0)
    assert prices.cost("anybody", "m2", USAGE) is None


async def test_half_a_price_is_refused(tmp_path):
    async with trio.open_nursery() as nursery:
        with pytest.raises(CliError, match="two halves"):
            await start_prices(config_of(tmp_path, price_input=1.0), nursery)
