"""What an engine is opened on, and in which order it begins and ends (PER-11).

It begins with the migration of the database, then that of agents, then what dead owners
left is settled: before any actor lives, or nothing starts (JRN-17). Then sessions can
be reached, and only then there is an engine to hand out. It ends stage by stage in
`STOP_ORDER`, each within its bound, and its storage after all of them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from greenroom.actors.agents import AgentManager
from greenroom.actors.kernel import Clock, Ids, SupervisorHandle, System
from greenroom.actors.providers import (
    Fail,
    Provider,
    RateGate,
    RateLimit,
    RehearsalProvider,
)
from greenroom.actors.readers import InlineReaders, open_readers
from greenroom.actors.sessions import PieceWriter, StoreReaders
from greenroom.actors.writer import InlineWriter, open_writer
from greenroom.protocol import DRAIN_SECONDS, GreenroomError, ModelRequest
from greenroom.storage import (
    Member,
    RecoveryReport,
    SqliteStore,
    Store,
    open_reader,
    open_store,
    recover,
)
from greenroom.storage.legacy import Materialised

MEMBER_TTL: Final = 365 * 86_400.0
"""Seconds an engine may live without a beat. On one machine a lock file tells at once
who is dead, so an idle engine writes nothing to say that it lives."""


class WorkspaceError(GreenroomError):
    """The folder a session should work in can't be used."""

    code = "workspace_error"
    hint = "name a folder that exists"


STOP_ORDER: Final = ("hooks", "sessions", "skills", "memory")
"""The stages of the engine's end. Whoever lets work in, an endpoint say, has ended
before: it holds the engine. Hooks are told nothing of what the end itself does; memory
takes in what the sessions have left."""

_END_SECONDS: Final = 2.0
"""What an actor gets beyond its own bound to say that it has ended."""


@attrs.frozen
class Ready:
    """What the start has made of a store."""

    member: Member
    migrated: Materialised
    """Agents of an older form, taken over."""
    recovered: RecoveryReport


def open_stages(system: System) -> dict[str, SupervisorHandle]:
    """Start the supervisor of each stage, the first to end last."""
    return {name: _open_stage(system, name) for name in reversed(STOP_ORDER)}


def _open_stage(system: System, name: str) -> SupervisorHandle:
    if name == "memory":
        return system.supervisor(name, shutdown=DRAIN_SECONDS + _END_SECONDS)
    return system.supervisor(name)


async def take_up(
    folder: Path, program: str, clock: Clock, ids: Ids
) -> tuple[SqliteStore, Ready]:
    """Open the store of *folder*, migrated if need be, and make it ready.

    Raises:
        StorageError: the state can't be used; nothing is left open.
    """
    store = open_store(folder)
    try:
        return store, await make_ready(store, program, clock, ids)
    except BaseException:
        store.close()
        raise


async def make_ready(store: Store, program: str, clock: Clock, ids: Ids) -> Ready:
    """Become a member of *store*, migrate its agents, recover what dead owners left.

    Raises:
        StorageError: the state can't be used.
    """
    member = store.join(_node(program), "", MEMBER_TTL, now=clock.now())
    # What came through a member that is dead is worth nothing (SES-08).
    store.drop_stale_bindings()
    agents = AgentManager(InlineWriter(store), InlineReaders(store), clock, ids)
    await agents.migrate()
    return Ready(member, agents.migrated, recover(store, member, clock.now()))


@asynccontextmanager
async def own_storage(
    store: SqliteStore, folder: Path, *, threads: bool
) -> AsyncGenerator[tuple[PieceWriter, StoreReaders]]:
    """Give a writer and readers of *store*, which is closed behind them."""
    if threads:
        async with (
            open_writer(store) as writer,
            open_readers(lambda: open_reader(folder)) as readers,
        ):
            yield writer, readers
        return
    try:
        yield InlineWriter(store), InlineReaders(store)
    finally:
        store.close()


@asynccontextmanager
async def lent_storage(
    store: Store, member: Member, clock: Clock
) -> AsyncGenerator[tuple[PieceWriter, StoreReaders]]:
    """Give a writer and readers of a store that stays its lender's."""
    try:
        yield InlineWriter(store), InlineReaders(store)
    finally:
        # No process ends here, so nobody else could know that the sessions are free.
        store.leave(member, now=clock.now())


def providers_by_id(
    provider: Provider | None, providers: Iterable[Provider]
) -> dict[str, Provider]:
    """Return all providers, the first one the default of new sessions."""
    chosen = ([] if provider is None else [provider]) + list(providers)
    return {each.id: each for each in chosen or [RehearsalProvider(_nobody)]}


def rate_gates(
    providers: Mapping[str, Provider], limits: Mapping[str, RateLimit]
) -> dict[str, RateGate]:
    """Return the gate of each provider (TRY-20).

    Raises:
        ValueError: a limit is of no provider.
    """
    for unknown in limits.keys() - providers.keys():
        known = ", ".join(sorted(providers))
        raise ValueError(f"rate limit for no provider: {unknown!r}; there is {known}")
    return {each: RateGate(limits.get(each)) for each in providers}


def _nobody(_: ModelRequest) -> list[Fail]:
    return [Fail("no provider was given to open_engine", code="no_provider")]


def _node(program: str) -> str:
    return f"{program} (process {os.getpid()} on {socket.gethostname()})"


async def resolved_workspace(folder: Path | str | None) -> Path:
    """Return the folder that a session's tools may touch.

    Raises:
        WorkspaceError: it is none, or can't be used.
    """
    if folder is None:
        raise WorkspaceError("neither the session nor its agent names a workspace")
    shown = str(folder)[:200]
    try:
        resolved = await (await trio.Path(folder).expanduser()).resolve()
        is_folder = await resolved.is_dir()
    except (OSError, RuntimeError, ValueError) as exc:
        raise WorkspaceError(f"workspace {shown!r} can't be used: {exc}") from exc
    if not is_folder:
        raise WorkspaceError(f"workspace {shown!r} is not a folder")
    return Path(resolved)
