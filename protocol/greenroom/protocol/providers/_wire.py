"""Reading JSON that a peer sent: whatever it is, nothing raises."""

from __future__ import annotations

import json
from typing import Any, Final, cast

import msgspec

from .._canonical import safe_text

MAX_COUNT: Final = 2**53 - 1
"""The largest integer that every JSON reader keeps exact."""


def decode_json(text: str | bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of *text*, or ``None`` when it is not JSON.

    What the strict decoder refuses gets a second look: half a surrogate pair and
    ``NaN`` are met in the wild. Nesting without end is refused by both.
    """
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode_leniently(text)


def _decode_leniently(text: str | bytes) -> Any:  # noqa: ANN401 - any JSON value
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig", "replace")
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def decode_object(text: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object that *text* is, or ``None`` when it is not one."""
    value = decode_json(text)
    return as_object(cast("object", value)) if isinstance(value, dict) else None


def as_object(value: object) -> dict[str, Any]:
    """Return *value* when it is a JSON object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return *value* when it is a JSON array, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_text(value: object) -> str:
    """Return *value* when it is a string, made safe to keep, else an empty one."""
    return safe_text(value) if isinstance(value, str) else ""


def as_count(value: object) -> int | None:
    """Return *value* when it is a number of something, else ``None``."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value <= MAX_COUNT else None
    return None
