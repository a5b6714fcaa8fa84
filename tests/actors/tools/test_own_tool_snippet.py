"""The example of the guide works as the guide says."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from kit.operations import FakeOperation

from greenroom.actors.tools import Needs, ToolRefused, ToolResult

SNIPPET = Path(__file__).parents[3] / "docs" / "snippets" / "own_tool.py"


@pytest.fixture
def snippet():
    return runpy.run_path(str(SNIPPET))


async def test_the_simple_tool_answers(context, snippet):
    operation = FakeOperation(context)
    result = await snippet["stock"].run({"fruit": "apple"}, operation)
    assert result == ToolResult("3 of apple")
    assert operation.order == ["dispatch"]


async def test_the_tool_that_asks_does_so_for_big_orders_only(context, snippet):
    order = snippet["order"]
    big = await order.precheck({"fruit": "pear", "count": 11}, context)
    assert big == Needs("order 11 of pear", "order", "other")
    small = await order.precheck({"fruit": "pear"}, context)
    assert small.permission is None
    with pytest.raises(ToolRefused, match="<= 100"):
        await order.precheck({"fruit": "pear", "count": 101}, context)
    result = await order.run({"fruit": "pear"}, FakeOperation(context))
    assert result.text == '{"pear":1}'


async def test_the_tool_that_dispatches_itself_refuses_before(context, snippet):
    operation = FakeOperation(context)
    with pytest.raises(ToolRefused, match="no 'pear' in stock"):
        await snippet["ship"].run({"fruit": "pear"}, operation)
    assert operation.order == []
    result = await snippet["ship"].run({"fruit": "apple"}, operation)
    assert result == ToolResult("2 left", title="shipped one apple")
    assert operation.order == ["dispatch", "progress"]
    assert snippet["SHIPPED"] == {operation.idempotency_key: "apple"}
