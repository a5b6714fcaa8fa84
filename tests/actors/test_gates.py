"""Gates: what is inside keeps a deletion waiting, and a deletion keeps others out."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.gates import (
    GATE_SECONDS,
    BeingDeletedError,
    Gates,
    StillUsedError,
)


async def hold(gates: Gates, name: str, until: trio.Event) -> None:
    with gates.operation(name):
        await until.wait()


async def delete(gates: Gates, log: list[str]) -> None:
    async with gates.deletion("a"):
        log.append("shut")
    log.append("open")


@pytest.mark.contract("DEL-08")
async def test_a_deletion_waits_for_what_is_inside_and_refuses_more() -> None:
    gates, log, gate = Gates("agent"), list[str](), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, gates, "a", gate)
        nursery.start_soon(hold, gates, "a", gate)
        await wait_all_tasks_blocked()
        nursery.start_soon(delete, gates, log)
        await wait_all_tasks_blocked()
        assert log == []
        with pytest.raises(BeingDeletedError), gates.operation("a"):
            log.append("inside")
        with pytest.raises(BeingDeletedError):
            async with gates.deletion("a"):
                log.append("second")
        with gates.operation("b"):
            gate.set()
            await wait_all_tasks_blocked()
    assert log == ["shut", "open"]
    assert repr(gates) == "<Gates of 0 agents>"


async def test_a_deletion_gives_up_at_its_bound_and_opens_the_gate(
    autojump_clock: MockClock,
) -> None:
    gates, gate = Gates("agent"), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, gates, "a", gate)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        with pytest.raises(StillUsedError):
            await delete(gates, [])
        assert trio.current_time() - began == GATE_SECONDS == 30
        with gates.operation("a"):
            gate.set()
    assert repr(gates) == "<Gates of 0 agents>"


async def test_a_cancelled_deletion_opens_the_gate() -> None:
    gates, gate = Gates("agent"), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, gates, "a", gate)
        await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await delete(gates, [])
        assert scope.cancelled_caught
        gates.check("a")
        gate.set()


async def gather(count: int, call: Any) -> list[Any]:
    results: list[Any] = []

    async def one() -> None:
        try:
            results.append(await call())
        except Exception as exc:
            results.append(exc)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)
    return results


@pytest.mark.parametrize("error", [None, StillUsedError("agent", "a", 30)])
async def test_those_who_ask_at_once_share_one_result(error: Exception | None) -> None:
    gates, calls = Gates("agent"), list[int]()

    async def work() -> object:
        calls.append(1)
        await wait_all_tasks_blocked()
        if error is not None:
            raise error
        return calls

    results = await gather(3, lambda: gates.shared("a", work))
    assert len(calls) == 1
    assert all(result is (error or calls) for result in results)


async def test_another_does_it_when_the_first_is_cancelled() -> None:
    gates, gate = Gates("agent"), trio.Event()
    began: list[trio.CancelScope] = []
    results: list[str] = []

    async def ask() -> None:
        async def work() -> str:
            began.append(scope)
            await gate.wait()
            return "done"

        with trio.CancelScope() as scope:
            results.append(await gates.shared("a", work))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        assert len(began) == 1
        began[0].cancel()
        await wait_all_tasks_blocked()
        gate.set()
    assert len(began) == 2
    assert results == ["done", "done"]
