"""Recognising that a request was too large for the model's context (CTX-18).

Providers have no common code for it, so text has to do: bounded evidence, strong
phrases that speak for themselves, weaker ones that need a word about the input near
them, and anything that speaks of rates or quotas left out. Numbers are taken when
they are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Literal, cast, final

import attrs

from .._stream import ProviderFailure

OVERFLOW_CODE: Final = "context_overflow"
"""The code that a failure has when its adapter recognised an overflow."""

MAX_DEPTH: Final = 4
MAX_ITEMS: Final = 16
MAX_FIELD_CHARS: Final = 12_000
MAX_EVIDENCE_CHARS: Final = 48_000

Confidence = Literal["none", "qualitative", "explicit"]

_CODES: Final = frozenset(
    {
        OVERFLOW_CODE,
        "context_length_exceeded",
        "context_window_exceeded",
        "exceed_context_size_error",
        "model_context_window_exceeded",
    }
)

# Statuses under which servers report an overflow; None is an error in a stream.
_STATUSES: Final = frozenset({None, 400, 413, 422, 500})

_NOT_OVERFLOW: Final = re.compile(
    r"rate[ _-]?limit|too many requests|throttl|quota|\b429\b|string_above_max_length"
    r"|tokens?[ -]per[ -](?:second|minute|hour|day)|\b[tr]p[md]\b",
    re.IGNORECASE,
)
_STRONG: Final = re.compile(
    r"context[ _-]?(?:window|length|limit|size)|max(?:imum)?[ _]context"
    r"|(?:prompt|input) (?:is )?too long|maximum (?:prompt|input) length"
    r"|exceeded model token limit|current length is .{0,80}while limit is",
    re.IGNORECASE,
)
_TOKENS: Final = re.compile(
    r"token limit|too many tokens|reduce the length", re.IGNORECASE
)
_EXCEEDS: Final = re.compile(
    r"(?:input|prompt|tokens?)[^.]{0,80}exceed|exceed[^.]{0,80}token", re.IGNORECASE
)
_HINT: Final = re.compile(r"context|prompt|input|request|message|schema", re.IGNORECASE)

# A refused setting, not a request that is too large.
_SETTING: Final = re.compile(r"max_(?:completion_|output_|new_)?tokens", re.IGNORECASE)

_TOTAL: Final = re.compile(
    r"in the completion|output tokens|completion tokens", re.IGNORECASE
)

_N: Final = r"(\d[\d,]{0,14})"
_HAS: Final = r"(?:resulted in|requested(?: about)?|contains?(?: at least)?|has)"
# Each finds the actual number first and the limit second, or the other way round.
_ACTUAL_THEN_LIMIT: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_N} tokens > {_N} maximum",
        rf"\({_N} tokens\) exceeds the available context size \({_N}",
        rf"n_prompt_tokens\D{{1,4}}{_N}\D{{0,40}}?n_ctx\D{{1,4}}{_N}",
        rf"token count\D{{0,20}}{_N}\D{{0,4}}exceeds the maximum\D{{0,40}}{_N}",
        rf"prompt tokens \({_N}\) exceed model maximum \({_N}",
        rf"current length is\D{{0,4}}{_N}\D{{0,4}}while limit is\D{{0,4}}{_N}",
        rf"prompt {_N} tokens, limit {_N} tokens",
    )
)
_LIMIT_THEN_ACTUAL: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"maximum context length (?:is|of)\D{{0,4}}{_N} .{{0,80}}?{_HAS} {_N}",
        rf"maximum prompt length is\D{{0,4}}{_N}.{{0,40}}?contains\D{{0,4}}{_N}",
    )
)
_LIMIT: Final = re.compile(
    rf"(?:maximum context length (?:is|of)|maximum (?:prompt|input) length is"
    rf"|exceeded model token limit:?|context (?:window|length|size|limit) of)"
    rf"\D{{0,4}}{_N}",
    re.IGNORECASE,
)


@final
@attrs.frozen
class Overflow:
    """What is known of an overflow."""

    confidence: Confidence = "none"
    """none: it is no overflow; qualitative: without numbers; explicit: with a limit."""
    actual: int | None = None
    limit: int | None = None
    scope: Literal["prompt", "total"] = "prompt"
    """Whether the requested output is part of what is too much."""

    def __bool__(self) -> bool:
        return self.confidence != "none"


def overflow_of(failure: ProviderFailure) -> Overflow:
    """Judge a failure by its code, its status and its message."""
    evidence = f"{failure.code or ''}: {failure.message}"
    return overflow_in(evidence, status=failure.status, code=failure.code)


def overflow_in(
    evidence: str, *, status: int | None = None, code: str | None = None
) -> Overflow:
    """Judge *evidence*, which `collect_evidence` has bounded."""
    if status not in _STATUSES or _NOT_OVERFLOW.search(evidence):
        return Overflow()
    if code not in _CODES and status != 413 and not _speaks_of_overflow(evidence):
        return Overflow()
    actual, limit = _numbers(evidence)
    return Overflow(
        confidence="qualitative" if limit is None else "explicit",
        actual=actual,
        limit=limit,
        scope="total" if _TOTAL.search(evidence) else "prompt",
    )


def collect_evidence(value: object) -> str:
    """Return the text of a JSON value, bounded in depth, width and length."""
    text: list[str] = []
    left = MAX_EVIDENCE_CHARS
    for field in _fields(value, MAX_DEPTH):
        piece = field[: min(MAX_FIELD_CHARS, left)]
        left -= len(piece)
        text.append(piece)
        if not left:
            break
    return "\n".join(text)


def _fields(value: object, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth and isinstance(value, list):
        for item in cast("list[Any]", value)[:MAX_ITEMS]:
            yield from _fields(item, depth - 1)
    elif depth and isinstance(value, dict):
        for name, item in list(cast("dict[str, Any]", value).items())[:MAX_ITEMS]:
            if isinstance(item, int):
                # llama.cpp gives its numbers as fields: n_prompt_tokens, n_ctx.
                yield f"{name}: {item:.6g}" if item > 10**15 else f"{name}: {item}"
            else:
                yield from _fields(item, depth - 1)


def _speaks_of_overflow(text: str) -> bool:
    if _STRONG.search(text):
        return True
    weak = _TOKENS.search(text) or _EXCEEDS.search(text)
    return bool(weak and _HINT.search(text) and not _SETTING.search(text))


def _numbers(text: str) -> tuple[int | None, int | None]:
    for pattern in _ACTUAL_THEN_LIMIT:
        if match := pattern.search(text):
            return _number(match[1]), _number(match[2])
    for pattern in _LIMIT_THEN_ACTUAL:
        if match := pattern.search(text):
            return _number(match[2]), _number(match[1])
    match = _LIMIT.search(text)
    return None, _number(match[1]) if match else None


def _number(digits: str) -> int:
    return int(digits.replace(",", ""))
