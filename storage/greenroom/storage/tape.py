"""The handle that a session's owner writes its tape with.

A `Tape` holds a grant and the head its owner believes in, and makes the pieces that
the writer runs. The head moves on the writer's thread, when a piece has run, and is
put back if the group it was in is undone; so pieces may be queued one after the
other without waiting. One owner, one tape: two tapes of one grant get in each
other's way and one of them is told so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, final

import attrs

from greenroom.protocol import (
    AttemptTrace,
    DispatchCommitted,
    Fact,
    JournalError,
    JournalRecord,
    RunStarted,
    SessionId,
)

from ._errors import FencedError, HeadMovedError
from ._store import Piece, Store
from ._values import Appended, Fenced, Grant, HeadMoved, InboxCommand, Receipt

T = TypeVar("T")


def _head_of_grant(tape: Tape) -> int:
    return tape.grant.head


@final
@attrs.define(eq=False, repr=False)
class Tape:
    """One session's tape, held by its owner.

    Every piece raises `FencedError` or `HeadMovedError` when the owner is no longer
    right; nothing is written then.
    """

    grant: Grant
    head: int = attrs.field(default=attrs.Factory(_head_of_grant, takes_self=True))
    """Where the tape ends, as far as pieces have run."""

    def __repr__(self) -> str:
        return f"<Tape {self.scope!r} token {self.grant.token} head {self.head}>"

    @property
    def scope(self) -> SessionId:
        """The session."""
        return self.grant.scope

    def append_piece(
        self,
        facts: Sequence[Fact],
        settles: Sequence[str] = (),
        *,
        now: float,
        append_id: str | None = None,
    ) -> Piece:
        """Return the piece that writes *facts* and settles commands; `Appended`."""

        def write(store: Store) -> Appended:
            result = store.append(
                self.grant, self.head, facts, settles, append_id, now=now
            )
            done = self._checked(result)
            move(done.head)
            return done

        move, undo = self._mover()
        return Piece(write, undo)

    def batches_piece(
        self, make: Callable[[Store], Iterable[Sequence[Fact]]], *, now: float
    ) -> Piece:
        """Return the piece that writes what *make* yields, batch by batch; the head.

        For more facts than one append takes, or such as depend on what is on the tape.
        All or nothing, as every piece of a group. *make* may refuse by raising.
        """

        def write(store: Store) -> int:
            head = self.head
            for facts in make(store):
                result = store.append(self.grant, head, facts, now=now)
                head = self._checked(result).head
            move(head)
            return head

        move, undo = self._mover()
        return Piece(write, undo)

    def commit_piece(self, record: JournalRecord, *, now: float) -> Piece:
        """Return the piece that commits one strict fact; `Receipt`.

        A start or a dispatch that is on the tape already is refused (JRN-07):
        whoever waits for the piece may go on to the effect.

        Raises (when run):
            JournalError: see `Store.commit`; ``duplicate_dispatch`` for a second
                dispatch, ``conflicting_fact`` for a second start.
        """

        def write(store: Store) -> Receipt:
            result = store.commit(self.grant, self.head, record, now=now)
            done = self._checked(result)
            if not done.created:
                _refuse_repeat(record)
            move(done.head)
            return done

        move, undo = self._mover()
        return Piece(write, undo, journal=True)

    def reset_piece(self, facts: Sequence[Fact], *, now: float) -> Piece:
        """Return the piece that begins a new incarnation with *facts*; `Appended`."""

        def write(store: Store) -> Appended:
            done = self._checked(store.reset(self.grant, self.head, facts, now=now))
            move(done.head)
            return done

        move, undo = self._mover()
        return Piece(write, undo)

    def delete_piece(self) -> Piece:
        """Return the piece that deletes the session and gives the grant back."""

        def write(store: Store) -> None:
            result = store.delete(self.grant, self.head)
            if result is not None:
                self._checked(result)

        return Piece(write)

    def inbox_piece(self, limit: int = 100) -> Piece:
        """Return the piece that reads unsettled commands; a list of `InboxCommand`."""

        def read(store: Store) -> list[InboxCommand]:
            return self._checked(store.inbox(self.grant, limit))

        return Piece(read)

    def cache_piece(self, message_id: str, blocks: str, *, now: float) -> Piece:
        """Return the piece that caches the blocks of a message in progress."""

        def write(store: Store) -> None:
            result = store.cache_blocks(self.grant, message_id, blocks, now=now)
            if result is not None:
                self._checked(result)

        return Piece(write)

    def trace_piece(self, make: Callable[[], AttemptTrace]) -> Piece:
        """Return the piece that keeps the trace that *make* makes, in the writer."""

        def write(store: Store) -> None:
            result = store.keep_trace(self.grant, make())
            if result is not None:
                self._checked(result)

        return Piece(write)

    def last_request_piece(self, message_id: str) -> Piece:
        """Return the piece that reads `Reader.last_request`, after what is queued."""
        return Piece(lambda store: store.last_request(self.scope, message_id))

    def release_piece(self, *, now: float) -> Piece:
        """Return the piece that gives the grant back."""
        return Piece(lambda store: store.release(self.grant, now=now))

    def _mover(self) -> tuple[Callable[[int], None], Callable[[], None]]:
        before = self.head

        def move(head: int) -> None:
            nonlocal before
            before, self.head = self.head, head

        def undo() -> None:
            self.head = before

        return move, undo

    def _checked(self, result: T | Fenced | HeadMoved) -> T:
        match result:
            case Fenced():
                raise FencedError(result.scope, result.token)
            case HeadMoved():
                raise HeadMovedError(result.scope, self.head, result.head)
            case _:
                return result


def _refuse_repeat(record: JournalRecord) -> None:
    match record:
        case RunStarted():
            raise JournalError(
                "conflicting_fact", f"run {record.run_id!r} has started before"
            )
        case DispatchCommitted():
            raise JournalError(
                "duplicate_dispatch",
                f"call {record.operation.provider_tool_call_id[:80]!r} of run"
                f" {record.operation.run_id!r} was dispatched before",
            )
        case _:
            pass
