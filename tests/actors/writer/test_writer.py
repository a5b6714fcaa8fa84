"""The writer: group commit on a thread of its own, seen from trio.

A gated store holds its thread at the start of a group, so that what is queued
meanwhile, and what a cancellation meets, is decided by the test.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from kit.stores import S1, SETTINGS, event

from greenroom.actors import writer as writer_module
from greenroom.actors.writer import (
    InlineWriter,
    RenewalRefusedError,
    Writer,
    WriterClosedError,
    open_writer,
)
from greenroom.protocol import StorageError
from greenroom.storage import (
    MemoryStore,
    Piece,
    Settled,
    Tape,
    bootstrap_facts,
    open_reader,
    open_store,
)


class GatedStore:
    """A store in memory that runs a group when it is let, and notes what it does."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.store = MemoryStore.create()
        self.gate = threading.Semaphore(1_000_000 if is_open else 0)
        self.entered = threading.Semaphore(0)
        self.groups: list[int] = []
        self.log: list[str] = []
        self.fault: BaseException | None = None
        self.backlog = 0
        self.bytes = 0
        self.maintenance_fault: StorageError | None = None
        self.is_read = False

    def run_group(self, pieces: Sequence[Piece]) -> list[Settled]:
        self.entered.release()
        self.gate.acquire()
        self.groups.append(len(pieces))
        if self.fault is not None:
            raise self.fault
        return self.store.run_group(pieces)

    def index_pending(self, limit: int = 500) -> int:
        if self.maintenance_fault is not None:
            raise self.maintenance_fault
        done = min(limit, self.backlog)
        self.backlog -= done
        self.log.append(f"index {done}")
        return done

    def checkpoint(self) -> bool:
        if self.maintenance_fault is not None:
            raise self.maintenance_fault
        if self.is_read:
            return False
        self.bytes = 0
        self.log.append("checkpoint")
        return True

    def log_bytes(self) -> int:
        return self.bytes

    def close(self) -> None:
        self.log.append("close")

    async def wait_entered(self) -> None:
        await trio.to_thread.run_sync(self.entered.acquire)

    def let(self, groups: int = 1) -> None:
        self.gate.release(groups)


def value(result: object) -> Piece:
    return Piece(lambda store: result)


def raising(error: Exception) -> Piece:
    def run(store: object) -> None:
        raise error

    return Piece(run)


async def submit_into(
    writer: Writer, piece: Piece, results: list[Any], scope: trio.CancelScope
) -> None:
    with scope:
        results.append(await writer.submit(piece))


async def test_what_a_group_wrote_is_told_in_the_order_of_its_pieces() -> None:
    store, ran, told, resumed = GatedStore(is_open=False), [], [], []

    async def write(number: int) -> None:
        piece = Piece(lambda store: ran.append(number) or number)
        resumed.append(await writer.submit(piece, told.append))

    async with open_writer(store) as writer, trio.open_nursery() as nursery:
        nursery.start_soon(writer.submit, value("holds the thread"))
        await store.wait_entered()
        for number in range(20):
            nursery.start_soon(write, number)
        await trio.testing.wait_all_tasks_blocked()
        store.let(2)
    assert store.groups[:2] == [1, 20]
    assert told == ran
    # Tasks go on in any order.
    assert sorted(resumed) == sorted(ran) != resumed


async def test_a_piece_that_failed_is_told_to_its_caller_alone() -> None:
    told: list[object] = []
    async with open_writer(GatedStore()) as writer:
        for each in (writer, InlineWriter(MemoryStore.create())):
            with pytest.raises(LookupError):
                await each.submit(raising(LookupError("mine")), told.append)
            await each.submit(value(7), told.append)
    assert told == [7, 7]


async def test_a_piece_returns_its_value_or_raises_its_error() -> None:
    async with open_writer(GatedStore()) as writer:
        assert await writer.submit(value(7)) == 7
        with pytest.raises(LookupError, match="mine"):
            await writer.submit(raising(LookupError("mine")))
        assert await writer.submit(value(None)) is None


