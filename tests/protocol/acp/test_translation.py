"""Prompts, questions, outcomes and versions: pure functions at the border."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from kit.acp_schema import validate

from greenroom.protocol import (
    ActionBlock,
    Deny,
    DiskFullError,
    Grant,
    GreenroomError,
    ImagePart,
    ItemId,
    MessageMetadata,
    Other,
    QuestionOption,
    Reply,
    TextPart,
)
from greenroom.protocol.acp import AcpErrorCode, negotiated_version, v1

#### Versions


@pytest.mark.parametrize(
    ("requested", "supported", "answered"),
    [
        (1, (1,), 1),
        (2, (1,), 1),
        (99, (1,), 1),
        (0, (1,), 1),
        (1, (1, 2), 1),
        (99, (1, 2), 2),
    ],
)
def test_the_newest_version_that_both_know_is_spoken(requested, supported, answered):
    assert negotiated_version(requested, supported) == answered


def test_a_newer_client_is_understood() -> None:
    info = {"name": "ed", "version": "2"}
    both = {"protocolVersion": 2, "info": info, "capabilities": {"x": {}}}
    request = v1.decode_initialize(json.dumps(both).encode())
    assert request.client_info == v1.Implementation("ed", "2")
    assert v1.decode_initialize(b'{"protocolVersion":1,"info":5}').client_info is None
    own = v1.decode_initialize(
        b'{"protocolVersion":1,"clientInfo":{"name":"a","version":"1"},"info":5}'
    )
    assert own.client_info == v1.Implementation("a", "1")


@pytest.mark.parametrize("version", ['"1"', "1.5", "-1", "65536", "null", "[]"])
def test_a_version_that_is_none_is_refused(version: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        v1.decode_initialize(b'{"protocolVersion":%s}' % version.encode())


#### Prompts


def test_a_prompt_becomes_what_the_model_is_shown() -> None:
    blocks = (
        v1.TextContent("look"),
        v1.ResourceLink("file:///a\nb", "a\tb"),
        v1.EmbeddedResource(v1.ResourceContents('file:///"x"', text="body")),
        v1.EmbeddedResource(
            v1.ResourceContents("u", blob="AAAA", mime_type="image/png")
        ),
        v1.EmbeddedResource(v1.ResourceContents("u", blob="AAAA")),
        v1.EmbeddedResource(v1.ResourceContents("u", blob="AAAA", mime_type="a/b")),
        v1.ImageContent("image/png", "BBBB"),
    )
    mentioned = '<resource uri="u">\n(binary, {}; not shown)\n</resource>'
    assert v1.parts_of(blocks) == (
        TextPart("look"),
        TextPart("[a b](file:///a b)"),
        TextPart('<resource uri="file:///%22x%22">\nbody\n</resource>'),
        ImagePart("image/png", "AAAA"),
        TextPart(mentioned.format("of unknown type")),
        TextPart(mentioned.format("a/b")),
        ImagePart("image/png", "BBBB"),
    )


def test_sound_is_refused() -> None:
    with pytest.raises(v1.ContentNotSupportedError) as refused:
        v1.parts_of([v1.AudioContent("audio/wav", "AAAA")])
    assert v1.request_error(refused.value).code == -32602


#### Questions


def permission(**fields: Any) -> ActionBlock:
    return ActionBlock(
        id=ItemId("m.1"),
        action="tool_call_permission",
        origin="pre-check-permission",
        tool_block_id=ItemId("m.0"),
        title="run a command: ls",
        **fields,
    )


def question(*labels: str, **fields: Any) -> ActionBlock:
    options = tuple(QuestionOption(label, "why") for label in labels)
    return ActionBlock(
        id=ItemId("m.1"),
        action="question_request",
        origin="question",
        tool_block_id=ItemId("m.0"),
        title="Colour",
        detail="Which one?",
        options=options,
        **fields,
    )


CALL = v1.ToolCallFields(tool_call_id="m.0", title="shell", status="pending")


def request(action: ActionBlock) -> v1.RequestPermissionRequest | None:
    made = v1.request_for("s", action, CALL)
    if made is not None:
        validate("RequestPermissionRequest", made)
    return made


def selected(option_id: str) -> v1.RequestPermissionResponse:
    return v1.RequestPermissionResponse(v1.Selected(option_id))


def test_a_permission_offers_what_can_be_honoured() -> None:
    made = request(permission(detail="#!/bin/sh\nls"))
    assert made is not None
    assert [option.kind for option in made.options] == ["allow_once", "reject_once"]
    assert made.tool_call.title == "run a command: ls"
    shown = v1.ToolContent(v1.TextContent("#!/bin/sh\nls"))
    assert made.tool_call.content == (shown,)


def test_the_diff_stays_with_the_question() -> None:
    diff = v1.ToolDiff("/a", "new")
    call = msgspec.structs.replace(CALL, content=(diff,))
    made = v1.request_for("s", permission(), call)
    assert made is not None
    assert made.tool_call.content == (diff,)


@pytest.mark.parametrize(
    ("chosen", "answer"),
    [
        ("allow", Grant()),
        ("reject", Deny()),
        ("allow_always", Deny("the client chose an unknown option")),
        ("", Deny("the client chose an unknown option")),
        ("choice-0", Deny("the client chose an unknown option")),
    ],
)
def test_only_the_offered_yes_is_a_yes(chosen: str, answer: object) -> None:
    assert v1.answer_of(permission(), selected(chosen)) == answer


def test_a_cancelled_request_cancels_the_turn() -> None:
    gone = v1.RequestPermissionResponse(v1.Cancelled())
    assert v1.answer_of(permission(), gone) is None
    assert v1.answer_of(question("red"), gone) is None


def test_a_question_with_a_few_labels_is_a_choice() -> None:
    asked = question("red", "blue")
    made = request(asked)
    assert made is not None
    assert [option.name for option in made.options] == [
        "red",
        "blue",
        "Answer in a message",
    ]
    for option, answer in zip(
        made.options, (Reply("red"), Reply("blue"), Other()), strict=True
    ):
        assert v1.answer_of(asked, selected(option.option_id)) == answer


def test_a_question_without_own_words_can_be_declined() -> None:
    asked = question("red", custom=False)
    made = request(asked)
    assert made is not None
    assert made.options[-1].name == "Decline to answer"
    assert v1.answer_of(asked, selected("reject")) == Deny()
    assert v1.answer_of(asked, selected("choice-7")) == Deny()


@pytest.mark.parametrize(
    "asked",
    [
        question(),
        question("a", "b", multiple=True),
        question(*(f"label {n}" for n in range(13))),
    ],
)
def test_another_question_is_a_message(asked: ActionBlock) -> None:
    assert request(asked) is None
    message = v1.message_for(asked)
    text = message.content.text  # type: ignore[union-attr]
    assert text.startswith("**Colour**\n\nWhich one?\n")
    assert all(f"- {option.label}: why\n" in text for option in asked.options)


def test_a_client_that_can_t_ask_never_grants() -> None:
    assert v1.refusal_of(permission(), "no") == Deny("the user could not be asked: no")
    assert v1.refusal_of(question("a"), "no") == Other()
    assert isinstance(v1.refusal_of(question("a", custom=False), "no"), Deny)


#### Outcomes


def metadata(outcome: Any, reason: str, **fields: Any) -> MessageMetadata:
    return MessageMetadata(run_outcome=outcome, run_stop_reason=reason, **fields)


@pytest.mark.parametrize(
    ("outcome", "reason", "expected"),
    [
        ("completed", "complete", "end_turn"),
        ("completed", "user_follow_up", "end_turn"),
        ("completed", "pending_input", "end_turn"),
        ("completed", "max_tokens", "max_tokens"),
        ("completed", "max_tool_calls", "max_turn_requests"),
        ("completed", "max_turn_requests", "max_turn_requests"),
        ("error", "max_turns", "max_turn_requests"),
        ("completed", "refusal", "refusal"),
        ("completed", "content_filter", "refusal"),
        ("aborted", "user_stop", "cancelled"),
        ("aborted", "shutdown", "cancelled"),
        ("aborted", "parent", "cancelled"),
        ("error", "provider_error", None),
        ("error", "deadline", None),
        ("error", "context_window", None),
    ],
)
def test_the_reason_of_an_end(outcome, reason, expected) -> None:
    assert v1.stop_reason_of(metadata(outcome, reason)) == expected


def test_a_filtered_answer_is_a_refusal() -> None:
    filtered = metadata("error", "provider_error", error_code="content_filter")
    assert v1.stop_reason_of(filtered) == "refusal"


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        ("invalid_api_key", "no", AcpErrorCode.AUTH_REQUIRED),
        ("authentication_error", "no", AcpErrorCode.AUTH_REQUIRED),
        ("provider_error", "the provider answered 401: no", AcpErrorCode.AUTH_REQUIRED),
        ("provider_error", "the provider answered 500: 401", -32603),
        ("author_missing", "no", -32603),
        ("ECONNREFUSED", "nobody there", -32603),
    ],
)
def test_a_failed_turn_is_an_error_with_its_code(code, text, expected) -> None:
    failed = metadata("error", "provider_error", error_code=code, error_text=text)
    error = v1.turn_error(failed)
    assert (error.code, error.message) == (expected, text)
    assert error.data == {"code": code, "stopReason": "provider_error"}
    validate("Error", error)


def test_a_turn_that_failed_without_a_word_is_an_error_too() -> None:
    error = v1.turn_error(MessageMetadata())
    assert (error.code, error.data) == (-32603, {"code": "turn_failed"})


class Coded(GreenroomError):
    def __init__(self, code: str) -> None:
        super().__init__("said so")
        self.code = code


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("message_too_large", -32602),
        ("workspace_error", -32602),
        ("interaction_pending", -32600),
        ("session_held", -32603),
    ],
)
def test_errors_of_the_engine_have_codes_of_the_protocol(code, expected) -> None:
    error = v1.request_error(Coded(code))
    assert (error.code, error.message) == (expected, "said so")
    assert error.data == {"code": code}


def test_a_hint_goes_along() -> None:
    assert "free some space" in v1.request_error(DiskFullError("full")).data["hint"]


def test_an_unknown_session_is_named() -> None:
    error = v1.session_not_found("x" * 5_000)
    assert error.code == AcpErrorCode.RESOURCE_NOT_FOUND
    assert error.data == {"sessionId": "x" * 1_000}


def test_the_modes_are_the_words_of_the_setting() -> None:
    state = v1.mode_state("auto_approve")
    validate("SessionModeState", state)
    assert [mode.id for mode in state.available_modes] == [
        "default",
        "auto_approve",
        "full_access",
    ]
