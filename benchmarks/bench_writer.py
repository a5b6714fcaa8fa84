"""Strict facts of a hundred sessions at once, each waiting for each of its own.

``synchronous=FULL``: a fact counts when the disk has it. Baselines commit the same
pieces one by one, on the loop or with a hop into a worker thread each. Elapsed time,
because this is about waiting; the idle loop shows what the machine itself adds.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio
from runner import Case, Figures, Limit, Ratio
from stopwatch import Stopwatch, percentile
from tapes import open_tapes, scratch, strict_piece

from greenroom.actors.writer import open_writer
from greenroom.storage import Piece, SqliteStore, Tape, open_store

SESSIONS: Final = 100
TICK: Final = 0.001
SLOW_SHARE: Final = 10
"""The slow ways commit so many times fewer facts, so that a round stays short."""

Submit = Callable[[Piece], Awaitable[object]]


async def _inline(store: SqliteStore, piece: Piece) -> None:
    await trio.lowlevel.checkpoint()
    (settled,) = store.run_group([piece])
    assert settled.error is None


async def _by_thread(
    store: SqliteStore, limiter: trio.CapacityLimiter, piece: Piece
) -> None:
    (settled,) = await trio.to_thread.run_sync(
        store.run_group, [piece], limiter=limiter
    )
    assert settled.error is None


async def _drive(submit: Submit, tapes: list[Tape], each: int) -> Figures:
    lags: list[float] = []
    waits: list[float] = []

    async def session(number: int, tape: Tape) -> None:
        for call in range(each):
            piece = strict_piece(tape, number, call)
            began = time.perf_counter()
            await submit(piece)
            waits.append(time.perf_counter() - began)

    watch = Stopwatch()
    async with trio.open_nursery() as outer:
        outer.start_soon(_watch_lag, lags)
        async with trio.open_nursery() as inner:
            for number, tape in enumerate(tapes):
                inner.start_soon(session, number, tape)
        elapsed = watch.wall()
        outer.cancel_scope.cancel()
    return {
        "facts_per_s": len(tapes) * each / elapsed,
        "wait_p50_ms": percentile(waits, 0.50) * 1e3,
        "wait_p99_ms": percentile(waits, 0.99) * 1e3,
        "lag_p99_ms": percentile(lags, 0.99) * 1e3,
    }


# How much later than asked the loop comes back; part of it is the timer's grain.
async def _watch_lag(lags: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await trio.sleep(TICK)
        lags.append(time.perf_counter() - began - TICK)


async def _with_writer(facts: int) -> Figures:
    sessions = min(SESSIONS, facts // 2)
    with scratch() as folder:
        store = open_store(folder)
        tapes = open_tapes(store, sessions)
        async with open_writer(store) as writer:
            figures = await _drive(writer.submit, tapes, facts // sessions)
            done = writer.statistics()
    return figures | {"pieces_per_group": done.pieces / done.groups}


async def _one_by_one(
    make: Callable[[SqliteStore], Submit], share: int, facts: int
) -> Figures:
    sessions = min(SESSIONS, facts // 2)
    with scratch() as folder:
        store = open_store(folder)
        try:
            tapes = open_tapes(store, sessions)
            each = max(1, facts // sessions // share)
            return await _drive(make(store), tapes, each)
        finally:
            store.close()


def _in_thread(store: SqliteStore) -> Submit:
    return partial(_by_thread, store, trio.CapacityLimiter(1))


async def _idle(facts: int) -> Figures:
    lags: list[float] = []
    with trio.move_on_after(min(facts, 300) * TICK):
        await _watch_lag(lags)
    return {"lag_p99_ms": percentile(lags, 0.99) * 1e3}


STRICT: Final = Case(
    name="strict-facts",
    question="how many strict facts a second do 100 sessions commit together?",
    clock="wall",
    sides={
        "writer": lambda size: trio.run(_with_writer, size),
        "one commit each, inline": lambda size: trio.run(
            _one_by_one, lambda store: partial(_inline, store), 3, size
        ),
        "one thread hop each": lambda size: trio.run(
            _one_by_one, _in_thread, SLOW_SHARE, size
        ),
        "idle loop": lambda size: trio.run(_idle, size),
    },
    claims=(
        Ratio(
            "facts_per_s", over="writer", under="one commit each, inline", at_least=4.0
        ),
        Ratio("facts_per_s", over="writer", under="one thread hop each", at_least=15.0),
        Limit("lag_p99_ms", of="writer", at_most=5.0),
        Limit("lag_p99_ms", of="idle loop"),
    ),
    size=6_000,
    smoke_size=10,
)

CASES: Final = (STRICT,)
