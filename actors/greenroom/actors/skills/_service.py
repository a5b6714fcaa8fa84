"""The service of Skills: what is there, who may use it, and every change of it.

Changes are made one after the other by an actor of the service, and against other
engines on the folder under a lock file; who asks may go away, the change is finished.
Files and the store can't change together, so every change is arranged that whatever
it leaves behind when it is cut off grants nothing, and `start` puts it in order:

- adding: the files, then the record; files without a record are taken in;
- removing: the files are moved aside, then record, bindings and selections go in one
  transaction, then the files; what was moved aside is put back while the record is
  there (SKL-05).
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, cast, final

import attrs
import msgspec

from greenroom.actors.kernel import Ask, Clock, Context, Ref, Request, Stop
from greenroom.protocol import (
    AgentConfig,
    GreenroomError,
    SessionId,
    SkillError,
    SkillRecord,
    SkillState,
    catalogue_of,
    effective_skills,
    holders,
    unknown_skill,
    with_binding,
    with_only_agents,
    with_skill,
    without_skill,
)
from greenroom.storage import (
    Piece,
    Store,
    change_skill_state,
    filter_selections,
    read_skill_state,
)

from ._migration import (
    LegacySkills,
    finish_migration,
    is_managed,
    keep_plan,
    kept_plan,
    native_agents,
)
from ._packages import Package, Packages, failure, read_package
from ._ports import Configs, PieceWriter, StoreReaders, Work

_LOG: Final = logging.getLogger("greenroom.skills")

T = TypeVar("T")
Spawn = Callable[[str, Callable[[Context[Any]], Awaitable[None]]], Ref[Any]]


@attrs.frozen
class SkillView:
    """What one agent may use, and what one session of it uses, at one moment."""

    catalogue: dict[str, Package] = attrs.field(factory=dict[str, Package])
    effective: tuple[str, ...] = ()


@attrs.frozen
class _Change(Request[Any]):
    run: Callable[[], Awaitable[Any]]


@final
@attrs.define(eq=False)
class Skills:
    """Everything about Skills of a state folder; begun by `start`."""

    _packages: Packages
    _writer: PieceWriter
    _readers: StoreReaders
    _configs: Configs
    _clock: Clock
    _work: Work
    _actor: Ref[Any] | None = attrs.field(default=None, init=False)

    @property
    def folder(self) -> Path:
        """Where packages are."""
        return self._packages.root

    async def start(self, spawn: Spawn) -> None:
        """Put in order what was left, then let changes begin.

        Bindings of agents that are gone or run elsewhere are removed before anything
        is exposed (SKL-05).
        """
        try:
            if await self._work.run(self.folder.is_dir):
                with _alone(self.folder):
                    await self._put_in_order()
            await self._write(_forget_others)
        except (GreenroomError, OSError) as exc:
            # What is not known grants nothing; the next start tries again.
            _LOG.warning("Skills were not put in order: %s", exc)
        self._actor = spawn("changes", _behave)

    async def _put_in_order(self) -> None:
        await self._migrate()
        state = await self._state()
        await self._work.run(lambda: self._settle_files(state), changes=True)
        await self._adopt(state)

    def _settle_files(self, state: SkillState) -> None:
        for name in self._packages.backups():
            if name in state.skills:
                self._packages.restore(name)
            self._packages.drop_backup(name)

    async def _adopt(self, state: SkillState) -> None:
        found = await self._work.run(self._packages.look)
        strays = [name for name in found if name not in state.skills]
        for name in strays:
            await self._record(name, "found in the folder")

    async def _migrate(self) -> None:
        legacy = LegacySkills(self.folder)
        plan = await self._readers.read(kept_plan)
        if plan is None:
            if await self._readers.read(is_managed) or not legacy.is_there:
                return
            natives = await self._readers.read(native_agents)
            made = await self._work.run(lambda: legacy.plan(natives))
            plan = made
            await self._write(lambda store, now: keep_plan(store, made, now))
        chosen = plan
        await self._work.run(lambda: legacy.copy(chosen), changes=True)
        await self._write(lambda store, now: finish_migration(store, chosen, now))

    #### Looking

    async def packages(self) -> dict[str, Package]:
        """Return every package that can be used, by name; it grants nothing."""
        return await self._work.run(self._packages.look)

    async def state(self) -> SkillState:
        """Return what is managed."""
        return await self._state()

    async def view(self, agent_id: str, session_id: SessionId) -> SkillView:
        """Return what *agent_id* may use, and what the session uses of it (SKL-02).

        Raises:
            StorageError, SkillError: it is not known; then nothing may be used.
        """
        catalogue = await self.catalogue(agent_id)
        if not catalogue:
            return SkillView()
        selected = await self._readers.read(lambda r: r.skill_selection(session_id))
        return SkillView(catalogue, effective_skills(selected, catalogue))

    async def catalogue(self, agent_id: str) -> dict[str, Package]:
        """Return the packages that an agent may use, by name.

        Raises:
            StorageError, SkillError: as `view`.
        """
        state = await self._state()
        config = await self._configs.config(agent_id)
        if config is None or not state.agents.get(agent_id):
            return {}
        found = await self.packages()
        names = catalogue_of(state, found, agent_id, _allowed(config))
        return {name: found[name] for name in sorted(names)}

    async def _state(self) -> SkillState:
        return await self._readers.read(read_skill_state)

    #### Changes

    async def add(self, source: Path) -> str:
        """Copy a package in and return its name; nobody may use it yet.

        Raises:
            SkillError: ``invalid_skill``, ``skill_exists``, ``too_many_skills``,
                ``skill_io``.
        """
        return await self._change(lambda: self._add(source))

    async def _add(self, source: Path) -> str:
        text = (await self._work.run(lambda: read_package(source))).text
        await self._work.run(
            lambda: self._packages.take_in(source, text.name), changes=True
        )
        try:
            await self._record(text.name, str(source))
        except BaseException:
            await self._work.run(lambda: self._packages.drop(text.name), changes=True)
            raise
        return text.name

    async def _record(self, name: str, source: str) -> None:
        record = SkillRecord(name=name, path=name, source=source)
        await self._write(
            lambda store, now: change_skill_state(
                store, lambda state: with_skill(state, record), now
            )
        )

    async def remove(self, name: str, acknowledged: Collection[str]) -> None:
        """Remove a package, its bindings and its selections (SKL-05).

        *acknowledged* are the agents that the caller knows to lose it.

        Raises:
            SkillError: ``skill_not_found``; ``bindings_changed``, those are not the
                agents that have it now; ``skill_io``.
            StorageError: not committed; the package is where it was.
        """
        await self._change(lambda: self._remove(name, frozenset(acknowledged)))

    async def _remove(self, name: str, acknowledged: frozenset[str]) -> None:
        _check_acknowledged(await self._state(), name, acknowledged)
        await self._work.run(lambda: self._packages.back_up(name), changes=True)
        try:
            await self._write(
                lambda store, now: _drop_skill(store, name, acknowledged, now)
            )
        except BaseException:
            await self._work.run(lambda: self._packages.restore(name), changes=True)
            raise
        try:
            await self._work.run(lambda: self._packages.drop_backup(name), changes=True)
        except OSError as exc:
            # The next start removes it.
            _LOG.warning("the files of Skill %s are still there: %s", name, exc)

    async def bind(
        self,
        agent_id: str,
        name: str,
        *,
        assigned: bool = True,
        extension: dict[str, Any] | None = None,
    ) -> None:
        """Give a Skill to an agent, or take it away; its extension stays (SKL-04).

        Raises:
            SkillError: ``skill_not_found``, ``not_native``, ``invalid_skill``.
        """
        await self._change(
            lambda: self._write(
                lambda store, now: _bind(
                    store, agent_id, name, assigned, extension, now
                )
            )
        )

    async def select(
        self, session_id: SessionId, names: Collection[str]
    ) -> tuple[str, ...]:
        """Let a session use *names*, as far as its agent may; return those.

        Raises:
            SkillError: ``skill_not_found``; there is no such session.
            RefusedFactError: too many.
        """
        row = await self._readers.read(lambda reader: reader.session(session_id))
        if row is None:
            raise SkillError(
                "skill_not_found", f"there is no session {session_id[:80]!r}"
            )
        catalogue = await self.catalogue(row.settings.agent_id)
        kept = effective_skills(names, catalogue)
        await self._write(lambda store, _: store.put_skill_selection(session_id, kept))
        return kept

    async def _change(self, run: Callable[[], Awaitable[T]]) -> T:
        if self._actor is None:
            raise SkillError("skill_io", "Skills can't be changed before the start")
        return await self._actor.ask(_Change(lambda: self._alone(run)))

    async def _alone(self, run: Callable[[], Awaitable[T]]) -> T:
        await self._work.run(lambda: _make_folder(self.folder), changes=True)
        with _alone(self.folder):
            return await run()

    async def _write(self, change: Callable[[Store, float], T]) -> T:
        now = self._clock.now()
        return await self._writer.submit(Piece(lambda store: change(store, now)))


#### The actor


async def _behave(ctx: Context[Any]) -> None:
    async for message in ctx.mailbox:
        match message:
            case Stop():
                return
            case Ask(request=_Change(run=run)):
                await _answer(cast("Ask[Any]", message), run)
            case _:
                continue


async def _answer(ask: Ask[Any], run: Callable[[], Awaitable[Any]]) -> None:
    try:
        value = await run()
    except Exception as exc:
        ask.reply.set_error(exc)
    else:
        ask.reply.set_value(value)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise failure(f"the folder of Skills {folder} can't be made", exc) from exc


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    try:
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    except OSError as exc:
        raise failure("the folder of Skills can't be locked", exc) from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(descriptor)
        raise SkillError(
            "skill_io",
            "another program changes Skills right now",
            hint="try again in a moment",
        ) from exc
    try:
        yield
    finally:
        os.close(descriptor)


#### Pieces


def _allowed(config: AgentConfig) -> Collection[str] | None:
    return config.enabled_skill_names


def _forget_others(store: Store, now: float) -> None:
    # Before anything is exposed: bindings of agents that are gone, or that run
    # elsewhere, grant nothing (SKL-05).
    state, natives = read_skill_state(store), native_agents(store)
    if not state.agents.keys() <= natives:
        change_skill_state(store, lambda old: with_only_agents(old, natives), now)


def _check_acknowledged(
    state: SkillState, name: str, acknowledged: frozenset[str]
) -> None:
    if name not in state.skills:
        raise unknown_skill(name)
    now = holders(state, name)
    if frozenset(now) != acknowledged:
        raise SkillError(
            "bindings_changed",
            f"the agents that have Skill {name!r} are not those that were named:"
            f" {', '.join(now) or 'none'}",
            hint="look again, and name exactly these",
        )


def _drop_skill(
    store: Store, name: str, acknowledged: frozenset[str], now: float
) -> None:
    _check_acknowledged(read_skill_state(store), name, acknowledged)
    change_skill_state(store, lambda state: without_skill(state, name), now)
    filter_selections(store, {name})


def _bind(
    store: Store,
    agent_id: str,
    name: str,
    assigned: bool,
    extension: dict[str, Any] | None,
    now: float,
) -> None:
    if agent_id not in native_agents(store):
        raise SkillError(
            "not_native",
            f"there is no agent {agent_id[:80]!r} that runs here and can have Skills",
            hint="greenroom agents list shows the agents; one of kind native can",
        )
    plain = None if extension is None else _plain(extension)
    change_skill_state(
        store,
        lambda state: with_binding(
            state, agent_id, name, assigned=assigned, extension=plain
        ),
        now,
    )
    if not assigned:
        filter_selections(store, {name}, agent_id)


def _plain(extension: dict[str, Any]) -> dict[str, Any]:
    try:
        return msgspec.json.decode(msgspec.json.encode(extension), type=dict[str, Any])
    except (TypeError, ValueError, RecursionError) as exc:
        raise SkillError("invalid_skill", f"an extension is not JSON: {exc}") from exc
