"""The engine for programs of asyncio.

    async with open_engine(provider=my_provider) as engine:
        session = await engine.create_session(workspace=Path.cwd())
        turn = await session.prompt("What is in README.md?")
        print(turn.text)

Everything is as in `greenroom.engine`, which also has the values and errors; this says
what is different. The engine runs in a thread of its own, so neither loop holds the
other up. Calls may come from any event loop of the process. What only looks is awaited
too, but a property. A task that is cancelled while it waits cancels the call, which
ends first. `tool` takes functions of asyncio: they run on the loop that opened the
engine. Providers, hooks and the other ports are trio's, in the engine's thread.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import final

import attrs

from greenroom.actors.agents import AgentChanged
from greenroom.actors.imports import Imports as TrioImports
from greenroom.actors.portal import (
    AsyncOperation,
    AsyncStream,
    EngineClosedError as EngineClosedError,
    Remote,
    as_async,
    asyncio_tool,
    awaiting,
    awaiting_as,
    awaiting_plain,
    open_async,
    open_async_stream,
    received,
)
from greenroom.actors.sessions import Follower as TrioFollower
from greenroom.engine import (
    AgentManager as TrioAgentManager,
    Engine as TrioEngine,
    SessionDefaults,
    SessionHandle as TrioSessionHandle,
    Skills as TrioSkills,
    open_engine as open_trio_engine,
)
from greenroom.protocol import Event, SessionId, SessionSettings, Snapshot
from greenroom.storage import RecoveryReport
from greenroom.storage.legacy import Materialised

tool = asyncio_tool
Operation = AsyncOperation


@final
@attrs.define(eq=False)
class Follower:
    """An asynchronous iterator over a session's events."""

    snapshot: Snapshot | None
    """What there was; ``None`` when a cursor was given."""
    incarnation: str
    """Which tape of the session it is; its cursors are of this one."""
    _events: AsyncStream[Event]

    def __aiter__(self) -> Follower:
        return self

    async def __anext__(self) -> Event:
        """Return the next event.

        Raises:
            SlowWatcherError: too far behind; follow again.
        """
        return await self._events.__anext__()


@final
@attrs.frozen(eq=False, repr=False)
class SessionHandle:
    """A session; the methods are those of `greenroom.engine.SessionHandle`."""

    remote: Remote[TrioSessionHandle]

    def __repr__(self) -> str:
        return repr(self.remote.thing)

    @property
    def id(self) -> SessionId:
        """The session's id."""
        return self.remote.thing.id

    @property
    def settings(self) -> SessionSettings | None:
        """The settings, while the session is loaded."""
        return self.remote.thing.settings

    prompt = awaiting(TrioSessionHandle.prompt)
    submit = awaiting(TrioSessionHandle.submit)
    queue = awaiting(TrioSessionHandle.queue)
    steer = awaiting(TrioSessionHandle.steer)
    inputs = awaiting(TrioSessionHandle.inputs)
    edit_input = awaiting(TrioSessionHandle.edit_input)
    move_input = awaiting(TrioSessionHandle.move_input)
    delete_input = awaiting(TrioSessionHandle.delete_input)
    promote_input = awaiting(TrioSessionHandle.promote_input)
    retry_input = awaiting(TrioSessionHandle.retry_input)
    degrade_input = awaiting(TrioSessionHandle.degrade_input)
    release_inputs = awaiting(TrioSessionHandle.release_inputs)
    answer = awaiting(TrioSessionHandle.answer)
    configure = awaiting(TrioSessionHandle.configure)
    rewind = awaiting(TrioSessionHandle.rewind)
    clear = awaiting(TrioSessionHandle.clear)
    compact = awaiting(TrioSessionHandle.compact)
    undo_compaction = awaiting(TrioSessionHandle.undo_compaction)
    cancel = awaiting(TrioSessionHandle.cancel)
    close = awaiting(TrioSessionHandle.close)
    messages = awaiting(TrioSessionHandle.messages)
    traces = awaiting(TrioSessionHandle.traces)
    hops = awaiting(TrioSessionHandle.hops)
    interactions = awaiting(TrioSessionHandle.interactions)

    @asynccontextmanager
    async def follow(
        self, *, after: int | None = None, incarnation: str | None = None
    ) -> AsyncGenerator[Follower]:
        """Watch the session: a snapshot, or what came after a cursor, then live.

        What is not read waits in the engine, up to its bound. For one task.

        Raises:
            UnknownCursorError: the cursor is beyond the tape's end, or of another
                *incarnation* of it: the session was cleared since.
            SessionNotFoundError: there is no such session.
        """
        async with open_async_stream(
            self.remote.portal,
            lambda: self.remote.thing.follow(after=after, incarnation=incarnation),
            TrioFollower.batch,
        ) as (follower, events):
            yield Follower(follower.snapshot, follower.incarnation, events)


