"""The contract for what sessions have selected of Skills, and what agents remember.

Both are primary data beside the tape. A session's selection is names and nothing else
(SES-02); what it grants is decided against the agent's bindings whenever it is used.
Each method is one transaction, or a part of a piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from greenroom.protocol import (
    Chunk,
    IngestMark,
    Recollection,
    SessionId,
)


class SkillReader(Protocol):
    """Reads of selections and memories."""

    def skill_selection(self, scope: SessionId) -> tuple[str, ...]:
        """Return the names that a session has selected, sorted."""
        ...

    def skill_selections(self) -> list[tuple[SessionId, tuple[str, ...]]]:
        """Return every session that has selected something, by its id."""
        ...

    def recollections(
        self, agent_id: str, limit: int = 100, before: int | None = None
    ) -> list[Recollection]:
        """Return the newest memories of an agent below id *before*, newest first."""
        ...

    def recall(self, agent_id: str, query: str, limit: int = 8) -> list[Recollection]:
        """Return memories of an agent that share words with *query*, the best first."""
        ...

    def ingest_mark(self, agent_id: str, scope: SessionId) -> IngestMark:
        """Return how far a session was taken in for an agent."""
        ...


class SkillWriter(Protocol):
    """Writes of selections and memories; none of them needs a grant."""

    def put_skill_selection(self, scope: SessionId, names: Sequence[str]) -> None:
        """Keep what a session has selected; nothing when *names* is empty.

        Raises:
            RefusedFactError: too many names, or one that is none.
        """
        ...

    def keep_recollections(
        self,
        agent_id: str,
        scope: SessionId,
        mark: IngestMark,
        cursor: int,
        chunks: Sequence[Chunk],
        *,
        now: float,
    ) -> bool:
        """Keep memories and move the session's cursor to *cursor*, both or neither.

        False, and nothing is kept, when *mark* is not the mark any more.

        Raises:
            RefusedFactError: a memory is too long, or the cursor goes back.
        """
        ...

    def forget_recollections(
        self, agent_id: str, recollection_id: int | None = None
    ) -> int:
        """Forget one memory of an agent, or all; return how many there were.

        Forgetting all moves the epoch of the agent, so that nothing that is being
        taken in meanwhile is kept.
        """
        ...
