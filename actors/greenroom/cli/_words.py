"""What events and endings are called in plain words. Pure; shared by the views."""

from __future__ import annotations

import re
from typing import Final

from greenroom.protocol import (
    ActionBlock,
    CompactionChanged,
    MessageMetadata,
    StatusChanged,
    WaitReason,
    amount,
)

_WAITS: Final[dict[WaitReason, str]] = {
    "connect": "connecting to the provider",
    "first_byte": "waiting for the model's first word",
    "stream": "waiting for the model to go on",
    "backoff": "waiting{} for the provider: trying again",
    "rate_gate": "waiting{} for the provider: rate limited",
    "tool": "waiting for a tool",
    "review": "a reviewer looks at a call{}",
    "permission": "waiting for your permission",
    "question": "waiting for your answer",
    "cleanup": "cleaning up",
    "compaction": "compacting the conversation",
}

_GO_ON: Final = "what was said is kept: go on with greenroom run --session"
_LOOK_AT_ADDRESS: Final = "look at the address and the model's name: greenroom config"
_LOOK_AT_SERVER: Final = "look whether the server runs, and where: greenroom config"
_WAIT_LONGER: Final = _GO_ON + ", or have it wait longer: {}"

_ADVICE_OF_CODES: Final = {
    "connect_error": _LOOK_AT_SERVER,
    "connect_timeout": _LOOK_AT_SERVER,
    "not_a_model_api": _LOOK_AT_ADDRESS,
    "first_byte_timeout": _WAIT_LONGER.format("first_byte_seconds"),
    "idle_timeout": _WAIT_LONGER.format("idle_seconds"),
    "content_idle_timeout": _WAIT_LONGER.format("content_idle_seconds"),
}

LONG_WAITS: Final[frozenset[WaitReason]] = frozenset({"backoff", "rate_gate"})
"""Waits that are worth a line of their own, even in a log."""


def wait_words(status: StatusChanged) -> str | None:
    """Return what the session waits for, or ``None`` when it doesn't wait."""
    if status.waiting_for is None:
        return None
    seconds = "" if status.remaining is None else f" {_seconds(status.remaining)}"
    return _WAITS[status.waiting_for].format(seconds)


def ending_words(metadata: MessageMetadata) -> str:
    """Return how a turn ended and what it cost, in one line.

    Text of the provider may be in it: make it harmless before it is printed.
    """
    return " · ".join([_outcome(metadata), *_costs(metadata)])


def advice_words(metadata: MessageMetadata) -> str | None:
    """Return how to go on after a failure of the provider, as far as that is known."""
    if metadata.run_stop_reason != "provider_error":
        return None
    by_code = _ADVICE_OF_CODES.get(metadata.error_code or "")
    if by_code is not None:
        return by_code
    match = re.match(r"the provider answered (\d{3})\b", metadata.error_text or "")
    match int(match[1]) if match else 0:
        case 401 | 403:
            return "look at the key, and where it is read from: greenroom config"
        case 404:
            return _LOOK_AT_ADDRESS
        case status if 300 <= status < 400:
            return _LOOK_AT_ADDRESS
        case status if 400 <= status < 500 and status != 429:
            return None
        case _:
            return _GO_ON


def asked(block: ActionBlock) -> str:
    """Return what the user is asked: a question need not have a title."""
    return block.title or block.detail


def answer_words(block: ActionBlock) -> str:
    """Return what became of a question that waits no more."""
    match block.status:
        case "success":
            return "answered"
        case "error":
            return "not answered"
        case _:
            return block.status


def count_words(count: int, noun: str) -> str:
    """Return ``1 round`` or ``3 rounds``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _outcome(metadata: MessageMetadata) -> str:
    reason = metadata.run_stop_reason or "unknown"
    match metadata.run_outcome:
        case "completed":
            return "done" if reason == "complete" else f"done: {reason}"
        case "paused":
            return "paused: waiting for your answer"
        case "aborted":
            return f"stopped: {reason}"
        case "error":
            return f"failed: {metadata.error_text or metadata.error_code or reason}"
        case None:
            return "not ended"


def _costs(metadata: MessageMetadata) -> list[str]:
    costs: list[str] = []
    if metadata.provider_rounds:
        costs.append(count_words(metadata.provider_rounds, "round"))
    if metadata.tool_calls:
        costs.append(count_words(metadata.tool_calls, "tool call"))
    if metadata.input_tokens is not None and metadata.output_tokens is not None:
        costs.append(f"{metadata.input_tokens:,} + {metadata.output_tokens:,} tokens")
    if metadata.cost is not None:
        costs.append(amount("money", metadata.cost))
    if metadata.generation_time is not None:
        costs.append(_seconds(metadata.generation_time))
    return costs


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 9.95 and seconds % 1 else f"{seconds:.0f} s"


def compaction_words(event: CompactionChanged) -> str:
    """Return what became of a compaction, in one line."""
    match event.outcome:
        case "undone":
            return "the compaction was undone: what it hid is sent again"
        case "reset":
            return "the whole conversation is sent again"
        case "boundary_only":
            what = "earlier messages are left out, without a summary"
        case "summarized":
            what = "earlier messages are summarised"
    if event.tokens_before is None or event.tokens_after is None:
        return what
    return f"{what}: about {event.tokens_before:,} tokens became {event.tokens_after:,}"