async def test_submit_is_a_checkpoint() -> None:
    async with open_writer(GatedStore()) as writer:
        with trio.testing.assert_checkpoints():
            await writer.submit(value(1))


async def test_what_is_queued_while_a_group_commits_is_the_next_group() -> None:
    store = GatedStore(is_open=False)
    results: list[Any] = []
    async with open_writer(store) as writer, trio.open_nursery() as nursery:
        nursery.start_soon(
            submit_into, writer, value("first"), results, trio.CancelScope()
        )
        await store.wait_entered()
        for n in range(50):
            nursery.start_soon(
                submit_into, writer, value(n), results, trio.CancelScope()
            )
        await trio.testing.wait_all_tasks_blocked()
        assert writer.statistics().queued == 51
        store.let(2)
    assert store.groups == [1, 50]
    assert sorted(results, key=str) == sorted(["first", *range(50)], key=str)
    statistics = writer.statistics()
    assert (statistics.groups, statistics.pieces) == (2, 51)
    assert (statistics.largest_group, statistics.queued) == (50, 0)


async def test_a_group_has_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_GROUP", 3)
    store = GatedStore(is_open=False)
    results: list[Any] = []
    async with open_writer(store) as writer, trio.open_nursery() as nursery:
        nursery.start_soon(submit_into, writer, value(0), results, trio.CancelScope())
        await store.wait_entered()
        for n in range(7):
            nursery.start_soon(
                submit_into, writer, value(n), results, trio.CancelScope()
            )
        await trio.testing.wait_all_tasks_blocked()
        store.let(9)
    assert store.groups == [1, 3, 3, 1]


async def test_pieces_of_one_task_keep_their_order() -> None:
    order: list[int] = []

    def note(number: int) -> Piece:
        return Piece(lambda store: order.append(number))

    async with open_writer(GatedStore()) as writer:
        for n in range(20):
            await writer.submit(note(n))
    assert order == list(range(20))


async def test_an_accepted_piece_is_not_abandoned_by_cancellation() -> None:
    store = GatedStore(is_open=False)
    results: list[Any] = []
    scope = trio.CancelScope()
    async with open_writer(store) as writer, trio.open_nursery() as nursery:
        nursery.start_soon(submit_into, writer, value("kept"), results, scope)
        await store.wait_entered()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert results == []
        store.let()
    assert results == ["kept"]
    assert not scope.cancelled_caught


async def test_a_cancelled_submitter_is_not_accepted() -> None:
    store = GatedStore()
    async with open_writer(store) as writer:
        with trio.CancelScope() as scope:
            scope.cancel()
            await writer.submit(value(1))
        assert scope.cancelled_caught
    assert store.groups == []


async def test_a_full_queue_makes_submitters_wait_and_these_can_be_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED", 2)
    store = GatedStore(is_open=False)
    results: list[Any] = []
    scopes = [trio.CancelScope() for _ in range(5)]
    async with open_writer(store) as writer, trio.open_nursery() as nursery:
        nursery.start_soon(submit_into, writer, value(0), results, scopes[0])
        await store.wait_entered()
        for n in range(1, 5):
            nursery.start_soon(submit_into, writer, value(n), results, scopes[n])
            await trio.testing.wait_all_tasks_blocked()
        assert writer.statistics().queued == 5
        scopes[3].cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert scopes[3].cancelled_caught
        assert writer.statistics().queued == 4
        store.let(9)
    assert sorted(results) == [0, 1, 2, 4]
    assert max(store.groups) <= 2


async def test_a_closed_writer_refuses_and_finishes_what_it_took() -> None:
    store = GatedStore(is_open=False)
    results: list[Any] = []
    async with trio.open_nursery() as nursery:
        async with open_writer(store) as writer:
            for n in range(3):
                nursery.start_soon(
                    submit_into, writer, value(n), results, trio.CancelScope()
                )
                await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(let_when_closing, store, writer)
        assert sorted(results) == [0, 1, 2]
        with pytest.raises(WriterClosedError, match="the writer is closed") as caught:
            await writer.submit(value(1))
        assert caught.value.code == "writer_closed"
        assert caught.value.hint
    assert store.log[-2:] == ["checkpoint", "close"]


