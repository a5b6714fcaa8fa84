"""Canonical JSON, hashes and text made safe to store and to send again.

Canonical means: keys sorted, no spaces, UTF-8. Two equal values have equal bytes,
so hashes over them are stable between processes and versions.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, cast

import msgspec

_ENCODER = msgspec.json.Encoder(order="sorted")

# NUL is refused by stores and by most peers; a lone surrogate is not encodable.
_UNSAFE = re.compile("[\x00\ud800-\udfff]")


def canonical_json(value: Any) -> str:  # noqa: ANN401 - any JSON-like value
    """Return *value* as canonical JSON text.

    Raises:
        TypeError: *value* holds something that is not JSON.
    """
    return _ENCODER.encode(value).decode()


def sha256_hex(text: str) -> str:
    """Return the SHA-256 of *text* as 64 lower-case hex digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def safe_text(text: str) -> str:
    """Return *text* with NUL and lone surrogates replaced by U+FFFD.

    What passes here can be stored and sent to a provider again (pairing law).
    """
    return _UNSAFE.sub("�", text)


def safe_json(value: Any) -> Any:  # noqa: ANN401 - any JSON-like value
    """Return *value* with `safe_text` applied to every string and key in it."""
    if isinstance(value, str):
        return safe_text(value)
    if isinstance(value, dict):
        members = cast("dict[Any, Any]", value)
        return {safe_text(str(key)): safe_json(item) for key, item in members.items()}
    if isinstance(value, list | tuple):
        return [safe_json(item) for item in cast("list[Any]", value)]
    return value
