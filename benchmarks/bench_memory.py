"""Memory of an actor that waits for mail, as tracemalloc counts it.

What an actor keeps of its own (here an object of a hosted one) is made before and does
not count. Baseline: a task that waits at a memory channel, without supervision, name,
exit reason or mailbox lanes.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
import trio.testing
from runner import Case, Figures, Limit, Ratio

from greenroom.actors.kernel import Context, Stop, open_system


async def _waiting(ctx: Context[Any]) -> None:
    async for message in ctx.mailbox:
        if isinstance(message, Stop):
            return


class Idle:
    """Hosted: waits for its end."""

    __slots__ = ()

    def handle(self, message: object, ctx: Context[Any]) -> None:
        """End when told to."""
        if isinstance(message, Stop):
            ctx.exit()


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def _task_actors(count: int) -> Figures:
    async with open_system() as system:
        await trio.testing.wait_all_tasks_blocked()
        refs: list[Any] = [None] * count
        before = _traced()
        for number in range(count):
            refs[number] = system.spawn(f"actor {number}", _waiting)
        await trio.testing.wait_all_tasks_blocked()
        return {"bytes_each": (_traced() - before) / count}


async def _hosted_actors(count: int) -> Figures:
    states = [Idle() for _ in range(count)]
    async with open_system() as system:
        await trio.testing.wait_all_tasks_blocked()
        refs: list[Any] = [None] * count
        before = _traced()
        for number, state in enumerate(states):
            refs[number] = system.host(f"actor {number}", state)
        await trio.testing.wait_all_tasks_blocked()
        return {"bytes_each": (_traced() - before) / count}


async def _tasks_with_channels(count: int) -> Figures:
    async def waiting(receive: trio.MemoryReceiveChannel[object]) -> None:
        async with receive:
            async for _ in receive:
                pass

    async with trio.open_nursery() as nursery:
        sends: list[Any] = [None] * count
        before = _traced()
        for number in range(count):
            send, receive = trio.open_memory_channel[object](64)
            nursery.start_soon(waiting, receive)
            sends[number] = send
        await trio.testing.wait_all_tasks_blocked()
        figures = {"bytes_each": (_traced() - before) / count}
        for send in sends:
            send.close()
    return figures


def _tracing(measure: Callable[[int], Awaitable[Figures]], count: int) -> Figures:
    tracemalloc.start()
    try:
        return trio.run(measure, count)
    finally:
        tracemalloc.stop()


MEMORY = Case(
    name="memory-idle",
    question="how much memory does an idle actor take, beyond its state?",
    clock="bytes",
    sides={
        "task actor": lambda size: _tracing(_task_actors, size),
        "hosted actor": lambda size: _tracing(_hosted_actors, size),
        "task and channel": lambda size: _tracing(_tasks_with_channels, size),
    },
    claims=(
        Limit("bytes_each", of="task actor", at_most=4_096),
        Limit("bytes_each", of="hosted actor", at_most=640),
        Ratio("bytes_each", over="task actor", under="task and channel"),
    ),
    size=1_000,
    smoke_size=10,
)

CASES: Final = (MEMORY,)
