"""What a tool says, taken in: of the promised type, in bounds, and safe to store.

A tool is somebody else's code. What it answers at its two doors is checked here before
anything is made of it; a result whose text can't be stored, or that is no result, would
otherwise end the whole turn.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import msgspec

from greenroom.protocol import safe_json

from ._port import Needs, Question, ToolRefused, ToolResult

MAX_OPTIONS: Final = 50
MAX_LABEL_CHARS: Final = 500
MAX_SHOWN_CHARS: Final = 100_000
"""Of the words of a question, and of each description."""

T = TypeVar("T")


def received_needs(value: object) -> Needs | Question:
    """Return what a precheck said.

    Raises:
        ToolRefused: it is neither needs nor a question that can be asked.
    """
    if isinstance(value, Question):
        return _askable(_received(value, Question))
    return _received(value, Needs)


def received_result(value: object) -> ToolResult:
    """Return what a call came to.

    Raises:
        ToolRefused: it is no result.
    """
    if not isinstance(value, ToolResult):
        raise _unusable(ToolResult, value)
    # A path is bytes in disguise: text that is made safe would name another file.
    kept = value.kept
    plain = _received(attrs.evolve(value, kept=None), ToolResult)
    return attrs.evolve(plain, kept=None if kept is None else Path(kept))


def _received(value: object, expected: type[T]) -> T:
    if not isinstance(value, expected):
        raise _unusable(expected, value)
    try:
        # Bytes would become text in an encoding that nobody asked for.
        plain = msgspec.to_builtins(value, builtin_types=(bytes, bytearray))
        return msgspec.convert(safe_json(plain), expected)
    except Exception as exc:
        raise _unusable(expected, exc) from exc


def _askable(question: Question) -> Question:
    if len(question.options) > MAX_OPTIONS:
        raise ToolRefused(f"the tool asks with more than {MAX_OPTIONS} options")
    words = [question.text, question.header, *(o.description for o in question.options)]
    labels = [option.label for option in question.options]
    if max(map(len, words)) > MAX_SHOWN_CHARS or any(
        len(label) > MAX_LABEL_CHARS for label in labels
    ):
        raise ToolRefused("the tool asks with more words than can be shown")
    if not (labels or question.custom):
        raise ToolRefused("the tool asks a question that has no answer")
    return question


def _unusable(expected: type[Any], found: object) -> ToolRefused:
    if isinstance(found, msgspec.ValidationError):
        what = str(found)
    else:
        what = f"got {type(found).__name__}"
    return ToolRefused(f"the tool gave no usable {expected.__name__}: {what}"[:500])
