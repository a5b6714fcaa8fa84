"""From a folder of Skills for each agent to global packages with bindings (SKL-06).

The older system kept the packages of the builtin agent at the top of the folder, and
those of another agent below ``.agent-scopes/<id>``. A file ``state.json`` said what
was disabled: version 1 for the builtin agent, version 2 for each, with extensions and
the selections of sessions.

Order: the plan is made from what is there and kept in the store; each copy lands
under its name in one rename; then bindings, selections and the version are committed
together, last. A start that finds a plan goes on with it, whatever was copied: a plan
made anew would take copies for packages of the builtin agent. Nothing old is changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, final

import attrs
import msgspec

from greenroom.protocol import (
    DEFAULT_AGENT_ID,
    AgentSkills,
    CorruptStoreError,
    SessionId,
    SkillBinding,
    SkillRecord,
    SkillState,
    is_skill_name,
)
from greenroom.storage import Reader, Store, put_skill_state, remap_selections

from ._packages import (
    INCOMING,
    SKILL_FILE,
    Packages,
    copy_tree,
    failure,
    remove_tree,
    tree_digest,
)

SCOPES: Final = ".agent-scopes"
STATE_FILE: Final = "state.json"
PLAN_KEY: Final = "skills.migration"
STATE_KEY: Final = "skills.state"
MAX_STATE_BYTES: Final = 4 << 20


class _Scope(msgspec.Struct, frozen=True):
    disabled: tuple[str, ...] = ()
    extensions: dict[str, dict[str, Any]] = {}


class _Old(msgspec.Struct, frozen=True):
    version: Literal[1, 2] = 1
    disabled: tuple[str, ...] = ()
    """Version 1: of the builtin agent."""
    agents: dict[str, _Scope] = {}
    selections: dict[str, tuple[str, ...]] = {}

    def scope(self, agent_id: str) -> _Scope:
        if self.version == 1:
            is_builtin = agent_id == DEFAULT_AGENT_ID
            return _Scope(self.disabled if is_builtin else ())
        return self.agents.get(agent_id, _Scope())


class Copy(msgspec.Struct, frozen=True):
    """One package that gets a global name."""

    agent: str
    old: str
    new: str


class Plan(msgspec.Struct, frozen=True):
    """What the migration does; kept until it is done."""

    state: SkillState
    copies: tuple[Copy, ...] = ()
    names: dict[str, dict[str, str]] = {}
    """By agent: what its packages are called from now on."""
    selections: dict[str, tuple[str, ...]] = {}


@final
@attrs.frozen
class LegacySkills:
    """The folder as the older system left it. Everything blocks."""

    folder: Path
    step: Callable[[Copy], object] = lambda _: None
    """Called before each copy; for tests that cut the migration off."""

    @property
    def is_there(self) -> bool:
        """Whether an older system used the folder."""
        paths = self.folder / STATE_FILE, self.folder / SCOPES
        return any(os.path.lexists(path) for path in paths)

    def plan(self, natives: frozenset[str]) -> Plan:
        """Return what is to be done for the agents that run here.

        Raises:
            SkillError: a package can't be read.
            CorruptStoreError: the older state can't be.
        """
        old, scopes = self._state(), self._scopes(natives)
        digests: dict[str, str] = {}
        names: dict[str, dict[str, str]] = {}
        copies: list[Copy] = []
        for agent_id, packages in scopes.items():
            names[agent_id] = {}
            for name, folder in packages.items():
                digest = tree_digest(folder)
                new = self._name_for(name, agent_id, digest, digests)
                if new not in digests and agent_id != DEFAULT_AGENT_ID:
                    copies.append(Copy(agent_id, name, new))
                digests[new] = digest
                names[agent_id][name] = new
        state = _state(old, names, digests, copies)
        return Plan(state, tuple(copies), names, dict(old.selections))

    def _name_for(
        self, name: str, agent_id: str, digest: str, taken: Mapping[str, str]
    ) -> str:
        if agent_id == DEFAULT_AGENT_ID:
            return name
        for candidate in _candidates(name, agent_id):
            if candidate in taken:
                if taken[candidate] == digest:
                    return candidate
            elif not os.path.lexists(self.folder / candidate):
                return candidate
        raise AssertionError("there is always another number")

    def copy(self, plan: Plan) -> None:
        """Copy what the plan names; what is there already is left.

        Raises:
            SkillError: a package can't be copied.
        """
        for copy in plan.copies:
            target = self.folder / copy.new
            if os.path.lexists(target):
                # It came here in one rename, so all of it is there.
                continue
            self.step(copy)
            hidden = self.folder / INCOMING / copy.new
            try:
                remove_tree(hidden)
                copy_tree(self.folder / SCOPES / copy.agent / copy.old, hidden)
                os.rename(hidden, target)
            except OSError as exc:
                raise failure(f"Skill {copy.old!r} can't be copied", exc) from exc

    def _scopes(self, natives: frozenset[str]) -> dict[str, dict[str, Path]]:
        # The builtin's come first: its packages keep their names.
        found = {DEFAULT_AGENT_ID: dict(_packages(self.folder))}
        try:
            others = sorted(os.listdir(self.folder / SCOPES))
        except OSError:
            others = []
        for agent_id in others:
            if agent_id in natives and agent_id != DEFAULT_AGENT_ID:
                found[agent_id] = dict(_packages(self.folder / SCOPES / agent_id))
        return found

    def _state(self) -> _Old:
        file = self.folder / STATE_FILE
        try:
            with open(file, "rb") as stream:
                content = stream.read(MAX_STATE_BYTES + 1)
        except FileNotFoundError:
            return _Old()
        except OSError as exc:
            raise failure(f"{file} can't be read", exc) from exc
        try:
            return msgspec.json.decode(content, type=_Old)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise CorruptStoreError(
                f"{file} can't be read: {exc}", hint="mend it, or move it away"
            ) from exc


def _packages(folder: Path) -> Iterator[tuple[str, Path]]:
    for name in Packages(folder).names():
        if (folder / name / SKILL_FILE).is_file():
            yield name, folder / name


def _candidates(name: str, agent_id: str) -> Iterator[str]:
    yield name
    owner = "".join(c if c.isalnum() and c.isascii() else "-" for c in agent_id.lower())
    words = [word for word in owner.split("-") if word]
    number = 1
    while True:
        end = "-".join([*words, str(number)] if number > 1 else words)[-40:].strip("-")
        wanted = f"{name[: 63 - len(end)].rstrip('-')}-{end}"
        if is_skill_name(wanted):
            yield wanted
        number += 1


def _state(
    old: _Old,
    names: Mapping[str, Mapping[str, str]],
    digests: Mapping[str, str],
    copies: list[Copy],
) -> SkillState:
    sources = {copy.new: f"agent {copy.agent}" for copy in copies}
    skills = {
        name: SkillRecord(name=name, path=name, source=sources.get(name, "builtin"))
        for name in sorted(digests)
    }
    agents = {
        agent_id: AgentSkills(bindings=_bindings(old.scope(agent_id), mapping))
        for agent_id, mapping in names.items()
        if mapping
    }
    return SkillState(skills=skills, agents=agents)


def _bindings(scope: _Scope, mapping: Mapping[str, str]) -> dict[str, SkillBinding]:
    return {
        new: SkillBinding(
            assigned=name not in scope.disabled,
            extension=scope.extensions.get(name, {}),
        )
        for name, new in mapping.items()
    }


#### Pieces


def kept_plan(reader: Reader) -> Plan | None:
    """Return the plan of a migration that was begun and not finished."""
    kept = reader.app_setting(PLAN_KEY)
    return None if kept is None else msgspec.json.decode(kept, type=Plan)


def is_managed(reader: Reader) -> bool:
    """Whether there is a state of version 3 already."""
    return reader.app_setting(STATE_KEY) is not None


def native_agents(reader: Reader) -> frozenset[str]:
    """Return the ids of the agents that run here."""
    return frozenset(row.id for row in reader.agents() if row.kind == "native")


def keep_plan(store: Store, plan: Plan, now: float) -> None:
    """Keep *plan*, before anything of it is done."""
    store.put_app_setting(PLAN_KEY, msgspec.json.encode(plan).decode(), now=now)


def finish_migration(store: Store, plan: Plan, now: float) -> None:
    """Commit bindings, selections and the version, and forget the plan."""
    selections = {SessionId(key): names for key, names in plan.selections.items()}
    remap_selections(store, selections, plan.names)
    put_skill_state(store, plan.state, now)
    store.put_app_setting(PLAN_KEY, None, now=now)
