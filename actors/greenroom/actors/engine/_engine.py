"""The engine as whoever embeds it holds it: sessions, agents, and the folder's care.

Made by `open_engine`, which puts it together; each method hands on to who owns the
matter. An agent, a session and a setting are judged here before anything is made.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Mapping,
)
from pathlib import Path
from typing import Final, TypeVar, final

import attrs

from greenroom.actors.agents import (
    AgentManager,
    SessionDefaults,
)
from greenroom.actors.bindings import Bindings
from greenroom.actors.context import (
    Window,
)
from greenroom.actors.gauges import gauges
from greenroom.actors.imports import Imports
from greenroom.actors.kernel import (
    ActorInfo,
    System,
)
from greenroom.actors.lifecycle import (
    Bind,
    Impact,
    Lifecycle,
    Moved,
)
from greenroom.actors.maintenance import (
    REST_SECONDS,
    Maintenance,
)
from greenroom.actors.opening import (
    resolved_workspace,
)
from greenroom.actors.providers import (
    Provider,
)
from greenroom.actors.sessions import (
    Content,
    SessionHandle,
    SessionHeldError,
    SessionNotFoundError,
    Sessions,
    SessionWorld,
    StoreReaders,
    TurnRefusedError,
    changed_settings,
    text_of,
)
from greenroom.actors.skills import (
    Skills,
)
from greenroom.actors.tools import (
    Tool,
    ToolRegistry,
)
from greenroom.protocol import (
    Budget,
    MessageId,
    SessionId,
    SessionSettings,
    StatusChanged,
    round_limit,
)
from greenroom.storage import (
    Held,
    MessageHit,
    Piece,
    Reader,
    RecoveryReport,
    SessionRow,
    archive_session,
)

T = TypeVar("T")

TITLE_CHARS: Final = 50


@final
@attrs.define(eq=False)
class Engine:
    """A running engine; made by `open_engine`."""

    state: Path
    """The folder; one that can't be, for an engine without one."""
    recovered: RecoveryReport
    """What a dead engine had left, and what was made of it."""
    _system: System
    _sessions: Sessions
    _readers: StoreReaders
    _world: SessionWorld
    _tools: ToolRegistry
    agents: AgentManager
    """The agents of the state folder."""
    skills: Skills
    """The Skills of the state folder."""
    bindings: Bindings
    """Which client follows which session."""
    imports: Imports
    """What is taken over from an older system."""
    _lifecycle: Lifecycle
    _maintenance: Maintenance
    _defaults: SessionDefaults = attrs.field(factory=SessionDefaults)

    def __repr__(self) -> str:
        return f"<Engine {str(self.state)!r}>"

    def with_defaults(self, defaults: SessionDefaults) -> Engine:
        """Return this engine, for callers whose new sessions begin with *defaults*."""
        return attrs.evolve(self, defaults=defaults)

    async def create_session(
        self,
        *,
        workspace: Path | str | None = None,
        agent: str | None = None,
        title: str = "",
        provider: str | None = None,
        model: str | None = None,
        permission_mode: str | None = None,
        system_prompt: str | None = None,
        max_rounds: int | None = None,
        permission_seconds: float | None = None,
        question_seconds: float | None = None,
        turn_budget: Budget | None = None,
        session_budget: Budget | None = None,
        prompt: Content | None = None,
        command_id: str = "",
        bind: Bind | None = None,
    ) -> SessionHandle:
        """Make a session of *agent* whose tools may touch *workspace*.

        What is not given is the agent's; without an agent the session is of the one
        that the user has chosen, else of the builtin one (AGT-10).

        With a *prompt*, the first thing said, the session is there when that is taken
        in, and its turn goes on; without a *title* it is called so (SES-12). Sending
        the same with the same *command_id* waits for the end. *bind* is called with the
        session before. If it or the prompt fails, or this is cancelled before the
        prompt is taken in, there is no session.

        Raises:
            WorkspaceError: the folder does not exist, or neither it nor a folder of
                the agent's is given.
            AgentNotFoundError, AgentUnavailableError, AgentRefusedError: the agent
                is not there, can't be run, or is disabled.
            NoBackendError: nobody here runs agents of its kind.
            TurnRefusedError: a setting is wrong.
        """
        chosen = await self.agents.select(agent)
        config, providers = chosen.config, self._world.providers
        default, first = self._defaults, next(iter(providers))
        who = chosen.model(provider, model, first, default.model)
        mode = permission_mode or config.permission_mode or default.permission_mode
        told = system_prompt
        if told is None:
            told = config.system_prompt or default.system_prompt
        folder = workspace
        if folder is None:
            folder = config.project_path or default.workspace
        limit = default.max_rounds if max_rounds is None else max_rounds
        settings = SessionSettings(
            agent_id=chosen.agent.id,
            title=(title.strip() or text_of(prompt or ""))[:TITLE_CHARS] or "New Chat",
            workspace=str(await resolved_workspace(folder)),
            provider=who.provider,
            model=who.model,
            permission_mode=mode,  # pyright: ignore[reportArgumentType] - checked below
            system_prompt=told,
            max_rounds=round_limit(limit),
            permission_seconds=permission_seconds,
            question_seconds=question_seconds,
            turn_budget=turn_budget,
            session_budget=session_budget,
            disabled_tools=config.disabled_tools,
        )
        checked = _checked(settings, providers)
        made = self._handle(await self.agents.create_session(chosen.agent, checked))
        if prompt is not None or bind is not None:
            begin = self._lifecycle.first_turns.begin
            await begin(made, prompt, command_id, bind)
        return made

    async def open_session(self, session_id: str) -> SessionHandle:
        """Load a session and return its handle.

        Raises:
            SessionNotFoundError: there is none.
            SessionHeldError: another engine owns it.
            AgentNotFoundError, AgentUnavailableError: its agent is gone, or can't be
                run as it is stored.
            NoBackendError: nobody here runs agents of its kind.
        """
        scope = SessionId(session_id)
        row = await self._readers.read(lambda reader: reader.session(scope))
        if row is None:
            # Its actor, if there is one, has nothing to stand on (SES-06).
            await self._sessions.close(scope)
            raise SessionNotFoundError(scope)
        await self.agents.open_session(row.settings.agent_id, scope)
        return self._handle(scope)

    def session(self, session_id: str) -> SessionHandle:
        """Return a handle without loading anything; it may name no session."""
        return self._handle(SessionId(session_id))

    def status(self, session_id: str) -> StatusChanged | None:
        """Return the state of a session that is loaded here; ``None``: it is not."""
        loaded = self._sessions.loaded(SessionId(session_id))
        return None if loaded is None else loaded.hub.status_event()

    async def read(self, fn: Callable[[Reader], T]) -> T:
        """Return *fn* of a reader of the store, which is one short transaction.

        It may run in another thread, so it keeps to what it is given.

        Raises:
            StorageError: the store can't be read.
        """
        return await self._readers.read(fn)

    async def sessions(
        self,
        limit: int = 100,
        *,
        before: SessionRow | None = None,
        agent: str | None = None,
        archived: bool | None = None,
        title: str = "",
    ) -> list[SessionRow]:
        """Return sessions, last used first; loads nothing.

        *before* is the last row of the page before; for the filters see
        `Reader.sessions`.
        """
        key = None if before is None else (before.updated_at, before.id)
        return await self._readers.read(
            lambda reader: reader.sessions(
                limit, key, agent=agent, archived=archived, title=title
            )
        )

    async def search(
        self, query: str, *, session_id: str | None = None, limit: int = 12
    ) -> list[MessageHit]:
        """Return messages that hold all words of *query*, the best first (PER-07).

        In one session, or in all; *limit* is 1 to 50. Loads nothing. What was said
        less than a second ago may not be found yet.
        """
        scope = None if session_id is None else SessionId(session_id)
        return await self._readers.read(
            lambda reader: reader.search_messages(query, scope, limit)
        )

    async def archive_session(
        self, session_id: str, *, archived: bool = True
    ) -> SessionRow:
        """Put a session away, or take it back; one that is loaded is closed first.

        It can be listed, read, searched and prompted as before.

        Raises:
            SessionNotFoundError: there is none.
            SessionHeldError: another engine owns it, or it was loaded meanwhile.
        """
        await self.session(session_id).close()
        world, scope = self._world, SessionId(session_id)
        revision, now = world.ids.uuid(), world.clock.now()
        row: SessionRow | Held | None = await world.writer.submit(
            Piece(
                lambda store: archive_session(
                    store,
                    world.member,
                    scope,
                    archived=archived,
                    revision=revision,
                    now=now,
                )
            )
        )
        if row is None:
            raise SessionNotFoundError(session_id)
        if isinstance(row, Held):
            raise SessionHeldError(session_id, row.owner)
        return row

    async def fork_session(
        self,
        session_id: str,
        *,
        through: str | None = None,
        rounds: int | None = None,
    ) -> SessionHandle:
        """Make a session that begins with what was sent in one (SES-23).

        Up to the message *through*, or to the end; of that message all, or its first
        *rounds*: requests to the model with the results of their calls. It has the
        agent, the limits and the permission mode of the source, which stays as it is.

        Raises:
            SessionNotFoundError, MessageNotFoundError, RoundNotFoundError: there is
                none.
            AgentNotFoundError, AgentUnavailableError, AgentRefusedError: its agent
                can't begin sessions.
            BeingDeletedError: the session or its agent is being deleted.
        """
        last = None if through is None else MessageId(through)
        forks = self._lifecycle.forks
        return self._handle(await forks.fork(SessionId(session_id), last, rounds))

    async def delete_session(self, session_id: str) -> None:
        """Delete a session for good, with all that belongs to it (DEL-03).

        It needs no agent. A turn that goes on is ended. Cancelled, or after a failure,
        it can be repeated.

        Raises:
            SessionNotFoundError: there is none.
            SessionHeldError: another engine owns it; nothing was done.
            StillUsedError: something was done with it for 30 s; nothing was done.
            DeletionError: something of it is left; see there.
        """
        await self._lifecycle.deletion.delete(SessionId(session_id))

    async def move_session(self, session_id: str, agent: str) -> SessionSettings:
        """Give a session to another agent; returns its settings (DEL-10, DEL-11).

        Raises:
            SessionNotFoundError: there is none.
            TransferRefusedError: not this one, not there, or not now.
            AgentNotFoundError, AgentUnavailableError, AgentRefusedError: that agent
                can't have sessions.
            BeingDeletedError: the session or that agent is being deleted.
            SessionHeldError: another engine owns the session.
        """
        return await self._lifecycle.transfers.transfer(SessionId(session_id), agent)

    async def assess_move(self, agent: str) -> Impact:
        """Return what `move_sessions` would do with the sessions of *agent* (DEL-12).

        Raises:
            TransferRefusedError: ``too-many-sessions``.
        """
        return await self._lifecycle.transfers.assess(agent)

    async def move_sessions(self, agent: str, target: str) -> Moved:
        """Give all sessions of *agent* to *target*; empty ones are deleted (DEL-12).

        Raises:
            TransferRefusedError: one may not go, so that none was moved.
            MoveError: it ended early; it says after how many.
        """
        return await self._lifecycle.transfers.move_all(agent, target)

    async def forget(self, agent: str, recollection_id: int | None = None) -> int:
        """Let an agent forget one memory, or all of them; return how many (SKL-08).

        After all of them, nothing that was being taken in meanwhile is kept.
        """
        return await self._world.writer.submit(
            Piece(lambda store: store.forget_recollections(agent, recollection_id))
        )

    async def maintain(
        self, work: Callable[[Path], T], *, seconds: float = REST_SECONDS
    ) -> T:
        """Do *work* on the state folder while nobody uses its database (PER-12).

        It is called with the folder, in the storage's thread, with the database closed:
        `repair` or `vacuum` of `greenroom.storage`, say. Turns that go on are waited
        for, *seconds* at most, and sessions are unloaded; a question stays open.
        Meanwhile sessions are refused, and what else needs the database waits.

        Raises:
            MaintenanceError: it is being maintained already.
            MaintenanceRefusedError: a turn did not end, another engine uses the folder,
                or there is no database. Nothing was done.
            MaintenanceFailedError: something failed with the database closed, be it
                *work*. This engine has ended: leaving it raises this too.
        """
        return await self._maintenance.run(work, seconds)

    def contribute(self, *tools: Tool) -> None:
        """Add tools for the runs that start from now on."""
        self._tools.contribute(*tools)

    def context_window(self, settings: SessionSettings) -> Window:
        """Return the window of the model that *settings* name, or that it is unknown.

        An unknown one has the fallback beside it that is in force (CTX-11).
        """
        return self._world.windows.find(settings)

    def tree(self) -> tuple[ActorInfo, ...]:
        """Return every actor: path, state, mailbox, deadline."""
        return self._system.tree()

    def metrics(self) -> dict[str, float]:
        """Return counts of this moment, and sizes in bytes, by name."""
        return gauges(self.tree(), self._sessions.loaded, self._world.writer)

    def _handle(self, session_id: SessionId) -> SessionHandle:
        return SessionHandle(session_id, self._sessions, self._readers, self._world.ids)


def _checked(
    settings: SessionSettings, providers: Mapping[str, Provider]
) -> SessionSettings:
    if settings.provider not in providers:
        known = ", ".join(sorted(providers))
        raise TurnRefusedError(
            "unknown_provider", f"no provider {settings.provider!r}; there is {known}"
        )
    return changed_settings(settings, {})
