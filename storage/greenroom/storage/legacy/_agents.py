# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# apsw's stubs leave the element types of rows and arrays open.
"""Agents in a database of the older system.

The file is somebody's and may be anything: it is opened to read only, only a real
table is read, every value is made text that can be kept, and counts and sizes are
bounded. A row that can't be decoded is kept as it is: the migration reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import apsw
import attrs
import msgspec

from greenroom.protocol import (
    DEFAULT_AGENT_ID,
    MAX_AGENT_ID,
    MAX_AGENT_NAME,
    MAX_AGENTS,
    MAX_AVATAR_BYTES,
    MAX_CONFIG_BYTES,
    MAX_DESCRIPTION,
    MAX_ICON,
    AgentRow,
    config_members,
)

from ._file import LegacyError, as_bytes, columns_of, named, opened, seconds_of, text_of

OLD_BUILTIN: Final = "deepchat"
"""The id of the older system's builtin agent; ours is another."""

_KINDS: Final = {"deepchat": "native", "acp": "acp"}
_NEEDED: Final = ("id", "agent_type", "name")
_TEXTS: Final = (
    *_NEEDED,
    "source",
    "description",
    "icon",
    "avatar_json",
    "config_json",
    "state_json",
)
_NUMBERS: Final = ("enabled", "protected", "created_at", "updated_at")
_VERSION_KEY: Final = "unifiedAgentsMigrationVersion"
_NEWEST: Final = 3
_MAX_VALUE: Final = 2 << 20


@attrs.frozen
class LegacyAgents:
    """What a database of the older system says of agents, in our words."""

    rows: tuple[AgentRow, ...]
    version: int
    """How far its own migration had come, 0 to 3; 3: no agent inherits."""


def read_legacy_agents(path: Path) -> LegacyAgents:
    """Return the agents in the database at *path*.

    Raises:
        LegacyError: it is no such database, or holds too many.
    """
    with opened(path, _MAX_VALUE) as db:
        return LegacyAgents(_rows(db), _version(db))


def _rows(db: apsw.Connection) -> tuple[AgentRow, ...]:
    columns = columns_of(db, "agents")
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise LegacyError(f"it has no table agents with a column {missing[0]}")
    texts = [name for name in _TEXTS if name in columns]
    numbers = [name for name in _NUMBERS if name in columns]
    parts = [as_bytes(name) for name in texts] + numbers
    sql = f"SELECT {', '.join(parts)} FROM agents ORDER BY id LIMIT ?"
    found = db.execute(sql, (MAX_AGENTS + 1,)).fetchall()
    if len(found) > MAX_AGENTS - 1:
        raise LegacyError(f"it holds more than {MAX_AGENTS - 1} agents")
    rows = [_row(named([*texts, *numbers], each)) for each in found]
    return tuple({row.id: row for row in reversed(rows)}.values())[::-1]


def _version(db: apsw.Connection) -> int:
    if not {"key", "value"} <= columns_of(db, "app_settings"):
        return 0
    sql = "SELECT CAST(value AS INTEGER) FROM app_settings WHERE key = ?"
    found = db.execute(sql, (_VERSION_KEY,)).fetchone()
    number = found[0] if found is not None and isinstance(found[0], int) else 0
    return max(0, min(_NEWEST, number))


#### A row in our words


def _row(values: Mapping[str, Any]) -> AgentRow:
    def text(name: str, limit: int) -> str:
        return text_of(values.get(name), limit)

    def whole(name: str, limit: int) -> str | None:
        # Cut JSON is none: what is too long is let go as a whole.
        value = text(name, limit + 1)
        return value if value and len(value.encode()) <= limit else None

    kind = text("agent_type", 40) or "unknown"
    agent_id = _our_id(text("id", MAX_AGENT_ID), is_native=kind == OLD_BUILTIN)
    return AgentRow(
        id=agent_id,
        kind=_KINDS.get(kind, kind),
        source=text("source", 40) or "manual",
        name=text("name", MAX_AGENT_NAME) or agent_id,
        enabled=values.get("enabled", 1) != 0,
        protected=values.get("protected", 0) == 1,
        description=text("description", MAX_DESCRIPTION),
        icon=text("icon", MAX_ICON),
        avatar=whole("avatar_json", MAX_AVATAR_BYTES),
        config=_our_config(text("config_json", MAX_CONFIG_BYTES), kind),
        state=whole("state_json", MAX_CONFIG_BYTES),
        created_at=seconds_of(values.get("created_at")),
        updated_at=seconds_of(values.get("updated_at")),
    )


def _our_id(old: str, *, is_native: bool) -> str:
    if old == OLD_BUILTIN and is_native:
        return DEFAULT_AGENT_ID
    # An agent that happened to be called as our builtin one is.
    return f"imported-{old}" if old in ("", DEFAULT_AGENT_ID) else old


def _our_config(text: str, kind: str) -> str | None:
    if not text.strip():
        return None
    try:
        members = config_members(text)
    except ValueError:
        return text
    if _KINDS.get(kind) == "native":
        members = _our_members(members)
    return msgspec.json.encode(members).decode()


def _our_members(old: dict[str, Any]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in old.items():
        name, change = _FIELDS.get(key, (key, _same))
        members[name] = change(value)
    return members


def _same(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    return value


def _model(value: Any) -> Any:  # noqa: ANN401
    if not isinstance(value, dict):
        return value
    old = cast("dict[str, Any]", value)
    return {"provider": old.get("providerId"), "model": old.get("modelId")}


def _slots(value: Any) -> Any:  # noqa: ANN401
    if not isinstance(value, list):
        return value
    return [_slot(each) for each in cast("list[Any]", value)]


def _slot(value: Any) -> Any:  # noqa: ANN401
    if not isinstance(value, dict):
        return value
    old = cast("dict[str, Any]", value)
    target = old.get("targetAgentId")
    if old.get("targetType", "self") == "self":
        target = "self"
    elif target == OLD_BUILTIN:
        target = DEFAULT_AGENT_ID
    slot = {"id": old.get("id"), "target": target}
    slot |= {"title": old.get("displayName", "")}
    return slot | {"description": old.get("description", "")}


_FIELDS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "defaultModelPreset": ("defaultModel", _model),
    "assistantModel": ("assistantModel", _model),
    "visionModel": ("visionModel", _model),
    "imageGenerationModel": ("imageModel", _model),
    "memoryEmbedding": ("memoryEmbedding", _model),
    "memoryExtractionModel": ("memoryExtractionModel", _model),
    "defaultProjectPath": ("projectPath", _same),
    "disabledAgentTools": ("disabledTools", _same),
    "subagents": ("subagents", _slots),
}
"""Fields that have another name or form here."""
