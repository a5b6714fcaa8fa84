"""Agents: the row that is kept, the descriptor that runs, and the way between them.

Two decoders read one row. `catalogue_entry` is for lists: it never fails, and shows
what it can (AGT-06). `decode_agent` is for whatever runs: it is strict, and what it
returns decides the backend by its ``kind`` and nothing else (AGT-01, AGT-07).

The kinds have exact sets of fields (AGT-02); there is no parent, template or
inheritance among agents, which are all peers (AGT-08).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, cast

import msgspec
from msgspec import Meta

from ._agent_config import AgentConfig, config_members, decode_config
from ._errors import GreenroomError
from ._ids import DEFAULT_AGENT_ID

NATIVE_PREFIX: Final = "native-"
"""Begins the id of a native agent made by hand; eight random characters follow."""

MAX_AGENTS: Final = 1_000
"""Agents in one state folder."""

MAX_AGENT_ID: Final = 200
MAX_AGENT_NAME: Final = 200
MAX_DESCRIPTION: Final = 2_000
MAX_ICON: Final = 1_000
MAX_AVATAR_BYTES: Final = 64 << 10

_AgentId = Annotated[str, Meta(min_length=1, max_length=MAX_AGENT_ID)]
_Argument = Annotated[str, Meta(max_length=32_768, pattern="^[^\x00]*$")]
_Variable = Annotated[str, Meta(min_length=1, max_length=256, pattern="^[^\x00=]*$")]
_MAX_COMMAND: Final = 4_096
_ARGUMENTS = Annotated[tuple[_Argument, ...], Meta(max_length=256)]
_ENVIRONMENT = Annotated[dict[_Variable, _Argument], Meta(max_length=256)]

UnavailableReason = Literal[
    "unknown-kind",
    "invalid-source",
    "invalid-config",
    "missing-manual-command",
    "missing-registry-reference",
]


class AgentNotFoundError(GreenroomError):
    """There is no such agent; no other one takes its place (AGT-10)."""

    code = "AGENT_NOT_FOUND"
    hint = "greenroom agents list shows the agents"

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"there is no agent {agent_id[:80]!r}")
        self.agent_id = agent_id


class AgentUnavailableError(GreenroomError):
    """An agent is there, and can't be run as it is stored (AGT-07)."""

    code = "AGENT_UNAVAILABLE"
    hint = "greenroom agents show ID shows how it is stored"

    def __init__(
        self, agent_id: str, reason: UnavailableReason, field: str, problem: str
    ) -> None:
        super().__init__(f"agent {agent_id[:80]!r} can't be run: {problem} ({reason})")
        self.agent_id = agent_id
        self.reason: UnavailableReason = reason
        self.field = field
        """The field that is wrong."""


class AgentRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An agent as it is kept; nothing in it is known to be right."""

    id: str
    kind: str
    source: str
    name: str
    enabled: bool = True
    protected: bool = False
    description: str = ""
    icon: str = ""
    avatar: str | None = None
    """JSON text, as are the next two."""
    config: str | None = None
    state: str | None = None
    created_at: float
    updated_at: float


#### Descriptors


class Launch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the process of an ACP agent is started."""

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}


class RegistryReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which agent of the ACP registry, and what is run of it."""

    id: str
    version: str
    distribution: dict[str, Any]


class NativeAgent(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """An agent that runs in the loop of this runtime."""

    kind: Literal["native"] = "native"
    source: Literal["builtin", "manual"]
    id: _AgentId
    name: str
    enabled: bool = True
    protected: bool = False
    description: str = ""
    icon: str = ""
    avatar: Any = None
    config: AgentConfig


class ManualAcpAgent(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """An agent that runs in a process of its own, started by a given command."""

    kind: Literal["acp"] = "acp"
    source: Literal["manual"] = "manual"
    id: _AgentId
    name: str
    enabled: bool = True
    protected: bool = False
    description: str = ""
    icon: str = ""
    avatar: Any = None
    launch: Launch


class RegistryAcpAgent(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """An agent that runs in a process of its own, installed from the registry."""

    kind: Literal["acp"] = "acp"
    source: Literal["registry"] = "registry"
    id: _AgentId
    name: str
    enabled: bool = True
    protected: bool = False
    description: str = ""
    icon: str = ""
    avatar: Any = None
    registry: RegistryReference
    install_state: str = "unknown"


AgentDescriptor = NativeAgent | ManualAcpAgent | RegistryAcpAgent

_VARIANTS: Final[dict[str, dict[str, type[msgspec.Struct]]]] = {
    "native": {"builtin": NativeAgent, "manual": NativeAgent},
    "acp": {"manual": ManualAcpAgent, "registry": RegistryAcpAgent},
}
"""By kind, then by source."""


def descriptor_from_json(data: bytes | str) -> AgentDescriptor:
    """Return the descriptor that ``msgspec.json.encode`` made *data* of.

    Raises:
        AgentUnavailableError: it names no kind, a source that its kind does not have,
            or its fields are not exactly those of that variant (AGT-02).
    """
    try:
        members = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise AgentUnavailableError("?", "invalid-config", "", str(exc)) from exc
    if not isinstance(members, dict):
        raise AgentUnavailableError("?", "invalid-config", "", "it is not an object")
    told = cast("dict[str, Any]", members)
    agent_id = str(told.get("id", "?"))
    variant = _variant(agent_id, told.get("kind"), told.get("source"))
    try:
        return msgspec.convert(told, variant)  # pyright: ignore[reportReturnType]
    except msgspec.ValidationError as exc:
        raise AgentUnavailableError(agent_id, "invalid-config", "", str(exc)) from exc


def _variant(agent_id: str, kind: object, source: object) -> type[msgspec.Struct]:
    sources = _VARIANTS.get(kind) if isinstance(kind, str) else None
    if sources is None:
        shown = repr(kind)[:80]
        raise AgentUnavailableError(
            agent_id, "unknown-kind", "kind", f"there is no kind {shown}"
        )
    variant = sources.get(source) if isinstance(source, str) else None
    if variant is None:
        shown = repr(source)[:80]
        problem = f"{kind} has no source {shown}, only {' and '.join(sources)}"
        raise AgentUnavailableError(agent_id, "invalid-source", "source", problem)
    return variant


#### The strict decoder


def decode_agent(row: AgentRow) -> AgentDescriptor:
    """Return the descriptor of *row*, or say why there is none (AGT-07).

    Raises:
        AgentUnavailableError: with one of its five reasons.
    """
    variant = _variant(row.id, row.kind, row.source)
    if variant is NativeAgent:
        return _native(row)
    if variant is ManualAcpAgent:
        return ManualAcpAgent(**_shown(row), launch=_launch(row))
    return RegistryAcpAgent(
        **_shown(row), registry=_registry(row), install_state=_install_state(row)
    )


def _native(row: AgentRow) -> NativeAgent:
    try:
        config = decode_config(row.config)
    except ValueError as exc:
        raise _invalid(row, "config", str(exc)) from exc
    source = cast("Literal['builtin', 'manual']", row.source)
    return NativeAgent(**_shown(row), source=source, config=config)


def _shown(row: AgentRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "enabled": row.enabled,
        "protected": row.protected,
        "description": row.description,
        "icon": row.icon,
        "avatar": _json_or_none(row.avatar),
    }


def _launch(row: AgentRow) -> Launch:
    members = _members(row)
    command = members.get("command")
    if not isinstance(command, str) or not command.strip():
        raise AgentUnavailableError(
            row.id, "missing-manual-command", "command", "it has no command"
        )
    command = command.strip()
    if len(command) > _MAX_COMMAND or "\x00" in command:
        raise _invalid(row, "command", "the command is too long or holds a NUL")
    return Launch(
        command,
        args=_part(row, "args", members.get("args", ()), _ARGUMENTS),
        env=_part(row, "env", members.get("env", {}), _ENVIRONMENT),
    )


def _registry(row: AgentRow) -> RegistryReference:
    members = _members(row)
    known = {key: members.get(key) for key in ("id", "version", "distribution")}
    missing = [key for key in ("id", "version") if not _is_text(known[key])]
    if not isinstance(known["distribution"], dict) or not known["distribution"]:
        missing.append("distribution")
    if missing:
        raise AgentUnavailableError(
            row.id,
            "missing-registry-reference",
            missing[0],
            f"its reference to the registry lacks {missing[0]}",
        )
    return _part(row, "registry", known, RegistryReference)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= 200


def _members(row: AgentRow) -> dict[str, Any]:
    try:
        return config_members(row.config)
    except ValueError as exc:
        raise _invalid(row, "config", str(exc)) from exc


def _part(row: AgentRow, field: str, value: object, form: Any) -> Any:  # noqa: ANN401 - what *form* says
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as exc:
        raise _invalid(row, field, f"{field}: {exc}") from exc


def _invalid(row: AgentRow, field: str, problem: str) -> AgentUnavailableError:
    return AgentUnavailableError(row.id, "invalid-config", field, problem)


def _install_state(row: AgentRow) -> str:
    state = _json_or_none(row.state)
    found = cast("dict[str, Any]", state).get("install") if _is_object(state) else None
    return found if isinstance(found, str) and _is_text(found) else "unknown"


#### The tolerant decoder


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An agent in a list, as far as it can be read."""

    id: str
    kind: str
    source: str
    name: str
    enabled: bool
    protected: bool
    description: str
    icon: str
    avatar: Any
    config: dict[str, Any] | None
    """As stored; ``None`` where nothing is stored or can be read."""
    unavailable: UnavailableReason | None
    """Why it can't be run; ``None`` when it can."""


def catalogue_entry(row: AgentRow) -> CatalogueEntry:
    """Return *row* for a list; never raises (AGT-06)."""
    config = _json_or_none(row.config)
    return CatalogueEntry(
        **_shown(row),
        kind=row.kind,
        source=row.source,
        config=cast("dict[str, Any]", config) if _is_object(config) else None,
        unavailable=_why_unavailable(row),
    )


def _why_unavailable(row: AgentRow) -> UnavailableReason | None:
    try:
        decode_agent(row)
    except AgentUnavailableError as exc:
        return exc.reason
    return None


def _json_or_none(text: str | None) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return None if text is None else msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


#### Selection


def chosen_agent(named: str | None, user_default: str | None) -> str:
    """Return which agent an entry point means (AGT-10).

    The one it names; else the user's choice; else the builtin one.
    """
    if named is not None:
        return named
    return user_default if user_default is not None else DEFAULT_AGENT_ID
