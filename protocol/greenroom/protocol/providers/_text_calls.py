"""Calls that a model writes as text, for models without native tools (RUN-22).

A stage over stream events: it passes everything on, and when the reply ends with an
ordinary stop and no native call, it looks whether the text *is* a call: the content
of ``<tool_call>`` tags, or a reply that is nothing but one JSON object, fenced or not.
A call counts only when it names an offered tool and has an object as arguments; prose
that mentions a tool, or JSON in the middle of a sentence, is text and stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, cast, final

import attrs
import msgspec

from .._canonical import canonical_json
from .._stream import (
    Stop,
    StreamEvent,
    TextDelta,
    ToolCallEnd,
    ToolCallStart,
)

MAX_TEXT_CHARS: Final = 200_000
"""Longer replies are not searched for calls."""

MAX_TEXT_CALLS: Final = 16

_TAGGED: Final = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_FENCED: Final = re.compile(r"\A\s*```(?:json)?\s*(\{.*\})\s*```\s*\Z", re.DOTALL)


@attrs.frozen
class TextCall:
    """A call found in text."""

    name: str
    arguments: str
    """Canonical JSON of an object."""


def find_text_calls(text: str, offered: frozenset[str]) -> tuple[TextCall, ...]:
    """Return the calls that *text* is, in order; none unless all of them are good."""
    if len(text) > MAX_TEXT_CHARS:
        return ()
    tagged = _TAGGED.findall(text)
    fenced = _FENCED.match(text)
    written = tagged or ([fenced[1]] if fenced else [text.strip()])
    calls = [_call(one, offered) for one in written[: MAX_TEXT_CALLS + 1]]
    if len(calls) > MAX_TEXT_CALLS or None in calls:
        return ()
    return tuple(call for call in calls if call is not None)


def _call(text: str, offered: frozenset[str]) -> TextCall | None:
    if not text.startswith("{"):
        return None
    try:
        value: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    members = cast("dict[str, Any]", value)
    name = members.get("name")
    arguments = members.get("arguments", members.get("parameters"))
    if not isinstance(name, str) or name not in offered:
        return None
    if not isinstance(arguments, dict):
        return None
    return TextCall(name, canonical_json(arguments))


@final
@attrs.define(eq=False)
class TextCalls:
    """The stage; one for each reply."""

    offered: frozenset[str]
    salt: str = ""
    """Makes the calls' ids: equal for equal requests."""
    _text: list[str] = attrs.field(factory=list[str], init=False)
    _has_native: bool = attrs.field(default=False, init=False)

    def feed(self, events: Iterable[StreamEvent]) -> list[StreamEvent]:
        """Pass *events* on, with the calls that the reply's text turned out to be."""
        passed: list[StreamEvent] = []
        for event in events:
            match event:
                case TextDelta(text=text):
                    self._text.append(text)
                case ToolCallStart():
                    self._has_native = True
                case Stop(reason="complete") if not self._has_native:
                    passed += self._close(event)
                    continue
                case _:
                    pass
            passed.append(event)
        return passed

    def _close(self, stop: Stop) -> list[StreamEvent]:
        calls = find_text_calls("".join(self._text), self.offered)
        if not calls:
            return [stop]
        events: list[StreamEvent] = []
        for index, call in enumerate(calls):
            call_id = f"text_{self.salt}_{index}"
            events += [
                ToolCallStart(index=index, id=call_id, name=call.name),
                ToolCallEnd(
                    index=index, id=call_id, name=call.name, arguments=call.arguments
                ),
            ]
        return [*events, Stop(reason="tool_use", raw=stop.raw)]
