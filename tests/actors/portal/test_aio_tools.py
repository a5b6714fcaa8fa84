"""Tools that are functions of asyncio: where they run, and how they end."""

from __future__ import annotations

import asyncio
import threading
from typing import Annotated, Any

import msgspec
import pytest
import trio
import trio.testing
from kit.operations import FakeOperation, make_context
from kit.slots import came

from greenroom import aio, engine
from greenroom.actors.portal._asyncio import awaited
from greenroom.actors.portal._asyncio_tools import AsyncOperation
from greenroom.actors.portal._host import _HOST, AsyncHost
from greenroom.actors.tools import Doubt, ToolResult
from greenroom.protocol import PlanEntry


async def run_there(portal: Any, tool: Any, arguments: dict[str, Any], operation: Any):
    """Run *tool* in the run of *portal*, whose host is this loop."""
    host = AsyncHost(asyncio.get_running_loop(), portal)

    async def there() -> ToolResult:
        _HOST.set(host)
        return await tool.run(arguments, operation)

    return await awaited(portal.submit(there))


def test_it_runs_on_the_loop_of_the_program_after_its_dispatch(portal, tmp_path):
    operation = FakeOperation(make_context(tmp_path))

    @aio.tool
    async def where(name: str) -> dict[str, bool]:
        """Tell where it runs."""
        await asyncio.sleep(0)
        return {name: asyncio.get_running_loop() is loop}

    async def main() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        result = await run_there(portal, where, {"name": "here"}, operation)
        assert result == ToolResult('{"here":true}')

    loop: Any = None
    asyncio.run(main())
    assert operation.order == ["dispatch"]


def test_it_is_the_same_tool_as_one_of_trio():
    async def look(
        name: Annotated[str, msgspec.Meta(description="which")], times: int = 1
    ) -> str:
        """Look at something."""
        return name * times

    contract: dict[str, Any] = {
        "read_only": True,
        "timeout": 3.0,
        "permission": "look",
        "name": "look_at",
    }
    ours, theirs = aio.tool(**contract)(look), engine.tool(**contract)(look)

    assert ours.definition == theirs.definition
    assert (ours.read_only, ours.parallel_safe) == (True, True)


def test_its_operation_crosses_back(portal, tmp_path):
    operation = FakeOperation(make_context(tmp_path), granted=True)

    @aio.tool
    async def work(operation: aio.Operation, steps: int) -> ToolResult:
        """Work."""
        assert operation.granted
        assert operation.context.workspace.name == "workspace"
        await operation.dispatch()
        for step in range(steps):
            operation.progress(f"step {step}")
        await operation.report(title="worked")
        revision = await operation.update_plan((PlanEntry("rest"),))
        return ToolResult(f"{operation.idempotency_key} {revision}")

    async def main() -> ToolResult:
        return await run_there(portal, work, {"steps": 2}, operation)

    result = asyncio.run(main())
    assert result.text.startswith(operation.idempotency_key)
    assert operation.order[0] == "dispatch"
    assert "".join(operation.shown) == "step 0step 1"
    assert operation.reports == [("worked", (), ())]
    assert operation.plans == [(PlanEntry("rest"),)]


def test_progress_is_bounded_while_the_engine_does_not_look(portal, tmp_path):
    operation = FakeOperation(make_context(tmp_path))

    async def there() -> int:
        await operation.dispatch()
        crossing = AsyncOperation(operation, portal)
        for number in range(1_000):
            crossing.progress(f"{number} " + "x" * 100_000)
        assert operation.shown == []
        await trio.testing.wait_all_tasks_blocked()
        return sum(map(len, operation.shown))

    shown = came(portal.submit(there).slot)
    assert shown == 256 * 16_384
    assert operation.shown[-1].startswith("999 ")


def test_progress_that_can_t_be_shown_is_an_error_of_its_tool_alone(portal, tmp_path):
    operation = FakeOperation(make_context(tmp_path))

    async def there() -> None:
        crossing = AsyncOperation(operation, portal)
        crossing.progress("before its dispatch")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(AssertionError, match="output before dispatch"):
            crossing.progress("again")

    came(portal.submit(there).slot)


