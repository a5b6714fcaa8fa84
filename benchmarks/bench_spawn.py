"""Starting task actors and stopping them with a message, a thousand alive at a time.

Baselines: what one writes without a kernel, a task with a cancel scope, a nursery and
a memory channel of its own; and bare tasks that end when an event is set, which is as
little as trio can do.
"""

from __future__ import annotations

from typing import Any, Final

import trio
import trio.testing
from runner import Case, Figures, Ratio
from stopwatch import Stopwatch

from greenroom.actors.kernel import CancelCause, Context, Stop, open_system

STOP: Final = object()


async def _actor(ctx: Context[Any]) -> None:
    async for message in ctx.mailbox:
        if isinstance(message, Stop):
            return


async def _actors(count: int) -> Figures:
    async with open_system() as system:
        watch = Stopwatch()
        refs = [system.spawn(f"actor {number}", _actor) for number in range(count)]
        await trio.testing.wait_all_tasks_blocked()
        for ref in refs:
            ref.stop(CancelCause.USER_STOP)
        for ref in refs:
            if not ref.exited:
                await ref.wait_exited()
        return watch.cpu_us_each(count)


async def _by_hand(receive: trio.MemoryReceiveChannel[object]) -> None:
    with trio.CancelScope():
        async with trio.open_nursery(), receive:
            async for message in receive:
                if message is STOP:
                    return


async def _scopes_nurseries_channels(count: int) -> Figures:
    async with trio.open_nursery() as outer:
        watch = Stopwatch()
        async with trio.open_nursery() as nursery:
            sends: list[trio.MemorySendChannel[object]] = []
            for _ in range(count):
                send, receive = trio.open_memory_channel[object](64)
                nursery.start_soon(_by_hand, receive)
                sends.append(send)
            await trio.testing.wait_all_tasks_blocked()
            for send in sends:
                send.send_nowait(STOP)
                send.close()
        figures = watch.cpu_us_each(count)
        outer.cancel_scope.cancel()
    return figures


async def _bare_tasks(count: int) -> Figures:
    go = trio.Event()
    watch = Stopwatch()
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(go.wait)
        await trio.testing.wait_all_tasks_blocked()
        go.set()
    return watch.cpu_us_each(count)


SPAWN = Case(
    name="spawn-stop",
    question="how dear is a task actor that is started and stopped?",
    clock="cpu",
    sides={
        "task actor": lambda size: trio.run(_actors, size),
        "scope, nursery and channel": lambda s: trio.run(_scopes_nurseries_channels, s),
        "bare task": lambda size: trio.run(_bare_tasks, size),
    },
    claims=(
        Ratio(
            "us_each",
            over="scope, nursery and channel",
            under="task actor",
            at_least=2.0,
        ),
        Ratio("us_each", over="task actor", under="bare task"),
    ),
    size=1_000,
    smoke_size=10,
)

CASES: Final = (SPAWN,)
