"""An open portal to nothing, which is enough to call through."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import pytest
from kit.slots import came

from greenroom.actors.portal import Portal


@asynccontextmanager
async def nothing() -> AsyncGenerator[str]:
    yield "nothing"


@pytest.fixture
def portal() -> Iterator[Portal[str]]:
    portal = Portal(nothing)
    portal.start()
    assert came(portal.opened) == "nothing"
    yield portal
    portal.close_soon()
    came(portal.ended)
