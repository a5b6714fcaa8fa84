"""Which item of a request a refusal is about, and the request without it."""

from __future__ import annotations

import pytest

from greenroom.protocol import (
    IMAGE_NOTE,
    REASONING_NOTE,
    AssistantMessage,
    ChatMessage,
    ImagePart,
    ProviderFailure,
    Reasoning,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    neutralised,
    rejected_item,
)

OLD, NEW = ImagePart("image/png", "b2xk"), ImagePart("image/png", "bmV3")
SIGNED = Reasoning("hm", {"signature": "s1"})
LATER = Reasoning("hm hm", {"signature": "s2"})
PLAIN = Reasoning("aloud")
CALL = ToolCall(id="c", name="f", arguments="{}", options={"extra_content": {"g": 1}})

MESSAGES: tuple[ChatMessage, ...] = (
    SystemMessage("be kind"),
    UserMessage((TextPart("a"), OLD)),
    AssistantMessage(text="b", reasoning=(PLAIN, SIGNED), calls=(CALL,)),
    ToolMessage(call_id="c", name="f", text="result"),
    AssistantMessage(text="c", reasoning=(LATER,)),
    UserMessage((NEW, TextPart("d"))),
)


def refused(text: str, status: int | None = 400, code: str | None = None) -> object:
    failure = ProviderFailure(message=text, status=status, code=code)
    return rejected_item(MESSAGES, failure)


@pytest.mark.parametrize(
    "text",
    [
        "messages.5.content.0.image.source.base64: invalid base64 data",
        "Could not process image",
        "You uploaded an unsupported image. Please make sure your image is valid.",
        "messages.0.content.1.image: image dimensions exceed max allowed size: 8000",
        "Invalid 'messages[5].content[0].image_url.url'. Expected a base64-encoded URL",
        "Unable to process input image. Please retry or report",
        "Image does not match the provided media type image/png",
        "failed to decode image: unexpected end of data",
    ],
)
def test_a_broken_image_is_found(text: str) -> None:
    assert refused(text) is NEW


def test_the_path_says_which_image() -> None:
    assert refused("messages.1.content.1.image: could not process image") is OLD
    assert refused("messages[1].content[1].image_url: invalid image") is OLD
    # A path to where no image is was counted by somebody else.
    assert refused("messages.3.content.0.image: could not process image") is NEW


@pytest.mark.parametrize(
    "text",
    [
        "messages.4.content.0: Invalid `signature` in `thinking` block",
        "Corrupted thought signature.",
        "the signature of the reasoning item is not valid",
    ],
)
def test_a_signature_that_does_not_hold_is_found(text: str) -> None:
    assert refused(text) is LATER


def test_the_path_says_which_signature() -> None:
    assert refused("messages.2.content.0: Invalid signature in thinking") is SIGNED
    # A call may carry it too.
    assert refused("messages.2.content.1: Invalid signature in thinking") is CALL


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("Function call is missing a thought_signature", 400),
        ("The reasoning_content in the thinking mode must be passed back", 400),
        ("Expected `thinking`, but found `text`; signature invalid", 400),
        ("this model does not support image input", 400),
        ("No endpoints found that support image input", 404),
        ("Could not process image", 500),
        ("Could not process image", 401),
        ("Could not process image", None),
        ("messages: roles must alternate", 400),
        ("prompt is too long: 20 tokens > 10 maximum, image could not be read", 400),
        ("your image generation quota is exhausted", 400),
        ("", 400),
    ],
)
def test_what_is_no_item_of_ours_is_left_alone(text: str, status: int | None) -> None:
    assert refused(text, status) is None


def test_without_such_an_item_nothing_is_found() -> None:
    failure = ProviderFailure(message="Could not process image", status=400)
    assert rejected_item(MESSAGES[2:5], failure) is None
    assert rejected_item((), failure) is None


def test_an_item_is_replaced_by_a_note_and_everything_else_stays() -> None:
    sent = neutralised(MESSAGES, [NEW, SIGNED, CALL])
    assert sent[:2] == MESSAGES[:2]
    assert sent[2] == AssistantMessage(
        text="b",
        reasoning=(PLAIN, Reasoning(REASONING_NOTE)),
        calls=(ToolCall(id="c", name="f", arguments="{}"),),
    )
    assert sent[3:5] == MESSAGES[3:5]
    assert sent[5] == UserMessage((TextPart(IMAGE_NOTE), TextPart("d")))
    assert neutralised(MESSAGES, []) == MESSAGES


def test_hostile_words_cost_little() -> None:
    for text in ("image " * 50_000, "signature " + "x" * 300_000, "messages[" * 50_000):
        refused(text)
