"""An agent's configuration: its fields, its defaults, what is in force, how it changes.

All pure. What is stored is the JSON text of one agent's own row; what is in force is
made of the code's defaults and that text, and of nothing else (AGT-14). Text that
can't be decoded gives a configuration that allows nothing (AGT-15). `resolve_merged`
is the rule of the older system, in which an agent inherited from the builtin one; only
the migration away from it may use it (AGT-20).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, cast

import attrs
import msgspec
from msgspec import Meta

from ._errors import GreenroomError

MAX_CONFIG_BYTES: Final = 256 << 10
"""Of one agent's stored configuration."""

MAX_CONFIG_DEPTH: Final = 32
"""How deep a configuration or a patch may be nested."""

MAX_SLOTS: Final = 5
"""Subagent slots of one agent (SUB-05)."""

LEAST_THRESHOLD: Final = 5
MOST_THRESHOLD: Final = 95
THRESHOLD_STEP: Final = 5
LEAST_PAIRS: Final = 1
MOST_PAIRS: Final = 10

_MAX_SLOT_NAME: Final = 64
_MAX_SLOT_TEXT: Final = 2_000

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Names = Annotated[tuple[Name, ...], Meta(max_length=1_000)]
Prompt = Annotated[str, Meta(max_length=100_000)]
FolderPath = Annotated[str, Meta(min_length=1, max_length=4_096)]
Knob = bool | int | float | Annotated[str, Meta(max_length=1_000)]
Knobs = Annotated[dict[Name, Knob], Meta(max_length=50)]


class AgentRefusedError(GreenroomError):
    """A change of an agent is not allowed; nothing was written.

    ``code`` is one of ``invalid_patch``, ``no_valid_slots``, ``agent_protected``,
    ``agent_in_use``, ``agent_exists``, ``agent_disabled``, ``too_many_agents``,
    ``not_native``, ``agents_exist``.
    """

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        if hint is not None:
            self.hint = hint


class ModelChoice(msgspec.Struct, frozen=True, rename="camel"):
    """A model of a provider."""

    provider: Name
    model: Name


class SubagentSlot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A kind of helper that an agent may start."""

    id: str
    target: str
    """``self``, or the id of another agent."""
    title: str = ""
    description: str = ""


DEFAULT_SLOTS: Final = tuple(
    SubagentSlot(id=name, target="self")
    for name in ("explorer", "implementer", "reviewer")
)


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is in force for an agent; the defaults are the code's (AGT-12)."""

    default_model: ModelChoice | None = None
    assistant_model: ModelChoice | None = None
    vision_model: ModelChoice | None = None
    image_model: ModelChoice | None = None
    project_path: FolderPath | None = None
    """The folder of a session that names none."""
    system_prompt: Prompt = ""
    permission_mode: Literal["default", "auto_approve", "full_access"] | None = None
    disabled_tools: Names = ()
    enabled_skill_names: Names | None = None
    """``None``: all of them."""
    enabled_mcp_server_ids: Names | None = None
    """``None``: those that are enabled for everybody; empty: none."""
    subagent_enabled: bool = True
    subagents: tuple[SubagentSlot, ...] = DEFAULT_SLOTS
    auto_compaction_enabled: bool = True
    auto_compaction_trigger_threshold: int = 80
    """Per cent of the context, 5 to 95 in steps of 5 (AGT-13)."""
    auto_compaction_retain_recent_pairs: int = 2
    """Pairs of messages kept as they are, 1 to 10 (AGT-13)."""
    memory_enabled: bool = False
    memory_embedding: ModelChoice | None = None
    memory_extraction_model: ModelChoice | None = None
    memory_retrieval: Knobs | None = None
    memory_injection_token_budget: Annotated[int, Meta(ge=0, le=1_000_000)] | None = (
        None
    )
    persona_evolution_enabled: bool = False


FAIL_CLOSED: Final = AgentConfig(
    permission_mode="default",
    enabled_skill_names=(),
    enabled_mcp_server_ids=(),
    subagents=(),
)
"""In force where the stored text can't be decoded: delegation without a slot, no
Skill, no server, no privilege (AGT-15)."""