@final
@attrs.frozen(eq=False, repr=False)
class AgentManager:
    """The agents; the methods are those of `greenroom.engine.AgentManager`."""

    remote: Remote[TrioAgentManager]

    @property
    def migrated(self) -> Materialised:
        """What this engine's start made of agents of the older system (AGT-20)."""
        return self.remote.thing.migrated

    import_legacy = awaiting(TrioAgentManager.import_legacy)
    list = awaiting(TrioAgentManager.list)
    descriptor = awaiting(TrioAgentManager.descriptor)
    config = awaiting(TrioAgentManager.config)
    kind = awaiting(TrioAgentManager.kind)
    select = awaiting(TrioAgentManager.select)
    create = awaiting(TrioAgentManager.create)
    create_acp = awaiting(TrioAgentManager.create_acp)
    update = awaiting(TrioAgentManager.update)
    describe = awaiting(TrioAgentManager.describe)
    reset = awaiting(TrioAgentManager.reset)
    remove = awaiting(TrioAgentManager.remove)
    app_settings = awaiting(TrioAgentManager.app_settings)
    change_app_settings = awaiting(TrioAgentManager.change_app_settings)

    @asynccontextmanager
    async def changes(self) -> AsyncGenerator[AsyncStream[AgentChanged]]:
        """Receive what changes from now on.

        A feed that ends on its own was too far behind: list the agents, watch anew.
        """
        async with open_async_stream(
            self.remote.portal,
            lambda: as_async(self.remote.thing.changes()),
            received,
        ) as (_, changes):
            yield changes


@final
@attrs.frozen(eq=False, repr=False)
class Skills:
    """The Skills; the methods are those of `greenroom.engine.Skills`."""

    remote: Remote[TrioSkills]

    @property
    def folder(self) -> Path:
        """Where packages are."""
        return self.remote.thing.folder

    packages = awaiting(TrioSkills.packages)
    state = awaiting(TrioSkills.state)
    view = awaiting(TrioSkills.view)
    catalogue = awaiting(TrioSkills.catalogue)
    add = awaiting(TrioSkills.add)
    remove = awaiting(TrioSkills.remove)
    bind = awaiting(TrioSkills.bind)
    select = awaiting(TrioSkills.select)


@final
@attrs.frozen(eq=False, repr=False)
class Imports:
    """Takes over what an older system has kept."""

    remote: Remote[TrioImports]

    survey = awaiting(TrioImports.survey)
    take_over = awaiting(TrioImports.take_over)


@final
@attrs.frozen(eq=False, repr=False)
class Engine:
    """A running engine; the methods are those of `greenroom.engine.Engine`."""

    remote: Remote[TrioEngine]

    def __repr__(self) -> str:
        return repr(self.remote.thing)

    @property
    def state(self) -> Path:
        """The folder; one that can't be, for an engine without one."""
        return self.remote.thing.state

    @property
    def recovered(self) -> RecoveryReport:
        """What a dead engine had left, and what was made of it."""
        return self.remote.thing.recovered

    @property
    def agents(self) -> AgentManager:
        """The agents of the state folder."""
        return AgentManager(Remote(self.remote.portal, self.remote.thing.agents))

    @property
    def skills(self) -> Skills:
        """The Skills of the state folder."""
        return Skills(Remote(self.remote.portal, self.remote.thing.skills))

    @property
    def imports(self) -> Imports:
        """Takes over conversations of an older system (SES-11)."""
        return Imports(Remote(self.remote.portal, self.remote.thing.imports))

    def with_defaults(self, defaults: SessionDefaults) -> Engine:
        """Return this engine, for callers whose new sessions begin with *defaults*."""
        engine = self.remote.thing.with_defaults(defaults)
        return Engine(Remote(self.remote.portal, engine))

    def session(self, session_id: str) -> SessionHandle:
        """Return a handle without loading anything; it may name no session."""
        session = self.remote.thing.session(session_id)
        return SessionHandle(Remote(self.remote.portal, session))

    create_session = awaiting_as(SessionHandle, TrioEngine.create_session)
    open_session = awaiting_as(SessionHandle, TrioEngine.open_session)
    fork_session = awaiting_as(SessionHandle, TrioEngine.fork_session)
    status = awaiting_plain(TrioEngine.status)
    read = awaiting(TrioEngine.read)
    sessions = awaiting(TrioEngine.sessions)
    search = awaiting(TrioEngine.search)
    archive_session = awaiting(TrioEngine.archive_session)
    delete_session = awaiting(TrioEngine.delete_session)
    move_session = awaiting(TrioEngine.move_session)
    assess_move = awaiting(TrioEngine.assess_move)
    move_sessions = awaiting(TrioEngine.move_sessions)
    forget = awaiting(TrioEngine.forget)
    maintain = awaiting(TrioEngine.maintain)
    contribute = awaiting_plain(TrioEngine.contribute)
    context_window = awaiting_plain(TrioEngine.context_window)
    tree = awaiting_plain(TrioEngine.tree)
    metrics = awaiting_plain(TrioEngine.metrics)


open_engine = open_async(open_trio_engine, Engine)
"""Opens an engine; the arguments are those of `greenroom.engine.open_engine`.

Leaving the block waits for its end, bounded, whoever cancels meanwhile. An error that
broke the engine is raised there; calls that it cut off raise `EngineClosedError`.
"""
