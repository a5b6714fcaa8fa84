"""A manager of agents over a real store, on one clock, with a writer that can fail."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import attrs

from greenroom.actors.agents import AgentManager
from greenroom.actors.kernel import FixedClock, SeededIds
from greenroom.actors.readers import InlineReaders
from greenroom.actors.writer import InlineWriter
from greenroom.protocol import StorageError
from greenroom.storage import Piece, SqliteStore, open_store


@final
@attrs.define(eq=False)
class Frail:
    """A writer that fails at the piece it is told to; pieces are counted from 1."""

    inner: InlineWriter
    before: int = 0
    """The piece that is not run."""
    after: int = 0
    """The piece that is on disk when it fails."""
    wrap: Callable[[Any], Any] = lambda store: store
    """What a piece is given instead of the store."""
    count: int = 0

    async def submit(self, piece: Piece) -> Any:
        self.count += 1
        if self.count == self.before:
            raise StorageError(f"no piece {self.count}")
        run = piece.run
        value = await self.inner.submit(Piece(lambda store: run(self.wrap(store))))
        if self.count == self.after:
            raise StorageError(f"lost after piece {self.count}")
        return value


@attrs.define(eq=False)
class Desk:
    """A manager that is not started, and what is under it."""

    agents: AgentManager
    store: SqliteStore
    writer: Frail

    def everything(self) -> tuple[Any, ...]:
        """All rows and all settings, as they are on disk."""
        sql = "SELECT key, value FROM app_settings ORDER BY key"
        settings = self.store.connection.execute(sql).fetchall()
        return (self.store.agents(), settings)


@contextmanager
def open_desk(folder: Path, **failing: Any) -> Generator[Desk]:
    """Open a manager on the state in *folder*; see `Frail` for *failing*."""
    store = open_store(folder)
    try:
        writer = Frail(InlineWriter(store), **failing)
        clock, ids = FixedClock(), SeededIds(0)
        manager = AgentManager(writer, InlineReaders(store), clock, ids)
        yield Desk(manager, store, writer)
    finally:
        store.close()
