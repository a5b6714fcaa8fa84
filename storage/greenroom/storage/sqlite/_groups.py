"""Transactions, groups and pieces: what is written together, and what is undone.

Outside a group a write is a transaction of its own. A group takes the write lock
once and syncs once; each piece has a savepoint, each write in it another. A strict
fact is a transaction, or a piece, of its own (JRN-05).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import final

import apsw
import attrs

from greenroom.protocol import JournalError, StorageError

from .._store import Piece, Settled, Store
from ._connection import mapped_errors, run, storage_error
from ._folder import Proofs


@attrs.define(eq=False)
class Group:
    """A group that is running."""

    joined: list[int] = attrs.field(factory=list[int])
    """Members whose proofs were taken in it."""
    ran: list[Piece] = attrs.field(factory=list[Piece])
    """Pieces that returned and are not undone."""
    journal: bool = False
    """The piece in progress may do one strict commit, and nothing else."""
    commits: int = 0
    """Strict commits of the piece in progress; a failed one counts twice."""

    def is_complete(self) -> bool:
        """Whether the piece in progress did what its kind asks for."""
        return not self.journal or self.commits == 1


@final
@attrs.define(eq=False)
class Writes:
    """The one way to write on a connection."""

    _connection: apsw.Connection
    _proofs: Proofs
    _group: Group | None = None

    def run_group(self, store: Store, pieces: Sequence[Piece]) -> list[Settled]:
        """See `Store.run_group`; the pieces get *store*."""
        if self._group is not None:
            raise RuntimeError("a group can't be run inside a piece of another")
        self._group = group = Group()
        settled: list[Settled] = []
        try:
            with mapped_errors():
                run(self._connection, "BEGIN IMMEDIATE")
                for piece in pieces:
                    settled.append(self._run_piece(store, group, piece))  # noqa: PERF401
                run(self._connection, "COMMIT")
        except StorageError as fault:
            self._undo_group(group)
            return [Settled(error=_piece_error(piece, fault)) for piece in pieces]
        except BaseException:
            self._undo_group(group)
            raise
        finally:
            self._group = None
        return settled

    def _run_piece(self, store: Store, group: Group, piece: Piece) -> Settled:
        db = self._connection
        group.journal, group.commits = piece.journal, 0
        joined, ran = len(group.joined), len(group.ran)
        run(db, "SAVEPOINT piece")
        try:
            value = piece.run(store)
            group.ran.append(piece)
            if not group.is_complete():
                raise JournalError(
                    "persistence_failed", "a journal piece holds exactly one commit"
                )
            run(db, "RELEASE piece")
        except Exception as exc:
            if not db.in_transaction:
                # SQLite gave the whole transaction up; the group with it.
                raise _as_fault(exc) from exc
            run(db, "ROLLBACK TO piece")
            run(db, "RELEASE piece")
            self._drop_proofs(group, joined)
            _undo_pieces(group, ran)
            return Settled(error=_as_fault(exc) if isinstance(exc, apsw.Error) else exc)
        return Settled(value)

    def _undo_group(self, group: Group) -> None:
        self._rollback()
        self._drop_proofs(group, 0)
        _undo_pieces(group, 0)

    def _drop_proofs(self, group: Group, keep: int) -> None:
        for member in group.joined[keep:]:
            self._proofs.drop(member)
        del group.joined[keep:]

    def _rollback(self) -> None:
        if self._connection.in_transaction:
            run(self._connection, "ROLLBACK")

    @contextmanager
    def write(self, *, strict: bool = False) -> Generator[Group]:
        """Make what is written inside one transaction, or one part of a piece."""
        with mapped_errors():
            if self._group is None:
                with self._transaction(strict=strict) as group:
                    yield group
            else:
                with self._part(self._group, strict=strict):
                    yield self._group

    @contextmanager
    def _part(self, group: Group, *, strict: bool) -> Generator[None]:
        if strict != group.journal or (strict and group.commits):
            group.commits += 1
            raise JournalError(
                "persistence_failed",
                "a strict fact is a piece of its own: one commit and nothing else",
            )
        group.commits += int(strict)
        # A strict commit is the piece: its savepoint is there already, and is
        # rolled back even if the piece swallows the error.
        with self._whole_piece(group) if strict else self._savepoint():
            yield

    @contextmanager
    def _whole_piece(self, group: Group) -> Generator[None]:
        try:
            yield
        except BaseException:
            group.commits += 1
            raise

    @contextmanager
    def _savepoint(self) -> Generator[None]:
        run(self._connection, "SAVEPOINT part")
        try:
            yield
        except BaseException:
            # After some faults SQLite has given the transaction up already.
            if self._connection.in_transaction:
                run(self._connection, "ROLLBACK TO part")
                run(self._connection, "RELEASE part")
            raise
        run(self._connection, "RELEASE part")

    @contextmanager
    def _transaction(self, *, strict: bool) -> Generator[Group]:
        if self._connection.in_transaction:
            problem = "a write was asked for inside a transaction of somebody else"
            if strict:
                raise JournalError("persistence_failed", problem)
            raise RuntimeError(problem)
        group = Group()
        try:
            run(self._connection, "BEGIN IMMEDIATE")
            yield group
            run(self._connection, "COMMIT")
        except BaseException:
            self._rollback()
            self._drop_proofs(group, 0)
            raise


def _undo_pieces(group: Group, keep: int) -> None:
    for piece in reversed(group.ran[keep:]):
        if piece.aborted is not None:
            piece.aborted()
    del group.ran[keep:]


def persistence_failed(fault: StorageError) -> JournalError:
    """Return *fault* as the error that a strict fact is not durable."""
    error = JournalError("persistence_failed", f"not durable: {fault}")
    error.hint = fault.hint
    error.__cause__ = fault
    return error


def _piece_error(piece: Piece, fault: StorageError) -> StorageError:
    # One error for each piece: they are raised in different tasks.
    if piece.journal:
        return persistence_failed(fault)
    error = copy(fault)
    error.__cause__ = fault
    return error


def _as_fault(exc: Exception) -> StorageError:
    if isinstance(exc, JournalError) and isinstance(exc.__cause__, StorageError):
        return exc.__cause__
    if isinstance(exc, StorageError):
        return exc
    if isinstance(exc, apsw.Error):
        return storage_error(exc)
    return StorageError(f"the database gave the transaction up: {exc}")
