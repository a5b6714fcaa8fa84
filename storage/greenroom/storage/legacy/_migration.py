"""From agents that inherit to agents that stand alone, in steps that can be repeated.

The older system laid an agent's configuration over that of its builtin agent. Here
nothing is inherited, so what was in force for each agent is written into its own row,
once. Each step is one piece, and does nothing when it was done before; the version is
written by the last of them. Until then `is_independent` says no, and the old rule is
in force (AGT-19 to AGT-22).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import attrs
import msgspec

from greenroom.protocol import (
    DEFAULT_AGENT_ID,
    AgentConfig,
    AgentRefusedError,
    AgentRow,
    Merged,
    config_members,
    config_text,
    resolve,
    resolve_merged,
)

from .._agents import AgentReader
from .._app_settings import (
    APP_KEYS,
    put_app_settings,
    read_app_settings,
)
from .._store import Store
from ._agents import OLD_BUILTIN, read_legacy_agents

AGENTS_VERSION: Final = 3
"""The version that every state folder comes to."""

_VERSION: Final = "agents.version"
_IMPORT: Final = "agents.import"
_ALIASES: Final = "agents.aliases"
_MCP_DONE: Final = "agents.mcp_list_converted"
_MAX_EVIDENCE: Final = 64 << 10


@attrs.frozen
class Materialised:
    """What the third step made; empty when there was nothing to do."""

    ids: tuple[str, ...] = ()
    recovered: tuple[str, ...] = ()
    """Those whose own text could not be read; it is kept in their state."""
    skills: Mapping[str, tuple[str, ...] | None] = {}
    """The Skills each may use, ``None`` for all, as they were in force."""


@attrs.frozen
class Step:
    """One transaction of the migration."""

    name: str
    run: Callable[[Store, float], Any]
    """Of the store and the time; repeated, it changes nothing more."""


class _Import(msgspec.Struct, frozen=True):
    """What is to be taken over."""

    file: str
    version: int
    """How far the older system had come itself."""


#### What is known


def is_independent(reader: AgentReader) -> bool:
    """Whether each agent's own row is all there is to it (AGT-21)."""
    if _number(reader, _VERSION) >= AGENTS_VERSION:
        return True
    order = _import(reader)
    return order is not None and order.version >= AGENTS_VERSION


def is_due(reader: AgentReader) -> bool:
    """Whether a step of the migration is left."""
    is_old = _number(reader, _VERSION) < AGENTS_VERSION
    return is_old or reader.app_setting(_MCP_DONE) is None


def effective_config(reader: AgentReader, row: AgentRow) -> AgentConfig:
    """Return what is in force for a native agent; never raises.

    Its own text and nothing else (AGT-14), once the agents stand alone.
    """
    if row.id == DEFAULT_AGENT_ID or is_independent(reader):
        return resolve(row.config)
    builtin = reader.agent(DEFAULT_AGENT_ID)
    base = None if builtin is None else builtin.config
    return resolve_merged(base, row.config).config


def aliases(reader: AgentReader) -> dict[str, str]:
    """Return other names of agents: ids they had elsewhere."""
    known = _object(reader.app_setting(_ALIASES))
    return {old: new for old, new in known.items() if isinstance(new, str)}


#### Before and beside the steps


def builtin_changed(store: Store, now: float) -> None:
    """Note that a person has said what the builtin agent is (AGT-22)."""
    if store.app_setting(_MCP_DONE) is None:
        store.put_app_setting(_MCP_DONE, "true", now=now)


def begin_import(store: Store, path: Path, now: float) -> bool:
    """Note that the agents of *path* are to be taken over; whether it is to be done.

    Raises:
        LegacyError: it is no database of the older system.
        AgentRefusedError: ``agents_exist``; there are agents that this would change.
    """
    known = _import(store)
    if known is not None and known.file == str(path):
        return is_due(store)
    order = _Import(str(path), read_legacy_agents(path).version)
    rows = store.agents()
    untouched = all(row.id == DEFAULT_AGENT_ID and not row.config for row in rows)
    if known is not None or not untouched:
        raise AgentRefusedError(
            "agents_exist",
            "there are agents of this state folder's own, which would be changed",
            hint="take the old ones over into a new state folder (--state)",
        )
    store.put_app_setting(_IMPORT, msgspec.json.encode(order).decode(), now=now)
    store.put_app_setting(_VERSION, "0", now=now)
    store.put_app_setting(_MCP_DONE, None, now=now)
    return True


#### The steps


def _take_over(store: Store, now: float) -> None:
    order = _import(store)
    if order is None or _is_current(store):
        return
    for row in read_legacy_agents(Path(order.file)).rows:
        if row.id == DEFAULT_AGENT_ID:
            _take_over_builtin(store, row)
        elif store.agent(row.id) is None:
            store.put_agent(msgspec.structs.replace(row, protected=False))
    names = aliases(store) | {OLD_BUILTIN: DEFAULT_AGENT_ID}
    store.put_app_setting(_ALIASES, msgspec.json.encode(names).decode(), now=now)