async def test_closing_is_finished_although_the_block_is_cancelled() -> None:
    store = GatedStore()
    with trio.CancelScope() as scope:
        async with open_writer(store) as writer:
            await writer.submit(value(1))
            scope.cancel()
    assert store.log[-1] == "close"


async def test_a_submitter_that_waits_for_room_while_it_closes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED", 1)
    store = GatedStore(is_open=False)
    results: list[Any] = []
    errors: list[WriterClosedError] = []

    async def late(writer: Writer) -> None:
        try:
            await writer.submit(value("late"))
        except WriterClosedError as exc:
            errors.append(exc)

    async with trio.open_nursery() as nursery, open_writer(store) as writer:
        nursery.start_soon(
            submit_into, writer, value("first"), results, trio.CancelScope()
        )
        await store.wait_entered()
        nursery.start_soon(late, writer)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(let_when_closing, store, writer)
    assert results == ["first"]
    assert len(errors) == 1


async def let_when_closing(store: GatedStore, writer: Writer) -> None:
    while True:
        await trio.lowlevel.checkpoint()
        if writer._is_closed:
            store.let(9)
            return


async def test_when_the_thread_dies_every_waiter_is_told() -> None:
    store = GatedStore(is_open=False)
    store.fault = MemoryError("no memory for the group")
    told: list[str] = []

    async def submit(writer: Writer, name: str) -> None:
        with pytest.raises(WriterClosedError, match="no memory") as caught:
            await writer.submit(value(name))
        assert isinstance(caught.value.__cause__, MemoryError)
        told.append(name)

    async with open_writer(store) as writer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(submit, writer, "in the group")
            await store.wait_entered()
            nursery.start_soon(submit, writer, "queued behind it")
            await trio.testing.wait_all_tasks_blocked()
            store.let()
        await submit(writer, "after it")
    assert sorted(told) == ["after it", "in the group", "queued behind it"]
    assert writer.statistics().queued == 0
    assert store.log[-1] == "close"


async def test_a_thread_that_does_not_end_is_left_behind_after_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_module, "CLOSE_SECONDS", 0.01)
    store = GatedStore(is_open=False)
    results: list[Any] = []

    async def open_and_close(nursery: trio.Nursery) -> None:
        async with open_writer(store) as writer:
            nursery.start_soon(
                submit_into, writer, value(1), results, trio.CancelScope()
            )
            await store.wait_entered()

    async with trio.open_nursery() as nursery:
        with pytest.raises(StorageError, match="did not close within"):
            await open_and_close(nursery)
        store.let(9)
    # Accepted pieces are settled all the same, when the disk answers at last.
    assert results == [1]


async def until(condition: Callable[[], bool]) -> None:
    # The thread's idle work has no awaiter; it is looked for, not slept for.
    while not condition():
        await trio.to_thread.run_sync(threading.Event().wait, 0.001)


async def test_idle_work_is_done_in_steps_until_nothing_is_left() -> None:
    store = GatedStore()
    async with open_writer(store) as writer:
        await until(lambda: store.log == ["index 0"])
        store.backlog, store.bytes = 450, 5 << 20
        await writer.submit(value(1))
        await until(lambda: store.log[-1:] == ["checkpoint"])
        steps = [f"index {n}" for n in (0, 200, 200, 50, 0)]
        assert store.log == [*steps, "checkpoint"]
        assert writer.statistics().log_bytes == 0


async def test_pieces_that_come_one_after_the_other_are_not_indexed_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("greenroom.actors.writer._QUIET_SECONDS", 60.0)
    monkeypatch.setattr("greenroom.actors.writer._INDEX_SECONDS", 60.0)
    store = GatedStore()
    async with open_writer(store) as writer:
        for number in range(8):
            await writer.submit(value(number))
        # The first commit may have found the index more than a minute old.
        assert store.log in ([], ["index 0"])
    assert store.groups == [1] * 8


