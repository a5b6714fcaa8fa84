"""A world per test, once for every implementation of the store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("kit.stores", "kit.store_contract")

from kit.stores import Peer, World, open_world  # noqa: E402 - rewritten first


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with open_world(request.param) as opened:
        yield opened


@pytest.fixture
def peer(world: World) -> Peer:
    return world.join("window one")
