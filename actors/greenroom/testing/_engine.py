"""An engine for tests: storage on the loop, the test's clock and ids."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from greenroom.actors.kernel import FixedClock, SeededIds
from greenroom.actors.providers import Provider
from greenroom.actors.tools import Tool
from greenroom.engine import (
    Engine,
    Hook,
    MemoryPort,
    RateLimit,
    Strategy,
    Telemetry,
    open_engine,
)
from greenroom.storage import MemoryStore

EPOCH: Final = 1_767_225_600.0
"""2026-01-01T00:00:00Z."""


@asynccontextmanager
async def open_test_engine(
    folder: Path | None,
    provider: Provider,
    *tools: Tool,
    builtin: bool = False,
    seed: int = 0,
    rate_limits: Mapping[str, RateLimit] | None = None,
    hooks: Iterable[Hook] = (),
    memory: MemoryPort | None = None,
    compaction: Strategy | None = None,
    telemetry: Telemetry | None = None,
) -> AsyncGenerator[Engine]:
    """Open an engine whose state is in *folder*; equal seeds make equal ids.

    Opened again on the same folder it goes on with what is there. Without a folder it
    is in memory: no file is written, and everything is gone at the end.
    """
    async with open_engine(
        state=None if folder is None else folder / "state",
        store=MemoryStore.create() if folder is None else None,
        provider=provider,
        rate_limits=rate_limits,
        hooks=hooks,
        memory=memory,
        compaction=compaction,
        telemetry=telemetry,
        tools=tools,
        builtin=builtin,
        clock=FixedClock(EPOCH),
        ids=SeededIds(seed),
        threads=False,
        gc_thresholds=False,
        idle_seconds=None,
    ) as engine:
        yield engine
