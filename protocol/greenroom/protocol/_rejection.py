"""One item of a request that a provider refuses: which it is, and the request without.

A broken image or thinking with a signature that no longer holds makes a provider
answer 400, to this request and to every later one that carries it. Two kinds are
recognised, by what the refusal says: an image that can't be read or is too large, and
a signature that is not valid. What asks for *more* (a missing signature, thinking that
must be passed back) and what concerns the model as a whole (it takes no images) is not
one of them. The item is replaced by a note in what is sent; the tape keeps it.

Which one: what the path in the message names (``messages.3.content.1``), when an item
of that kind is there. Paths of servers that translate count differently, and many give
none; then it is the last one, because what came before was sent and taken earlier.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from ._messages import (
    AssistantMessage,
    ChatMessage,
    ImagePart,
    Reasoning,
    TextPart,
    ToolCall,
    UserMessage,
)
from ._stream import ProviderFailure
from .providers import overflow_of

RejectedItem = ImagePart | Reasoning | ToolCall
"""Known by its value: equal items are refused for the same reason."""

MAX_SAID_CHARS: Final = 4_000

MAX_REJECTED: Final = 100
"""Items that a view remembers; the oldest is forgotten."""

IMAGE_NOTE: Final = "[an image was left out: the provider could not use it]"
REASONING_NOTE: Final = "[thinking was left out: the provider refused it]"

_STATUSES: Final = frozenset({400, 413, 415, 422})

_IMAGE: Final = re.compile(r"image|media[_ ]type|base64", re.IGNORECASE)
_BAD_IMAGE: Final = re.compile(
    r"invalid|not (?:a )?valid|corrupt|malformed|could ?n[o']t|unable|fail(?:ed|s|ure)"
    r"|can ?not be|decod|too (?:large|big|small)|exceed|does not (?:match|represent)"
    r"|unsupported (?:image|format|media|mime)|image_parse_error",
    re.IGNORECASE,
)
_NO_IMAGES_AT_ALL: Final = re.compile(
    r"(?:not|n't) (?:currently )?(?:support|accept|allow)\w* (?:any )?(?:image|vision)"
    r"|image (?:input|content|url)s? (?:is|are) (?:not|only)|no endpoints",
    re.IGNORECASE,
)
_SIGNATURE: Final = re.compile(
    r"(?:invalid|corrupt\w*|malformed|mismatch\w*|bad|expired) .{0,40}signature"
    r"|signature.{0,60}(?:invalid|not valid|corrupt|malformed|mismatch|can ?not be"
    r" verified|could not be verified|expired|failed)",
    re.IGNORECASE,
)
_ASKS_FOR_MORE: Final = re.compile(
    r"missing|must be (?:passed|provided|preceded|included)|required|expected",
    re.IGNORECASE,
)
_PATH: Final = re.compile(
    r"messages?[.\[](\d{1,6})\]?(?:\.content[.\[](\d{1,6})\]?)?", re.IGNORECASE
)

_Kind = Literal["image", "signed"]
_Place = tuple[int, int, RejectedItem]
"""Number of the message, of the part in it, and the item."""


def rejected_item(
    messages: Sequence[ChatMessage], failure: ProviderFailure
) -> RejectedItem | None:
    """Return the item of *messages* that *failure* refuses, if it is a known case."""
    kind = _kind_of(failure)
    if kind is None:
        return None
    places = list(_images(messages) if kind == "image" else _signed(messages))
    if not places:
        return None
    named = _PATH.search(failure.message)
    return (named and _at(places, named)) or places[-1][2]


def neutralised(
    messages: Sequence[ChatMessage], rejected: Sequence[RejectedItem]
) -> tuple[ChatMessage, ...]:
    """Return *messages* with a note in the place of each of *rejected*."""
    if not rejected:
        return tuple(messages)
    return tuple(_without(message, rejected) for message in messages)


def _kind_of(failure: ProviderFailure) -> _Kind | None:
    if failure.status not in _STATUSES or overflow_of(failure):
        return None
    said = f"{failure.code or ''}: {failure.message}"[:MAX_SAID_CHARS]
    if _SIGNATURE.search(said):
        return None if _ASKS_FOR_MORE.search(said) else "signed"
    if _NO_IMAGES_AT_ALL.search(said):
        return None
    return "image" if _IMAGE.search(said) and _BAD_IMAGE.search(said) else None


def _images(messages: Sequence[ChatMessage]) -> Iterator[_Place]:
    for number, message in enumerate(messages):
        if isinstance(message, UserMessage):
            for place, part in enumerate(message.parts):
                if isinstance(part, ImagePart):
                    yield number, place, part


def _signed(messages: Sequence[ChatMessage]) -> Iterator[_Place]:
    for number, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            parts = [part for part in message.reasoning if part.options]
            calls = [call for call in message.calls if call.options]
            for place, item in enumerate((*parts, *calls)):
                yield number, place, item


def _at(places: Sequence[_Place], named: re.Match[str]) -> RejectedItem | None:
    there = [place for place in places if place[0] == int(named[1])]
    exact = [place for place in there if named[2] and place[1] == int(named[2])]
    found = exact or there
    return found[-1][2] if found else None


def _without(message: ChatMessage, rejected: Sequence[RejectedItem]) -> ChatMessage:
    match message:
        case UserMessage(parts=parts) if _any_of(parts, rejected):
            note = TextPart(IMAGE_NOTE)
            return UserMessage(
                tuple(note if part in rejected else part for part in parts)
            )
        case AssistantMessage(reasoning=reasoning, calls=calls) if _any_of(
            (*reasoning, *calls), rejected
        ):
            return msgspec.structs.replace(
                message,
                reasoning=tuple(_unsigned(part, rejected) for part in reasoning),
                calls=tuple(_without_options(call, rejected) for call in calls),
            )
        case _:
            return message


def _any_of(parts: Sequence[Any], rejected: Sequence[RejectedItem]) -> bool:
    return any(part in rejected for part in parts)


def _unsigned(part: Reasoning, rejected: Sequence[RejectedItem]) -> Reasoning:
    return Reasoning(REASONING_NOTE) if part in rejected else part


def _without_options(call: ToolCall, rejected: Sequence[RejectedItem]) -> ToolCall:
    # A call stays a call, with its result: only what was signed goes.
    if call not in rejected:
        return call
    return msgspec.structs.replace(call, options=None)
