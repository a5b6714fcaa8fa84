"""Does the model get anywhere? Two guards over its batches of calls, pure.

*The first* sees a batch repeat with the same results (TOL-18..TOL-21): a note at the
second time, an end at the fourth, unless all that came back were acknowledgements.
*The second* sees the same calls whatever came back, because a poll that never ends
looks like progress to the first: a note at the fourth time, a question to the user at
the eighth, never an end of its own.

What changes by itself is masked before results are compared: times, and ids that are
called ids. An id without such a label is data and stays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal, cast

import attrs
import msgspec

from ._canonical import canonical_json, sha256_hex
from ._messages import ProgressSnapshot, ToolCallBlock

Verdict = Literal["continue", "stop", "ask"]

NOTE_AT: Final = 2
STOP_AT: Final = 4
CALLS_NOTE_AT: Final = 4
CALLS_ASK_AT: Final = 8
MAX_COMPARED_CHARS: Final = 200_000
MAX_DEPTH: Final = 40

_MASK: Final = "[volatile]"
_VOLATILE_KEYS: Final = frozenset(
    {
        "timestamp",
        "time",
        *(f"{what}at" for what in ("created", "updated", "completed", "started")),
        "finishedat",
        *(
            f"{what}id"
            for what in (
                "request",
                "toolcall",
                "trace",
                "run",
                "call",
                "invocation",
                "execution",
                "event",
            )
        ),
        "nonce",
    }
)
_DATE_TIME: Final = re.compile(
    r"\b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?"
    r"(?:Z|[+-]\d{2}:?\d{2})?"
)
_LABELLED_UUID: Final = re.compile(
    r"(?i)\b((?:request|tool[_-]?call|trace|run|call|invocation|execution|event)"
    r"[ _-]?id|nonce)(['\"]?\s*[:=]\s*['\"]?|\s+)"
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
)
_ACKNOWLEDGEMENTS: Final = frozenset(
    {"ok", "success", "succeeded", "done", "true", "completed"}
)
_ACKNOWLEDGING_KEYS: Final = frozenset({"ok", "success", "status", "result"})


@attrs.frozen
class Observation:
    """What a batch means for the run."""

    snapshot: ProgressSnapshot
    verdict: Verdict = "continue"
    note: str | None = None
    """For the model, at the end of the batch's last result."""


def observe(
    before: ProgressSnapshot | None, calls: Sequence[ToolCallBlock]
) -> Observation:
    """Return what the settled batch *calls* means after *before*."""
    snapshot = _next(before, calls)
    batches, repeats = snapshot.repeated_batch_count, snapshot.repeated_calls_count
    if batches >= STOP_AT and snapshot.evidence == "strong":
        return Observation(snapshot, "stop")
    if repeats >= CALLS_ASK_AT and repeats % CALLS_ASK_AT == 0:
        return Observation(snapshot, "ask")
    if batches == NOTE_AT:
        return Observation(snapshot, note=_note(batches))
    if repeats == CALLS_NOTE_AT:
        return Observation(snapshot, note=_note(repeats))
    return Observation(snapshot)


def _next(
    before: ProgressSnapshot | None, calls: Sequence[ToolCallBlock]
) -> ProgressSnapshot:
    asked = [_call_part(call) for call in calls]
    results = [normalise_result(call.response or "") for call in calls]
    fingerprint = _fingerprint({"calls": asked, "results": results})
    of_calls = _fingerprint({"calls": asked})
    same = before is not None and before.fingerprint == fingerprint
    same_calls = before is not None and before.calls_fingerprint == of_calls
    return ProgressSnapshot(
        fingerprint=fingerprint,
        repeated_batch_count=before.repeated_batch_count + 1 if before and same else 1,
        evidence="weak" if results and all(map(_is_weak, results)) else "strong",
        calls_fingerprint=of_calls,
        repeated_calls_count=(
            before.repeated_calls_count + 1 if before and same_calls else 1
        ),
    )


def _fingerprint(value: Any) -> str:  # noqa: ANN401 - JSON-like
    return sha256_hex(canonical_json(value))[:24]


def _call_part(call: ToolCallBlock) -> list[Any]:
    arguments = _parsed(call.arguments)
    return [
        call.name.strip(),
        call.arguments.strip() if arguments is None else arguments,
    ]


def _note(count: int) -> str:
    return canonical_json(
        {
            "type": "agent_no_progress",
            "repeatedBatchCount": count,
            "instruction": (
                "the same calls were made before and brought nothing new; "
                "change the approach, or say what stands in the way"
            ),
        }
    )


#### Results


def normalise_result(text: str) -> Any:  # noqa: ANN401 - JSON-like
    """Return *text* with everything masked that changes by itself (TOL-19)."""
    text = text[:MAX_COMPARED_CHARS]
    parsed = _parsed(text)
    return _masked_text(text.strip()) if parsed is None else _masked(parsed, 0)


def _parsed(text: str) -> Any:  # noqa: ANN401 - JSON-like
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _masked(value: Any, depth: int) -> Any:  # noqa: ANN401 - JSON-like
    if depth > MAX_DEPTH:
        return _MASK
    match value:
        case str():
            return _masked_text(value)
        case dict():
            members = cast("dict[str, Any]", value)
            return {
                key: _MASK if _is_volatile(key) else _masked(item, depth + 1)
                for key, item in members.items()
            }
        case list():
            return [_masked(item, depth + 1) for item in cast("list[Any]", value)]
        case _:
            return value


def _masked_text(text: str) -> str:
    text = _DATE_TIME.sub(_MASK, text)
    return _LABELLED_UUID.sub(rf"\1\2{_MASK}", text)


def _is_volatile(key: str) -> bool:
    return key.lower().replace("_", "").replace("-", "") in _VOLATILE_KEYS


def _is_weak(value: Any) -> bool:  # noqa: ANN401 - JSON-like
    if not isinstance(value, dict):
        return _acknowledges(value)
    members = cast("dict[str, Any]", value)
    meant = {key: item for key, item in members.items() if not _is_volatile(key)}
    return len(meant) <= 2 and all(
        key.lower() in _ACKNOWLEDGING_KEYS and _acknowledges(item)
        for key, item in meant.items()
    )


def _acknowledges(value: Any) -> bool:  # noqa: ANN401 - JSON-like
    if isinstance(value, str):
        return value.strip().strip(".!").lower() in _ACKNOWLEDGEMENTS
    return value is True
