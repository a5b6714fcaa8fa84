"""Messages of another implementation, decoded and encoded again, and the schema."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from jsonschema import ValidationError
from kit.acp_schema import DATA, check, validator

from greenroom.protocol.acp import decode_lenient, v1

KINDS: dict[str, tuple[Any, str]] = {
    "cancel_notification": (v1.CancelNotification, "CancelNotification"),
    "content_": (v1.ContentBlock, "ContentBlock"),
    "initialize_request": (v1.InitializeRequest, "InitializeRequest"),
    "initialize_response": (v1.InitializeResponse, "InitializeResponse"),
    "new_session_request": (v1.NewSessionRequest, "NewSessionRequest"),
    "new_session_response": (v1.NewSessionResponse, "NewSessionResponse"),
    "permission_outcome_": (v1.Cancelled | v1.Selected, "RequestPermissionOutcome"),
    "prompt_request": (v1.PromptRequest, "PromptRequest"),
    "request_permission_request": (
        v1.RequestPermissionRequest,
        "RequestPermissionRequest",
    ),
    "request_permission_response": (
        v1.RequestPermissionResponse,
        "RequestPermissionResponse",
    ),
    "session_update_": (v1.SessionUpdate, "SessionUpdate"),
    "tool_content_": (v1.ToolCallContent, "ToolCallContent"),
}
GOLDEN = sorted((DATA / "golden").glob("*.json"))


def kind_of(name: str) -> tuple[Any, str]:
    return next(kind for prefix, kind in KINDS.items() if name.startswith(prefix))


def without_defaults(name: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return a golden message without what it says although it need not."""
    value = json.loads(json.dumps(value))
    if name == "initialize_response":
        del value["agentCapabilities"]["sessionCapabilities"]
        del value["authMethods"]
    return value


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_message_survives_decoding_and_encoding(path) -> None:
    kind, definition = kind_of(path.stem)
    golden = json.loads(path.read_bytes())

    encoded = msgspec.json.encode(msgspec.json.decode(path.read_bytes(), type=kind))

    assert json.loads(encoded) in (golden, without_defaults(path.stem, golden))
    validator(definition).validate(json.loads(encoded))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_unknown_members_are_ignored(path) -> None:
    kind, _ = kind_of(path.stem)
    more = json.loads(path.read_bytes()) | {"_meta": {"x": 1}, "vendorField": [1]}

    decoded = msgspec.json.decode(json.dumps(more), type=kind)

    assert decoded == msgspec.json.decode(path.read_bytes(), type=kind)


@pytest.mark.parametrize(
    ("message", "answers"),
    [
        (
            {"jsonrpc": "2.0", "id": 1, "result": {"stopReason": "end"}},
            "session/prompt",
        ),
        ({"jsonrpc": "2.0", "id": 1, "result": {}}, "session/new"),
        ({"jsonrpc": "2.0", "id": 1, "error": {"code": "x", "message": ""}}, None),
        (
            {
                "jsonrpc": "2.0",
                "method": "session/update",
                "params": {"sessionId": "s", "update": {"sessionUpdate": "nonsense"}},
            },
            None,
        ),
    ],
)
def test_the_judge_of_messages_can_say_no(message, answers) -> None:
    with pytest.raises(ValidationError):
        check(message, answers=answers)


#### Lenient fields


def lenient(value: Any, kind: Any) -> Any:
    return decode_lenient(json.dumps(value).encode(), kind)


def test_a_marked_field_that_does_not_fit_counts_as_absent() -> None:
    request = lenient(
        {
            "protocolVersion": 1,
            "clientCapabilities": {"fs": {"readTextFile": 5}, "terminal": True},
            "clientInfo": {"name": 5},
        },
        v1.InitializeRequest,
    )
    assert request == v1.InitializeRequest(1, v1.ClientCapabilities(terminal=True))


def test_malformed_annotations_do_not_fail_a_prompt() -> None:
    text = {"type": "text", "text": "hi"}
    odd = {"audience": ["user", 5], "priority": "high", "lastModified": []}
    request = lenient(
        {"sessionId": "s", "prompt": [text | {"annotations": odd}, text]},
        v1.PromptRequest,
    )
    assert request.prompt == (
        v1.TextContent("hi", v1.Annotations(audience=("user",))),
        v1.TextContent("hi"),
    )
    assert lenient(text | {"annotations": "?"}, v1.TextContent) == v1.TextContent("hi")


def test_items_that_do_not_fit_are_left_out_where_the_schema_says_so() -> None:
    update = lenient(
        {
            "sessionUpdate": "plan",
            "entries": [
                {"content": "a", "priority": "low", "status": "pending"},
                {"content": "b", "priority": "urgent", "status": "pending"},
                7,
            ],
        },
        v1.PlanReplaced,
    )
    assert [entry.content for entry in update.entries] == ["a"]


def test_null_is_an_empty_array_but_absence_is_not() -> None:
    request = lenient({"cwd": "/", "mcpServers": None}, v1.NewSessionRequest)
    assert request == v1.NewSessionRequest("/", ())
    with pytest.raises(msgspec.ValidationError, match="mcpServers"):
        lenient({"cwd": "/"}, v1.NewSessionRequest)


def server(**members: Any) -> dict[str, Any]:
    named = {"name": "fs", "command": "/bin/fs", "args": [], "env": []}
    return {k: v for k, v in (named | members).items() if v is not ...}


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"type": "stdio"},
        {"args": None, "env": None},
        {"env": [{"name": "A", "value": "b"}]},
        {"type": "http", "command": ..., "url": "http://x", "headers": []},
        {"type": "sse", "command": ..., "url": "http://x", "headers": None},
    ],
)
def test_an_mcp_server_of_a_known_shape_is_taken(members) -> None:
    request = lenient(
        {"cwd": "/", "mcpServers": [server(**members)]}, v1.NewSessionRequest
    )
    assert [one.name for one in request.mcp_servers] == ["fs"]


@pytest.mark.parametrize(
    "members",
    [
        {"name": ...},
        {"command": ...},
        {"args": ...},
        {"env": {"A": "b"}},
        {"env": [{"name": "A"}]},
        {"type": "carrier_pigeon"},
        {"type": "http", "headers": []},
        {"type": "http", "url": "http://x"},
    ],
)
def test_a_malformed_mcp_server_is_refused_not_dropped(members) -> None:
    with pytest.raises(msgspec.ValidationError):
        lenient({"cwd": "/", "mcpServers": [server(**members)]}, v1.NewSessionRequest)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text"},
        {"type": "text", "text": None},
        {"type": "hologram", "data": ""},
        {"type": "image", "data": "x"},
        {"type": "resource", "resource": {"uri": "file:///x"}},
        {"text": "no type"},
        "text",
    ],
)
def test_a_content_block_that_is_none_is_refused(block) -> None:
    with pytest.raises(msgspec.ValidationError):
        lenient({"sessionId": "s", "prompt": [block]}, v1.PromptRequest)


def test_what_is_not_json_is_another_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_lenient(b"{", v1.PromptRequest)
    with pytest.raises(msgspec.ValidationError):
        decode_lenient(b"[]", v1.PromptRequest)
