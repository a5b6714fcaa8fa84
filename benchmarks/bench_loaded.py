"""Many sessions in one engine: what an idle one takes, and what streaming ones write.

*Idle*: memory as tracemalloc counts it, over the engine with nothing loaded; then the
peak of the process over rounds of loading all and unloading all, which must not grow.

*Streaming*: rows that the database changes, at two rates of deltas. A mock clock owns
all time, so the figures are counts and not measurements; the baseline is the slower
rate.
"""

from __future__ import annotations

import gc
import resource
import tempfile
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import trio
import trio.testing
from bench_sessions import state_of_sessions
from runner import Case, Figures, Limit, Ratio

from greenroom.actors.providers import Halt, Pause, RehearsalProvider, Say
from greenroom.engine import Engine, open_engine
from greenroom.storage import open_store

ROUNDS: Final = 10
SECONDS: Final = 2.0
"""That each session streams."""


def _ids(size: int) -> list[str]:
    return [f"s{number:06}" for number in range(size)]


#### Idle


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _peak() -> int:
    # Kilobytes or bytes, as the system likes it: only ratios are taken.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def _load(engine: Engine, ids: list[str]) -> None:
    for session_id in ids:
        await engine.open_session(session_id)


async def _unload(engine: Engine, ids: list[str]) -> None:
    for session_id in ids:
        await engine.session(session_id).close()


async def _idle(size: int) -> Figures:
    ids = _ids(size)
    async with open_engine(state=state_of_sessions(size), idle_seconds=None) as engine:
        # Whatever is made once is made by then.
        await _load(engine, ids[:2])
        await _unload(engine, ids[:2])
        tracemalloc.start()
        try:
            before = _traced()
            await _load(engine, ids)
            await trio.testing.wait_all_tasks_blocked()
            return {"bytes_each": (_traced() - before) / size}
        finally:
            tracemalloc.stop()


async def _rounds(size: int) -> Figures:
    ids = _ids(size)
    peaks: list[int] = []
    async with open_engine(state=state_of_sessions(size), idle_seconds=None) as engine:
        for _ in range(ROUNDS):
            await _load(engine, ids)
            await _unload(engine, ids)
            gc.collect()
            peaks.append(_peak())
    # The first two rounds fill what the allocators keep.
    return {"growth": peaks[-1] / peaks[1]}


IDLE: Final = Case(
    name="loaded-idle",
    question="how much memory does a session take that is loaded and idle?",
    clock="bytes",
    sides={
        "loaded session": lambda size: trio.run(_idle, size),
        "ten rounds": lambda size: trio.run(_rounds, size),
    },
    claims=(
        Limit("bytes_each", of="loaded session", at_most=12 * 1024),
        Limit("growth", of="ten rounds", at_most=1.02),
    ),
    size=1_000,
    smoke_size=5,
)


#### Streaming


def _reply(rate: int) -> list[Any]:
    deltas = round(SECONDS * rate)
    pairs = [(Pause(1 / rate), Say(f"word {n} ")) for n in range(deltas)]
    return [cue for pair in pairs for cue in pair] + [Halt()]


def _rows(rate: int) -> Callable[[int], Figures]:
    async def stream(size: int) -> Figures:
        reply = _reply(rate)
        provider = RehearsalProvider(lambda _: reply)
        with (
            tempfile.TemporaryDirectory(prefix="greenroom-bench-") as folder,
            closing(open_store(Path(folder) / "state")) as store,
        ):
            store.connection.pragma("synchronous", "off")
            async with (
                open_engine(store=store, provider=provider, builtin=False) as engine,
                trio.open_nursery() as nursery,
            ):
                made = [
                    await engine.create_session(workspace=folder) for _ in range(size)
                ]
                before = store.connection.total_changes()
                for session in made:
                    nursery.start_soon(session.prompt, "go on")
            return {"rows_each": (store.connection.total_changes() - before) / size}

    def measure(size: int) -> Figures:
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(stream, size, clock=clock)

    return measure


ROWS: Final = Case(
    name="streamed-rows",
    question="does a faster stream write more rows?",
    clock="rows",
    sides={"40 deltas a second": _rows(40), "20 deltas a second": _rows(20)},
    claims=(
        Ratio(
            "rows_each",
            over="40 deltas a second",
            under="20 deltas a second",
            at_most=1.1,
        ),
    ),
    size=1_000,
    smoke_size=2,
)

CASES: Final = (IDLE, ROWS)
