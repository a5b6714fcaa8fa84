"""What an agent tells its client while it works: the variants of ``session/update``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from ..._events import PlanEntry
from .._lenient import DEFAULT_ON_ERROR, SKIP_INVALID_ITEMS
from ._content import ContentBlock

ToolKind = Literal[
    "read",
    "edit",
    "delete",
    "move",
    "search",
    "execute",
    "think",
    "fetch",
    "switch_mode",
    "other",
]
ToolCallStatus = Literal["pending", "in_progress", "completed", "failed"]


#### Tool calls


class ToolContent(msgspec.Struct, frozen=True, tag_field="type", tag="content"):
    """Something to show for a call."""

    content: ContentBlock


class ToolDiff(
    msgspec.Struct,
    frozen=True,
    tag_field="type",
    tag="diff",
    rename="camel",
    omit_defaults=True,
):
    """A change to one file; without ``old_text`` the file is new."""

    path: str
    new_text: str
    old_text: Annotated[str | None, DEFAULT_ON_ERROR] = None


ToolCallContent = ToolContent | ToolDiff


class ToolLocation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place that a client can follow the agent to."""

    path: str
    """Absolute."""
    line: Annotated[int | None, DEFAULT_ON_ERROR] = None


class _CallFields(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    tool_call_id: str
    name: Annotated[str | None, DEFAULT_ON_ERROR] = None
    kind: Annotated[ToolKind | None, DEFAULT_ON_ERROR] = None
    status: Annotated[ToolCallStatus | None, DEFAULT_ON_ERROR] = None
    content: Annotated[
        tuple[ToolCallContent, ...] | None, DEFAULT_ON_ERROR, SKIP_INVALID_ITEMS
    ] = None
    locations: Annotated[
        tuple[ToolLocation, ...] | None, DEFAULT_ON_ERROR, SKIP_INVALID_ITEMS
    ] = None
    raw_input: Any = None
    raw_output: Any = None


class ToolCallFields(_CallFields, frozen=True, kw_only=True):
    """What is known of a call; what is left out has not changed."""

    title: Annotated[str | None, DEFAULT_ON_ERROR] = None


class ToolCall(
    _CallFields,
    frozen=True,
    kw_only=True,
    tag_field="sessionUpdate",
    tag="tool_call",
):
    """A call begins."""

    title: str


class ToolCallUpdate(
    _CallFields,
    frozen=True,
    kw_only=True,
    tag_field="sessionUpdate",
    tag="tool_call_update",
):
    """A call goes on, or ends."""

    title: Annotated[str | None, DEFAULT_ON_ERROR] = None


#### Messages and the rest


class UserMessageChunk(
    msgspec.Struct,
    frozen=True,
    tag_field="sessionUpdate",
    tag="user_message_chunk",
    rename="camel",
    omit_defaults=True,
):
    """More of what the user said."""

    content: ContentBlock
    message_id: Annotated[str | None, DEFAULT_ON_ERROR] = None


class AgentMessageChunk(
    msgspec.Struct,
    frozen=True,
    tag_field="sessionUpdate",
    tag="agent_message_chunk",
    rename="camel",
    omit_defaults=True,
):
    """More of what the agent says."""

    content: ContentBlock
    message_id: Annotated[str | None, DEFAULT_ON_ERROR] = None


class AgentThoughtChunk(
    msgspec.Struct,
    frozen=True,
    tag_field="sessionUpdate",
    tag="agent_thought_chunk",
    rename="camel",
    omit_defaults=True,
):
    """More of what the agent thinks."""

    content: ContentBlock
    message_id: Annotated[str | None, DEFAULT_ON_ERROR] = None


class WirePlanEntry(msgspec.Struct, frozen=True):
    """One step of a plan; nothing of it is left out."""

    content: str
    priority: Literal["high", "medium", "low"]
    status: Literal["pending", "in_progress", "completed"]

    @classmethod
    def of(cls, entry: PlanEntry) -> WirePlanEntry:
        """Return *entry* as it is sent."""
        return cls(entry.content, entry.priority, entry.status)


class PlanReplaced(msgspec.Struct, frozen=True, tag_field="sessionUpdate", tag="plan"):
    """The whole plan, in the place of the one before."""

    entries: Annotated[
        tuple[WirePlanEntry, ...], DEFAULT_ON_ERROR, SKIP_INVALID_ITEMS
    ] = ()


class CurrentModeUpdate(
    msgspec.Struct,
    frozen=True,
    tag_field="sessionUpdate",
    tag="current_mode_update",
    rename="camel",
):
    """The session is in another mode."""

    current_mode_id: str


class SessionInfoUpdate(
    msgspec.Struct,
    frozen=True,
    tag_field="sessionUpdate",
    tag="session_info_update",
    rename="camel",
    omit_defaults=True,
):
    """The session has another title."""

    title: Annotated[str | None, DEFAULT_ON_ERROR] = None


class CommandInput(msgspec.Struct, frozen=True):
    """What may be typed behind a command."""

    hint: str


class AvailableCommand(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that a prompt may begin with, behind a slash."""

    name: str
    description: str
    input: Annotated[CommandInput | None, DEFAULT_ON_ERROR] = None


class AvailableCommandsUpdate(
    msgspec.Struct,
    frozen=True,
    tag_field="sessionUpdate",
    tag="available_commands_update",
    rename="camel",
):
    """All commands that there are now."""

    available_commands: Annotated[
        tuple[AvailableCommand, ...], DEFAULT_ON_ERROR, SKIP_INVALID_ITEMS
    ] = ()


SessionUpdate = (
    UserMessageChunk
    | AgentMessageChunk
    | AgentThoughtChunk
    | ToolCall
    | ToolCallUpdate
    | PlanReplaced
    | CurrentModeUpdate
    | SessionInfoUpdate
    | AvailableCommandsUpdate
)


class SessionNotification(msgspec.Struct, frozen=True, rename="camel"):
    """The parameters of ``session/update``."""

    session_id: str
    update: SessionUpdate
