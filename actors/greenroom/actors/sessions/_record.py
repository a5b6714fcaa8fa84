"""A session's tape and journal as its one owner writes them.

Watchers are told after the data is on disk, never before (output gate). What is
awaited here is not abandoned half-way by a cancellation: the writer takes a piece or
does not, and reports.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, final

import attrs
import msgspec

from greenroom.actors.kernel import Clock
from greenroom.actors.logs import log_ids
from greenroom.protocol import (
    AttemptTrace,
    Block,
    Fact,
    JournalError,
    JournalRecord,
    MessageId,
    Plan,
    PlanEntry,
    SessionId,
    StorageError,
    TapeEntry,
    events_of,
)
from greenroom.storage import (
    Appended,
    InboxCommand,
    Piece,
    Posted,
    Seen,
    Settled,
    Store,
    Tape,
    Unfinished,
    plan_fact,
    unfinished,
)

from ._hub import Hub
from ._ports import PieceWriter

T = TypeVar("T")

_LOG: Final = logging.getLogger("greenroom.sessions")


@final
@attrs.define(eq=False)
class SessionRecord:
    """Writes to one session's tape, and tells its hub."""

    session_id: SessionId
    tape: Tape
    writer: PieceWriter
    hub: Hub
    clock: Clock
    plan: Plan | None = None
    _revision_taken: int = attrs.field(default=0, init=False)
    """The newest revision of a plan that is written, or on its way."""

    @property
    def head(self) -> int:
        """Where the tape ends, as far as it is written."""
        return self.tape.head

    async def append(
        self,
        facts: Sequence[Fact],
        settles: Sequence[str] = (),
        *,
        before: Callable[[Store], object] | None = None,
    ) -> None:
        """Write facts and settle commands; all or none.

        *before* runs first in the same transaction, which it undoes by raising.

        Raises:
            StorageError: nothing was written.
        """
        now = self.clock.now()
        piece = self.tape.append_piece(facts, settles, now=now)
        if before is not None:
            piece = _behind(before, piece)
        # Two tasks may wait for appends of one group: watchers are told in the order
        # of the tape, not in that of the tasks.
        await self.writer.submit(piece, lambda done: self._tell(facts, done, now))

    async def append_all(self, batches: Sequence[Sequence[Fact]]) -> int:
        """Write new facts, more than fit one append; all or none. Returns the head.

        Raises:
            StorageError: nothing was written.
        """
        now, facts = self.clock.now(), [fact for batch in batches for fact in batch]

        def told(head: int) -> None:
            seqs = range(head - len(facts) + 1, head + 1)
            created = (True,) * len(facts)
            self._tell(facts, Appended(head, tuple(seqs), created), now)

        piece = self.tape.batches_piece(lambda _: batches, now=now)
        return await self.writer.submit(piece, told)

    async def reset(self, facts: Sequence[Fact]) -> None:
        """Begin a new incarnation with *facts*: nothing is left of the old (TAP-04).

        Raises:
            StorageError: all is as it was.
        """
        await self.writer.submit(self.tape.reset_piece(facts, now=self.clock.now()))
        self.plan, self._revision_taken = None, 0

    def append_soon(self, facts: Sequence[Fact]) -> None:
        """Write facts with the next group; a failure is logged (TRY-18)."""
        now = self.clock.now()
        self._soon(self.tape.append_piece(facts, now=now), "facts")

    def trace_soon(self, make: Callable[[], AttemptTrace]) -> None:
        """Make and keep a trace with the next group; a failure is logged (TRY-23)."""
        self._soon(self.tape.trace_piece(make), "a trace")

    async def last_request(self, message_id: MessageId) -> int:
        """Return how far the requests of a message got, on disk and on its way there.

        Raises:
            StorageError: it can't be read.
        """
        return await self.writer.submit(self.tape.last_request_piece(message_id))

    async def commit(self, record: JournalRecord) -> bool:
        """Commit a strict fact and return whether it was created.

        Raises:
            JournalError: it is not on disk.
        """
        piece = self.tape.commit_piece(record, now=self.clock.now())
        try:
            receipt = await self.writer.submit(piece)
        except JournalError:
            raise
        except StorageError as exc:
            raise JournalError("persistence_failed", str(exc)) from exc
        return receipt.created

    async def update_plan(self, entries: tuple[PlanEntry, ...]) -> int:
        """Replace the plan; its revision is one more than the last."""
        # Two tools may plan at once: a number is taken before anything is waited for,
        # and given back only if nobody has taken the next one.
        last = 0 if self.plan is None else self.plan.revision
        revision = self._revision_taken = max(last, self._revision_taken) + 1
        plan = Plan(revision, entries)
        try:
            await self.append([plan_fact(plan)])
        except BaseException:
            if self._revision_taken == revision:
                self._revision_taken = revision - 1
            raise
        if self.plan is None or self.plan.revision < revision:
            self.plan = plan
        return revision

    async def end_plan(self) -> None:
        """Say of the plan, if there is one, that its turn ran into a limit (RUN-19)."""
        plan = self.plan
        if plan is not None and plan.reason is None and _is_unfinished(plan):
            ended = Plan(plan.revision + 1, plan.entries, "max_steps")
            await self.append([plan_fact(ended)])
            self.plan = ended

    async def clear_plan(self) -> None:
        """Say of the plan, if there is one, that a new turn has none yet (SES-19)."""
        if self.plan is not None and self.plan.entries:
            await self.update_plan(())

    async def read(self, fn: Callable[[Store], T]) -> T:
        """Return *fn* of the store, behind everything that was written before."""
        return await self.writer.submit(Piece(fn))

    async def post(self, command_id: str, body: str) -> Posted | Seen:
        """Put a command into the session's inbox."""
        now = self.clock.now()

        def run(store: Any) -> Posted | Seen:  # noqa: ANN401 - the writer's store
            return store.post(self.session_id, command_id, body, now=now)

        return await self.writer.submit(Piece(run))

    async def commands(self, limit: int) -> list[InboxCommand]:
        """Return the commands that wait, the oldest first."""
        return await self.writer.submit(self.tape.inbox_piece(limit=limit))

    async def unfinished(self) -> Unfinished | None:
        """Return what the session still has to do; `storage.unfinished`."""
        grant = self.tape.grant
        return await self.writer.submit(Piece(lambda store: unfinished(store, grant)))

    async def release(self) -> None:
        """Give the session back; somebody else may take it."""
        await self.writer.submit(self.tape.release_piece(now=self.clock.now()))

    def cache_soon(self, message_id: MessageId, blocks: Sequence[Block]) -> None:
        """Keep the blocks of a message in progress, in case this process dies."""
        text = msgspec.json.encode(blocks).decode()
        now = self.clock.now()
        self._soon(self.tape.cache_piece(message_id, text, now=now), "blocks")

    def _soon(self, piece: Piece, what: str) -> None:
        whose = log_ids() | {"session_id": self.session_id}

        def settled(result: Settled) -> None:
            if result.error is not None:
                _LOG.warning(
                    "%s of session %s were not kept: %s",
                    what,
                    self.session_id,
                    result.error,
                    extra=whose,
                )

        self.writer.submit_soon(piece, settled)

    def _tell(self, facts: Sequence[Fact], appended: Appended, now: float) -> None:
        for fact, seq, created in zip(
            facts, appended.seqs, appended.created, strict=True
        ):
            if created:
                entry = TapeEntry(
                    session_id=self.session_id,
                    seq=seq,
                    token=self.tape.grant.token,
                    fact=fact,
                    created_at=now,
                )
                events = events_of(entry)
                for event in events:
                    self.hub.publish(event, more=event is not events[-1])


def _behind(before: Callable[[Store], object], piece: Piece) -> Piece:
    def run(store: Store) -> Any:  # noqa: ANN401 - the piece's value
        before(store)
        return piece.run(store)

    return Piece(run, piece.aborted)


def _is_unfinished(plan: Plan) -> bool:
    return any(entry.status != "completed" for entry in plan.entries)
