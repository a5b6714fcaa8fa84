"""Every implementation keeps every promise of the contract."""

from __future__ import annotations

import pytest
from kit.store_contract import CHECKS
from kit.stores import World


@pytest.mark.parametrize("promise", CHECKS)
def test_the_store_keeps_its_promise(world: World, promise: str) -> None:
    check_promise = CHECKS[promise]
    check_promise(world)
