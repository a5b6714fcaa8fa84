"""The writer: one OS thread that owns the store's write connection.

Pieces that arrive while a group commits are the next group: a savepoint each, one
sync for all, one wake-up of the loop for all who wait. A waiter goes on when its data
is on disk, never before; a piece that was accepted is not abandoned by cancellation.

When nothing has been queued for a moment the thread makes entries findable and brings
the log back to nothing. Under steady load it does so in small steps about twice a
second. Not at once: a session that waits for one piece after the other leaves the queue
empty after each, and indexing there would be a second commit for every piece.

It knows the store's pieces and nothing of actors, so it can be used without them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar, final

import attrs
import outcome
import trio

from greenroom.protocol import StorageError
from greenroom.storage import Piece, Settled

from ._inline_writer import (
    INDEX_BATCH,
    INDEX_PIECE,
    InlineWriter as InlineWriter,
    WritableStore as WritableStore,
    as_outcome,
    tell,
)

T = TypeVar("T")

MAX_GROUP: Final = 1_000
"""Pieces in one commit; bounds how long the next ones wait (measured: 30 ms)."""

MAX_QUEUED: Final = 10_000
"""Pieces waiting or in work; further submitters wait for room."""

CLOSE_SECONDS: Final = 10.0
"""Real time that closing may take before the thread is left behind."""

_QUIET_SECONDS: Final = 0.05
"""A pause longer than this between pieces is used for indexing."""

_INDEX_SECONDS: Final = 0.5
_SMALL_LOG_BYTES: Final = 4 << 20
_STILL_READ: Final = (
    "the log of the database can't be emptied while somebody reads what is in it"
)


class WriterClosedError(StorageError):
    """The writer takes no more pieces; this one was not written."""

    code = "writer_closed"

    def __init__(self, problem: str = "the writer is closed") -> None:
        super().__init__(problem, hint="open the engine again")


class RenewalRefusedError(StorageError):
    """The store could not be let go of; nothing was done, and it is still in use."""

    code = "renewal_refused"

    def __init__(self, problem: str) -> None:
        super().__init__(problem, hint="end what reads the database, and try again")


@attrs.frozen
class WriterStatistics:
    """What the writer has done, and how it stands."""

    groups: int
    pieces: int
    largest_group: int
    queued: int
    """Pieces waiting or in work, and submitters that wait for room."""
    log_bytes: int
    """Size of the write-ahead log when it was last looked at."""
    maintenance_error: str | None
    """Why indexing or the checkpoint failed last; they are tried again."""


@attrs.frozen(eq=False)
class _Renewal:
    """The store is closed, something is done without it, and it is opened again."""

    work: Callable[[], Any]
    reopen: Callable[[], WritableStore]
    ended: Callable[[outcome.Outcome[Any]], object]
    """Called in the loop."""


@attrs.frozen(eq=False)
class _Job:
    piece: Piece
    settled: Callable[[Settled], object]
    """Called in the loop."""


@final
@attrs.define(eq=False, repr=False)
class Writer:
    """Submit pieces to the store's thread; made by `open_writer`."""

    _store: WritableStore
    _loop: trio.lowlevel.TrioToken
    _jobs: queue.SimpleQueue[_Job | _Renewal | None] = attrs.field(
        factory=queue.SimpleQueue["_Job | _Renewal | None"]
    )
    """From the loop to the thread; `None` asks it to end."""
    _room: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(MAX_QUEUED))
    _thread: threading.Thread | None = None
    _renewal: _Renewal | None = None
    """What is to be done behind the group that is being gathered. The thread's."""
    _is_away: bool = False
    """The store is closed, to be opened again. The thread's."""
    _failure: BaseException | None = None
    """Why the thread ended before it was asked to. Written by the thread."""
    _is_closed: bool = False
    """No more pieces are taken. Written by the loop."""
    _indexed_at: float = 0.0
    _is_tidy: bool = False
    _groups: int = 0
    _pieces: int = 0
    _largest: int = 0
    _log_bytes: int = 0
    _maintenance_error: str | None = None

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<Writer {self.statistics().queued} queued, {state}>"

    async def submit(
        self, piece: Piece, told: Callable[[Any], object] | None = None
    ) -> Any:  # noqa: ANN401 - the piece's value
        """Run *piece* in the next group and return its value once it is on disk.

        Waits for room first, which can be cancelled; from there on it can't, until
        the piece is settled. *told* is called with the value before that, in the
        loop: of several pieces in the order in which they were written, which the
        tasks that wait for them don't have. It must not raise.

        Raises:
            WriterClosedError: the writer is closed or has died.
            BaseException: whatever the piece raised, or the fault of its commit.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._room.acquire_nowait()
        except trio.WouldBlock:
            await self._room.acquire()
        if self._is_closed:
            self._room.release()
            raise self._closed_error()
        task = trio.lowlevel.current_task()

        def resume(settled: Settled) -> None:
            tell(settled, told)
            trio.lowlevel.reschedule(task, as_outcome(settled))

        self._jobs.put(_Job(piece, resume))
        return await trio.lowlevel.wait_task_rescheduled(_refuse_abort)

    def submit_soon(self, piece: Piece, settled: Callable[[Settled], object]) -> None:
        """Let *piece* ride with the next group; nobody waits for it.

        *settled* is called in the loop with how it ended; at once, with an error, if
        the writer is closed or has no room. It must not raise.
        """
        try:
            self._room.acquire_nowait()
        except trio.WouldBlock:
            error = StorageError(f"{MAX_QUEUED} pieces wait already")
            settled(Settled(error=error))
            return
        if self._is_closed:
            self._room.release()
            settled(Settled(error=self._closed_error()))
            return
        self._jobs.put(_Job(piece, settled))

    async def renew(
        self, work: Callable[[], T], reopen: Callable[[], WritableStore]
    ) -> T:
        """Close the store, do *work* without it, go on with what *reopen* gives.

        In the writer's thread, behind every piece that was accepted before; those
        that come meanwhile wait. Can't be cancelled. Whatever fails once the store is
        closed is the end of this writer, and what waits is refused.

        Raises:
            WriterClosedError: the writer is closed or has died.
            RenewalRefusedError: its log can't be emptied. Nothing has happened.
            BaseException: whatever *work* or *reopen* raised, or the closing.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._is_closed:
            raise self._closed_error()
        task = trio.lowlevel.current_task()

        def resume(result: outcome.Outcome[Any]) -> None:
            trio.lowlevel.reschedule(task, result)

        self._jobs.put(_Renewal(work, reopen, resume))
        return await trio.lowlevel.wait_task_rescheduled(_refuse_abort)

    async def flush(self) -> None:
        """Return when everything that is on disk now can be found by search."""
        while await self.submit(INDEX_PIECE):
            pass

    def statistics(self) -> WriterStatistics:
        """Return what was done so far."""
        free = self._room.value - self._room.statistics().tasks_waiting
        return WriterStatistics(
            groups=self._groups,
            pieces=self._pieces,
            largest_group=self._largest,
            queued=MAX_QUEUED - free,
            log_bytes=self._log_bytes,
            maintenance_error=self._maintenance_error,
        )

    #### The loop's side

    def _start(self) -> None:
        # A daemon: a disk that hangs must not keep the process from ending.
        self._thread = threading.Thread(
            target=self._work, name="greenroom-writer", daemon=True
        )
        self._thread.start()

    async def _close(self) -> None:
        self._is_closed = True
        self._jobs.put(None)
        assert self._thread is not None
        # The bound is in real time, also under a mock clock: a disk has no other.
        await trio.to_thread.run_sync(self._thread.join, CLOSE_SECONDS)
        if self._thread.is_alive():
            raise StorageError(
                f"the store did not close within {CLOSE_SECONDS:g} s",
                hint="what was reported is on disk; end the process",
            )

    def _deliver(self, jobs: list[_Job], settled: Sequence[Settled]) -> None:
        for job, result in zip(jobs, settled, strict=True):
            self._room.release()
            job.settled(result)

    def _die(self, jobs: list[_Job]) -> None:
        # In the loop, so that no submitter is between its check and its put.
        self._is_closed = True
        left, renewals = _drained(self._jobs)
        jobs += left
        renewals += [] if self._renewal is None else [self._renewal]
        self._deliver(jobs, [Settled(error=self._closed_error()) for _ in jobs])
        for renewal in renewals:
            renewal.ended(outcome.Error(self._closed_error()))

    def _closed_error(self) -> WriterClosedError:
        if self._failure is None:
            return WriterClosedError()
        error = WriterClosedError(f"the writer has died: {self._failure!r}")
        error.__cause__ = self._failure
        return error

    #### The thread's side

    def _work(self) -> None:
        jobs: list[_Job] = []
        try:
            while self._next_group(jobs):
                if jobs:
                    self._commit(jobs)
                self._renew_if_asked()
        except BaseException as exc:
            self._failure = exc
            self._soon(self._die, list(jobs))
        else:
            self._tidy_up()
        finally:
            if not self._is_away:
                self._store.close()

    def _renew_if_asked(self) -> None:
        renewal, self._renewal = self._renewal, None
        if renewal is None:
            return
        try:
            self._empty_log()
        except RenewalRefusedError as exc:
            self._soon(renewal.ended, outcome.Error(exc))
            return
        except BaseException as exc:
            self._soon(renewal.ended, outcome.Error(exc))
            raise
        try:
            self._is_away = True
            self._store.close()
            value = renewal.work()
            self._store = renewal.reopen()
            self._is_away = False
        except BaseException as exc:
            self._soon(renewal.ended, outcome.Error(exc))
            raise
        self._is_tidy = False
        self._soon(renewal.ended, outcome.Value(value))

    def _empty_log(self) -> None:
        try:
            is_empty = self._store.checkpoint()
        except StorageError as exc:
            problem = f"the log of the database can't be emptied: {exc}"
            raise RenewalRefusedError(problem) from exc
        if not is_empty:
            raise RenewalRefusedError(_STILL_READ)

    def _next_group(self, jobs: list[_Job]) -> bool:
        # Fills *jobs*, up to a renewal; False when asked to end and nothing is left.
        jobs.clear()
        job = self._wait()
        while job is not None:
            if isinstance(job, _Renewal):
                self._renewal = job
                return True
            jobs.append(job)
            if len(jobs) == MAX_GROUP:
                return True
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return True
        if jobs:
            self._jobs.put(None)
        return bool(jobs)

    def _wait(self) -> _Job | _Renewal | None:
        quiet = _QUIET_SECONDS
        while not self._is_tidy:
            try:
                return self._jobs.get(timeout=quiet)
            except queue.Empty:
                self._is_tidy = not self._maintain()
                quiet = 0.0
        return self._jobs.get()

    def _commit(self, jobs: list[_Job]) -> None:
        settled = self._store.run_group([job.piece for job in jobs])
        self._groups += 1
        self._pieces += len(jobs)
        self._largest = max(self._largest, len(jobs))
        self._soon(self._deliver, list(jobs), settled)
        jobs.clear()
        self._is_tidy = False
        if time.monotonic() - self._indexed_at > _INDEX_SECONDS:
            self._maintain()

    def _maintain(self) -> bool:
        # One short step; whether there is more to do.
        try:
            self._indexed_at = time.monotonic()
            self._log_bytes = self._store.log_bytes()
            if self._store.index_pending(INDEX_BATCH):
                return True
            problem = None
            if self._log_bytes > _SMALL_LOG_BYTES:
                problem = None if self._store.checkpoint() else _STILL_READ
                self._log_bytes = self._store.log_bytes()
        except StorageError as exc:
            problem = str(exc)
        self._maintenance_error = problem
        return False

    def _tidy_up(self) -> None:
        try:
            self._store.checkpoint()
        except StorageError as exc:
            self._maintenance_error = str(exc)

    def _soon(self, sync_fn: Any, *args: Any) -> None:  # noqa: ANN401
        # When the loop has ended nobody is left to be told; the data is on disk.
        with suppress(trio.RunFinishedError):
            self._loop.run_sync_soon(sync_fn, *args)


@asynccontextmanager
async def open_writer(store: WritableStore) -> AsyncGenerator[Writer]:
    """Give *store* to a writer thread; closed with it, what was accepted first."""
    writer = Writer(store, trio.lowlevel.current_trio_token())
    writer._start()  # pyright: ignore[reportPrivateUsage]
    try:
        yield writer
    finally:
        with trio.CancelScope(shield=True):
            await writer._close()  # pyright: ignore[reportPrivateUsage]


def _refuse_abort(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


def _drained(
    jobs: queue.SimpleQueue[_Job | _Renewal | None],
) -> tuple[list[_Job], list[_Renewal]]:
    left: list[_Job] = []
    renewals: list[_Renewal] = []
    while True:
        try:
            job = jobs.get_nowait()
        except queue.Empty:
            return left, renewals
        if isinstance(job, _Renewal):
            renewals.append(job)
        elif job is not None:
            left.append(job)
