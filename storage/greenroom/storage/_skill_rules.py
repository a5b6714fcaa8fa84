"""What may be kept of a selection of Skills, and of a memory. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from greenroom.protocol import (
    MAX_AGENT_ID,
    MAX_RECOLLECTION,
    Chunk,
    Fact,
    IngestMark,
    MessageId,
    SessionId,
)

from ._admission import check_session_id, check_text
from ._errors import RefusedFactError
from ._values import Appended
from .names import MESSAGE_RETRACTED, Retracted

MAX_SELECTED: Final = 100
"""Skills that one session may have selected."""

MAX_SKILL_NAME: Final = 64
MAX_RECALLED: Final = 50
MAX_RECOLLECTIONS: Final = 500
"""Memories in one page of a list."""


def check_selection(scope: SessionId, names: Sequence[str]) -> tuple[str, ...]:
    """Return *names* as they are kept: sorted, each once."""
    check_session_id(scope)
    if len(names) > MAX_SELECTED:
        raise RefusedFactError(
            f"a session selects at most {MAX_SELECTED} Skills, got {len(names)}"
        )
    for name in names:
        check_text("name of a Skill", name, MAX_SKILL_NAME)
    return tuple(sorted(set(names)))


def check_recollections(
    agent_id: str,
    scope: SessionId,
    mark: IngestMark,
    cursor: int,
    chunks: Sequence[Chunk],
    now: float,
) -> None:
    """Refuse what must not be kept."""
    check_text("agent id", agent_id, MAX_AGENT_ID)
    check_session_id(scope)
    if cursor < mark.cursor or not math.isfinite(now):
        raise RefusedFactError(
            f"the cursor of session {scope!r} can't go from {mark.cursor} to {cursor}"
        )
    for chunk in chunks:
        check_text("memory", chunk.text, MAX_RECOLLECTION)


def taken_back(facts: Sequence[Fact], result: Appended) -> list[MessageId]:
    """Return the messages that an append took out of the transcript.

    Others take their places, which a memory has to take in anew (SKL-08).
    """
    return [
        msgspec.json.decode(fact.payload, type=Retracted).message_id
        for fact, created in zip(facts, result.created, strict=True)
        if created and fact.name == MESSAGE_RETRACTED
    ]
