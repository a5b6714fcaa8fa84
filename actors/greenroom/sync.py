"""The engine for programs without an event loop: every call blocks its thread.

    with open_engine(provider=my_provider) as engine:
        session = engine.create_session(workspace=Path.cwd())
        turn = session.prompt("What is in README.md?")
        print(turn.text)

Everything is as in `greenroom.engine`, which also has the values and errors; this says
what is different. The engine runs in a thread of its own. Calls may come from any other
thread, from several at once; what only looks waits for that thread too, but a property.
Ctrl-C cancels the call that the main thread waits for, which ends first; a second one
waits no more. A tool is a plain function, which may block: it runs in a worker thread.
Providers, hooks and the other ports are trio's, in the engine's thread.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import final

import attrs

from greenroom.actors.agents import AgentChanged
from greenroom.actors.imports import Imports as TrioImports
from greenroom.actors.portal import (
    BlockingStream,
    EngineClosedError as EngineClosedError,
    Remote,
    as_async,
    blocking,
    blocking_as,
    blocking_plain,
    open_blocking,
    open_blocking_stream,
    received,
)
from greenroom.actors.sessions import Follower as TrioFollower
from greenroom.actors.tools import BlockingOperation
from greenroom.engine import (
    AgentManager as TrioAgentManager,
    Engine as TrioEngine,
    SessionDefaults,
    SessionHandle as TrioSessionHandle,
    Skills as TrioSkills,
    open_engine as open_trio_engine,
    tool as tool,
)
from greenroom.protocol import Event, SessionId, SessionSettings, Snapshot
from greenroom.storage import RecoveryReport
from greenroom.storage.legacy import Materialised

Operation = BlockingOperation


@final
@attrs.define(eq=False)
class Follower:
    """An iterator over a session's events."""

    snapshot: Snapshot | None
    """What there was; ``None`` when a cursor was given."""
    incarnation: str
    """Which tape of the session it is; its cursors are of this one."""
    _events: BlockingStream[Event]

    def __iter__(self) -> Follower:
        return self

    def __next__(self) -> Event:
        """Return the next event.

        Raises:
            SlowWatcherError: too far behind; follow again.
        """
        return self._events.__next__()


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

    prompt = blocking(TrioSessionHandle.prompt)
    submit = blocking(TrioSessionHandle.submit)
    queue = blocking(TrioSessionHandle.queue)
    steer = blocking(TrioSessionHandle.steer)
    inputs = blocking(TrioSessionHandle.inputs)
    edit_input = blocking(TrioSessionHandle.edit_input)
    move_input = blocking(TrioSessionHandle.move_input)
    delete_input = blocking(TrioSessionHandle.delete_input)
    promote_input = blocking(TrioSessionHandle.promote_input)
    retry_input = blocking(TrioSessionHandle.retry_input)
    degrade_input = blocking(TrioSessionHandle.degrade_input)
    release_inputs = blocking(TrioSessionHandle.release_inputs)
    answer = blocking(TrioSessionHandle.answer)
    configure = blocking(TrioSessionHandle.configure)
    rewind = blocking(TrioSessionHandle.rewind)
    clear = blocking(TrioSessionHandle.clear)
    compact = blocking(TrioSessionHandle.compact)
    undo_compaction = blocking(TrioSessionHandle.undo_compaction)
    cancel = blocking(TrioSessionHandle.cancel)
    close = blocking(TrioSessionHandle.close)
    messages = blocking(TrioSessionHandle.messages)
    traces = blocking(TrioSessionHandle.traces)
    hops = blocking(TrioSessionHandle.hops)
    interactions = blocking(TrioSessionHandle.interactions)

    @contextmanager
    def follow(
        self, *, after: int | None = None, incarnation: str | None = None
    ) -> Generator[Follower]:
        """Watch the session: a snapshot, or what came after a cursor, then live.

        What is not read waits in the engine, up to its bound. For one thread.

        Raises:
            UnknownCursorError: the cursor is beyond the tape's end, or of another
                *incarnation* of it: the session was cleared since.
            SessionNotFoundError: there is no such session.
        """
        with open_blocking_stream(
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

    import_legacy = blocking(TrioAgentManager.import_legacy)
    list = blocking(TrioAgentManager.list)
    descriptor = blocking(TrioAgentManager.descriptor)
    config = blocking(TrioAgentManager.config)
    kind = blocking(TrioAgentManager.kind)
    select = blocking(TrioAgentManager.select)
    create = blocking(TrioAgentManager.create)
    create_acp = blocking(TrioAgentManager.create_acp)
    update = blocking(TrioAgentManager.update)
    describe = blocking(TrioAgentManager.describe)
    reset = blocking(TrioAgentManager.reset)
    remove = blocking(TrioAgentManager.remove)
    app_settings = blocking(TrioAgentManager.app_settings)
    change_app_settings = blocking(TrioAgentManager.change_app_settings)

    @contextmanager
    def changes(self) -> Generator[BlockingStream[AgentChanged]]:
        """Receive what changes from now on.

        A feed that ends on its own was too far behind: list the agents, watch anew.
        """
        with open_blocking_stream(
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

    packages = blocking(TrioSkills.packages)
    state = blocking(TrioSkills.state)
    view = blocking(TrioSkills.view)
    catalogue = blocking(TrioSkills.catalogue)
    add = blocking(TrioSkills.add)
    remove = blocking(TrioSkills.remove)
    bind = blocking(TrioSkills.bind)
    select = blocking(TrioSkills.select)


@final
@attrs.frozen(eq=False, repr=False)
class Imports:
    """Takes over what an older system has kept."""

    remote: Remote[TrioImports]

    survey = blocking(TrioImports.survey)
    take_over = blocking(TrioImports.take_over)


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

    create_session = blocking_as(SessionHandle, TrioEngine.create_session)
    open_session = blocking_as(SessionHandle, TrioEngine.open_session)
    fork_session = blocking_as(SessionHandle, TrioEngine.fork_session)
    status = blocking_plain(TrioEngine.status)
    read = blocking(TrioEngine.read)
    sessions = blocking(TrioEngine.sessions)
    search = blocking(TrioEngine.search)
    archive_session = blocking(TrioEngine.archive_session)
    delete_session = blocking(TrioEngine.delete_session)
    move_session = blocking(TrioEngine.move_session)
    assess_move = blocking(TrioEngine.assess_move)
    move_sessions = blocking(TrioEngine.move_sessions)
    forget = blocking(TrioEngine.forget)
    maintain = blocking(TrioEngine.maintain)
    contribute = blocking_plain(TrioEngine.contribute)
    context_window = blocking_plain(TrioEngine.context_window)
    tree = blocking_plain(TrioEngine.tree)
    metrics = blocking_plain(TrioEngine.metrics)


open_engine = open_blocking(open_trio_engine, Engine)
"""Opens an engine; the arguments are those of `greenroom.engine.open_engine`.

Leaving the block waits for its end, bounded. An error that broke the engine is raised
there; calls that it cut off raise `EngineClosedError`.
"""
