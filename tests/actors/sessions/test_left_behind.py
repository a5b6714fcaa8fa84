"""A session that is closed: its run settles itself, and only the tape is left."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from kit.rehearsal import Probe, open_stage, replies
from kit.stores import started
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.tools import ToolResult
from greenroom.engine import SessionNotFoundError, open_engine
from greenroom.protocol import StorageError
from greenroom.storage import Grant, archived_fact, open_reader
from greenroom.testing import Call, Halt, Hang, RehearsalProvider, Say

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]


@pytest.mark.contract("SES-09")
@pytest.mark.parametrize("busy", ["streaming", "tool"])
async def test_a_session_closed_while_it_generates_settles_and_opens_again(
    tmp_path: Path, busy: str
) -> None:
    async def block(_: Any, operation: Any) -> Any:
        await operation.dispatch()
        await trio.sleep_forever()

    first = [Say("half"), Hang()] if busy == "streaming" else ASK
    async with open_stage(tmp_path, replies(first, DONE), Probe(body=block)) as stage:
        ends: list[str] = []

        async def prompt() -> None:
            ends.append((await stage.session.prompt("go")).stop_reason)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            await stage.session.close()
            path = f"sessions/{stage.session.id}"
            assert not any(info.path.startswith(path) for info in stage.engine.tree())
        assert ends == ["user_stop"]
        terminal = stage.journal()[-1]
        assert type(terminal).__name__ == "RunTerminal"
        assert (terminal.outcome, terminal.stop_reason) == ("aborted", "user_stop")
        assert [row.id for row in await stage.engine.sessions()] == [stage.session.id]
        again = await stage.engine.open_session(stage.session.id)
        assert (await again.prompt("again")).text == "done"


@pytest.mark.contract("SES-07")
async def test_a_tool_that_outlives_its_session_changes_nothing_of_the_next(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    gate, released = trio.Event(), trio.Event()

    async def block(_: Any, operation: Any) -> Any:
        await operation.dispatch()
        with trio.CancelScope(shield=True):
            await gate.wait()
        released.set()
        return ToolResult("too late")

    async with (
        open_stage(tmp_path, replies(ASK, DONE), Probe(body=block)) as stage,
        trio.open_nursery() as nursery,
    ):
        session = stage.session
        nursery.start_soon(session.prompt, "go")
        await wait_all_tasks_blocked()
        stale = stage.engine._sessions.loaded(session.id)
        assert stale is not None
        await session.close()
        await stale.ref.wait_exited()
        again = await stage.engine.open_session(session.id)
        fresh = stage.engine._sessions.loaded(session.id)
        assert fresh is not None
        assert fresh.session is not stale.session
        async with again.follow() as feed:
            tape, version = stage.tape(), fresh.hub.version
            gate.set()
            await released.wait()
            await wait_all_tasks_blocked()
            assert stage.tape() == tape
            assert fresh.hub.version == version
            assert (await again.prompt("again")).text == "done"
            assert feed.snapshot is not None
            assert feed.snapshot.messages[-1].metadata.run_outcome == "aborted"


@pytest.mark.contract("SES-07")
async def test_an_instance_that_was_replaced_can_write_nothing(tmp_path: Path) -> None:
    async with open_stage(tmp_path, replies(DONE)) as stage:
        session, sessions = stage.session, stage.engine._sessions
        stale = sessions.loaded(session.id)
        assert stale is not None
        # Somebody takes the session without asking its actor.
        await sessions.acquire(session.id)
        tape = stage.tape()
        fact = archived_fact(archived=True, revision="stale")
        for write in (
            stale.session.ports.record.append([fact]),
            stale.session.ports.record.commit(started()),
        ):
            with pytest.raises(StorageError):
                await write
        assert stage.tape() == tape
        # It finds out with the first thing that it has to write, and goes.
        assert (await session.prompt("go")).text == "done"
        fresh = sessions.loaded(session.id)
        assert stale.ref.exited
        assert fresh is not None
        assert fresh.session is not stale.session


async def test_an_instance_whose_row_vanished_is_evicted(tmp_path: Path) -> None:
    async with open_stage(tmp_path, replies()) as stage:
        session, sessions = stage.session, stage.engine._sessions
        writer: Any = stage.engine._world.writer
        store = writer._store
        grant = await sessions.acquire(session.id)
        assert isinstance(grant, Grant)
        assert store.delete(grant, grant.head) is None
        with pytest.raises(SessionNotFoundError):
            await stage.engine.open_session(session.id)
        assert sessions.loaded(session.id) is None
        with pytest.raises(SessionNotFoundError):
            await session.configure(temperature=1.0)


async def test_a_session_nobody_uses_is_unloaded_after_twenty_minutes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_engine(
        state=tmp_path / "state",
        provider=RehearsalProvider(replies(DONE, DONE)),
        builtin=False,
        threads=False,
        gc_thresholds=False,
    ) as engine:
        session = await engine.create_session(workspace=tmp_path)
        await session.prompt("go")
        began, path = trio.current_time(), f"sessions/{session.id}"
        await trio.sleep_until(began + 1_199)
        (idle,) = [i for i in engine.tree() if i.path.startswith(path)]
        # No task until then either, and nothing at all afterwards.
        assert idle.grade == "hosted"
        await trio.sleep_until(began + 1_201)
        assert not any(info.path.startswith(path) for info in engine.tree())
        assert (await session.prompt("again")).text == "done"


@pytest.mark.parametrize("fails_at", [1, 2])
@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_session_that_could_not_be_made_leaves_nothing(
    tmp_path: Path, fails_at: int, cancelled: bool
) -> None:
    async with open_stage(tmp_path, replies()) as stage:
        world = stage.engine._world
        inner, count = world.writer, 0

        class Failing:
            def __getattr__(self, name: str) -> Any:
                return getattr(inner, name)

            async def submit(self, piece: Any, told: Any = None) -> Any:
                nonlocal count
                count += 1
                if count != fails_at:
                    return await inner.submit(piece, told)
                if cancelled:
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
                raise StorageError("no")

        object.__setattr__(world, "writer", Failing())
        with trio.CancelScope() as scope, suppress(StorageError):
            await stage.engine.create_session(workspace=tmp_path)
            raise AssertionError
        object.__setattr__(world, "writer", inner)
        assert [row.id for row in await stage.engine.sessions()] == [stage.session.id]
        actors = [i for i in stage.engine.tree() if i.path.startswith("sessions/")]
        paths = {info.path for info in actors} - {"sessions/watchdog"}
        assert paths == {f"sessions/{stage.session.id}"}
        with closing(open_reader(stage.state)) as reader:
            full = [s for s in reader.scopes() if reader.page(s, 0).entries]
        assert full == [stage.session.id]
