"""How a turn ended, and why a request failed, in this version's words."""

from __future__ import annotations

import re
from typing import Final

from ..._errors import GreenroomError
from ..._messages import MessageMetadata
from ...jsonrpc import ErrorCode, ErrorObject
from .._errors import AcpErrorCode
from ._methods import StopReason

_STOP_REASONS: Final[dict[str, StopReason]] = {
    "max_tokens": "max_tokens",
    "max_turns": "max_turn_requests",
    "max_turn_requests": "max_turn_requests",
    "max_tool_calls": "max_turn_requests",
    "content_filter": "refusal",
    "refusal": "refusal",
}

_AUTH_CODE: Final = re.compile(
    r"(?i)\bauth(?!or)|authent|unauthori[sz]ed|api[ _-]?key|permission[ _-]?denied"
)
_AUTH_TEXT: Final = re.compile(r"(?i)\banswered 401\b")

_INVALID_PARAMS: Final = frozenset(
    {
        "bad_image",
        "content_not_supported",
        "empty_message",
        "message_too_large",
        "unknown_setting",
        "workspace_error",
        "wrong_setting",
    }
)
_INVALID_REQUEST: Final = frozenset(
    {
        "conflicting_command",
        "forbidden",
        "interaction_pending",
        "too_many_commands",
        "too_many_submissions",
    }
)


def stop_reason_of(metadata: MessageMetadata) -> StopReason | None:
    """Return why a turn ended; ``None``: it failed, which is no stop reason here."""
    for word in (metadata.run_stop_reason, metadata.error_code):
        if word in _STOP_REASONS:
            return _STOP_REASONS[word]
    match metadata.run_outcome:
        case "aborted":
            return "cancelled"
        case "completed":
            return "end_turn"
        case _:
            return None


def turn_error(metadata: MessageMetadata) -> ErrorObject:
    """Return the error of a turn that failed."""
    code, text = metadata.error_code or "", metadata.error_text or "the turn failed"
    refused = _AUTH_CODE.search(code) or _AUTH_TEXT.search(text)
    data = {"code": code or "turn_failed"}
    if metadata.run_stop_reason:
        data["stopReason"] = metadata.run_stop_reason
    return ErrorObject(
        AcpErrorCode.AUTH_REQUIRED if refused else ErrorCode.INTERNAL_ERROR, text, data
    )


def request_error(error: GreenroomError) -> ErrorObject:
    """Return what the client is told of *error*, with its code and its hint."""
    data = {"code": error.code}
    if error.hint:
        data["hint"] = error.hint
    return ErrorObject(_code_of(error.code), str(error), data)


def session_not_found(session_id: str) -> ErrorObject:
    """Return the error for a session that this connection does not have."""
    return ErrorObject(
        AcpErrorCode.RESOURCE_NOT_FOUND,
        f"there is no session {session_id[:80]!r} in this connection",
        {"sessionId": session_id[:1_000]},
    )


def _code_of(code: str) -> int:
    if code in _INVALID_PARAMS:
        return ErrorCode.INVALID_PARAMS
    if code in _INVALID_REQUEST:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.INTERNAL_ERROR
