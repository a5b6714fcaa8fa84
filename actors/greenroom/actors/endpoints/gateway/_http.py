"""Answers over plain HTTP: one for each connection, then it is closed."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import attrs

_TEXT: Final = "text/plain; charset=utf-8"
_SAFE: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


@attrs.frozen
class Answer:
    """What a request is answered."""

    status: int
    body: bytes = b""
    content_type: str = _TEXT
    headers: Mapping[str, str] = attrs.field(factory=lambda: _SAFE)

    @classmethod
    def text(cls, status: int, text: str, **headers: str) -> Answer:
        """Return an answer of one line."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(status, f"{text}\n".encode(), headers=_SAFE | named)

    def encode(self, *, head_only: bool = False) -> bytes:
        """Return the answer as bytes; *head_only* for the method ``HEAD``."""
        phrase = HTTPStatus(self.status).phrase
        lines = [
            f"HTTP/1.1 {self.status} {phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
            "Connection: close",
        ]
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        return head if head_only else head + self.body
