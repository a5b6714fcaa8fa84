"""Writes, groups and pieces in memory: what is undone together.

The same rules as on disk: a strict fact is a write, or a piece, of its own (JRN-05).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import final

import attrs

from greenroom.protocol import JournalError

from .._store import Piece, Settled, Store
from ._undo import Undo


@attrs.define(eq=False)
class Group:
    """A group that is running."""

    journal: bool = False
    """The piece in progress may do one strict commit, and nothing else."""
    commits: int = 0
    """Strict commits of the piece in progress; a failed one counts twice."""
    ran: list[Piece] = attrs.field(factory=list[Piece])
    """Pieces that returned and are not undone."""

    def is_complete(self) -> bool:
        """Whether the piece in progress did what its kind asks for."""
        return not self.journal or self.commits == 1


@final
@attrs.define(eq=False)
class Writes:
    """The one way to change the tables."""

    _undo: Undo
    _group: Group | None = None

    def run_group(self, store: Store, pieces: Sequence[Piece]) -> list[Settled]:
        """See `Store.run_group`; the pieces get *store*."""
        if self._group is not None:
            raise RuntimeError("a group can't be run inside a piece of another")
        self._group = group = Group()
        try:
            return [self._run_piece(store, group, piece) for piece in pieces]
        except BaseException:
            self._undo.rollback(0)
            _undo_pieces(group, 0)
            raise
        finally:
            self._undo.keep()
            self._group = None

    def _run_piece(self, store: Store, group: Group, piece: Piece) -> Settled:
        group.journal, group.commits = piece.journal, 0
        mark, ran = self._undo.mark(), len(group.ran)
        try:
            value = piece.run(store)
            group.ran.append(piece)
            if not group.is_complete():
                raise JournalError(
                    "persistence_failed", "a journal piece holds exactly one commit"
                )
        except Exception as exc:
            self._undo.rollback(mark)
            _undo_pieces(group, ran)
            return Settled(error=exc)
        return Settled(value)

    @contextmanager
    def write(self, *, strict: bool = False) -> Generator[None]:
        """Make what is changed inside all or nothing."""
        group = self._group
        if group is not None:
            refused = strict != group.journal or (strict and group.commits > 0)
            group.commits += int(strict or refused)
            if refused:
                raise JournalError(
                    "persistence_failed",
                    "a strict fact is a piece of its own: one commit and nothing else",
                )
        mark = self._undo.mark()
        try:
            yield
        except BaseException:
            self._undo.rollback(mark)
            if group is not None:
                group.commits += int(strict)
            raise
        if group is None:
            self._undo.keep()


def _undo_pieces(group: Group, keep: int) -> None:
    for piece in reversed(group.ran[keep:]):
        if piece.aborted is not None:
            piece.aborted()
    del group.ran[keep:]
