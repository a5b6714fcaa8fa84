"""Permissions and questions as ``session/request_permission``, and back.

What the session can't honour is not offered: a permission is for one call. A question
is asked this way when its answer is one of a few labels; another one is shown as a
message, which the user answers with their next prompt.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ..._interactions import Answer, Deny, Grant, Other, Reply
from ..._messages import ActionBlock
from ._content import TextContent
from ._methods import (
    Cancelled,
    PermissionOption,
    RequestPermissionRequest,
    RequestPermissionResponse,
)
from ._updates import AgentMessageChunk, ToolCallContent, ToolCallFields, ToolContent

MAX_CHOICES: Final = 12

_ALLOW: Final = "allow"
_REJECT: Final = "reject"
_CHOICE: Final = "choice-"


def request_for(
    session_id: str, action: ActionBlock, call: ToolCallFields
) -> RequestPermissionRequest | None:
    """Return the request that puts *action* to the user, if it can be one."""
    options = _options(action)
    if options is None:
        return None
    content: tuple[ToolCallContent, ...] = call.content or ()
    if action.detail:
        content += (ToolContent(TextContent(action.detail)),)
    shown = msgspec.structs.replace(
        call, title=action.title or call.title, content=content or None
    )
    return RequestPermissionRequest(session_id, shown, options)


def message_for(action: ActionBlock) -> AgentMessageChunk:
    """Return a question as a message, when it can't be a request."""
    lines = [f"**{action.title}**", "", action.detail, ""]
    for option in action.options:
        explained = f": {option.description}" if option.description else ""
        lines.append(f"- {option.label}{explained}")
    return AgentMessageChunk(TextContent("\n".join(lines).strip() + "\n"), action.id)


def answer_of(
    action: ActionBlock, response: RequestPermissionResponse
) -> Answer | None:
    """Return what the user said; ``None``: the turn is to be cancelled.

    An option that was not offered is never a yes.
    """
    if isinstance(response.outcome, Cancelled):
        return None
    chosen = response.outcome.option_id
    if action.action == "question_request":
        return _choice(action, chosen)
    if chosen == _ALLOW:
        return Grant()
    return Deny("" if chosen == _REJECT else "the client chose an unknown option")


def refusal_of(action: ActionBlock, problem: str) -> Answer:
    """Return the answer when the client could not ask."""
    if action.action == "question_request" and action.custom:
        return Other()
    return Deny(f"the user could not be asked: {problem}")


def _options(action: ActionBlock) -> tuple[PermissionOption, ...] | None:
    if action.action == "tool_call_permission":
        return (
            PermissionOption(_ALLOW, "Allow", "allow_once"),
            PermissionOption(_REJECT, "Reject", "reject_once"),
        )
    if action.multiple or not 0 < len(action.options) <= MAX_CHOICES:
        return None
    choices = [
        PermissionOption(f"{_CHOICE}{number}", option.label, "allow_once")
        for number, option in enumerate(action.options)
    ]
    otherwise = "Answer in a message" if action.custom else "Decline to answer"
    return (*choices, PermissionOption(_REJECT, otherwise, "reject_once"))


def _choice(action: ActionBlock, chosen: str) -> Answer:
    for number, option in enumerate(action.options):
        if chosen == f"{_CHOICE}{number}":
            return Reply(option.label)
    return Other() if action.custom else Deny()
