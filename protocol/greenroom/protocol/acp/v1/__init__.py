"""Version 1 of the Agent Client Protocol, as far as an agent needs it.

Values for what goes over the wire, and pure functions between them and greenroom's
own: prompts in, events, questions and outcomes out. Nothing here knows a connection.
"""

from __future__ import annotations

from ._content import (
    Annotations as Annotations,
    AudioContent as AudioContent,
    ContentBlock as ContentBlock,
    EmbeddedResource as EmbeddedResource,
    ImageContent as ImageContent,
    ResourceContents as ResourceContents,
    ResourceLink as ResourceLink,
    TextContent as TextContent,
)
from ._methods import (
    AgentCapabilities as AgentCapabilities,
    Cancelled as Cancelled,
    CancelNotification as CancelNotification,
    ClientCapabilities as ClientCapabilities,
    FileSystemCapabilities as FileSystemCapabilities,
    Implementation as Implementation,
    InitializeRequest as InitializeRequest,
    InitializeResponse as InitializeResponse,
    McpCapabilities as McpCapabilities,
    McpServer as McpServer,
    NamedValue as NamedValue,
    NewSessionRequest as NewSessionRequest,
    NewSessionResponse as NewSessionResponse,
    PermissionOption as PermissionOption,
    PromptCapabilities as PromptCapabilities,
    PromptRequest as PromptRequest,
    PromptResponse as PromptResponse,
    RequestPermissionRequest as RequestPermissionRequest,
    RequestPermissionResponse as RequestPermissionResponse,
    Selected as Selected,
    SessionMode as SessionMode,
    SessionModeState as SessionModeState,
    SetSessionModeRequest as SetSessionModeRequest,
    StopReason as StopReason,
    decode_initialize as decode_initialize,
)
from ._modes import MODES as MODES, mode_state as mode_state
from ._narration import Narration as Narration, fenced as fenced
from ._outcome import (
    request_error as request_error,
    session_not_found as session_not_found,
    stop_reason_of as stop_reason_of,
    turn_error as turn_error,
)
from ._prompt import (
    ContentNotSupportedError as ContentNotSupportedError,
    parts_of as parts_of,
)
from ._questions import (
    answer_of as answer_of,
    message_for as message_for,
    refusal_of as refusal_of,
    request_for as request_for,
)
from ._updates import (
    AgentMessageChunk as AgentMessageChunk,
    AgentThoughtChunk as AgentThoughtChunk,
    AvailableCommand as AvailableCommand,
    AvailableCommandsUpdate as AvailableCommandsUpdate,
    CommandInput as CommandInput,
    CurrentModeUpdate as CurrentModeUpdate,
    PlanReplaced as PlanReplaced,
    SessionInfoUpdate as SessionInfoUpdate,
    SessionNotification as SessionNotification,
    SessionUpdate as SessionUpdate,
    ToolCall as ToolCall,
    ToolCallContent as ToolCallContent,
    ToolCallFields as ToolCallFields,
    ToolCallUpdate as ToolCallUpdate,
    ToolContent as ToolContent,
    ToolDiff as ToolDiff,
    ToolLocation as ToolLocation,
    UserMessageChunk as UserMessageChunk,
    WirePlanEntry as WirePlanEntry,
)
