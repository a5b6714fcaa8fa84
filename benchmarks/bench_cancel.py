"""Ending ten thousand waiting actors: by the kill, with and without clean-up, by stop.

Baseline: as many bare tasks asleep in one nursery whose scope is cancelled. Only the
end is measured, from the call until the last one has exited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
import trio.testing
from runner import Case, Figures, Ratio
from stopwatch import Stopwatch

from greenroom.actors.kernel import (
    CancelCause,
    Context,
    Ref,
    Stop,
    open_system,
)

Behaviour = Callable[[Context[Any]], Awaitable[None]]


#### Actors


async def _waiting(ctx: Context[Any]) -> None:
    async for message in ctx.mailbox:
        if isinstance(message, Stop):
            return


async def _cleaning_up(ctx: Context[Any]) -> None:
    try:
        async for _ in ctx.mailbox:
            pass
    finally:
        with ctx.cleanup():
            await trio.lowlevel.checkpoint()


async def _actors(
    behaviour: Behaviour, end: Callable[[Ref[Any], list[Ref[Any]]], None], count: int
) -> Figures:
    async with open_system() as system:
        group = system.supervisor("group")
        await group.ref.wait_started()
        refs = [group.spawn(f"actor {number}", behaviour) for number in range(count)]
        await trio.testing.wait_all_tasks_blocked()
        supervisor = group.ref
        watch = Stopwatch()
        end(supervisor, refs)
        for ref in refs:
            if not ref.exited:
                await ref.wait_exited()
        return watch.cpu_us_each(count)


def _kill_group(supervisor: Ref[Any], refs: list[Ref[Any]]) -> None:
    supervisor.cancel(CancelCause.USER_STOP)


def _kill_each(supervisor: Ref[Any], refs: list[Ref[Any]]) -> None:
    for ref in refs:
        ref.cancel(CancelCause.USER_STOP)


def _stop_each(supervisor: Ref[Any], refs: list[Ref[Any]]) -> None:
    for ref in refs:
        ref.stop(CancelCause.USER_STOP)


#### Bare tasks


async def _asleep() -> None:
    await trio.sleep_forever()


async def _asleep_then_cleaning_up() -> None:
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()


async def _bare(task: Callable[[], Awaitable[None]], count: int) -> Figures:
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(task)
        await trio.testing.wait_all_tasks_blocked()
        watch = Stopwatch()
        nursery.cancel_scope.cancel()
    return watch.cpu_us_each(count)


async def _bare_own_scopes(count: int) -> Figures:
    scopes: list[trio.CancelScope] = []

    async def task() -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(task)
        await trio.testing.wait_all_tasks_blocked()
        watch = Stopwatch()
        for scope in scopes:
            scope.cancel()
    return watch.cpu_us_each(count)


CANCEL = Case(
    name="cancel-10000",
    question="how dear is the end of one of ten thousand waiting actors?",
    clock="cpu",
    sides={
        "bare tasks": lambda size: trio.run(_bare, _asleep, size),
        "kill": lambda size: trio.run(_actors, _waiting, _kill_group, size),
        "kill, clean-up": lambda s: trio.run(_actors, _cleaning_up, _kill_group, s),
        "stop": lambda size: trio.run(_actors, _waiting, _stop_each, size),
        "bare tasks, clean-up": lambda s: trio.run(_bare, _asleep_then_cleaning_up, s),
        "kill one by one": lambda s: trio.run(_actors, _waiting, _kill_each, s),
        "bare tasks, own scopes": lambda size: trio.run(_bare_own_scopes, size),
    },
    claims=(
        Ratio("us_each", over="kill", under="bare tasks", at_most=1.5),
        Ratio("us_each", over="kill, clean-up", under="bare tasks", at_most=2.5),
        Ratio("us_each", over="stop", under="bare tasks", at_most=0.5),
        Ratio("us_each", over="kill, clean-up", under="bare tasks, clean-up"),
        Ratio("us_each", over="kill one by one", under="bare tasks, own scopes"),
    ),
    size=10_000,
    smoke_size=10,
)

CASES: Final = (CANCEL,)