async def test_a_small_log_is_left_alone() -> None:
    store = GatedStore()
    store.bytes = 1 << 20
    async with open_writer(store) as writer:
        await writer.submit(value(1))
        await until(lambda: store.log.count("index 0") >= 2)
        assert "checkpoint" not in store.log
        assert writer.statistics().log_bytes == 1 << 20


async def test_idle_work_that_fails_is_noted_and_tried_again() -> None:
    store = GatedStore()
    store.maintenance_fault = StorageError("no room for the index")
    async with open_writer(store) as writer:
        await until(lambda: writer.statistics().maintenance_error is not None)
        assert writer.statistics().maintenance_error == "no room for the index"
        assert await writer.submit(value(1)) == 1
        store.maintenance_fault = None
        await writer.submit(value(2))
        await until(lambda: writer.statistics().maintenance_error is None)
        store.maintenance_fault = StorageError("gone again")
    assert store.log[-1] == "close"
    assert writer.statistics().maintenance_error == "gone again"


async def test_data_is_on_disk_when_submit_returns_and_search_after_a_flush(
    tmp_path: Path,
) -> None:
    async with open_writer(open_store(tmp_path)) as writer:
        member = await writer.submit(
            Piece(lambda store: store.join("node", "", 60.0, now=0.0))
        )
        grant = await writer.submit(
            Piece(lambda store: store.acquire(member, S1, now=0.0))
        )
        tape = Tape(grant)
        await writer.submit(tape.append_piece(bootstrap_facts("u", SETTINGS), now=1.0))
        reader = open_reader(tmp_path)
        assert reader.page(S1, 0).head == tape.head == 2
        facts = [event(n, f"word{n}") for n in range(300)]
        await writer.submit(tape.append_piece(facts, now=1.0))
        await writer.flush()
        assert reader.search("word299") == [(S1, 302)]
        reader.close()
        assert writer.statistics().log_bytes > 0
    store = open_store(tmp_path)
    assert store.log_bytes() == 0
    store.close()


