"""What the tape keeps: facts, and the entries they become.

A tape is append-only per session, one sequence for tape and journal. A fact is
what is to be written; an entry is a fact with the sequence number the store gave
it. Kinds and source types are closed (TAP-01). Facts whose name starts with
``execution/`` belong to the journal and are made only by it (JRN-15).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from ._canonical import canonical_json
from ._ids import SessionId

EXECUTION_PREFIX: Final = "execution/"

MAX_PAYLOAD_BYTES: Final = 1 << 20
"""A fact's payload and meta, each as UTF-8; bigger things are blobs by reference."""


class FactKind(StrEnum):
    """The closed set of kinds."""

    EVENT = "event"
    ANCHOR = "anchor"
    MESSAGE = "message"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"


class SourceType(StrEnum):
    """The closed set of what a fact may come from."""

    SESSION = "session"
    MESSAGE = "message"
    ASSISTANT_BLOCK = "assistant_block"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    RUNTIME_EVENT = "runtime_event"
    MIGRATION = "migration"
    SUMMARY = "summary"
    FORK = "fork"
    SUBAGENT = "subagent"


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One fact, before it has a place on a tape."""

    kind: FactKind
    name: str
    """What happened, as ``noun/past_participle``."""
    source_type: SourceType
    source_id: str
    source_seq: int = 0
    payload: str = "{}"
    """JSON text, stored verbatim; never with a raw NUL."""
    meta: str = "{}"
    """JSON text about the fact, outside its identity."""
    provenance_key: str = ""
    """Unique per session; empty means the default type:id:seq:kind:name."""

    @property
    def key(self) -> str:
        """The provenance key in force."""
        if self.provenance_key:
            return self.provenance_key
        return (
            f"{self.source_type}:{self.source_id}:{self.source_seq}"
            f":{self.kind}:{self.name}"
        )

    @property
    def is_execution(self) -> bool:
        """Whether the fact belongs to the strict journal."""
        return self.name.startswith(EXECUTION_PREFIX)

    @property
    def stream(self) -> str:
        """``journal`` for strict execution facts, else ``tape``."""
        return "journal" if self.is_execution else "tape"


class TapeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A fact with its place on a tape."""

    session_id: SessionId
    seq: int
    """Contiguous per session, from 1."""
    token: int
    """The fencing token of the owner that wrote it."""
    fact: Fact
    created_at: float
    """Seconds since the epoch, by the clock the writer was given."""


def make_payload(value: Any) -> str:  # noqa: ANN401 - any JSON-like value
    """Return *value* as the canonical JSON text of a payload."""
    return canonical_json(value)
