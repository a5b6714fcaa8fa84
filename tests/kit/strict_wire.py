"""A provider that refuses whatever any provider is known to refuse.

It reads the body of a Chat Completions request as it leaves, with nothing of
greenroom's own but the limits of the dialect, and says what is wrong with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from greenroom.protocol.providers import Profile

NAME: Final = re.compile("[A-Za-z0-9_-]{1,64}")
PLAIN_ID: Final = re.compile("[A-Za-z0-9_-]+")
KEYS: Final = {
    "system": {"role", "content"},
    "developer": {"role", "content"},
    "user": {"role", "content"},
    "tool": {"role", "tool_call_id", "content"},
    "assistant": {
        *("role", "content", "tool_calls"),
        *("reasoning_content", "reasoning_details"),
    },
}


def wire_problems(body: bytes, profile: Profile) -> list[str]:
    """Return what a strict server of the dialect would refuse in *body*."""
    try:
        request = json.loads(body.decode(), parse_constant=_no_number)
    except ValueError as error:
        return [f"the body is no JSON: {error}"]
    return [*unsafe_text(request), *_requests(request, profile)]


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def unsafe_text(value: Any) -> Iterator[str]:
    """Say which texts in *value* stores and peers refuse."""
    for text in strings_of(value):
        if re.search("[\x00\ud800-\udfff]", text):
            yield f"NUL or half a character in {text[:50]!r}"


def strings_of(value: Any) -> Iterator[str]:
    """Yield every string and key in *value*."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings_of(item)


def _requests(request: dict[str, Any], profile: Profile) -> Iterator[str]:
    if not request.get("model"):
        yield "no model"
    seen: set[str] = set()
    waiting: list[str] = []
    before = ""
    for place, message in enumerate(request["messages"]):
        role = message["role"]
        if set(message) - KEYS.get(role, set()):
            yield f"message {place}, {role!r}, has other keys: {sorted(message)}"
        if role in ("system", "developer") and place:
            yield f"instructions at place {place}"
        if role == "assistant" == before:
            yield f"two assistant messages in a row at {place}"
        if role != "tool" and waiting:
            yield f"no results for {waiting} before {place}"
            waiting = []
        if role == "tool":
            yield from _result(message, waiting, place)
        elif role == "assistant":
            calls = message.get("tool_calls", [])
            waiting = [call["id"] for call in calls]
            yield from _assistant(message, seen, profile)
            seen.update(waiting)
        else:
            yield from _content(message["content"], place)
        before = role
    if waiting:
        yield f"no results for {waiting} at the end"


def _result(message: dict[str, Any], waiting: list[str], place: int) -> Iterator[str]:
    if not waiting or waiting.pop(0) != message["tool_call_id"]:
        yield f"the result at {place} answers no call, or another one"
    if not isinstance(message["content"], str):
        yield f"the result at {place} is no text"


def _content(content: Any, place: int) -> Iterator[str]:
    if not content:
        yield f"message {place} is empty"
    for part in content if isinstance(content, list) else []:
        text, image = part.get("text"), part.get("image_url", {}).get("url", "")
        if not text and not image.startswith("data:"):
            yield f"a part of message {place} is neither text nor image"


def _assistant(
    message: dict[str, Any], seen: set[str], profile: Profile
) -> Iterator[str]:
    content, calls = message["content"], message.get("tool_calls")
    if calls == [] or (content is None and not calls):
        yield "an assistant message is empty"
    if content is not None and not content.strip():
        yield f"an assistant message is blank: {content!r}"
    ids = [call["id"] for call in calls or []]
    if len(set(ids)) < len(ids) or seen & set(ids):
        yield f"a call id is used twice: {ids}"
    for call in calls or []:
        yield from _call(call, profile)


def _call(call: dict[str, Any], profile: Profile) -> Iterator[str]:
    function, limit = call["function"], profile.call_id_limit
    if not call["id"] or call["type"] != "function":
        yield f"a call without id or kind: {call!r}"
    if limit and (len(call["id"]) > limit or not PLAIN_ID.fullmatch(call["id"])):
        yield f"the dialect refuses the call id {call['id']!r}"
    if not NAME.fullmatch(function["name"]):
        yield f"no tool can have the name {function['name']!r}"
    try:
        arguments = json.loads(function["arguments"], parse_constant=_no_number)
    except (ValueError, RecursionError):
        yield f"arguments that are no JSON: {function['arguments'][:50]!r}"
        return
    if not isinstance(arguments, dict):
        yield f"arguments that are no object: {function['arguments'][:50]!r}"
    yield from unsafe_text(arguments)
