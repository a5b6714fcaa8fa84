from __future__ import annotations

import sys

import pytest

from greenroom.actors.prices import Prices
from greenroom.protocol import Price, Usage

USAGE = Usage(input=1_000, output=100, total=1_100)
OPENAI = "openai@api.openai.com"


def test_a_configured_price_comes_before_the_public_one():
    prices = Prices({"gpt-4o": Price(input=1.0, output=10.0)})
    prices.load()
    assert prices.cost(OPENAI, "gpt-4o", USAGE) == pytest.approx(0.002)


def test_the_public_list_knows_price_and_window_by_address_and_model():
    pytest.importorskip("genai_prices")
    prices = Prices()
    assert prices.load()
    assert prices.cost(OPENAI, "gpt-4o", USAGE) == pytest.approx(0.0035)
    assert prices.context_window(OPENAI, "gpt-4o") == 128_000


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai@api.openai.com", "no such model"),
        ("openai@localhost:8080", "gpt-4o"),
        ("rehearsal", "gpt-4o"),
    ],
)
def test_what_is_not_listed_has_no_known_price(provider, model):
    prices = Prices()
    prices.load()
    assert prices.cost(provider, model, USAGE) is None
    assert prices.context_window(provider, model) is None


def test_impossible_numbers_have_no_known_price():
    prices = Prices()
    prices.load()
    odd = Usage(input=1, output=1, total=2, cache_read=100)
    assert prices.cost(OPENAI, "gpt-4o", odd) is None


def test_without_the_extra_nothing_is_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    prices = Prices()
    assert not prices.load()
    assert prices.cost(OPENAI, "gpt-4o", USAGE) is None
