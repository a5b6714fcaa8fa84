"""A call into an engine's loop from asyncio and from a plain thread.

The call itself is one checkpoint, so what is measured is the way there and back. The
baselines: the same call by a task of trio; `anyio`'s blocking portal on trio, awaited
from asyncio and waited for in a thread; and trio as a guest of asyncio's loop.

Processor time of all threads. In a second case the loop of the engine works in steps of
five milliseconds: how long is the loop of asyncio held up by that?
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import trio
from anyio.from_thread import start_blocking_portal
from runner import Case, Figures, Limit, Ratio
from stopwatch import Stopwatch

from greenroom.actors.portal import (
    Remote,
    awaiting,
    blocking,
    open_async,
    open_blocking,
)

AT_ONCE: Final = 100
STEP_SECONDS: Final = 0.005

Call = Callable[[], Awaitable[Any]]
Measure = Callable[[Call, int], Awaitable[Figures]]


class Thing:
    """What is called."""

    async def touch(self) -> int:
        """Take one step."""
        await trio.lowlevel.checkpoint()
        return 1

    async def work(self, stopped: list[bool]) -> None:
        """Keep the loop busy, in steps."""
        while not stopped:
            end = time.perf_counter() + STEP_SECONDS
            while time.perf_counter() < end:
                pass
            await trio.lowlevel.checkpoint()


class AsyncThing:
    """Its twin in asyncio."""

    def __init__(self, remote: Remote[Thing]) -> None:
        self.remote = remote

    touch = awaiting(Thing.touch)
    work = awaiting(Thing.work)


class BlockingThing:
    """Its twin in threads."""

    def __init__(self, remote: Remote[Thing]) -> None:
        self.remote = remote

    touch = blocking(Thing.touch)


@asynccontextmanager
async def _thing() -> AsyncGenerator[Thing]:
    yield Thing()


#### What is measured


async def _calls(call: Call, size: int) -> Figures:
    """One call after the other, then a hundred at once."""
    watch = Stopwatch()
    for _ in range(size):
        await call()
    one = watch.cpu_us_each(size)["us_each"]
    each = max(1, size // AT_ONCE)

    async def several() -> None:
        for _ in range(each):
            await call()

    watch = Stopwatch()
    await asyncio.gather(*[several() for _ in range(AT_ONCE)])
    return {
        "us_each": one,
        "us_each_of_100": watch.cpu_us_each(each * AT_ONCE)["us_each"],
    }


async def _held_up(call: Call, size: int) -> Figures:
    """How long a call keeps its own loop from anything else, at most."""
    longest, loop = 0.0, asyncio.get_running_loop()
    for _ in range(size):
        began = loop.time()
        task = asyncio.ensure_future(call())
        # One turn of the loop, in which the call is begun.
        await asyncio.sleep(0)
        longest = max(longest, loop.time() - began)
        await task
    return {"held_up_ms": longest * 1e3}


#### Sides


async def _trio(size: int) -> Figures:
    thing = Thing()
    watch = Stopwatch()
    for _ in range(size):
        await thing.touch()
    one = watch.cpu_us_each(size)["us_each"]
    each = max(1, size // AT_ONCE)

    async def several() -> None:
        for _ in range(each):
            await thing.touch()

    watch = Stopwatch()
    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(several)
    return {
        "us_each": one,
        "us_each_of_100": watch.cpu_us_each(each * AT_ONCE)["us_each"],
    }


async def _ours(measure: Measure, size: int, *, busy: bool = False) -> Figures:
    stopped: list[bool] = []
    async with open_async(_thing, AsyncThing)() as thing:
        working = asyncio.create_task(thing.work(stopped)) if busy else None
        figures = await measure(thing.touch, size)
        stopped.append(True)
        if working is not None:
            await working
    return figures


async def _anyio(
    measure: Measure, size: int, *, busy: bool = False, wrap: bool = False
) -> Figures:
    thing, stopped = Thing(), list[bool]()
    with start_blocking_portal("trio") as portal:

        async def call() -> int:
            if wrap:
                return await asyncio.wrap_future(portal.start_task_soon(thing.touch))
            return await portal.call_async(thing.touch)

        working = portal.start_task_soon(thing.work, stopped) if busy else None
        figures = await measure(call, size)
        stopped.append(True)
        if working is not None:
            working.result()
    return figures


async def _guest(measure: Measure, size: int, *, busy: bool = False) -> Figures:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    ready: asyncio.Future[tuple[Any, ...]] = loop.create_future()
    thing, stopped = Thing(), list[bool]()

    async def keep() -> None:
        async with trio.open_nursery() as nursery:
            end = trio.Event()
            if busy:
                nursery.start_soon(thing.work, stopped)
            ready.set_result((trio.lowlevel.current_trio_token(), nursery, end))
            await end.wait()

    trio.lowlevel.start_guest_run(
        keep,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        run_sync_soon_not_threadsafe=loop.call_soon,
        done_callback=done.set_result,
        host_uses_signal_set_wakeup_fd=True,
    )
    token, nursery, end = await ready

    async def call() -> int:
        waiter: asyncio.Future[int] = loop.create_future()

        async def there() -> None:
            with trio.CancelScope():
                waiter.set_result(await thing.touch())

        token.run_sync_soon(nursery.start_soon, there)
        return await waiter

    figures = await measure(call, size)
    stopped.append(True)
    token.run_sync_soon(end.set)
    (await done).unwrap()
    return figures


def _ours_in_a_thread(size: int) -> Figures:
    with open_blocking(_thing, BlockingThing)() as thing:
        watch = Stopwatch()
        for _ in range(size):
            thing.touch()
        return watch.cpu_us_each(size)


def _anyio_in_a_thread(size: int) -> Figures:
    thing = Thing()
    with start_blocking_portal("trio") as portal:
        watch = Stopwatch()
        for _ in range(size):
            portal.call(thing.touch)
        return watch.cpu_us_each(size)


CALLS = Case(
    name="portal",
    question="how dear is a call from asyncio into an engine's loop?",
    clock="cpu",
    sides={
        "greenroom.aio": lambda size: asyncio.run(_ours(_calls, size)),
        "anyio, call_async": lambda size: asyncio.run(_anyio(_calls, size)),
        "anyio, start_task_soon": lambda size: asyncio.run(
            _anyio(_calls, size, wrap=True)
        ),
        "trio as a guest": lambda size: asyncio.run(_guest(_calls, size)),
        "trio itself": lambda size: trio.run(_trio, size),
    },
    claims=(
        Ratio("us_each", over="anyio, call_async", under="greenroom.aio", at_least=1.2),
        Ratio("us_each_of_100", over="anyio, call_async", under="greenroom.aio"),
        Ratio("us_each", over="anyio, start_task_soon", under="greenroom.aio"),
        Ratio("us_each", over="trio as a guest", under="greenroom.aio"),
        Ratio("us_each_of_100", over="trio as a guest", under="greenroom.aio"),
        Ratio("us_each", over="greenroom.aio", under="trio itself"),
    ),
    size=3_000,
    smoke_size=100,
)

BLOCKING = Case(
    name="portal-blocking",
    question="how dear is a call from a plain thread into an engine's loop?",
    clock="cpu",
    sides={
        "greenroom.sync": _ours_in_a_thread,
        "anyio, call": _anyio_in_a_thread,
    },
    claims=(
        Ratio("us_each", over="anyio, call", under="greenroom.sync", at_least=1.2),
    ),
    size=3_000,
    smoke_size=10,
)

HELD_UP = Case(
    name="portal-busy",
    question="how long does a busy engine hold asyncio's loop up, at most?",
    clock="wall",
    sides={
        "greenroom.aio": lambda size: asyncio.run(_ours(_held_up, size, busy=True)),
        "anyio, call_async": lambda size: asyncio.run(
            _anyio(_held_up, size, busy=True)
        ),
        "anyio, start_task_soon": lambda size: asyncio.run(
            _anyio(_held_up, size, busy=True, wrap=True)
        ),
        "trio as a guest": lambda size: asyncio.run(_guest(_held_up, size, busy=True)),
    },
    claims=(
        Limit("held_up_ms", of="greenroom.aio"),
        Ratio("held_up_ms", over="trio as a guest", under="greenroom.aio"),
        Ratio("held_up_ms", over="anyio, start_task_soon", under="greenroom.aio"),
    ),
    size=100,
    smoke_size=2,
)

CASES: Final = (CALLS, BLOCKING, HELD_UP)