def _take_over_builtin(store: Store, old: AgentRow) -> None:
    ours = store.agent(DEFAULT_AGENT_ID)
    if ours is not None and not ours.config:
        store.put_agent(msgspec.structs.replace(ours, config=old.config))


def _clean_tools(store: Store, now: float) -> None:
    order = _import(store)
    if _is_current(store) or (order is not None and order.version >= 2):
        return
    for row in store.agents():
        members = _members(row) if row.kind == "native" else {}
        names = members.get("disabledTools")
        if not isinstance(names, list):
            continue
        said = [name for name in cast("list[Any]", names) if isinstance(name, str)]
        clean = sorted({name.strip() for name in said if name.strip()})
        if clean != names:
            text = msgspec.json.encode(members | {"disabledTools": clean}).decode()
            store.put_agent(msgspec.structs.replace(row, config=text))


def _reconcile(store: Store, now: float) -> None:
    chosen = read_app_settings(store).default_agent
    other = aliases(store).get(chosen or "")
    if chosen is not None and other is not None and store.agent(chosen) is None:
        put_app_settings(store, {"defaultAgent": other}, now)


def _clean_up(store: Store, now: float) -> None:
    # The older system had ACP agents of its own making; nothing here can run them.
    if _is_current(store):
        return
    for row in store.agents():
        is_old = row.kind == "acp" and row.source == "builtin"
        if is_old and not store.sessions(1, agent=row.id):
            store.drop_agent(row.id)


def _materialise(store: Store, now: float) -> Materialised:
    order = _import(store)
    if _is_current(store) or (order is not None and order.version >= AGENTS_VERSION):
        return Materialised()
    builtin = store.agent(DEFAULT_AGENT_ID)
    base = None if builtin is None else builtin.config
    recovered: list[str] = []
    skills: dict[str, tuple[str, ...] | None] = {}
    for row in store.agents():
        if row.kind != "native" or row.id == DEFAULT_AGENT_ID:
            continue
        merged = resolve_merged(base, row.config)
        alone = _alone(row, merged, now)
        store.put_agent(alone)
        skills[row.id] = merged.config.enabled_skill_names
        if "recovered" in _object(alone.state):
            recovered.append(row.id)
    return Materialised(tuple(skills), tuple(recovered), skills)


def _alone(row: AgentRow, merged: Merged, now: float) -> AgentRow:
    if not merged.recovered:
        text = config_text(merged.config, row.config)
        return msgspec.structs.replace(row, config=text)
    evidence = {"config": (row.config or "")[:_MAX_EVIDENCE], "at": now}
    kept = msgspec.json.encode(_object(row.state) | {"recovered": evidence}).decode()
    return msgspec.structs.replace(row, config=config_text(merged.config), state=kept)


def _move_settings(store: Store, now: float) -> None:
    if _is_current(store):
        return
    builtin = store.agent(DEFAULT_AGENT_ID)
    said = {} if builtin is None else _members(builtin)
    mine = msgspec.to_builtins(read_app_settings(store))
    moved = {
        key: said[key]
        for key in APP_KEYS
        if said.get(key) is not None and key not in mine
    }
    for key, value in moved.items():
        try:
            put_app_settings(store, {key: value}, now)
        except ValueError:
            continue  # what does not fit was not in force either


def _write_version(store: Store, now: float) -> None:
    if not _is_current(store):
        store.put_app_setting(_VERSION, str(AGENTS_VERSION), now=now)


def _convert_mcp_list(store: Store, now: float) -> None:
    if store.app_setting(_MCP_DONE) is not None:
        return
    builtin = store.agent(DEFAULT_AGENT_ID)
    members = {} if builtin is None else _members(builtin)
    if builtin is not None and members.get("enabledMcpServerIds") == []:
        text = msgspec.json.encode(members | {"enabledMcpServerIds": None}).decode()
        store.put_agent(msgspec.structs.replace(builtin, config=text))
    builtin_changed(store, now)


STEPS: Final = (
    Step("take over", _take_over),
    Step("clean tools", _clean_tools),
    Step("reconcile selections", _reconcile),
    Step("clean up deprecated", _clean_up),
    Step("materialise", _materialise),
    Step("move settings", _move_settings),
    Step("write version", _write_version),
    Step("convert the MCP list", _convert_mcp_list),
)
"""In this order, after `ensure_builtin`; each is a piece of its own."""


#### Small readings


def _is_current(reader: AgentReader) -> bool:
    return _number(reader, _VERSION) >= AGENTS_VERSION


def _number(reader: AgentReader, key: str) -> int:
    value = _json(reader.app_setting(key))
    return value if isinstance(value, int) else 0


def _import(reader: AgentReader) -> _Import | None:
    known = _object(reader.app_setting(_IMPORT))
    return msgspec.convert(known, _Import) if known else None


def _members(row: AgentRow) -> dict[str, Any]:
    try:
        return config_members(row.config)
    except ValueError:
        return {}


def _object(text: str | None) -> dict[str, Any]:
    found = _json(text)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _json(text: str | None) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return None if text is None else msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
