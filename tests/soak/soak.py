"""Work an engine for a long time and see that nothing it holds grows.

    python tests/soak/soak.py [--seconds 600] [--json FILE]

Round after round, sessions are made, prompted at the same time, watched, asked for a
permission, cancelled in the middle of an answer, read, searched, and unloaded; at rest
after each round it is counted what is held: memory, file descriptors, threads, tasks,
actors, and the log beside the database. What is held at the end must not be more than
in the middle of the time. Exits 1, and says what has grown, if it is.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median_high
from typing import Any, Final

import attrs
import trio

from greenroom.actors.providers import Call, Halt, Hang, RehearsalProvider, Say
from greenroom.actors.readers import MAX_READERS
from greenroom.engine import (
    Engine,
    Grant,
    SessionHandle,
    open_engine,
    tool,
)
from greenroom.protocol import (
    ModelRequest,
    StatusChanged,
    ToolMessage,
    UserMessage,
)

SESSIONS: Final = 8
"""That work at the same time."""

MAX_LOG_BYTES: Final = 16 << 20
"""The writer brings the log back at four; a busy round may be ahead of it."""

FEWEST: Final = 9
"""Rounds that a judgement needs."""

_SLACK_BYTES: Final = 12 << 20
"""The database's page cache fills as it grows; it is bounded by 16 MiB."""


@attrs.frozen
class Sample:
    """What is held at rest, after a round."""

    seconds: float
    memory: int
    """Bytes: resident where the system tells it, else the peak."""
    descriptors: int
    threads: int
    tasks: int
    actors: int
    log: int
    """Bytes of the write-ahead log."""


def grown(samples: Sequence[Sample]) -> list[str]:
    """Return what the last third of *samples* holds more of than the middle one."""
    if len(samples) < FEWEST:
        return [f"only {len(samples)} rounds were done, {FEWEST} are needed"]
    third = len(samples) // 3
    middle, last = samples[third : 2 * third], samples[2 * third :]
    bounds: dict[str, Callable[[int], float]] = {
        "memory": lambda before: before * 1.05 + _SLACK_BYTES,
        "descriptors": lambda before: before,
        # One that has no work stays a while: how many there are at once is chance.
        "threads": lambda before: before + SESSIONS,
        "tasks": lambda before: before,
        "actors": lambda before: before,
        "log": lambda _: MAX_LOG_BYTES,
    }
    found: list[str] = []
    for name, bound in bounds.items():
        # The middling of the end: what comes and goes is no leak.
        pick = max if name == "log" else median_high
        before = max(getattr(sample, name) for sample in middle)
        after = pick(getattr(sample, name) for sample in last)
        if after > bound(before):
            found.append(f"{name} went from {before:,} to {after:,}")
    return found


#### Work


@tool
def look(place: str) -> str:
    """Look at a place."""
    return f"nothing at {place}"


@tool(permission="take something away")
def take(thing: str) -> str:
    """Take a thing away; the user is asked."""
    return f"took {thing}"


def _answer(request: ModelRequest) -> list[Any]:
    """Return what a model says to the newest message."""
    last = request.messages[-1]
    if isinstance(last, ToolMessage):
        return [Say("seen, and done"), Halt()]
    words = str(last.parts[0]) if isinstance(last, UserMessage) else ""
    if "hang" in words:
        return [Say("let me think"), Hang()]
    if "take" in words:
        return [Call("take", {"thing": "a boat"}), Halt("tool_use")]
    return [Say("a lighthouse "), Call("look", {"place": "sea"}), Halt("tool_use")]


async def _work(engine: Engine, folder: Path) -> None:
    session = await engine.create_session(workspace=folder)
    async with session.follow() as feed, trio.open_nursery() as nursery:
        nursery.start_soon(_allow_all, session, feed)
        await session.prompt("look around")
        await session.prompt("take it")
        await _cancelled(session)
        await session.prompt("and once more")
        nursery.cancel_scope.cancel()
    await session.configure(title="done")
    await session.messages()
    await engine.search("lighthouse", session_id=session.id)
    await session.close()


async def _allow_all(session: SessionHandle, feed: Any) -> None:
    async for event in feed:
        if isinstance(event, StatusChanged) and event.waiting_for == "permission":
            for action in await session.interactions():
                await session.answer(action.id, Grant())


async def _cancelled(session: SessionHandle) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.prompt, "hang on")
        async with session.follow() as feed:
            async for event in feed:
                if "let me think" in repr(event):
                    break
        await session.cancel()


async def soak(
    folder: Path, seconds: float, told: Callable[[Sample], object]
) -> list[Sample]:
    """Work for *seconds*; return what was held after each round."""
    provider = RehearsalProvider(_answer)
    samples: list[Sample] = []
    began = time.monotonic()
    async with open_engine(
        state=folder / "state", provider=provider, tools=[look, take], builtin=False
    ) as engine:
        await _connect_all(engine)
        while time.monotonic() - began < seconds or len(samples) < FEWEST:
            async with trio.open_nursery() as nursery:
                for _ in range(SESSIONS):
                    nursery.start_soon(_work, engine, folder)
            provider.requests.clear()
            await engine.sessions()
            # Longer than the writer's pause, so that it tidies up.
            await trio.sleep(0.2)
            samples.append(_sample(engine, folder, time.monotonic() - began))
            told(samples[-1])
    return samples


async def _connect_all(engine: Engine) -> None:
    # Connections of readers are opened when first needed, and kept: when the last of
    # them is needed is chance, and no growth.
    together = threading.Barrier(MAX_READERS)
    async with trio.open_nursery() as nursery:
        for _ in range(MAX_READERS):
            nursery.start_soon(engine._readers.read, lambda _: together.wait(60.0))


def _sample(engine: Engine, folder: Path, seconds: float) -> Sample:
    gc.collect()
    log = folder / "state" / "greenroom.db-wal"
    return Sample(
        seconds=round(seconds, 1),
        memory=_memory(),
        descriptors=len(os.listdir("/dev/fd")),
        threads=threading.active_count(),
        tasks=trio.lowlevel.current_statistics().tasks_living,
        actors=len(engine.tree()),
        log=log.stat().st_size if log.exists() else 0,
    )


def _memory() -> int:
    pages = Path("/proc/self/statm")
    if pages.exists():
        return int(pages.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak and judge; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write samples there")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="greenroom-soak-") as folder:
        samples = trio.run(soak, Path(folder), options.seconds, print)
    if options.json is not None:
        rows = [attrs.asdict(sample) for sample in samples]
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    found = grown(samples)
    for problem in found:
        print(problem)
    print(f"{len(samples)} rounds, {'grown' if found else 'flat'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
