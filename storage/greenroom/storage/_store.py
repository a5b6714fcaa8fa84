"""The store contract: what every implementation keeps, and promises.

Synchronous, on the caller's thread; time is an argument (seconds since the epoch).
What is expected to happen is a returned value; a fault is a raised `StorageError`.
Rules that make implementations equal:

1. One sequence per session, for tape and journal alike.
2. `append` and `commit` succeed only if the token is current and, for `append` and
   `commit` alike, the head is the expected one: decided in the transaction that
   writes. All facts or none; settled commands in the same transaction.
3. A command is settled by the append that finishes it; an unsettled command is work
   that is owed.
4. The lease gives liveness, the token gives safety. Every acquire, release and
   leave moves the token. Expired but not taken over may still append.
5. A cursor is a session's sequence number. There is no global one.

Projections (transcript, session list, usage) are derived from facts inside the
append. Reads never need membership. Search is a projection in batches of its own
(`Store.index_pending`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import attrs

from greenroom.protocol import (
    AttemptTrace,
    Fact,
    JournalRecord,
    MessageId,
    MessageRecord,
    PendingInputs,
    Plan,
    RunId,
    SessionId,
    TapeEntry,
)

from ._agents import AgentReader, AgentWriter
from ._bindings import BindingReader, BindingWriter
from ._skills import SkillReader, SkillWriter
from ._values import (
    Appended,
    Fenced,
    Grant,
    HeadMoved,
    Held,
    InboxCommand,
    Member,
    MemberLost,
    MessageHit,
    OpenRun,
    Owner,
    Page,
    Posted,
    Receipt,
    Seen,
    SessionRow,
)


class Reader(AgentReader, BindingReader, SkillReader, Protocol):
    """Reads; each call is one short transaction, none outlives it."""

    def page(
        self, scope: SessionId, after: int, limit: int = 256, stream: str | None = None
    ) -> Page:
        """Return up to *limit* entries after sequence *after*.

        A page may be shorter to stay within `MAX_PAGE_BYTES`, never empty while
        there are more; the end is reached at an empty page. *stream* is ``tape`` or
        ``journal``; ``None`` means both.
        """
        ...

    def scopes(
        self, after: SessionId | None = None, limit: int = 256
    ) -> list[SessionId]:
        """Return sessions that have a tape, by id, after *after*."""
        ...

    def heads(self, scopes: Sequence[SessionId]) -> list[tuple[SessionId, int]]:
        """Return the head of each of *scopes* that has a tape."""
        ...

    def locate(self, scope: SessionId) -> Owner | None:
        """Return who holds *scope*, for display; it may be dead by now."""
        ...

    def search(
        self, query: str, *, scope_prefix: str = "", limit: int = 20
    ) -> list[tuple[SessionId, int]]:
        """Return (session, seq) of entries that hold all words of *query*.

        Newest first. Quotes and operators in *query* are literal.
        """
        ...

    def search_tape(
        self, scope: SessionId, query: str, *, until: int | None = None, limit: int = 20
    ) -> list[int]:
        """Return entries of one tape that hold all words of *query*, newest first.

        By their sequence numbers, up to *until*; *limit* is 1 to 100. What is audit
        is never found, nor is a message that was retracted (TAP-10). Quotes and
        operators in *query* are literal (TAP-16).
        """
        ...

    def named(
        self, scope: SessionId, name: str, *, before: int | None = None, limit: int = 20
    ) -> list[TapeEntry]:
        """Return entries called *name*, one of `FOUND_BY_NAME`, newest first.

        Only those before the sequence number *before*; *limit* is 1 to 500. The cost
        does not grow with the tape.

        Raises:
            ValueError: entries of that name can't be found by it.
        """
        ...

    def search_messages(
        self, query: str, scope: SessionId | None = None, limit: int = 12
    ) -> list[MessageHit]:
        """Return finished messages that hold all words of *query* (PER-07).

        The best first, where the store can tell, else the newest; *limit* is 1 to
        50. Quotes and operators in *query* are literal.
        """
        ...

    def sessions(
        self,
        limit: int = 100,
        before: tuple[float, SessionId] | None = None,
        *,
        agent: str | None = None,
        archived: bool | None = None,
        title: str = "",
    ) -> list[SessionRow]:
        """Return sessions, last updated first; *before* is the last row's key.

        Args:
            limit: how many that pass the filters, 1 to 500; fewer only at the end.
            before: the (updated_at, id) of the last row of the page before.
            agent: only those of this agent, whether there still is one or not.
            archived: only those that are, or are not; ``None``: both.
            title: only those with this text in their title, in any case.
        """
        ...

    def session(self, scope: SessionId) -> SessionRow | None:
        """Return one session, or ``None``."""
        ...

    def messages(
        self,
        scope: SessionId,
        before: int | None = None,
        limit: int = 100,
        role: Literal["user", "assistant"] | None = None,
    ) -> list[MessageRecord]:
        """Return the newest messages with order below *before*, oldest first.

        *limit* is 1 to 500 and counts those that pass the filter: *role* is whose
        they are. Orders are unique in a session, so they are the whole key (PER-06).
        """
        ...

    def broken_messages(self, scope: SessionId) -> list[MessageId]:
        """Return messages whose rows are not all there, at most 500.

        They are read from their facts until the session is rebuilt (PER-03).
        """
        ...

    def message(self, scope: SessionId, message_id: str) -> MessageRecord | None:
        """Return one message as last recorded; ``None`` if unknown or retracted."""
        ...

    def retracted_messages(self, scope: SessionId) -> list[tuple[MessageId, int]]:
        """Return messages that were taken back, with their places, in that order."""
        ...

    def pending_messages(self, scope: SessionId) -> list[MessageRecord]:
        """Return messages that are not finished, oldest first."""
        ...

    def message_count(self, scope: SessionId) -> int:
        """Return how many messages the transcript has."""
        ...

    def pending_inputs(self, scope: SessionId) -> PendingInputs:
        """Return the inputs that were accepted and wait for their turn."""
        ...

    def plan(self, scope: SessionId) -> Plan | None:
        """Return the plan in force."""
        ...

    def run_session(self, run_id: RunId) -> SessionId | None:
        """Return the session that *run_id* ran in."""
        ...

    def owed_by_dead(self) -> list[SessionId]:
        """Return sessions whose owner is dead, or that owe work and have none.

        Work is owed by unsettled commands and by open runs.
        """
        ...

    def open_runs(self, scope: SessionId) -> list[OpenRun]:
        """Return runs of *scope* without a terminal and not acknowledged.

        The cost is bounded by unresolved runs, not by history (JRN-18).
        """
        ...

    def run_entries(self, scope: SessionId, run_id: RunId) -> tuple[TapeEntry, ...]:
        """Return every journal entry of *scope* that names the run, in order."""
        ...

    def is_elsewhere(self, scope: SessionId, run_id: RunId) -> bool:
        """Whether another session than *scope* has facts of the run."""
        ...

    def cached_blocks(self, scope: SessionId, message_id: str) -> str | None:
        """Return the JSON text last put by `cache_blocks`, or ``None``."""
        ...

    def traces(
        self, scope: SessionId, message_id: str | None = None, limit: int = 100
    ) -> list[AttemptTrace]:
        """Return the newest traces, of one message or of all, oldest first."""
        ...

    def count_traces(self, before: float) -> int:
        """Return how many traces were made before *before*."""
        ...

    def request_trace(
        self, scope: SessionId, message_id: str, request_seq: int
    ) -> AttemptTrace | None:
        """Return the trace of the request's highest attempt (TRY-23)."""
        ...

    def request_entries(
        self, scope: SessionId, message_id: str, request_seq: int
    ) -> list[TapeEntry]:
        """Return what the tape says of one request, in order, at most 100 entries.

        Its view manifest and its attempts; not what was said.
        """
        ...

    def view_entry(self, view_id: str) -> TapeEntry | None:
        """Return the newest manifest with that id, of any session (CTX-04).

        The cost does not grow with the store.
        """
        ...

    def last_request(self, scope: SessionId, message_id: str) -> int:
        """Return the highest request number that was used for the message (RUN-04).

        Of its view manifests, its attempts and its traces, whichever got furthest;
        0 when there is none. Costs the same in a session of any length.
        """
        ...

    def log_bytes(self) -> int:
        """Return the size of the log beside the database."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Store(Reader, AgentWriter, BindingWriter, SkillWriter, Protocol):
    """One writer. Every method is one transaction, or one savepoint in a group."""

    def join(self, node: str, addr: str, ttl: float, *, now: float) -> Member:
        """Make a new incarnation."""
        ...

    def beat(self, member: Member, *, now: float) -> MemberLost | None:
        """Renew *member*; `MemberLost` when it was declared dead."""
        ...

    def leave(self, member: Member, *, now: float) -> None:
        """End *member* and free its sessions, their tokens moved.

        The bindings that came through it are gone.
        """
        ...

    def acquire(
        self, member: Member, scope: SessionId, *, now: float
    ) -> Grant | Held | MemberLost:
        """Take *scope*: free, or its owner is dead; `Held` when it lives.

        Taking what *member* owns already makes a new grant and fences the old one.
        A session is made by being taken. `MemberLost` when *member* is dead itself.
        """
        ...

    def claim(self, member: Member, limit: int, *, now: float) -> list[Grant]:
        """Take up to *limit* sessions that owe work and have no living owner."""
        ...

    def release(self, grant: Grant, *, now: float) -> None:
        """Give *grant* back and move the token; no error if already fenced."""
        ...

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
        """Write *facts* and settle commands, all or none.

        A provenance key that exists already is not written again (TAP-02); in a
        strict family another payload under it is a conflict. The same *append_id*
        again returns what the first returned.

        Raises:
            JournalError: ``invalid_fact``; a name starts with ``execution/``.
            StorageError: a fact is malformed or too large (nothing is written).
        """
        ...

    def commit(
        self, grant: Grant, expected_head: int, record: JournalRecord, *, now: float
    ) -> Receipt | Fenced | HeadMoved:
        """Write one strict fact as a transaction, or a piece, of its own.

        Prerequisites are checked in the same transaction (JRN-06).

        Raises:
            JournalError: see its codes; also when called inside a piece that holds
                anything else (JRN-05).
        """
        ...

    def post(
        self, scope: SessionId, command_id: str, body: str, *, now: float
    ) -> Posted | Seen:
        """Put a command into the inbox of *scope*."""
        ...

    def inbox(self, grant: Grant, limit: int = 100) -> list[InboxCommand] | Fenced:
        """Return unsettled commands, oldest first."""
        ...

    def owed(self, member: Member) -> list[SessionId]:
        """Return sessions of *member* with unsettled commands."""
        ...

    def reset(
        self, grant: Grant, expected_head: int, facts: Sequence[Fact], *, now: float
    ) -> Appended | Fenced | HeadMoved:
        """Start a new incarnation: forget all of the session, then write *facts*.

        *facts* begin with the ``session/start`` anchor and get sequence 1. The
        inbox is emptied too, but the ids of its commands stay taken: one that is
        sent again, whatever it says, was `Seen`. All in one transaction (TAP-03).
        """
        ...

    def delete(self, grant: Grant, expected_head: int) -> Fenced | HeadMoved | None:
        """Forget the session and give it back; no new incarnation is made (TAP-03)."""
        ...

    def cache_blocks(
        self, grant: Grant, message_id: str, blocks: str, *, now: float
    ) -> Fenced | None:
        """Keep the blocks of a message in progress; a cache, not a fact (PER-05).

        Dropped by the message's next revision; ignored for a finished message.
        """
        ...

    def keep_trace(self, grant: Grant, trace: AttemptTrace) -> Fenced | None:
        """Keep what an attempt sent; the same attempt again changes nothing.

        Of a session the newest 100 are kept. A reset or delete forgets them.
        """
        ...

    def forget_traces(self, before: float) -> int:
        """Forget traces that were made before *before*; return how many."""
        ...

    def index_pending(self, limit: int = 500) -> int:
        """Make up to *limit* entries findable; return how many, 0 when all are."""
        ...

    def rebuild(self, scope: SessionId) -> None:
        """Derive every projection of *scope* from its facts again."""
        ...

    def checkpoint(self) -> bool:
        """Bring the log back to nothing, as far as readers let it; whether they did."""
        ...

    def run_group(self, pieces: Sequence[Piece]) -> list[Settled]:
        """Run *pieces* in order, each in a savepoint, and commit all with one sync.

        A piece that raises is rolled back alone. When the commit itself fails every
        piece is settled with that error and its ``aborted`` is called, last first.
        The error of a journal piece is a `JournalError`, ``persistence_failed``.
        """
        ...


@attrs.frozen
class Piece:
    """A synchronous unit of work inside a group."""

    run: Callable[[Store], Any]
    aborted: Callable[[], None] | None = None
    """Called on the writer's thread if what `run` did is undone after it returned."""
    journal: bool = False
    """A strict commit: nothing else may be in this piece (JRN-05)."""


@attrs.frozen
class Settled:
    """How a piece ended: ``error`` is ``None`` exactly if it was committed."""

    value: Any = None
    error: BaseException | None = None
