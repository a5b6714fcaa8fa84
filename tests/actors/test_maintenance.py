"""Maintenance takes the database out of use and back; one writer, off the loop."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel
from kit.rehearsal import Probe, recover_once, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors import maintenance, opening
from greenroom.actors.maintenance import REST_SECONDS
from greenroom.actors.memory import Ingestion
from greenroom.actors.readers import Readers
from greenroom.actors.sessions._hub import FEED_BYTES
from greenroom.actors.tools import ToolResult
from greenroom.engine import (
    Engine,
    Grant,
    MaintenanceError,
    MaintenanceFailedError,
    MaintenanceRefusedError,
    SessionHeldError,
    SlidingWindow,
    open_engine,
)
from greenroom.protocol import StorageError
from greenroom.storage import (
    MemoryStore,
    SqliteStore,
    examine,
    open_reader,
    open_store,
    repair,
    vacuum,
)
from greenroom.testing import Call, Halt, RehearsalProvider, Say

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]


@asynccontextmanager
async def opened(
    tmp_path: Path, rounds: Iterable[Any], *tools: Any, **settings: Any
) -> AsyncIterator[Engine]:
    provider = RehearsalProvider(list(rounds))
    state = tmp_path / "state"
    async with open_engine(
        state=state,
        provider=provider,
        tools=tools,
        builtin=False,
        gc_thresholds=False,
        **settings,
    ) as engine:
        yield engine


#### What goes on


@pytest.mark.contract("PER-12")
async def test_maintenance_waits_for_a_run_and_refuses_what_comes_meanwhile(
    tmp_path: Path,
) -> None:
    gate, done = trio.Event(), []
    probe = Probe(gate=gate)
    async with opened(tmp_path, replies(ASK, DONE, DONE), probe) as engine:
        session = await engine.create_session(workspace=tmp_path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_prompt, session, done)
            await probe.reached.wait()
            nursery.start_soon(_maintain, engine, done)
            await wait_all_tasks_blocked()
            assert done == []
            for refused in (
                session.prompt("more"),
                engine.create_session(workspace=tmp_path),
            ):
                with pytest.raises(MaintenanceError):
                    await refused
            with pytest.raises(MaintenanceError):
                await engine.maintain(lambda folder: None)
            gate.set()
        # The run has ended by itself, and then there was the work.
        assert done == ["completed", "worked"]
        assert (await session.prompt("more")).text == "done"


async def _prompt(session: Any, done: list[str]) -> None:
    done.append((await session.prompt("go")).outcome)


async def _maintain(engine: Engine, done: list[str]) -> None:
    await engine.maintain(lambda folder: done.append("worked"))


@attrs.define(eq=False)
class HeldSummary:
    """What a compaction asks for; it waits at a gate."""

    gate: trio.Event = attrs.field(factory=trio.Event)
    asked: trio.Event = attrs.field(factory=trio.Event)

    async def condense(self, job: Any) -> Any:
        self.asked.set()
        await self.gate.wait()
        return await SlidingWindow().condense(job)


async def test_maintenance_waits_for_a_compaction_and_begins_at_its_end(
    tmp_path: Path,
) -> None:
    held, done = HeldSummary(), list[str]()
    rounds = replies([Say("word " * 500), Halt()], DONE)
    async with opened(tmp_path, rounds, compaction=held) as engine:
        session = await engine.create_session(workspace=tmp_path)
        await session.prompt("word " * 500)

        async def compact() -> None:
            done.append((await session.compact()).outcome)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(compact)
            await held.asked.wait()
            nursery.start_soon(_maintain, engine, done)
            await wait_all_tasks_blocked()
            assert done == []
            with trio.fail_after(REST_SECONDS / 2):
                held.gate.set()
                while len(done) < 2:
                    await wait_all_tasks_blocked()
        assert sorted(done) == ["summarized", "worked"]
        assert (await session.prompt("more")).text == "done"


async def test_a_turn_that_tells_more_than_is_kept_ends_no_waiting_for_it(
    tmp_path: Path,
) -> None:
    gate, done = trio.Event(), list[str]()

    async def noisy(_: Any, operation: Any) -> ToolResult:
        await operation.dispatch()
        probe.reached.set()
        await gate.wait()
        operation.progress("x" * (FEED_BYTES + 1))
        return ToolResult("quiet")

    probe = Probe(body=noisy)
    async with opened(tmp_path, replies(ASK, DONE), probe) as engine:
        session = await engine.create_session(workspace=tmp_path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_prompt, session, done)
            await probe.reached.wait()
            nursery.start_soon(_maintain, engine, done)
            await wait_all_tasks_blocked()
            gate.set()
        assert done == ["completed", "worked"]


@pytest.mark.contract("PER-12")
async def test_a_turn_that_does_not_end_refuses_the_maintenance_and_all_goes_on(
    tmp_path: Path,
) -> None:
    gate, done = trio.Event(), []
    probe = Probe(gate=gate)
    async with opened(tmp_path, replies(ASK, DONE, DONE), probe) as engine:
        session = await engine.create_session(workspace=tmp_path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_prompt, session, done)
            await probe.reached.wait()
            with pytest.raises(MaintenanceRefusedError, match="still going on"):
                await engine.maintain(lambda folder: done.append("worked"), seconds=0)
            gate.set()
        assert done == ["completed"]
        assert (await session.prompt("more")).text == "done"
        assert engine._system.child("memory") is not None
        assert await engine.maintain(lambda folder: "now") == "now"


async def test_a_question_stays_open_and_is_answered_after_it(tmp_path: Path) -> None:
    asks = Probe(permission="write it")
    async with opened(tmp_path, replies(ASK, DONE), asks) as engine:
        session = await engine.create_session(workspace=tmp_path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_fail_or_end, session)
            while not (waiting := await session.interactions()):
                await trio.lowlevel.checkpoint()
            await engine.maintain(lambda folder: None)
        await session.answer(waiting[0].id, Grant())
        async with session.follow() as feed:
            async for _ in feed:
                if (await session.messages())[-1].status == "sent":
                    break
        assert asks.calls == [{"n": 1}]


async def _fail_or_end(session: Any) -> None:
    # Whoever waited for the turn is told why it has ended.
    with pytest.raises(MaintenanceError, match="is being maintained"):
        await session.prompt("go")


async def test_another_engine_on_the_folder_refuses_it_before_anything_is_done(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, []) as engine, opened(tmp_path, []):
        session = await engine.create_session(workspace=tmp_path)
        with pytest.raises(MaintenanceRefusedError, match="is used by greenroom"):
            await engine.maintain(lambda folder: None)
        assert session.settings is not None, "it was not unloaded"


async def test_what_has_no_database_of_its_own_is_refused(tmp_path: Path) -> None:
    async with open_engine(store=MemoryStore.create()) as engine:
        with pytest.raises(MaintenanceRefusedError, match="no database"):
            await engine.maintain(lambda folder: None)


#### The work


@pytest.mark.contract("PER-12")
async def test_everything_stops_in_one_order_around_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def spy(owner: Any, name: str, what: str) -> None:
        real = getattr(owner, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            steps.append(what)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    async with opened(tmp_path, replies(DONE, DONE)) as engine:
        session = await engine.create_session(workspace=tmp_path)
        await session.prompt("go")
        memory = engine._system.child("memory")
        assert memory is not None
        spy(SqliteStore, "checkpoint", "checkpoint")
        spy(SqliteStore, "close", "close")
        spy(SqliteStore, "release", "session")
        spy(Readers, "suspended", "readers")
        spy(Ingestion, "start", "memory again")
        spy(maintenance, "open_store", "reopen")

        def work(folder: Path) -> str:
            steps.append("work")
            with closing(open_store(folder, exclusive=True)):
                return str(folder)

        assert await engine.maintain(work) == str(tmp_path / "state")
        assert steps == [
            "session",
            "readers",
            "checkpoint",
            "close",
            "work",
            "close",  # what the work itself had opened, alone
            "reopen",
            "memory again",
        ]
        assert (await session.prompt("again")).text == "done"
        assert len(await session.messages()) == 4
    assert examine(tmp_path / "state").findings == ()


async def test_its_sessions_are_still_its_own_afterwards(tmp_path: Path) -> None:
    async with opened(tmp_path, replies(DONE)) as engine:
        session = await engine.create_session(workspace=tmp_path)
        await engine.maintain(lambda folder: None)
        await session.prompt("go")
        async with opened(tmp_path, []) as other:
            with pytest.raises(SessionHeldError, match="is held by greenroom"):
                await other.open_session(session.id)


async def test_a_repair_and_a_vacuum_are_such_work(tmp_path: Path) -> None:
    async with opened(tmp_path, replies(DONE, DONE)) as engine:
        session = await engine.create_session(workspace=tmp_path)
        await session.prompt("go")

        def break_it(folder: Path) -> None:
            with closing(open_store(folder, exclusive=True)) as store:
                store.connection.execute("DELETE FROM block")

        await engine.maintain(break_it)
        assert len(examine(tmp_path / "state").findings) == 2
        done = await engine.maintain(lambda folder: repair(folder, "b"))
        assert done.rebuilt == (session.id,)
        await engine.maintain(vacuum)
        assert examine(tmp_path / "state").findings == ()
        assert (await session.prompt("again")).text == "done"


@pytest.mark.contract("PER-12")
@pytest.mark.parametrize("step", ["work", "reopen"])
async def test_a_failure_with_the_database_closed_ends_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StorageError(f"no {step} today")

    told: list[str] = []
    work = fail if step == "work" else _nothing

    async def live_until_maintenance() -> None:
        async with opened(tmp_path, replies(DONE)) as engine:
            session = await engine.create_session(workspace=tmp_path)
            await session.prompt("go")
            with monkeypatch.context() as patched:
                if step == "reopen":
                    patched.setattr(maintenance, "open_store", fail)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_told_of_failure, engine, work, told)

    with pytest.raises(MaintenanceFailedError, match=f"no {step} today"):
        await live_until_maintenance()
    assert told == ["MaintenanceFailedError"]
    # What was on disk is whole, and nothing of the engine is left in the way.
    recover_once(tmp_path / "state")
    assert repair(tmp_path / "state", "b").after.findings == ()


@pytest.mark.contract("PER-12")
async def test_a_database_that_somebody_reads_is_left_in_use(tmp_path: Path) -> None:
    async with opened(tmp_path, replies(DONE)) as engine:
        session = await engine.create_session(workspace=tmp_path)
        reader = open_reader(tmp_path / "state")
        reader.connection.execute("BEGIN")
        reader.connection.execute("SELECT count(*) FROM fact").fetchall()
        await session.prompt("go")
        with pytest.raises(MaintenanceRefusedError, match="somebody reads"):
            await engine.maintain(_nothing)
        await session.configure(title="goes on")
        reader.connection.execute("COMMIT")
        reader.close()
        await engine.maintain(vacuum)
    assert examine(tmp_path / "state").findings == ()


def _nothing(folder: Path) -> None:
    pass


async def _told_of_failure(
    engine: Engine, work: Callable[[Path], Any], told: list[str]
) -> None:
    try:
        await engine.maintain(work)
    except MaintenanceFailedError as exc:
        told.append(type(exc).__name__)


async def test_whoever_waits_to_write_is_told_when_it_has_failed(
    tmp_path: Path,
) -> None:
    entered, gate = threading.Event(), threading.Event()

    def work(folder: Path) -> None:
        entered.set()
        gate.wait()
        raise StorageError("no work today")

    told: list[str] = []

    async def change(engine: Engine) -> None:
        try:
            await engine.forget("default")
        except StorageError as exc:
            told.append(str(exc))

    async def live_until_maintenance() -> None:
        async with opened(tmp_path, []) as engine, trio.open_nursery() as nursery:
            nursery.start_soon(_told_of_failure, engine, work, [])
            await trio.to_thread.run_sync(entered.wait)
            nursery.start_soon(change, engine)
            await wait_all_tasks_blocked()
            assert told == []
            with trio.CancelScope(shield=True):
                gate.set()
                while not told:
                    await trio.lowlevel.checkpoint()

    with pytest.raises(MaintenanceFailedError):
        await live_until_maintenance()
    assert ["the writer has died" in text for text in told] == [True]


#### One writer, and a loop that goes on


@pytest.mark.contract("PER-12")
async def test_the_loop_goes_on_while_the_disk_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, gate = threading.Event(), threading.Event()
    run_group = SqliteStore.run_group
    blocked: list[bool] = []

    def slow(store: SqliteStore, pieces: Any) -> Any:
        entered.set()
        blocked.append(gate.wait(20))
        return run_group(store, pieces)

    async with opened(tmp_path, replies(DONE)) as engine:
        session = await engine.create_session(workspace=tmp_path)
        monkeypatch.setattr(SqliteStore, "run_group", slow)
        done: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_prompt, session, done)
            await trio.to_thread.run_sync(entered.wait)
            # The disk has not answered, and nobody but that turn waits for it.
            steps = await _steps(200)
            assert [row.id for row in await engine.sessions()] == [session.id]
            assert engine.tree()
            assert (done, blocked) == ([], [])
            gate.set()
        assert done == ["completed"]
        assert set(blocked) == {True}
    # But for a few that the machine itself held up.
    assert sorted(steps)[-10] < 0.05


async def _steps(count: int) -> list[float]:
    seconds: list[float] = []
    for _ in range(count):
        began = trio.current_time()
        await trio.lowlevel.checkpoint()
        seconds.append(trio.current_time() - began)
    return seconds


@pytest.mark.contract("PER-12")
async def test_everything_is_written_by_one_thread_that_is_not_the_loop_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()
    stores: list[SqliteStore] = []
    real = opening.open_store

    def noted(folder: Path) -> SqliteStore:
        stores.append(real(folder))
        return stores[0]

    def executed(cursor: object, sql: str, bindings: object) -> bool:
        threads.add(threading.current_thread().name)
        return True

    monkeypatch.setattr(opening, "open_store", noted)
    async with opened(tmp_path, replies(ASK, DONE), Probe()) as engine:
        stores[0].connection.exec_trace = executed
        session = await engine.create_session(workspace=tmp_path)
        await session.prompt("go")
        await session.configure(title="another")
        await engine.archive_session(session.id)
        await engine.forget("default")
        await engine.delete_session(session.id)
        assert threads == {"greenroom-writer"}
