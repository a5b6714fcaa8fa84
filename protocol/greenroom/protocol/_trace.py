"""What was sent in one physical attempt, kept for whoever looks into it later (TRY-23).

A trace is made of values that were captured when the attempt began. Secrets are taken
out before it is kept: every header that is not known to be harmless, and texts that
have the shape of a key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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

# Each alternative begins with a fixed text and has a bounded or single repetition, so
# that hostile content can't make a search slow.
_SECRET: Final = re.compile(
    r"""(?x)
    \b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}
    | \bgh[opsur]_[A-Za-z0-9]{20,} | \bgithub_pat_[A-Za-z0-9_]{20,}
    | \bglpat-[A-Za-z0-9_-]{16,} | \bhf_[A-Za-z0-9]{20,} | \bgsk_[A-Za-z0-9]{20,}
    | \bxox[abeprs]-[A-Za-z0-9-]{10,} | \bxai-[A-Za-z0-9]{20,}
    | \bA(?:KIA|SIA)[A-Z0-9]{16}\b | \bAIza[A-Za-z0-9_-]{30,}
    | \beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+
    | (?<=Bearer\ )[A-Za-z0-9._~+/=-]{8,} | (?<=Basic\ )[A-Za-z0-9+/=]{12,}
    | (?<=-----BEGIN\ PRIVATE\ KEY-----)[^-]+
    | (?<=-----BEGIN\ RSA\ PRIVATE\ KEY-----)[^-]+
    | (?<=-----BEGIN\ EC\ PRIVATE\ KEY-----)[^-]+
    | (?<=-----BEGIN\ OPENSSH\ PRIVATE\ KEY-----)[^-]+
    """
)
_SECRET_FIELD: Final = re.compile(
    r"""(?ix)
    (\\?"(?:x-)?(?:api[-_]?key|authorization|password|passwd|secret|client[-_]?secret
    |access[-_]?token|refresh[-_]?token|auth[-_]?token)\\?"\s{0,8}:\s{0,8}\\?")
    [^"\\]+
    """
)


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
    text = _SECRET.sub(REDACTED, text)
    return _SECRET_FIELD.sub(lambda found: found[1] + REDACTED, text)


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
