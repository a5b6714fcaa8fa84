"""Selections of Skills and memories of agents, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import attrs

from greenroom.protocol import Chunk, IngestMark, Recollection, SessionId

from .._limits import clamp
from .._skill_rules import MAX_RECALLED, MAX_RECOLLECTIONS
from .._words import index_words, query_words
from ._undo import Undo


@final
@attrs.define(eq=False)
class SkillTables:
    """What is kept of them; changed inside a write of `MemoryStore` only."""

    _undo: Undo
    selections: dict[SessionId, tuple[str, ...]] = attrs.field(
        factory=dict[SessionId, tuple[str, ...]]
    )
    memories: dict[int, Recollection] = attrs.field(factory=dict[int, Recollection])
    cursors: dict[tuple[str, SessionId], int] = attrs.field(
        factory=dict[tuple[str, SessionId], int]
    )
    epochs: dict[str, int] = attrs.field(factory=dict[str, int])
    _made: int = 0

    def put_selection(self, scope: SessionId, names: tuple[str, ...]) -> None:
        """See `SkillWriter.put_skill_selection`."""
        if names:
            self._undo.put(self.selections, scope, names)
        else:
            self._undo.drop(self.selections, scope)

    def page(self, agent_id: str, limit: int, before: int | None) -> list[Recollection]:
        """See `SkillReader.recollections`."""
        found = [
            each
            for number, each in sorted(self.memories.items(), reverse=True)
            if each.agent_id == agent_id and (before is None or number < before)
        ]
        return found[: clamp(limit, MAX_RECOLLECTIONS)]

    def recall(self, agent_id: str, query: str, limit: int) -> list[Recollection]:
        """See `SkillReader.recall`."""
        words = set(query_words(query))
        shared = [
            (len(words & set(index_words(each.text).split(" "))), each)
            for each in self.page(agent_id, len(self.memories), None)
        ]
        best = sorted((pair for pair in shared if pair[0]), key=lambda pair: -pair[0])
        return [each for _, each in best[: clamp(limit, MAX_RECALLED)]]

    def mark(self, agent_id: str, scope: SessionId) -> IngestMark:
        """See `SkillReader.ingest_mark`."""
        names = f"agent:{agent_id}", f"session:{scope}"
        return IngestMark(
            self.cursors.get((agent_id, scope), 0),
            sum(self.epochs.get(name, 0) for name in names),
        )

    def keep(
        self,
        agent_id: str,
        scope: SessionId,
        mark: IngestMark,
        cursor: int,
        chunks: Sequence[Chunk],
        now: float,
    ) -> bool:
        """See `SkillWriter.keep_recollections`."""
        if self.mark(agent_id, scope) != mark:
            return False
        for chunk in chunks:
            self._made += 1
            made = Recollection(
                id=self._made,
                agent_id=agent_id,
                session_id=scope,
                order_seq=chunk.order_seq,
                at=now,
                text=chunk.text,
            )
            self._undo.put(self.memories, made.id, made)
        self._undo.put(self.cursors, (agent_id, scope), cursor)
        return True

    def forget(self, agent_id: str, recollection_id: int | None) -> int:
        """See `SkillWriter.forget_recollections`."""
        doomed = [
            number
            for number, each in self.memories.items()
            if each.agent_id == agent_id and recollection_id in (None, number)
        ]
        for number in doomed:
            self._undo.drop(self.memories, number)
        if recollection_id is None:
            self._next_epoch(f"agent:{agent_id}")
        return len(doomed)

    def forget_session(self, scope: SessionId) -> None:
        """Begin again with a session that is cleared."""
        for key in [key for key in self.cursors if key[1] == scope]:
            self._undo.drop(self.cursors, key)
        self._next_epoch(f"session:{scope}")

    def forget_places(self, scope: SessionId, gone: Sequence[int]) -> None:
        """Begin again at the first of the places that are *gone*."""
        if not gone:
            return
        before = min(gone) - 1
        for key, cursor in list(self.cursors.items()):
            if key[1] == scope:
                self._undo.put(self.cursors, key, min(cursor, before))
        self._next_epoch(f"session:{scope}")

    def _next_epoch(self, name: str) -> None:
        self._undo.put(self.epochs, name, self.epochs.get(name, 0) + 1)
