"""The manager of agents: strict descriptor in, backend out; and every change of one.

It keeps nothing in memory but the backends and the watchers: rows are read when they
are asked for, so that engines which share a folder see the same. Which backend runs a
session is decided by the ``kind`` of the strictly decoded descriptor; neither the id
of a provider nor another backend is ever consulted (AGT-01).

`create_session`, `open_session` and `remove` are the only doors to an agent's life;
what gives a session to an agent goes through the agent's gate, which its removal shuts
(DEL-07).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, TypeVar, final

import attrs
import msgspec
import trio

from greenroom.actors.gates import Gates
from greenroom.actors.kernel import Clock, Ids
from greenroom.protocol import (
    NATIVE_PREFIX,
    AgentConfig,
    AgentDescriptor,
    AgentRefusedError,
    AgentRow,
    CatalogueEntry,
    SessionId,
    SessionSettings,
    catalogue_entry,
    patched_config,
    safe_json,
)
from greenroom.storage import (
    AppSettings,
    Piece,
    Store,
    ensure_builtin,
    put_app_settings,
    read_app_settings,
)
from greenroom.storage.legacy import (
    STEPS,
    Materialised,
    begin_import,
    is_due,
)

from . import _reads, _rows
from ._changes import AgentChanged, Changes
from ._ports import Backend, NoBackendError, PieceWriter, StoreReaders
from ._removal import Belongings, Removal
from ._settings import Selected

_LOG: Final = logging.getLogger("greenroom.agents")

_ID_BYTES: Final = 6
"""Eight URL-safe characters (AGT-11)."""

_ID_TRIES: Final = 8

T = TypeVar("T")


@final
@attrs.define(eq=False)
class AgentManager:
    """Every agent of a state folder; opened by `start`."""

    _writer: PieceWriter
    _readers: StoreReaders
    _clock: Clock
    _ids: Ids
    migrated: Materialised = attrs.field(factory=Materialised, init=False)
    """What this engine's start made of agents of the older system (AGT-20)."""
    backends: dict[str, Backend] = attrs.field(factory=dict[str, Backend], init=False)
    """By the kind of the agents whose sessions they run; see `register`."""
    _changes: Changes = attrs.field(factory=Changes, init=False)
    gates: Gates = attrs.field(factory=lambda: Gates("agent"), init=False)
    """One for each agent's id: in for whatever gives it a session (DEL-07)."""
    _removal: Removal = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._removal = Removal(self._writer, self._readers, self._clock.now)

    #### Start

    async def start(self, begin_registry: Callable[[], object] | None = None) -> None:
        """Migrate, finish what was begun, then let *begin_registry* begin.

        Raises:
            StorageError: the builtin agent could not be made sure.
        """
        await self.migrate()
        await self.begin(begin_registry)

    async def migrate(self) -> None:
        """Make the builtin agent sure, and take over what is of an older form.

        A migration that fails is a warning: the old rule stays in force and the next
        start tries again (AGT-19).

        Raises:
            StorageError: the builtin agent could not be made sure.
        """
        await self._write(ensure_builtin)
        try:
            await self._migrate()
        except Exception as exc:
            _LOG.warning(
                "agents were not migrated, the next start tries again: %s", exc
            )

    async def begin(self, begin_registry: Callable[[], object] | None = None) -> None:
        """Finish removals that were cut off, then let *begin_registry* begin."""
        await self._removal.finish_pending()
        if begin_registry is not None:
            begin_registry()

    async def import_legacy(self, file: Path) -> Materialised:
        """Take the agents of an older system's database over, once.

        Repeating it with the same *file* goes on where it was left, or does nothing.

        Raises:
            LegacyError: the file is no such database.
            AgentRefusedError: ``agents_exist``.
        """
        path = Path(await trio.Path(file).absolute())
        if await self._write(lambda store, now: begin_import(store, path, now)):
            await self._migrate()
            for entry in await self.list():
                self._tell(entry.id, "imported")
        return self.migrated

    async def _migrate(self) -> None:
        if not await self._readers.read(is_due):
            return
        for step in STEPS:
            _LOG.debug("migrating agents: %s", step.name)
            made = await self._write(step.run)
            if isinstance(made, Materialised) and made.ids:
                self.migrated = made
        for agent_id in self.migrated.recovered:
            _LOG.warning(
                "the configuration of agent %s could not be read; it may do nothing"
                " until it is set anew, and what was stored is kept in its state",
                agent_id,
            )

    #### Looking

    async def list(self) -> list[CatalogueEntry]:
        """Return every agent as far as it can be read; never fails for one (AGT-06)."""
        rows = await self._readers.read(lambda reader: reader.agents())
        return [catalogue_entry(row) for row in rows]

    async def descriptor(self, agent_id: str) -> AgentDescriptor:
        """Return the strictly decoded agent.

        Raises:
            AgentNotFoundError: there is none.
            AgentUnavailableError: it can't be run as it is stored (AGT-07).
        """
        return await self._readers.read(lambda reader: _reads.decoded(reader, agent_id))

    async def config(self, agent_id: str) -> AgentConfig | None:
        """Return what is in force for an agent (AGT-14); ``None`` for an unknown one.

        Text that can't be decoded gives what allows nothing (AGT-15).
        """
        return await self._readers.read(lambda reader: _reads.config(reader, agent_id))

    async def kind(self, agent_id: str) -> str | None:
        """Return the kind of an agent that may be broken; ``None`` if there is none."""
        return await self._readers.read(lambda reader: _reads.kind(reader, agent_id))

    def changes(
        self,
    ) -> AbstractContextManager[trio.MemoryReceiveChannel[AgentChanged]]:
        """Receive what changes from now on; see `Changes.watch`."""
        return self._changes.watch()

    #### Sessions

    def register(self, kind: str, backend: Backend) -> None:
        """Let *backend* run the sessions of agents of *kind*; once for each kind."""
        if kind in self.backends:
            raise ValueError(f"there is a backend for kind {kind!r} already")
        self.backends[kind] = backend

    async def select(self, named: str | None) -> Selected:
        """Return the agent that a new session is of: named, or chosen, or builtin.

        Raises:
            AgentNotFoundError, AgentUnavailableError: see `descriptor`; an agent that
                was named, or chosen by the user, is never replaced (AGT-10).
            AgentRefusedError: ``agent_disabled``.
        """
        chosen = await self._readers.read(lambda reader: _reads.selected(reader, named))
        agent = chosen.agent
        if not agent.enabled:
            raise AgentRefusedError(
                "agent_disabled",
                f"agent {agent.id!r} is disabled and begins no sessions",
                hint=f"greenroom agents set {agent.id} --enable",
            )
        return chosen

    async def create_session(
        self, agent: AgentDescriptor, settings: SessionSettings
    ) -> SessionId:
        """Make a session of *agent* in the backend of its kind.

        Raises:
            AgentNotFoundError: it was removed meanwhile.
            BeingDeletedError: it is being removed.
            NoBackendError: this engine has none.
        """
        with self.gates.operation(agent.id):
            return await self._backend(agent).create(agent, settings)

    def require(self, store: Store, agent_id: str) -> None:
        """Refuse, in the transaction that names it, an agent that is gone (DEL-09).

        Raises:
            AgentNotFoundError: it was removed, by whichever engine.
        """
        _rows.find(store, agent_id)

    def belong(self, belongings: Belongings) -> None:
        """Say what else there is of an agent, before `start`; see `Belongings`."""
        self._removal.belongings = belongings

    async def open_session(self, agent_id: str, session_id: SessionId) -> None:
        """Make a session of *agent_id* ready, in the backend of its kind.

        Raises:
            AgentNotFoundError, AgentUnavailableError: see `descriptor`.
            NoBackendError: this engine has none.
        """
        agent = await self.descriptor(agent_id)
        await self._backend(agent).open(agent, session_id)

    async def admit_native(self, agent_id: str) -> None:
        """Refuse a session that the native loop must not run (AGT-04, AGT-06).

        Raises:
            AgentNotFoundError, AgentUnavailableError: see `descriptor`.
            NoBackendError: its agent is of another kind.
        """
        agent = await self.descriptor(agent_id)
        if agent.kind != "native":
            problem = "and the native loop never runs it"
            raise NoBackendError(agent.id, agent.kind, problem)

    def _backend(self, agent: AgentDescriptor) -> Backend:
        found = self.backends.get(agent.kind)
        if found is None:
            raise NoBackendError(
                agent.id, agent.kind, "which this engine can't run yet"
            )
        return found

    #### Changes

    async def create(
        self,
        name: str,
        *,
        config: Mapping[str, Any] | None = None,
        description: str = "",
    ) -> str:
        """Make a native agent and return its id.

        Raises:
            AgentRefusedError: ``invalid_patch``, ``no_valid_slots``,
                ``too_many_agents``.
        """
        text = patched_config(None, dict(config)) if config else None
        return await self._add(
            self._row(name, description, kind="native", config=text), NATIVE_PREFIX
        )

    async def create_acp(
        self,
        name: str,
        command: str,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        *,
        description: str = "",
    ) -> str:
        """Make an agent that runs in a process of its own, and return its id.

        Raises:
            AgentUnavailableError: the command could not be run as it is.
            AgentRefusedError: ``too_many_agents``.
        """
        launch = {"command": command, "args": list(args), "env": dict(env or {})}
        text = msgspec.json.encode(safe_json(launch)).decode()
        return await self._add(
            self._row(name, description, kind="acp", config=text), "acp-"
        )

    async def update(self, agent_id: str, patch: Mapping[str, Any]) -> AgentConfig:
        """Change a native agent's configuration by an RFC 7396 merge patch (AGT-18).

        Raises:
            AgentNotFoundError: there is none.
            AgentRefusedError: ``invalid_patch``, ``no_valid_slots``, ``not_native``;
                the row is as it was.
        """
        changes = dict(patch)
        changed, made = await self._write(
            lambda store, now: _rows.patch(store, agent_id, changes, now)
        )
        self._tell(changed, "updated")
        return made

    async def describe(
        self,
        agent_id: str,
        *,
        name: str | None = None,
        description: str | None = None,
        icon: str | None = None,
        enabled: bool | None = None,
    ) -> None:
        """Change how an agent is shown, and whether it begins sessions.

        Raises:
            AgentNotFoundError: there is none.
            AgentRefusedError: ``agent_protected``.
            StorageError: a text is too long.
        """
        told = {"name": name, "description": description, "icon": icon}
        changes: dict[str, Any] = {
            key: safe_json(value.strip())
            for key, value in told.items()
            if value is not None
        }
        if enabled is not None:
            changes["enabled"] = enabled
        row: AgentRow = await self._write(
            lambda store, now: _rows.describe(store, agent_id, changes, now)
        )
        self._tell(row.id, "updated")

    async def reset(self, agent_id: str) -> None:
        """Give a native agent the defaults of the code (AGT-09).

        Raises:
            AgentNotFoundError: there is none.
            AgentRefusedError: ``not_native``.
        """
        done = await self._write(lambda store, now: _rows.reset(store, agent_id, now))
        self._tell(done, "reset")

    async def remove(self, agent_id: str) -> None:
        """Remove an agent that has no sessions; who asks meanwhile shares the result.

        Sessions that are being made for it are waited for, 30 s at most, and others
        refused (DEL-07, DEL-08).

        Raises:
            AgentNotFoundError: there is none.
            AgentRefusedError: ``agent_protected``, ``agent_in_use``.
            StillUsedError: a session was being made all that time; the agent stays.
        """
        row = await self._readers.read(lambda reader: _rows.find(reader, agent_id))
        await self.gates.shared(row.id, lambda: self._remove(row.id))

    async def _remove(self, agent_id: str) -> None:
        async with self.gates.deletion(agent_id):
            await self._removal.remove(agent_id)
        self._tell(agent_id, "removed")

    #### Settings of the application

    async def app_settings(self) -> AppSettings:
        """Return what holds where neither a session nor its agent says anything."""
        return await self._readers.read(read_app_settings)

    async def change_app_settings(self, **changes: Any) -> AppSettings:  # noqa: ANN401 - the fields of AppSettings
        """Change settings of the application by their keys; no agent is touched.

        Raises:
            AgentNotFoundError: ``defaultAgent`` names none.
            AgentRefusedError: ``invalid_patch``; no such setting, or a wrong value.
        """
        return await self._write(lambda store, now: _settled(store, changes, now))

    #### Small parts

    async def _write(self, change: Callable[[Store, float], T]) -> T:
        now = self._clock.now()
        return await self._writer.submit(Piece(lambda store: change(store, now)))

    async def _add(self, row: AgentRow, prefix: str) -> str:
        for _ in range(_ID_TRIES):
            made = msgspec.structs.replace(row, id=prefix + self._ids.token(_ID_BYTES))
            if await self._write(lambda store, _, made=made: _rows.add(store, made)):
                self._tell(made.id, "created")
                return made.id
        raise AgentRefusedError(
            "agent_exists", f"{_ID_TRIES} new ids were all in use", hint="try again"
        )

    def _row(
        self, name: str, description: str, *, kind: str, config: str | None
    ) -> AgentRow:
        now = self._clock.now()
        return AgentRow(
            id="new",
            kind=kind,
            source="manual",
            name=safe_json(name.strip()),
            description=safe_json(description.strip()),
            config=config,
            created_at=now,
            updated_at=now,
        )

    def _tell(self, agent_id: str, change: Any) -> None:  # noqa: ANN401 - one of its words
        self._changes.tell(AgentChanged(agent_id, change))


def _settled(store: Store, changes: dict[str, Any], now: float) -> AppSettings:
    chosen = changes.get("defaultAgent")
    if chosen is not None:
        _rows.find(store, str(chosen))
    try:
        put_app_settings(store, changes, now)
    except ValueError as exc:
        raise AgentRefusedError("invalid_patch", f"a setting is wrong: {exc}") from exc
    return read_app_settings(store)
