"""Parameters and results of the methods that an agent serves and calls.

What is received is decoded with `decode_lenient`; marked fields are those that the
schema marks, everything else is strict.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from .._lenient import (
    DEFAULT_ON_ERROR,
    DEFAULT_ON_NULL,
    SKIP_INVALID_ITEMS,
    decode_lenient,
)
from ._content import ContentBlock
from ._updates import ToolCallFields

StopReason = Literal[
    "end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"
]

MAX_VERSION: Final = 65_535


#### initialize


class Implementation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who a peer is."""

    name: str
    version: str
    title: Annotated[str | None, DEFAULT_ON_ERROR] = None


class FileSystemCapabilities(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True
):
    """Which files a client reads and writes for its agent."""

    read_text_file: Annotated[bool, DEFAULT_ON_ERROR] = False
    write_text_file: Annotated[bool, DEFAULT_ON_ERROR] = False


class ClientCapabilities(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True
):
    """What a client offers, as far as it is of use here."""

    fs: Annotated[FileSystemCapabilities, DEFAULT_ON_ERROR] = FileSystemCapabilities()
    terminal: Annotated[bool, DEFAULT_ON_ERROR] = False


class InitializeRequest(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True
):
    """The first request of a client."""

    protocol_version: Annotated[int, msgspec.Meta(ge=0, le=MAX_VERSION)]
    client_capabilities: Annotated[ClientCapabilities, DEFAULT_ON_ERROR] = (
        ClientCapabilities()
    )
    client_info: Annotated[Implementation | None, DEFAULT_ON_ERROR] = None


class _Newer(msgspec.Struct, frozen=True):
    # A client of a newer version says the same under another name.
    info: Annotated[Implementation | None, DEFAULT_ON_ERROR] = None


def decode_initialize(params: bytes | msgspec.Raw) -> InitializeRequest:
    """Return the parameters of ``initialize``, those of a newer client too.

    Raises:
        msgspec.ValidationError: there is no usable version in it.
    """
    request = decode_lenient(params, InitializeRequest)
    if request.client_info is not None:
        return request
    info = decode_lenient(params, _Newer).info
    return msgspec.structs.replace(request, client_info=info)


class PromptCapabilities(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True
):
    """What a prompt may hold beside text and links."""

    image: Annotated[bool, DEFAULT_ON_ERROR] = False
    audio: Annotated[bool, DEFAULT_ON_ERROR] = False
    embedded_context: Annotated[bool, DEFAULT_ON_ERROR] = False


class McpCapabilities(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which transports to MCP servers there are beside stdio."""

    http: Annotated[bool, DEFAULT_ON_ERROR] = False
    sse: Annotated[bool, DEFAULT_ON_ERROR] = False


class AgentCapabilities(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True
):
    """What an agent offers beyond the minimum."""

    load_session: Annotated[bool, DEFAULT_ON_ERROR] = False
    prompt_capabilities: Annotated[PromptCapabilities, DEFAULT_ON_ERROR] = (
        PromptCapabilities()
    )
    mcp_capabilities: Annotated[McpCapabilities, DEFAULT_ON_ERROR] = McpCapabilities()
    session_capabilities: Annotated[dict[str, Any], DEFAULT_ON_ERROR] = {}


class InitializeResponse(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True
):
    """What the agent is, and which version it speaks from now on."""

    protocol_version: int
    agent_capabilities: Annotated[AgentCapabilities, DEFAULT_ON_ERROR] = (
        AgentCapabilities()
    )
    auth_methods: Annotated[
        tuple[dict[str, Any], ...], DEFAULT_ON_ERROR, SKIP_INVALID_ITEMS
    ] = ()
    agent_info: Annotated[Implementation | None, DEFAULT_ON_ERROR] = None


#### session/new, session/set_mode


class NamedValue(msgspec.Struct, frozen=True):
    """A variable of an environment, or a header."""

    name: str
    value: str


class McpServer(msgspec.Struct, frozen=True):
    """A server whose tools a session should have: a command, or an address."""

    name: str
    type: Literal["stdio", "http", "sse"] | UnsetType = UNSET
    """A command has none in version 1; some clients say ``stdio`` nevertheless."""
    command: str | UnsetType = UNSET
    args: Annotated[tuple[str, ...] | UnsetType, DEFAULT_ON_NULL] = UNSET
    env: Annotated[tuple[NamedValue, ...] | UnsetType, DEFAULT_ON_NULL] = UNSET
    url: str | UnsetType = UNSET
    headers: Annotated[tuple[NamedValue, ...] | UnsetType, DEFAULT_ON_NULL] = UNSET

    def __post_init__(self) -> None:
        """Refuse one that could not be reached."""
        remote = self.type in ("http", "sse")
        needed = ("url", "headers") if remote else ("command", "args", "env")
        missing = [name for name in needed if getattr(self, name) is UNSET]
        if missing:
            raise ValueError(f"an MCP server needs {' and '.join(missing)}")


class NewSessionRequest(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True
):
    """Make a session in a folder."""

    cwd: str
    mcp_servers: Annotated[tuple[McpServer, ...], DEFAULT_ON_NULL]
    additional_directories: Annotated[tuple[str, ...], DEFAULT_ON_NULL] = ()


class SessionMode(msgspec.Struct, frozen=True, omit_defaults=True):
    """One way a session can work."""

    id: str
    name: str
    description: Annotated[str | None, DEFAULT_ON_ERROR] = None


class SessionModeState(msgspec.Struct, frozen=True, rename="camel"):
    """The modes there are, and the one that a session is in."""

    current_mode_id: str
    available_modes: Annotated[
        tuple[SessionMode, ...], DEFAULT_ON_ERROR, SKIP_INVALID_ITEMS
    ] = ()


class NewSessionResponse(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True
):
    """The new session."""

    session_id: str
    modes: Annotated[SessionModeState | None, DEFAULT_ON_ERROR] = None


class SetSessionModeRequest(msgspec.Struct, frozen=True, rename="camel"):
    """Work in another mode."""

    session_id: str
    mode_id: str


#### session/prompt, session/cancel


class PromptRequest(msgspec.Struct, frozen=True, rename="camel"):
    """Start a turn."""

    session_id: str
    prompt: tuple[ContentBlock, ...]


class PromptResponse(msgspec.Struct, frozen=True, rename="camel"):
    """The turn has ended."""

    stop_reason: StopReason


class CancelNotification(msgspec.Struct, frozen=True, rename="camel"):
    """Stop the turn of a session."""

    session_id: str


#### session/request_permission


class PermissionOption(msgspec.Struct, frozen=True, rename="camel"):
    """One answer that the user may give."""

    option_id: str
    name: str
    kind: Literal["allow_once", "allow_always", "reject_once", "reject_always"]


class RequestPermissionRequest(msgspec.Struct, frozen=True, rename="camel"):
    """Ask the user."""

    session_id: str
    tool_call: ToolCallFields
    options: tuple[PermissionOption, ...]


class Cancelled(
    msgspec.Struct, frozen=True, tag_field="outcome", tag="cancelled", rename="camel"
):
    """The turn was cancelled before the user answered."""


class Selected(
    msgspec.Struct, frozen=True, tag_field="outcome", tag="selected", rename="camel"
):
    """The user chose an option."""

    option_id: str


class RequestPermissionResponse(msgspec.Struct, frozen=True):
    """What the user said."""

    outcome: Cancelled | Selected
