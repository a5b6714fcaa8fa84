"""The runner collects garbage before each side; here that is the whole suite's."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest


@pytest.fixture(autouse=True)
def _own_garbage_only() -> Generator[None]:
    gc.freeze()
    yield
    gc.unfreeze()