@pytest.mark.parametrize("of_the_process", [False, True])
def test_what_it_raises_is_the_tool_s_error(portal, tmp_path, of_the_process):
    operation = FakeOperation(make_context(tmp_path))

    @aio.tool
    async def fails() -> None:
        """Fail."""
        if of_the_process:
            raise asyncio.CancelledError
        raise LookupError("not here")

    async def main() -> None:
        expected = RuntimeError if of_the_process else LookupError
        with pytest.raises(expected, match=r"cancelled by|not here"):
            await run_there(portal, fails, {}, operation)

    asyncio.run(main())


def test_a_cancel_of_the_call_cancels_its_task_and_waits_for_it(portal, tmp_path):
    operation, order = FakeOperation(make_context(tmp_path)), list[str]()

    @aio.tool
    async def hangs() -> None:
        """Hang."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            order.append("cleaned up")

    async def main() -> None:
        nonlocal begun
        begun = asyncio.Event()
        call = asyncio.create_task(run_there(portal, hangs, {}, operation))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        order.append("told")

    begun: Any = None
    asyncio.run(main())
    assert order == ["cleaned up", "told"]


def test_a_task_that_does_not_end_is_left_after_its_clean_up_time(portal, tmp_path):
    operation = FakeOperation(make_context(tmp_path))

    @aio.tool(cleanup=0)
    async def stubborn() -> None:
        """Go on."""
        begun.set()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                cancelled.set()

    async def main() -> None:
        nonlocal begun, cancelled, may_end
        begun, cancelled, may_end = (asyncio.Event() for _ in range(3))
        call = asyncio.create_task(run_there(portal, stubborn, {}, operation))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await cancelled.wait()
        may_end.set()

    begun: Any = None
    cancelled: Any = None
    may_end: Any = None
    asyncio.run(main())


def test_its_loop_may_be_closed(portal, tmp_path):
    operation = FakeOperation(make_context(tmp_path))
    host = AsyncHost(asyncio.new_event_loop(), portal)
    host.loop.close()

    @aio.tool
    async def late() -> None:
        """Come late."""

    async def there() -> None:
        _HOST.set(host)
        await late.run({}, operation)

    with pytest.raises(RuntimeError, match="closed"):
        came(portal.submit(there).slot)


async def test_an_engine_that_was_not_opened_in_asyncio_says_so(tmp_path):
    @aio.tool
    async def lost() -> None:
        """Have no loop."""

    with pytest.raises(RuntimeError, match=r"greenroom\.aio"):
        await lost.run({}, FakeOperation(make_context(tmp_path)))


async def test_a_plain_function_runs_in_a_worker_thread(tmp_path):
    @aio.tool(read_only=True)
    def plain() -> str:
        """Run in a thread."""
        return threading.current_thread().name

    result = await plain.run({}, FakeOperation(make_context(tmp_path)))
    assert result.text != threading.current_thread().name


def test_an_operation_of_trio_is_refused():
    async def wrong(operation: engine.Operation) -> None:
        """Take the wrong one."""

    with pytest.raises(TypeError, match=r"greenroom\.aio\.Operation"):
        aio.tool(wrong)


def test_a_function_that_finds_out_runs_on_the_loop_too(portal, tmp_path):
    context = make_context(tmp_path)
    doubt = Doubt(FakeOperation(context).id, {}, context)

    async def find_out(doubt: Doubt) -> str:
        asyncio.get_running_loop()
        return doubt.idempotency_key

    @aio.tool(reconcile=find_out)
    async def buys() -> None:
        """Buy."""

    async def main() -> ToolResult:
        host = AsyncHost(asyncio.get_running_loop(), portal)

        async def there() -> Any:
            _HOST.set(host)
            return await buys.reconcile(doubt)  # pyright: ignore[reportAttributeAccessIssue]

        return await awaited(portal.submit(there))

    assert asyncio.run(main()).text == doubt.idempotency_key
