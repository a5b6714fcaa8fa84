"""The store on SQLite: one writer, its transactions, groups and pieces.

Every public method is one transaction, or one savepoint inside a group. A group
holds the write lock once and syncs once; each of its pieces has a savepoint, and a
strict fact has a piece to itself (JRN-05). Not for several threads at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import final

import apsw
import attrs

from greenroom.protocol import (
    Fact,
    JournalError,
    JournalRecord,
    SessionId,
    StorageError,
)

from .._admission import (
    check_command,
    check_facts,
    check_json,
    check_session_id,
    check_text,
)
from .._errors import RefusedFactError
from .._limits import clamp
from .._store import (
    MAX_OPEN_COMMANDS,
    Appended,
    Fenced,
    Grant,
    HeadMoved,
    Held,
    InboxCommand,
    Member,
    MemberLost,
    Piece,
    Posted,
    Receipt,
    Seen,
    Settled,
)
from . import _append, _members, _reads
from ._connection import mapped_errors, one, reading, rows, run, storage_error
from ._folder import FolderLock, Proofs
from ._search import index_batch

_MAX_APPEND_ID = 200


@final
@attrs.define(eq=False)
class SqliteReader:
    """A connection that only reads; no membership."""

    connection: apsw.Connection
    proofs: Proofs

    page = _reads.page
    scopes = _reads.scopes
    heads = _reads.heads
    locate = _reads.locate
    search = _reads.search
    sessions = _reads.sessions
    session = _reads.session
    messages = _reads.messages
    message = _reads.message
    pending_messages = _reads.pending_messages
    message_count = _reads.message_count
    plan = _reads.plan
    run_session = _reads.run_session
    owed_by_dead = _reads.owed_by_dead
    open_runs = _reads.open_runs
    cached_blocks = _reads.cached_blocks

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


@attrs.define(eq=False)
class _Group:
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
class SqliteStore:
    """The writer; see `Store`."""

    connection: apsw.Connection
    proofs: Proofs
    folder: Path
    _lock: FolderLock
    _group: _Group | None = None

    page = _reads.page
    scopes = _reads.scopes
    heads = _reads.heads
    locate = _reads.locate
    search = _reads.search
    sessions = _reads.sessions
    session = _reads.session
    messages = _reads.messages
    message = _reads.message
    pending_messages = _reads.pending_messages
    message_count = _reads.message_count
    plan = _reads.plan
    run_session = _reads.run_session
    owed_by_dead = _reads.owed_by_dead
    open_runs = _reads.open_runs
    cached_blocks = _reads.cached_blocks

    def close(self) -> None:
        """Close the connection; members that did not leave are dead from here on."""
        self.proofs.close()
        self.connection.close()
        self._lock.close()

    #### Members and grants

    def join(self, node: str, addr: str, ttl: float, *, now: float) -> Member:
        """See `Store.join`."""
        check_text("node", node, 1_000)
        check_text("addr", addr or "-", 1_000)
        if not ttl > 0:
            raise ValueError(f"a beat must be good for some time, not {ttl!r} s")
        with self._write() as group:
            member = _members.add_member(
                self.connection, self.proofs, node, addr, ttl, now
            )
            group.joined.append(int(member.id))
        return member

    def beat(self, member: Member, *, now: float) -> MemberLost | None:
        """See `Store.beat`."""
        with self._write():
            return _members.renew(self.connection, member, now)

    def leave(self, member: Member, *, now: float) -> None:
        """See `Store.leave`."""
        with self._write():
            _members.remove_member(self.connection, self.proofs, member)

    def acquire(
        self, member: Member, scope: SessionId, *, now: float
    ) -> Grant | Held | MemberLost:
        """See `Store.acquire`."""
        check_session_id(scope)
        with self._write():
            return _members.take(self.connection, self.proofs, member, scope, now)

    def claim(self, member: Member, limit: int, *, now: float) -> list[Grant]:
        """See `Store.claim`."""
        with self._write():
            return _members.claim_owed(
                self.connection, self.proofs, member, clamp(limit, 1_000), now
            )

    def release(self, grant: Grant, *, now: float) -> None:
        """See `Store.release`."""
        with self._write():
            _members.give_back(self.connection, grant)

    #### Facts

    def append(
        self,
        grant: Grant,
        expected_head: int,
        facts: Sequence[Fact],
        settles: Sequence[str] = (),
        append_id: str | None = None,
        *,
        now: float,
    ) -> Appended | Fenced | HeadMoved:
        """See `Store.append`."""
        check_facts(facts, settles)
        if append_id is not None:
            check_text("append id", append_id, _MAX_APPEND_ID)
        db = self.connection
        with self._write():
            if append_id is not None:
                earlier = _append.remembered(db, grant.scope, append_id)
                if earlier is not None:
                    return earlier
            session = _append.authorise(db, grant, expected_head)
            if not isinstance(session, _append.Hot):
                return session
            result = _append.append_facts(db, grant, session, facts, now)
            _append.settle(db, session.id, settles)
            if append_id is not None:
                _append.remember(db, session.id, append_id, result)
            return result

    def commit(
        self, grant: Grant, expected_head: int, record: JournalRecord, *, now: float
    ) -> Receipt | Fenced | HeadMoved:
        """See `Store.commit`."""
        try:
            with self._write(strict=True):
                session = _append.authorise(self.connection, grant, expected_head)
                if not isinstance(session, _append.Hot):
                    return session
                return _append.commit_record(
                    self.connection, grant, session, record, now
                )
        except JournalError:
            raise
        except StorageError as exc:
            raise _persistence_failed(exc) from exc

    def reset(
        self, grant: Grant, expected_head: int, facts: Sequence[Fact], *, now: float
    ) -> Appended | Fenced | HeadMoved:
        """See `Store.reset`."""
        check_facts(facts, ())
        if not facts:
            raise RefusedFactError("a new incarnation begins with its bootstrap facts")
        with self._write():
            session = _append.authorise(self.connection, grant, expected_head)
            if not isinstance(session, _append.Hot):
                return session
            _append.clear(self.connection, session.id)
            empty = attrs.evolve(session, head=0)
            return _append.append_facts(self.connection, grant, empty, facts, now)

    def delete(self, grant: Grant, expected_head: int) -> Fenced | HeadMoved | None:
        """See `Store.delete`."""
        with self._write():
            session = _append.authorise(self.connection, grant, expected_head)
            if not isinstance(session, _append.Hot):
                return session
            _append.clear(self.connection, session.id)
            _members.give_back(self.connection, grant)
            return None

    def rebuild(self, scope: SessionId) -> None:
        """See `Store.rebuild`."""
        with self._write():
            session = _append.find_session(self.connection, scope)
            if session is not None:
                _append.rebuild(self.connection, scope, session.id)

    #### Inbox

    def post(
        self, scope: SessionId, command_id: str, body: str, *, now: float
    ) -> Posted | Seen:
        """See `Store.post`."""
        check_session_id(scope)
        check_command(command_id, body)
        db = self.connection
        with self._write():
            run(
                db,
                "INSERT INTO session (name) VALUES (?) ON CONFLICT DO NOTHING",
                scope,
            )
            session = _append.find_session(db, scope)
            assert session is not None
            known = one(
                db,
                "SELECT body FROM command WHERE session = ? AND command_id = ?",
                session.id,
                command_id,
            )
            if known is not None:
                return Seen(same_body=known[0] == body)
            self._check_room(session.id, scope)
            run(
                db,
                "INSERT INTO command (session, command_id, body, posted_at)"
                " VALUES (?, ?, ?, ?)",
                session.id,
                command_id,
                body,
                now,
            )
            return Posted()

    def inbox(self, grant: Grant, limit: int = 100) -> list[InboxCommand] | Fenced:
        """See `Store.inbox`."""
        with reading(self.connection):
            session = _append.find_session(self.connection, grant.scope)
            if session is None or session.token != grant.token:
                return Fenced(grant.scope, grant.token)
            found = rows(
                self.connection,
                "SELECT command_id, body, posted_at FROM command"
                " WHERE session = ? AND settled = 0 ORDER BY pos LIMIT ?",
                session.id,
                clamp(limit, MAX_OPEN_COMMANDS),
            )
        return [InboxCommand(*row) for row in found]

    def owed(self, member: Member) -> list[SessionId]:
        """See `Store.owed`."""
        with mapped_errors():
            found = rows(
                self.connection,
                "SELECT s.name FROM session s WHERE s.owner = ? AND EXISTS"
                " (SELECT 1 FROM command c WHERE c.session = s.id AND c.settled = 0)"
                " ORDER BY s.name",
                int(member.id),
            )
        return [SessionId(name) for (name,) in found]

    #### Caches, index, log

    def cache_blocks(
        self, grant: Grant, message_id: str, blocks: str, *, now: float
    ) -> Fenced | None:
        """See `Store.cache_blocks`."""
        check_text("message id", message_id, 1_024)
        check_json("blocks", blocks)
        db = self.connection
        with self._write():
            session = _append.find_session(db, grant.scope)
            if session is None or session.token != grant.token:
                return Fenced(grant.scope, grant.token)
            run(
                db,
                "INSERT INTO cached_blocks SELECT ?1, ?2, ?3, ?4 WHERE NOT EXISTS"
                " (SELECT 1 FROM message WHERE session = ?1 AND name = ?2"
                " AND (status <> 'pending' OR retracted = 1))"
                " ON CONFLICT (session, message) DO UPDATE"
                " SET blocks = excluded.blocks, at = excluded.at",
                session.id,
                message_id,
                blocks,
                now,
            )
            return None

    def index_pending(self, limit: int = 500) -> int:
        """See `Store.index_pending`."""
        with self._write():
            return index_batch(self.connection, limit)

    def checkpoint(self) -> None:
        """See `Store.checkpoint`."""
        with mapped_errors():
            one(self.connection, "PRAGMA wal_checkpoint(TRUNCATE)")

    def log_bytes(self) -> int:
        """See `Store.log_bytes`."""
        try:
            return Path(f"{self.connection.filename}-wal").stat().st_size
        except FileNotFoundError:
            return 0

    #### Groups

    def run_group(self, pieces: Sequence[Piece]) -> list[Settled]:
        """See `Store.run_group`."""
        if self._group is not None:
            raise RuntimeError("a group can't be run inside a piece of another")
        self._group = group = _Group()
        settled: list[Settled] = []
        try:
            with mapped_errors():
                run(self.connection, "BEGIN IMMEDIATE")
                for piece in pieces:
                    settled.append(self._run_piece(group, piece))  # noqa: PERF401
                run(self.connection, "COMMIT")
        except StorageError as fault:
            self._undo_group(group)
            return [Settled(error=_piece_error(piece, fault)) for piece in pieces]
        except BaseException:
            self._undo_group(group)
            raise
        finally:
            self._group = None
        return settled

    def _run_piece(self, group: _Group, piece: Piece) -> Settled:
        db = self.connection
        group.journal, group.commits = piece.journal, 0
        joined, ran = len(group.joined), len(group.ran)
        run(db, "SAVEPOINT piece")
        try:
            value = piece.run(self)
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

    def _undo_group(self, group: _Group) -> None:
        self._rollback()
        self._drop_proofs(group, 0)
        _undo_pieces(group, 0)

    def _drop_proofs(self, group: _Group, keep: int) -> None:
        for member in group.joined[keep:]:
            self.proofs.drop(member)
        del group.joined[keep:]

    def _rollback(self) -> None:
        if self.connection.in_transaction:
            run(self.connection, "ROLLBACK")

    @contextmanager
    def _write(self, *, strict: bool = False) -> Generator[_Group]:
        with mapped_errors():
            if self._group is None:
                with self._transaction(strict=strict) as group:
                    yield group
            else:
                with self._part(self._group, strict=strict):
                    yield self._group

    @contextmanager
    def _part(self, group: _Group, *, strict: bool) -> Generator[None]:
        if strict != group.journal or (strict and group.commits):
            group.commits += 1
            raise JournalError(
                "persistence_failed",
                "a strict fact is a piece of its own: one commit and nothing else",
            )
        if not strict:
            with self.connection:
                yield
            return
        # A strict commit is the piece: its savepoint is there already, and is
        # rolled back even if the piece swallows the error.
        group.commits += 1
        try:
            yield
        except BaseException:
            group.commits += 1
            raise

    @contextmanager
    def _transaction(self, *, strict: bool) -> Generator[_Group]:
        if self.connection.in_transaction:
            problem = "a write was asked for inside a transaction of somebody else"
            if strict:
                raise JournalError("persistence_failed", problem)
            raise RuntimeError(problem)
        group = _Group()
        try:
            run(self.connection, "BEGIN IMMEDIATE")
            yield group
            run(self.connection, "COMMIT")
        except BaseException:
            self._rollback()
            self._drop_proofs(group, 0)
            raise

    def _check_room(self, session: int, scope: SessionId) -> None:
        row = one(
            self.connection,
            "SELECT count(*) FROM command WHERE session = ? AND settled = 0",
            session,
        )
        if row is not None and row[0] >= MAX_OPEN_COMMANDS:
            raise RefusedFactError(
                f"the inbox of {scope!r} holds {row[0]} unsettled commands",
                hint="wait until the session has worked on some",
            )


def _undo_pieces(group: _Group, keep: int) -> None:
    for piece in reversed(group.ran[keep:]):
        if piece.aborted is not None:
            piece.aborted()
    del group.ran[keep:]


def _persistence_failed(fault: StorageError) -> JournalError:
    error = JournalError("persistence_failed", f"not durable: {fault}")
    error.hint = fault.hint
    error.__cause__ = fault
    return error


def _piece_error(piece: Piece, fault: StorageError) -> StorageError:
    # One error for each piece: they are raised in different tasks.
    if piece.journal:
        return _persistence_failed(fault)
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
