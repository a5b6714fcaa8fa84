"""Giving a session to another agent: judged first, then done in one transaction.

The judgement is made again in the transaction that writes, by the session's own actor
if it is loaded and by a piece that takes it if it is not; so nothing can come between
(DEL-10). What goes over goes over together: agent, model, folder, permission mode,
instructions, disabled tools, and of the selected Skills those that the new agent has.
Where the backend is another one, the old one forgets the session afterwards; if that
fails, the assignment stands (DEL-11).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

import attrs
import msgspec
import trio

from greenroom.actors.agents import AgentManager, Selected
from greenroom.actors.kernel import ActorExitedError, Normal, Stopped
from greenroom.actors.logs import of_session
from greenroom.actors.providers import ACP_PROVIDER
from greenroom.actors.sessions import (
    AssignSession,
    Loaded,
    SessionHeldError,
    SessionNotFoundError,
    Sessions,
    TurnRefusedError,
)
from greenroom.protocol import (
    GreenroomError,
    SessionId,
    SessionSettings,
    StorageError,
    events_of,
)
from greenroom.storage import (
    Assigned,
    Held,
    Piece,
    Reader,
    SessionRow,
    Store,
    Unfinished,
    assess_session,
    assign_session,
    filter_selection,
)

from ._deletion import Deletion

_LOG: Final = logging.getLogger("greenroom.lifecycle")

SAMPLES: Final = 6
"""Sessions that a preview of a bulk move names (DEL-12)."""

MAX_MOVED: Final = 10_000
"""Sessions of one bulk move."""

_TRIES: Final = 3
_PAGE: Final = 500


class TransferRefusedError(GreenroomError):
    """A session may not go to that agent now; nothing was changed.

    ``code`` is one of ``not-regular``, ``same-agent``, ``active``, ``pending-input``,
    ``acp-target``, ``no-workdir``, ``blocked`` or ``too-many-sessions``.
    """

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        if hint is not None:
            self.hint = hint


class MoveError(GreenroomError):
    """A bulk move ended early; the sessions that it names stay moved, or deleted."""

    code = "move_incomplete"
    hint = "mend what it says, and move the rest"

    def __init__(self, moved: int, deleted: int, session_id: str, why: object) -> None:
        super().__init__(
            f"{moved} sessions were moved and {deleted} empty ones deleted;"
            f" session {session_id[:80]!r} was not moved: {why}"
        )
        self.moved, self.deleted = moved, deleted


@attrs.frozen
class Moved:
    """What a bulk move did."""

    moved: int
    deleted: int
    """Sessions without any message, which are not worth moving."""


@attrs.frozen
class Impact:
    """What a bulk move would do."""

    moved: int
    deleted: int
    blocked: int
    """Any of these, and nothing is moved."""
    samples: tuple[tuple[SessionId, str, Unfinished | None], ...]
    """Up to `SAMPLES` of the sessions, those that block first: id, title, and why."""


@attrs.frozen
class _Case:
    row: SessionRow
    blocked: Unfinished | None
    is_draft: bool


@final
@attrs.define(eq=False)
class Transfers:
    """Gives sessions to other agents."""

    _sessions: Sessions
    _agents: AgentManager
    _deletion: Deletion

    async def transfer(
        self, session_id: SessionId, agent_id: str, *, bulk: bool = False
    ) -> SessionSettings:
        """Give a session to an agent; return its settings from now on.

        With *bulk* also one that another session has made.

        Raises:
            SessionNotFoundError: there is none.
            TransferRefusedError: see there; nothing was changed.
            AgentNotFoundError, AgentUnavailableError, AgentRefusedError: the target is
                not there, can't be run, or is disabled.
            BeingDeletedError: the session or the target is being deleted.
            SessionHeldError: another engine owns the session.
        """
        with self._sessions.gates.operation(session_id):
            row = await self._row(session_id)
            if not bulk and await self._deletion.stages.delegation.is_child(session_id):
                raise TransferRefusedError(
                    "not-regular", "the session works for another one and goes with it"
                )
            chosen = await self._target(agent_id)
            with self._agents.gates.operation(chosen.agent.id):
                settings = await self._assign(row, chosen)
            await self._close_old(row)
            return settings

    async def _target(self, agent_id: str) -> Selected:
        chosen = await self._agents.select(agent_id)
        if chosen.agent.kind != "native":
            raise TransferRefusedError(
                "acp-target",
                f"agent {chosen.agent.id!r} runs in a process of its own, which can't"
                " go on with what another agent has begun",
                hint="choose an agent of kind native",
            )
        return chosen

    async def _assign(self, row: SessionRow, chosen: Selected) -> SessionSettings:
        await _check_folder(_assigned(row.settings, chosen))

        def judge(now: SessionSettings, rest: Unfinished | None) -> SessionSettings:
            _check(row.id, now, chosen, rest)
            return _assigned(now, chosen)

        def keep(store: Store) -> None:
            target = chosen.agent.id
            self._agents.require(store, target)
            allowed = chosen.config.enabled_skill_names
            filter_selection(store, row.id, target, allowed)

        return await self._commit(row.id, judge, keep)

    async def _commit(
        self,
        session_id: SessionId,
        judge: Callable[[SessionSettings, Unfinished | None], SessionSettings],
        keep: Callable[[Store], None],
    ) -> SessionSettings:
        for _ in range(_TRIES):
            await self._sessions.until_opened(session_id)
            loaded = self._sessions.loaded(session_id)
            if loaded is None:
                done = await self._write(session_id, judge, keep)
            else:
                done = await _ask(loaded, AssignSession(judge, keep))
            if done is not None:
                return done
        raise TransferRefusedError(
            "active", f"session {session_id!r} is being loaded or closed"
        )

    async def _write(
        self,
        session_id: SessionId,
        judge: Callable[[SessionSettings, Unfinished | None], SessionSettings],
        keep: Callable[[Store], None],
    ) -> SessionSettings | None:
        # ``None``: it was loaded here meanwhile, and nothing was done.
        world = self._sessions.world
        member, revision, now = world.member, world.ids.uuid(), world.clock.now()
        done: Assigned | Held | None = await world.writer.submit(
            Piece(
                lambda store: assign_session(
                    store, member, session_id, judge, keep, revision=revision, now=now
                )
            ),
            self._tell,
        )
        if done is None:
            raise SessionNotFoundError(session_id)
        if isinstance(done, Assigned):
            return done.settings
        if done.owner.member_id != member.id:
            raise SessionHeldError(session_id, done.owner)
        return None

    def _tell(self, done: Assigned | Held | None) -> None:
        # No actor did it, and whoever watches is told all the same.
        if isinstance(done, Assigned):
            entry = done.entry
            hub = self._sessions.hub(entry.session_id)
            for event in events_of(entry):
                hub.publish(event)
            self._sessions.release_hub(entry.session_id)

    async def _close_old(self, row: SessionRow) -> None:
        # Only a backend of another kind has anything left of it.
        try:
            kind = await self._agents.kind(row.settings.agent_id)
            old = self._agents.backends.get(kind or "")
            if kind != "native" and old is not None:
                await old.forget(row.id)
        except Exception as exc:
            _LOG.warning(
                "session %s has another agent now, and the backend of the old one was"
                " not closed: %s",
                row.id,
                exc,
                extra=of_session(row.id),
            )

    async def _row(self, session_id: SessionId) -> SessionRow:
        row = await self._sessions.world.readers.read(lambda r: r.session(session_id))
        if row is None:
            raise SessionNotFoundError(session_id)
        return row

    #### All sessions of an agent

    async def assess(self, agent_id: str) -> Impact:
        """Return what moving all sessions of an agent would do; changes nothing.

        Raises:
            TransferRefusedError: ``too-many-sessions``.
        """
        cases = await self._cases(agent_id)
        first = sorted(cases, key=lambda case: case.blocked is None)[:SAMPLES]
        blocked = [case for case in cases if case.blocked is not None]
        drafts = [case for case in cases if case.is_draft]
        return Impact(
            moved=len(cases) - len(drafts),
            deleted=len(drafts),
            blocked=len(blocked),
            samples=tuple(
                (case.row.id, case.row.settings.title, case.blocked) for case in first
            ),
        )

    async def move_all(self, agent_id: str, target_id: str) -> Moved:
        """Give every session of an agent to another one, and delete its empty ones.

        All are looked at first; if any may not go, none does. Then they go one by one.

        Raises:
            TransferRefusedError: ``blocked``, or as for `transfer`; nothing was moved.
            AgentNotFoundError, AgentUnavailableError, AgentRefusedError: as for
                `transfer`.
            MoveError: one could not be moved, or deleted, after all.
        """
        await self._target(target_id)
        cases = await self._cases(agent_id)
        blocked = [case for case in cases if case.blocked is not None]
        if blocked:
            raise TransferRefusedError(
                "blocked",
                f"{len(blocked)} of {len(cases)} sessions can't be moved now; the first"
                f" is {blocked[0].row.id!r} ({blocked[0].blocked})",
                hint="let their turns end, and what waits in them be worked on",
            )
        moved = deleted = 0
        # What is worth keeping first.
        for case in sorted(cases, key=lambda case: case.is_draft):
            try:
                if case.is_draft:
                    await self._deletion.delete(case.row.id)
                    deleted += 1
                else:
                    await self.transfer(case.row.id, target_id, bulk=True)
                    moved += 1
            except GreenroomError as exc:
                raise MoveError(moved, deleted, case.row.id, exc) from exc
        return Moved(moved, deleted)

    async def _cases(self, agent_id: str) -> list[_Case]:
        rows = await self._sessions.world.readers.read(
            lambda reader: _rows_of(reader, agent_id)
        )
        return [await self._case(row) for row in rows]

    async def _case(self, row: SessionRow) -> _Case:
        blocked = await self._unfinished(row.id)
        is_empty = row.message_count == 0 and blocked is None
        children = await self._deletion.stages.delegation.children(row.id)
        return _Case(row, blocked, is_draft=is_empty and not children)

    async def _unfinished(self, session_id: SessionId) -> Unfinished | None:
        world, loaded = self._sessions.world, self._sessions.loaded(session_id)
        if loaded is not None and loaded.session.turn is not None:
            return "active"
        now = world.clock.now()
        try:
            return await world.writer.submit(
                Piece(
                    lambda store: assess_session(store, world.member, session_id, now)
                )
            )
        except StorageError:
            return "pending-input"


async def _ask(loaded: Loaded, request: AssignSession) -> SessionSettings | None:
    # ``None``: it was unloaded meanwhile, and nothing was done.
    try:
        return await loaded.ref.ask(request)
    except ActorExitedError as exc:
        if not isinstance(exc.reason, Normal | Stopped):
            raise
    except TurnRefusedError as exc:
        if exc.code != "session_closing":
            raise
        await loaded.ref.wait_exited()
    return None


def _check(
    session_id: SessionId,
    settings: SessionSettings,
    chosen: Selected,
    rest: Unfinished | None,
) -> None:
    target = chosen.agent.id
    if settings.agent_id == target:
        raise TransferRefusedError(
            "same-agent", f"session {session_id!r} is of agent {target!r} already"
        )
    if rest == "active":
        raise TransferRefusedError(
            "active",
            f"session {session_id!r} works on a turn, or waits for an answer",
            hint="let it end, answer it, or cancel it",
        )
    if rest == "pending-input":
        raise TransferRefusedError(
            "pending-input",
            f"input waits in session {session_id!r}",
            hint="let it be worked on, or delete it",
        )


def _assigned(settings: SessionSettings, chosen: Selected) -> SessionSettings:
    # What the target does not say goes on as it is, but for what it allows.
    config = chosen.config
    model = config.default_model
    return msgspec.structs.replace(
        settings,
        agent_id=chosen.agent.id,
        provider=settings.provider if model is None else model.provider,
        model=settings.model if model is None else model.model,
        workspace=config.project_path or settings.workspace,
        permission_mode=config.permission_mode or "default",
        system_prompt=config.system_prompt,
        disabled_tools=config.disabled_tools,
    )


async def _check_folder(settings: SessionSettings) -> None:
    # A model behind an agent's process works in that folder by itself.
    if settings.provider != ACP_PROVIDER:
        return
    folder = Path(settings.workspace)
    try:
        is_there = folder.is_absolute() and await trio.Path(folder).is_dir()
    except (OSError, ValueError):
        is_there = False
    if not is_there:
        raise TransferRefusedError(
            "no-workdir",
            f"the folder {str(folder)[:200]!r} is not there, which the provider needs",
            hint="give the agent a projectPath that exists",
        )


def _rows_of(reader: Reader, agent_id: str) -> list[SessionRow]:
    rows: list[SessionRow] = []
    key: tuple[float, SessionId] | None = None
    while page := reader.sessions(_PAGE, key, agent=agent_id):
        rows += page
        if len(rows) > MAX_MOVED:
            raise TransferRefusedError(
                "too-many-sessions",
                f"agent {agent_id[:80]!r} has more than {MAX_MOVED} sessions",
                hint="delete or move some of them first",
            )
        key = page[-1].updated_at, page[-1].id
    return rows
