"""Nothing that a tool started is there any more when its test ends."""

from __future__ import annotations

import pytest
from kit.operations import MADE, make_context, processes_of

from greenroom.actors.tools import ToolContext


@pytest.fixture
def context(tmp_path) -> ToolContext:
    return make_context(tmp_path)


@pytest.fixture(autouse=True)
def no_orphans():
    MADE.clear()
    yield
    assert list(processes_of(*MADE)) == [], "processes were left behind"
