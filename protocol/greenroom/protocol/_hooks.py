"""What lifecycle hooks are told (SKL-10).

A hook looks on: nothing that it does, says or fails to do changes a run. It is told
after the fact that the event speaks of is on disk.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from ._ids import ItemId, MessageId, RunId, SessionId
from ._journal import RunOutcome
from ._messages import Usage

MAX_HOOK_TEXT: Final = 4_000
"""Characters of a prompt, of arguments or of a result that a hook is given."""

HookName = Literal[
    "session_start",
    "user_prompt_submit",
    "pre_tool_use",
    "post_tool_use",
    "post_tool_use_failure",
    "permission_request",
    "run_end",
]
HookGroup = Literal["needs_you", "finished", "failed"]
"""What a person wants to be told, in words of its own."""

HOOK_NAMES: Final[frozenset[str]] = frozenset(get_args(HookName))
HOOK_GROUPS: Final[frozenset[str]] = frozenset(get_args(HookGroup))


class SessionStart(
    msgspec.Struct, frozen=True, kw_only=True, tag="session_start", rename="camel"
):
    """A run is registered and begins."""

    session_id: SessionId
    run_id: RunId
    message_id: MessageId
    agent_id: str
    provider: str
    model: str


class UserPromptSubmit(
    msgspec.Struct, frozen=True, kw_only=True, tag="user_prompt_submit", rename="camel"
):
    """The user's message is on the tape."""

    session_id: SessionId
    message_id: MessageId
    text: str


class PreToolUse(
    msgspec.Struct, frozen=True, kw_only=True, tag="pre_tool_use", rename="camel"
):
    """A call passed every gate and is about to run."""

    session_id: SessionId
    run_id: RunId
    message_id: MessageId
    item_id: ItemId
    call_id: str
    """The provider's name for the call."""
    tool: str
    arguments: str


class PostToolUse(
    msgspec.Struct, frozen=True, kw_only=True, tag="post_tool_use", rename="camel"
):
    """A call has its result, and its outcome is on disk."""

    session_id: SessionId
    run_id: RunId
    message_id: MessageId
    item_id: ItemId
    tool: str
    response: str


class PostToolUseFailure(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="post_tool_use_failure",
    rename="camel",
):
    """As `PostToolUse`, for a call that failed."""

    session_id: SessionId
    run_id: RunId
    message_id: MessageId
    item_id: ItemId
    tool: str
    response: str


class PermissionRequest(
    msgspec.Struct, frozen=True, kw_only=True, tag="permission_request", rename="camel"
):
    """The run waits for the user: a permission, a question, a budget."""

    session_id: SessionId
    run_id: RunId
    message_id: MessageId
    interaction_id: ItemId
    origin: str
    title: str


class RunEnd(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="run_end",
    rename="camel",
    omit_defaults=True,
):
    """A run has its terminal."""

    session_id: SessionId
    run_id: RunId
    message_id: MessageId
    outcome: RunOutcome
    reason: str
    user_stop: bool
    usage: Usage | None = None
    error: str | None = None


HookEvent = (
    SessionStart
    | UserPromptSubmit
    | PreToolUse
    | PostToolUse
    | PostToolUseFailure
    | PermissionRequest
    | RunEnd
)


def hook_names(event: HookEvent) -> frozenset[str]:
    """Return the name of *event* and of every group it is in."""
    name = event.__struct_config__.tag
    assert isinstance(name, str)
    match event:
        case PermissionRequest():
            return frozenset((name, "needs_you"))
        case RunEnd(outcome="completed"):
            return frozenset((name, "finished"))
        case RunEnd(outcome="error" | "aborted"):
            return frozenset((name, "failed"))
        case _:
            return frozenset((name,))
