"""What was sent in one physical attempt, kept for whoever looks into it later (TRY-23).

A trace is made of values that were captured when the attempt began. Secrets are taken
out before it is kept: every header that is not known to be harmless, and texts that
have the shape of a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import attrs
import msgspec

from ._canonical import canonical_json, safe_text
from ._counters import Counters
from ._ids import MessageId, RunId

MAX_TRACE_BYTES: Final = 512 * 1024
"""A payload in UTF-8."""

REDACTED: Final = "[redacted]"

_MARGIN: Final = 8 * 1024
"""Bytes looked at beyond the limit, so that no half of a secret is kept."""

_HARMLESS_HEADERS: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "content-length",
        "content-type",
        "user-agent",
        "anthropic-version",
        "anthropic-beta",
    }
)

# How keys begin, and what follows. Each is searched for by its fixed beginning, which
# costs next to nothing, so that a trace of a long request does not hold up the store.
_KEYS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        "sk[-_][A-Za-z0-9_-]{16,}",
        "pk[-_](?:live|test)[-_][A-Za-z0-9_-]{16,}",
        "rk[-_](?:live|test)[-_][A-Za-z0-9_-]{16,}",
        "gh[opsur]_[A-Za-z0-9]{20,}",
        "github_pat_[A-Za-z0-9_]{20,}",
        "glpat-[A-Za-z0-9_-]{16,}",
        "hf_[A-Za-z0-9]{20,}",
        "gsk_[A-Za-z0-9]{20,}",
        "xox[abeprs]-[A-Za-z0-9-]{10,}",
        "xai-[A-Za-z0-9]{20,}",
        "AKIA[A-Z0-9]{16}",
        "ASIA[A-Z0-9]{16}",
        "AIza[A-Za-z0-9_-]{30,}",
        r"eyJ[A-Za-z0-9_-]{10,300}\.[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]+",
    )
)
_AFTER: Final = tuple(
    re.compile(pattern)
    for pattern in (
        "(Bearer )[A-Za-z0-9._~+/=-]{8,}",
        "(Basic )[A-Za-z0-9+/=]{12,}",
        "(-----BEGIN (?:[A-Z]{2,8} )?PRIVATE KEY-----)[^-]+",
    )
)
_FIELDS: Final = (
    "api_key",
    "apikey",
    "api-key",
    "authorization",
    "password",
    "passwd",
    "secret",
    "client_secret",
    "access_token",
    "refresh_token",
    "auth_token",
)
_VALUE: Final = re.compile(r'(\\{0,7}"\s{0,8}:\s{0,8}\\{0,7}")[^"\\]+')
"""Behind a field's name: the end of the name and the value, quoted however often."""


class AttemptTrace(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """One physical attempt: which it was, and what was sent."""

    run_id: RunId
    message_id: MessageId
    logical_round: int
    request_seq: int
    physical_attempt: int
    provider: str
    model: str
    created_at: float
    """When the attempt began; seconds since the epoch."""
    payload: str
    """JSON with the address, the headers and the body; cut when ``truncated``."""
    truncated: bool = False


@attrs.frozen
class WireRequest:
    """A request as it goes over the wire."""

    url: str
    headers: Mapping[str, str]
    body: bytes


def attempt_trace(
    run_id: RunId,
    message_id: MessageId,
    counters: Counters,
    *,
    provider: str,
    model: str,
    at: float,
    wire: WireRequest,
) -> AttemptTrace:
    """Return the trace of an attempt, redacted and within bounds."""
    payload, truncated = trace_payload(wire)
    return AttemptTrace(
        run_id=run_id,
        message_id=message_id,
        logical_round=counters.round,
        request_seq=counters.request_seq,
        physical_attempt=counters.attempt,
        provider=safe_text(provider),
        model=safe_text(model),
        created_at=at,
        payload=payload,
        truncated=truncated,
    )


def trace_payload(wire: WireRequest) -> tuple[str, bool]:
    """Return what is kept of *wire*, and whether something was cut off."""
    headers = {name: _header(name, value) for name, value in wire.headers.items()}
    head = canonical_json({"headers": headers, "url": _plain_address(wire.url)})
    # The body is JSON already: it is put in as it is, not decoded and made again.
    room = max(0, MAX_TRACE_BYTES - len(head.encode()) - 16)
    body, truncated = _redacted_within(wire.body, room)
    return f'{head[:-1]},"body":{body or "null"}}}', truncated


def redacted(text: str) -> str:
    """Return *text* without what has the shape of a secret."""
    for pattern in _KEYS:
        text = pattern.sub(_unless_inside_a_word, text)
    for pattern in _AFTER:
        text = pattern.sub(rf"\1{REDACTED}", text)
    return _without_fields(text)


def _unless_inside_a_word(found: re.Match[str]) -> str:
    before = found.string[found.start() - 1 : found.start()]
    return found[0] if before.isalnum() else REDACTED


def _without_fields(text: str) -> str:
    lowered = text.lower()
    if len(lowered) != len(text):
        # Some letters change their length; then names are known in lower case only.
        lowered = text
    parts: list[str] = []
    done = 0
    for end in sorted({end for name in _FIELDS for end in _ends(lowered, name)}):
        value = _VALUE.match(text, end) if end >= done else None
        if value is not None:
            parts += (text[done : value.end(1)], REDACTED)
            done = value.end()
    return "".join((*parts, text[done:]))


def _ends(text: str, name: str) -> Iterator[int]:
    at = text.find(name)
    while at >= 0:
        yield at + len(name)
        at = text.find(name, at + len(name))


def _plain_address(url: str) -> str:
    # Some providers take their key in the query.
    return safe_text(url.split("?", 1)[0])


def _header(name: str, value: str) -> str:
    harmless = name.lower() in _HARMLESS_HEADERS
    return redacted(safe_text(value))[:1_000] if harmless else REDACTED


def _redacted_within(body: bytes, room: int) -> tuple[str, bool]:
    seen = body[: room + _MARGIN]
    text = redacted(safe_text(seen.decode(errors="replace"))).encode()
    if len(body) > len(seen):
        text = text[: max(0, min(room, len(text) - _MARGIN))]
    kept = text[:room]
    truncated = len(body) > len(seen) or len(kept) < len(text)
    return kept.decode(errors="ignore"), truncated