async def test_a_failed_commit_fails_each_waiter_with_an_error_of_its_own(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    errors: list[StorageError] = []
    failing = threading.Event()
    store.connection.set_commit_hook(failing.is_set)

    async def submit(writer: Writer) -> None:
        with pytest.raises(StorageError) as caught:
            await writer.submit(value(1))
        errors.append(caught.value)

    async with open_writer(store) as writer:
        await writer.submit(value(1))
        failing.set()
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(submit, writer)
        failing.clear()
        assert await writer.submit(value(2)) == 2
    assert len({id(error) for error in errors}) == 5


async def test_a_piece_that_nobody_waits_for_rides_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED", 2)
    store = GatedStore(is_open=False)
    ended: list[Settled] = []
    async with open_writer(store) as writer:
        writer.submit_soon(value(1), ended.append)
        await store.wait_entered()
        writer.submit_soon(raising(LookupError()), ended.append)
        assert ended == []
        writer.submit_soon(value("no room"), ended.append)
        assert "2 pieces wait already" in str(ended.pop().error)
        assert repr(writer) == "<Writer 2 queued, open>"
        store.let(9)
    assert [one.value for one in ended] == [1, None]
    assert isinstance(ended[1].error, LookupError)
    writer.submit_soon(value("late"), ended.append)
    assert isinstance(ended[2].error, WriterClosedError)
    assert repr(writer) == "<Writer 0 queued, closed>"


async def test_an_inline_writer_runs_each_piece_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = GatedStore()
    writer = InlineWriter(store)
    with trio.fail_after(1), trio.testing.assert_checkpoints():
        assert await writer.submit(value(3)) == 3
    with pytest.raises(LookupError):
        await writer.submit(raising(LookupError()))
    await writer.flush()
    ended: list[Settled] = []
    writer.submit_soon(value(4), ended.append)
    assert ended == [Settled(4)]
    assert store.groups == [1, 1, 1, 1]


#### Renewal


async def test_a_renewal_comes_behind_what_was_accepted_and_before_the_rest() -> None:
    old, new = GatedStore(is_open=False), GatedStore()
    log: list[str] = []

    async def write(writer: Writer, word: str) -> None:
        await writer.submit(Piece(lambda store: log.append(word)))

    async def renew(writer: Writer) -> None:
        value = await writer.renew(lambda: log.append("work") or 7, lambda: new)
        assert value == 7

    async with open_writer(old) as writer, trio.open_nursery() as nursery:
        nursery.start_soon(write, writer, "in the group")
        await old.wait_entered()
        nursery.start_soon(write, writer, "accepted before")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(renew, writer)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(write, writer, "behind it")
        await trio.testing.wait_all_tasks_blocked()
        old.let(2)
    assert log == ["in the group", "accepted before", "work", "behind it"]
    assert (old.groups, new.groups) == ([1, 1], [1])
    # The old one is closed before the work, the new one at the end; each once.
    assert old.log[-2:] == ["checkpoint", "close"]
    assert [store.log.count("close") for store in (old, new)] == [1, 1]


async def test_a_renewal_that_fails_ends_the_writer_and_closes_nothing_twice() -> None:
    store = GatedStore()

    def fail() -> GatedStore:
        raise StorageError("no new one")

    async with open_writer(store) as writer:
        with pytest.raises(StorageError, match="no new one"):
            await writer.renew(lambda: None, fail)
        with pytest.raises(WriterClosedError, match="no new one"):
            await writer.submit(value(1))
        with pytest.raises(WriterClosedError, match="no new one"):
            await writer.renew(lambda: None, fail)
    assert store.log.count("close") == 1


async def test_a_store_whose_log_is_in_use_is_kept_and_written_to() -> None:
    old, new = GatedStore(), GatedStore()
    told: list[str] = []

    async def renew(writer: Writer) -> None:
        await writer.renew(lambda: told.append("work"), lambda: new)

    async with open_writer(old) as writer:
        old.maintenance_fault = StorageError("no room")
        with pytest.raises(RenewalRefusedError, match="no room"):
            await renew(writer)
        old.maintenance_fault, old.is_read = None, True
        with pytest.raises(RenewalRefusedError, match="somebody reads"):
            await renew(writer)
        assert (told, await writer.submit(value(1))) == ([], 1)
        assert "close" not in old.log
        old.is_read = False
        await renew(writer)
        assert await writer.submit(value(2)) == 2
    assert (told, len(new.groups)) == (["work"], 1)


async def test_a_log_that_is_in_use_is_told_of() -> None:
    store = GatedStore()
    store.bytes, store.is_read = 5 << 20, True
    async with open_writer(store) as writer:
        await writer.submit(value(1))
        await until(lambda: writer.statistics().maintenance_error is not None)
        told = writer.statistics()
        assert (told.log_bytes, "somebody reads" in str(told.maintenance_error)) == (
            5 << 20,
            True,
        )
        store.is_read = False
        await writer.submit(value(2))
        await until(lambda: writer.statistics().maintenance_error is None)
        assert writer.statistics().log_bytes == 0


async def test_a_renewal_behind_a_group_that_kills_the_writer_is_refused() -> None:
    store = GatedStore(is_open=False)
    told: list[str] = []

    async def renew(writer: Writer) -> None:
        with pytest.raises(WriterClosedError):
            await writer.renew(lambda: told.append("work"), lambda: store)
        told.append("refused")

    async def write(writer: Writer) -> None:
        with pytest.raises(WriterClosedError):
            await writer.submit(value(1))

    async with open_writer(store) as writer, trio.open_nursery() as nursery:
        nursery.start_soon(writer.submit, value("holds the thread"))
        await store.wait_entered()
        for step in (write, renew, renew):
            nursery.start_soon(step, writer)
            await trio.testing.wait_all_tasks_blocked()
        store.let()
        await store.wait_entered()
        store.fault = KeyError("a bug")
        store.let()
    assert told == ["refused", "refused"]
