"""The operation of a plain function, which makes its worker thread wait."""

from __future__ import annotations

import threading

import pytest
import trio
from kit.operations import FakeOperation

from greenroom.actors.tools import (
    BlockingOperation,
    Doubt,
    Operation,
    ToolRefused,
    ToolResult,
    tool,
)
from greenroom.protocol import PlanEntry


async def test_a_plain_function_dispatches_itself(context):
    fake = FakeOperation(context, granted=True)

    @tool
    def work(operation: BlockingOperation, name: str) -> str:
        """Work."""
        assert (operation.id, operation.granted) == (fake.id, True)
        assert operation.context is context
        operation.dispatch()
        operation.progress("half")
        operation.report(title="worked")
        revision = operation.update_plan((PlanEntry("rest"),))
        return f"{name} {revision} {operation.idempotency_key}"

    result = await work.run({"name": "x"}, fake)

    assert result == ToolResult(f"x 1 {fake.idempotency_key}")
    assert fake.order[:2] == ["dispatch", "progress"]
    assert (fake.shown, fake.reports) == (["half"], [("worked", (), ())])
    assert work.definition.parameters["required"] == ["name"]


async def test_what_it_refuses_before_its_dispatch_is_not_dispatched(context):
    fake = FakeOperation(context)

    @tool
    def refuses(operation: BlockingOperation) -> None:
        """Refuse."""
        raise ToolRefused("not today")

    with pytest.raises(ToolRefused, match="not today"):
        await refuses.run({}, fake)
    assert fake.order == []


async def test_a_thread_that_was_left_behind_dispatches_no_more(context, nursery):
    fake, ended = FakeOperation(context), trio.Event()
    begun, may_go_on = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()
    raised: list[BaseException] = []

    @tool
    def late(operation: BlockingOperation) -> None:
        """Dispatch late."""
        trio.from_thread.run_sync(begun.set)
        may_go_on.wait(10)
        try:
            operation.dispatch()
        except BaseException as exc:
            raised.append(exc)
        token.run_sync_soon(ended.set)

    with trio.CancelScope() as scope:
        nursery.start_soon(_cancel_after, begun, scope)
        await late.run({}, fake)
    may_go_on.set()
    await ended.wait()

    assert [type(each) for each in raised] == [trio.Cancelled]
    assert fake.order == []


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def test_a_plain_function_finds_out_in_a_worker_thread(context):
    def look(doubt: Doubt) -> str | None:
        return threading.current_thread().name if doubt.arguments else None

    @tool(reconcile=look)
    def buys() -> None:
        """Buy."""

    identity = FakeOperation(context).id
    known = await buys.reconcile(Doubt(identity, {"a": 1}, context))

    assert known is not None
    assert known.text != threading.current_thread().name
    assert await buys.reconcile(Doubt(identity, {}, context)) is None


def test_a_function_takes_the_operation_that_it_can_use():
    async def waits(operation: BlockingOperation) -> None:
        """Wait."""

    def blocks(operation: Operation) -> None:
        """Block."""

    with pytest.raises(TypeError, match="takes an Operation"):
        tool(waits)
    with pytest.raises(TypeError, match="takes a BlockingOperation"):
        tool(blocks)
