"""Readers: short reads in worker threads, a few at a time, closed at the end."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
import trio.testing
from kit.stores import S1, Peer, open_files
from trio.testing import MockClock

from greenroom.actors.readers import MAX_READERS, InlineReaders, open_readers
from greenroom.protocol import StorageError
from greenroom.storage import MemoryStore, NoStoreError, Reader, open_reader, open_store


async def test_a_read_returns_what_its_function_returns(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    Peer(store, store.join("node", "", 60.0, now=0.0)).tape()
    async with open_readers(lambda: open_reader(tmp_path)) as readers:
        assert await readers.read(lambda reader: reader.page(S1, 0).head) == 2
        assert await readers.read(lambda reader: reader.scopes()) == [S1]
    store.close()


async def test_an_error_of_the_read_or_of_opening_is_raised(tmp_path: Path) -> None:
    def fails(reader: Reader) -> None:
        raise LookupError("mine")

    open_store(tmp_path).close()
    async with open_readers(lambda: open_reader(tmp_path)) as readers:
        for _ in range(2 * MAX_READERS):
            with pytest.raises(LookupError, match="mine"):
                await readers.read(fails)
    async with open_readers(lambda: open_reader(tmp_path / "none")) as readers:
        with pytest.raises(NoStoreError):
            await readers.read(lambda reader: reader.scopes())


async def test_connections_are_few_reused_and_closed(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    before = open_files()
    opened: list[Reader] = []
    gate, running = threading.Event(), threading.Semaphore(0)

    def make() -> Reader:
        opened.append(open_reader(tmp_path))
        return opened[-1]

    def hold(reader: Reader) -> int:
        running.release()
        gate.wait()
        return id(reader)

    used: set[int] = set()

    async def read() -> None:
        used.add(await readers.read(hold))

    async with open_readers(make) as readers, trio.open_nursery() as nursery:
        for _ in range(3 * MAX_READERS):
            nursery.start_soon(read)
        for _ in range(MAX_READERS):
            await trio.to_thread.run_sync(running.acquire)
        await trio.testing.wait_all_tasks_blocked()
        # No further read has begun: all connections are in use.
        assert not running.acquire(blocking=False)
        gate.set()
    assert len(opened) == len(used) == MAX_READERS
    assert open_files() == before


async def test_inline_readers_read_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    readers = InlineReaders(MemoryStore.create())
    with trio.fail_after(1), trio.testing.assert_checkpoints():
        assert await readers.read(lambda reader: reader.scopes()) == []


async def test_closing_waits_for_a_read_and_refuses_the_next(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    gate, running = threading.Event(), threading.Semaphore(0)
    order: list[str] = []

    def hold(reader: Reader) -> None:
        running.release()
        gate.wait()
        reader.scopes()
        order.append("read")

    async def read() -> None:
        await readers.read(hold)

    async with trio.open_nursery() as nursery:
        async with open_readers(lambda: open_reader(tmp_path)) as readers:
            nursery.start_soon(read)
            await trio.to_thread.run_sync(running.acquire)
            nursery.start_soon(set_when_blocked, gate)
        order.append("closed")
        assert order == ["read", "closed"]
        for _ in range(2):
            with pytest.raises(StorageError, match="readers are closed"):
                await readers.read(lambda reader: reader.scopes())


async def set_when_blocked(gate: threading.Event) -> None:
    await trio.testing.wait_all_tasks_blocked()
    gate.set()


class Slow:
    """A reader that notes when it is closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


async def test_closing_leaves_a_read_behind_that_does_not_end(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    slow, begun, end = Slow(), threading.Semaphore(0), threading.Event()

    def hang(_: object) -> None:
        begun.release()
        end.wait(60)

    try:
        async with trio.open_nursery() as nursery:
            async with open_readers(lambda: slow) as readers:  # type: ignore[arg-type]
                nursery.start_soon(readers.read, hang)
                await trio.to_thread.run_sync(begun.acquire)
                began = trio.current_time()
            assert trio.current_time() - began == pytest.approx(5.0)
            assert [r.message for r in caplog.records] == ["1 reads did not end in 5 s"]
            assert not slow.closed
            end.set()
    finally:
        end.set()
    # It closes its connection itself when it ends after all.
    assert slow.closed