CONFIG_KEYS: Final = frozenset(
    field.encode_name for field in msgspec.structs.fields(AgentConfig)
)


#### What is in force


def decode_config(text: str | None) -> AgentConfig:
    """Return the configuration that the stored *text* stands for, all of it checked.

    Keys that are not known here are let be, and give nothing (AGT-08).

    Raises:
        ValueError: the text is not an object, or a value of it does not fit.
    """
    return _config_of(config_members(text))


def config_members(text: str | None) -> dict[str, Any]:
    """Return the members that are stored as *text*; none for no text.

    Raises:
        ValueError: the text is not a JSON object within the bounds.
    """
    if text is None or not text.strip():
        return {}
    if len(text) > MAX_CONFIG_BYTES:
        raise ValueError(f"it has {len(text)} characters, too many")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as exc:
        raise ValueError(f"it is not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return cast("dict[str, Any]", value)


def resolve(text: str | None) -> AgentConfig:
    """Return what is in force for the agent whose row holds *text*; never raises."""
    try:
        return decode_config(text)
    except ValueError:
        return FAIL_CLOSED


@attrs.frozen
class Merged:
    """What was in force by the rule of the older system."""

    config: AgentConfig
    recovered: bool
    """The agent's own text could not be read."""


def resolve_merged(builtin: str | None, text: str | None) -> Merged:
    """Return what the older system made of *text*: *builtin* under it (AGT-20).

    A builtin text that can't be read gives nothing; neither does an own text that
    can't, or that would be too large to be stored when it is merged.
    """
    try:
        own = config_members(text)
        config = _config_of(_under(builtin, own))
        config_text(config, text)
    except (ValueError, AgentRefusedError):
        return Merged(FAIL_CLOSED, recovered=True)
    return Merged(config, recovered=False)


def _under(builtin: str | None, own: dict[str, Any]) -> dict[str, Any]:
    _config_of(own)
    try:
        members = config_members(builtin)
        _config_of(members)
    except ValueError:
        return own
    return members | own


def config_text(config: AgentConfig, text: str | None = None) -> str:
    """Return *config* to be stored, each member of it said, over those of *text*.

    Raises:
        AgentRefusedError: it is too large.
    """
    try:
        stored = config_members(text)
    except ValueError:
        stored = {}
    return _encoded(stored | msgspec.to_builtins(config))


def normal_slots(value: list[Any]) -> tuple[SubagentSlot, ...]:
    """Return the slots in *value* that are valid, the first five (SUB-05)."""
    found: dict[str, SubagentSlot] = {}
    for each in value:
        slot = _slot(each)
        if slot is not None and slot.id not in found and len(found) < MAX_SLOTS:
            found[slot.id] = slot
    return tuple(found.values())


def _slot(value: object) -> SubagentSlot | None:
    try:
        slot = msgspec.convert(value, SubagentSlot)
    except msgspec.ValidationError:
        return None
    name, target = slot.id.strip(), slot.target.strip()
    fits = 0 < len(name) <= _MAX_SLOT_NAME and 0 < len(target) <= 200
    if not fits or max(len(slot.title), len(slot.description)) > _MAX_SLOT_TEXT:
        return None
    return msgspec.structs.replace(slot, id=name, target=target)


def _config_of(stored: dict[str, Any]) -> AgentConfig:
    # A null is no value: the default takes its place.
    members = {key: value for key, value in stored.items() if value is not None}
    slots = members.get("subagents")
    if isinstance(slots, list):
        members["subagents"] = normal_slots(cast("list[Any]", slots))
    for key in _NUMBERS & members.keys():
        # JSON has one kind of number; one too large for an int is read as a float.
        if isinstance(members[key], float):
            members[key] = int(members[key])
    config = msgspec.convert(members, AgentConfig)
    return msgspec.structs.replace(
        config,
        auto_compaction_trigger_threshold=normal_threshold(
            config.auto_compaction_trigger_threshold
        ),
        auto_compaction_retain_recent_pairs=normal_pairs(
            config.auto_compaction_retain_recent_pairs
        ),
    )


_NUMBERS: Final = frozenset(
    {"autoCompactionTriggerThreshold", "autoCompactionRetainRecentPairs"}
)


def normal_threshold(value: int) -> int:
    """Return *value* within 5 to 95, at the nearest step of 5 (AGT-13)."""
    bounded = max(LEAST_THRESHOLD, min(MOST_THRESHOLD, value))
    return (bounded + THRESHOLD_STEP // 2) // THRESHOLD_STEP * THRESHOLD_STEP


def normal_pairs(value: int) -> int:
    """Return *value* within 1 to 10 (AGT-13)."""
    return max(LEAST_PAIRS, min(MOST_PAIRS, value))


def delegation_problem(
    config: AgentConfig,
) -> Literal["policy_disabled", "no_valid_slots"] | None:
    """Return why an agent with *config* may start no subagent; ``None``: it may."""
    if not config.subagent_enabled:
        return "policy_disabled"
    return None if config.subagents else "no_valid_slots"


#### Changes


def patched_config(text: str | None, patch: dict[str, Any]) -> str:
    """Return the stored *text* with the merge patch *patch*, checked (AGT-18).

    A ``null`` takes a member away. What *patch* does not name stays as it is.

    Raises:
        AgentRefusedError: ``invalid_patch``, ``no_valid_slots``.
    """
    unknown = sorted(
        key for key in patch.keys() - CONFIG_KEYS if patch[key] is not None
    )
    if unknown:
        raise AgentRefusedError(
            "invalid_patch",
            f"an agent's configuration has no {unknown[0][:80]!r}",
            hint=f"there is {', '.join(sorted(CONFIG_KEYS))}",
        )
    try:
        stored = config_members(text)
    except ValueError as exc:
        raise AgentRefusedError(
            "invalid_patch",
            f"the stored configuration can't be read, so not be changed: {exc}",
            hint="reset the agent (greenroom agents reset ID), then set it anew",
        ) from exc
    merged = merge_patch(stored, patch)
    _check_change(merged, patch)
    return _encoded(merged)


def _check_change(merged: dict[str, Any], patch: dict[str, Any]) -> None:
    try:
        config = _config_of(merged)
    except ValueError as exc:
        raise AgentRefusedError(
            "invalid_patch", f"a value does not fit: {exc}"
        ) from exc
    wants_slots = merged.get("subagentEnabled") is True
    if wants_slots and not config.subagents and _SLOT_KEYS & patch.keys():
        raise AgentRefusedError(
            "no_valid_slots",
            "an agent with subagentEnabled needs a valid slot in subagents",
            hint='a slot is {"id": NAME, "target": "self" or the id of an agent}',
        )


_SLOT_KEYS: Final = frozenset({"subagentEnabled", "subagents"})


def merge_patch(
    target: object, patch: dict[str, Any], depth: int = MAX_CONFIG_DEPTH
) -> dict[str, Any]:
    """Return *target* with *patch* applied as RFC 7396 says; neither is changed.

    Raises:
        AgentRefusedError: the patch is nested too deep.
    """
    if depth == 0:
        raise AgentRefusedError(
            "invalid_patch", f"a patch is nested at most {MAX_CONFIG_DEPTH} deep"
        )
    merged = dict(cast("dict[str, Any]", target)) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            inner = cast("dict[str, Any]", value)
            merged[key] = merge_patch(merged.get(key), inner, depth - 1)
        else:
            merged[key] = value
    return merged


def _encoded(members: dict[str, Any]) -> str:
    try:
        text = msgspec.json.encode(members, order="sorted").decode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise AgentRefusedError("invalid_patch", f"it is not JSON: {exc}") from exc
    if len(text.encode()) > MAX_CONFIG_BYTES:
        raise AgentRefusedError(
            "invalid_patch",
            f"an agent's configuration has at most {MAX_CONFIG_BYTES} bytes",
        )
    return text
