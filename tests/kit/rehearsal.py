"""An engine on a real store with a scripted provider, all on one clock.

Storage runs on the loop, so a mock clock owns every wait and tests need no sleep.
A `Probe` is a `RecordingTool`; it records calls and can be held at a gate.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
from kit.laws import check_laws, check_requests
from kit.views import view_problems

from greenroom.engine import Engine, RateLimit, SessionHandle
from greenroom.protocol import (
    JournalError,
    SessionId,
    StorageError,
    TapeEntry,
    ToolCallBlock,
    journal_record,
)
from greenroom.storage import RecoveryReport, open_reader, open_store, recover
from greenroom.testing import (
    RecordingTool as Probe,
    RehearsalProvider,
    Script,
    open_test_engine,
)


@attrs.define(eq=False)
class Stage:
    """One engine, one session, one script."""

    engine: Engine
    session: SessionHandle
    provider: RehearsalProvider
    state: Path

    def tape(self, session_id: str | None = None) -> list[TapeEntry]:
        """Every entry of the session's tape."""
        return read_tape(self.state, session_id or self.session.id)

    def check_laws(self) -> None:
        """Assert what holds for every session, whatever the test was about.

        After a start, that is: what a test left undone on purpose is recovered first,
        and a second recovery has nothing to do.
        """
        recover_once(self.state)
        again = recover_once(self.state)
        assert (again.runs, again.messages, again.sessions) == (0, 0, ())
        reader = open_reader(self.state)
        try:
            rows = reader.sessions(1_000)
            for row in rows:
                check_laws(reader, row.id, read_tape(self.state, row.id))
        finally:
            reader.close()
        requests = getattr(self.provider, "requests", [])
        check_requests(requests)
        broken = [
            problem
            for row in rows
            for problem in view_problems(read_tape(self.state, row.id), requests)
        ]
        assert not broken, "\n".join(broken)

    def names(self) -> list[str]:
        """The names of the entries, in order."""
        return [entry.fact.name for entry in self.tape()]

    def journal(self) -> list[Any]:
        """Every record of the session's journal."""
        return journal_of(self.tape())


def read_tape(state: Path, session_id: str) -> list[TapeEntry]:
    reader = open_reader(state)
    try:
        entries: list[TapeEntry] = []
        while page := reader.page(SessionId(session_id), len(entries)).entries:
            entries += page
        return entries
    finally:
        reader.close()


def recover_once(state: Path) -> RecoveryReport:
    store = open_store(state)
    try:
        member = store.join("the laws", "", 60.0, now=0.0)
        report = recover(store, member, 0.0)
        store.leave(member, now=0.0)
        return report
    finally:
        store.close()


def journal_of(tape: Iterable[TapeEntry]) -> list[Any]:
    return [journal_record(entry.fact) for entry in tape if entry.fact.is_execution]


__all__ = ["Probe"]


def calls_of(message: Any) -> list[ToolCallBlock]:
    return [block for block in message.blocks if isinstance(block, ToolCallBlock)]


@asynccontextmanager
async def open_stage(
    tmp_path: Path,
    script: Script,
    *tools: Any,
    builtin: bool = False,
    session_id: str | None = None,
    replayable: bool = True,
    provider: Any = None,
    rate_limit: RateLimit | None = None,
    hooks: Iterable[Any] = (),
    compaction: Any = None,
    memory: Any = None,
    telemetry: Any = None,
    **settings: Any,
) -> AsyncIterator[Stage]:
    """Open an engine in *tmp_path* with one session, or an old one by its id."""
    provider = provider or RehearsalProvider(script, replayable=replayable)
    workspace = tmp_path / "workspace"
    workspace.mkdir(exist_ok=True)
    async with open_test_engine(
        tmp_path,
        provider,
        *tools,
        builtin=builtin,
        seed=len(session_id or ""),
        rate_limits=None if rate_limit is None else {provider.id: rate_limit},
        hooks=hooks,
        compaction=compaction,
        memory=memory,
        telemetry=telemetry,
    ) as engine:
        if session_id is None:
            session = await engine.create_session(workspace=workspace, **settings)
        else:
            session = await engine.open_session(session_id)
        stage = Stage(engine, session, provider, engine.state)
        yield stage
    stage.check_laws()


def replies(*rounds: Sequence[Any]) -> list[list[Any]]:
    """A script of these rounds."""
    return [list(cues) for cues in rounds]


@attrs.define(eq=False)
class RecordSpy:
    """A session's record that notes who writes what, and fails where told to."""

    inner: Any
    log: list[tuple[str, str]] = attrs.field(factory=list)
    """(what, name of the task) of each write, once it is durable."""
    fail: Callable[[str], Exception | None] = lambda what: None
    """Called before a write with what it is; the error is raised instead of it."""
    before: Callable[[str], None] = lambda what: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def append(self, facts: Any, settles: Any = (), **named: Any) -> None:
        what = facts[0].name
        self._check(what)
        await self.inner.append(facts, settles, **named)
        self._note(what)

    async def commit(self, record: Any) -> bool:
        what = type(record).__name__
        try:
            self._check(what)
        except StorageError as exc:
            # As the record itself tells a fault of the store.
            if isinstance(exc, JournalError):
                raise
            raise JournalError("persistence_failed", str(exc)) from exc
        created = await self.inner.commit(record)
        self._note(what)
        return created

    def _check(self, what: str) -> None:
        self.before(what)
        error = self.fail(what)
        if error is not None:
            raise error

    def _note(self, what: str) -> None:
        self.log.append((what, trio.lowlevel.current_task().name))


def spy_on(stage: Stage) -> RecordSpy:
    """Put a spy between the loaded session and its record."""
    loaded = stage.session._sessions.loaded(stage.session.id)
    assert loaded is not None
    session = loaded.session
    spy = RecordSpy(session.ports.record)
    session.ports = attrs.evolve(session.ports, record=spy)
    return spy
