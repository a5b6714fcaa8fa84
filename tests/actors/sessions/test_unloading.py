"""A session that is unloaded: what it leaves behind, and who comes meanwhile."""

from __future__ import annotations

import gc
import weakref
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from kit.rehearsal import Probe, open_stage, replies, spy_on
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.kernel import ActorExitedError, CancelCause
from greenroom.actors.providers import Call, Halt, Hang, RehearsalProvider, Say
from greenroom.engine import Grant, TurnFailedError, open_engine
from greenroom.protocol import DiskFullError, StatusChanged

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]
IDLE_SECONDS = 60


@asynccontextmanager
async def idle_engine(tmp_path, *rounds):
    async with open_engine(
        state=tmp_path / "state",
        provider=RehearsalProvider(replies(*rounds)),
        builtin=False,
        threads=False,
        gc_thresholds=False,
        idle_seconds=IDLE_SECONDS,
    ) as engine:
        yield engine


@attrs.define(eq=False)
class HeldRelease:
    """A record that holds the end of the grant at a gate."""

    inner: Any
    reached: trio.Event = attrs.field(factory=trio.Event)
    gate: trio.Event = attrs.field(factory=trio.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def release(self):
        self.reached.set()
        await self.gate.wait()
        await self.inner.release()


def loaded(session):
    found = session._sessions.loaded(session.id)
    assert found is not None
    return found


def hold_release(session):
    behaviour = loaded(session).session
    held = HeldRelease(behaviour.ports.record)
    behaviour.ports = attrs.evolve(behaviour.ports, record=held)
    return held


async def test_an_idle_session_leaves_nothing_in_memory(
    tmp_path, autojump_clock: MockClock
):
    async with idle_engine(tmp_path, DONE) as engine:
        session = await engine.create_session(workspace=tmp_path)
        await session.prompt("go")
        behaviour = weakref.ref(loaded(session).session)
        hub = weakref.ref(loaded(session).hub)
        await trio.sleep(IDLE_SECONDS + 1)
        gc.collect()
        assert behaviour() is None
        assert hub() is None


async def test_a_prompt_that_comes_while_its_session_leaves_loads_it_again(
    tmp_path, autojump_clock: MockClock
):
    async with idle_engine(tmp_path, DONE, DONE) as engine:
        session = await engine.create_session(workspace=tmp_path)
        await session.prompt("go")
        held = hold_release(session)
        await held.reached.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.prompt, "again")
            await wait_all_tasks_blocked()
            held.gate.set()
        assert len(await session.messages()) == 4


async def test_a_prompt_that_comes_with_the_end_of_the_idle_time_is_not_lost(
    tmp_path, autojump_clock: MockClock
):
    async with idle_engine(tmp_path, DONE, DONE) as engine:
        session = await engine.create_session(workspace=tmp_path)
        await session.prompt("go")
        # In the very moment in which it reads that it is idle.
        await trio.sleep_until(IDLE_SECONDS)
        assert not loaded(session).session.leaving
        await session.prompt("again")
        assert len(await session.messages()) == 4


async def test_a_watcher_that_comes_while_an_idle_session_leaves_sees_the_next_turn(
    tmp_path, autojump_clock: MockClock
):
    async with idle_engine(tmp_path, DONE, DONE) as engine:
        session = await engine.create_session(workspace=tmp_path)
        await session.prompt("go")
        held = hold_release(session)
        await held.reached.wait()
        async with session.follow() as feed:
            held.gate.set()
            await wait_all_tasks_blocked()
            await session.prompt("again")
            seen = set()
            async for event in feed:
                seen.add(type(event).__name__)
                if "StreamCompleted" in seen:
                    break
            assert "StreamUpdated" in seen


async def test_a_session_that_is_closed_ends_what_watches_it(tmp_path):
    async with (
        open_stage(tmp_path, replies(DONE)) as stage,
        stage.session.follow() as feed,
    ):
        await stage.session.close()
        assert [type(event) async for event in feed] == [StatusChanged]


async def test_a_cancel_and_a_close_at_once_end_both(
    tmp_path, autojump_clock: MockClock
):
    async with open_stage(tmp_path, replies(ASK), Probe(permission="?")) as stage:

        async def prompt():
            turn = await stage.session.prompt("go")
            assert turn.stop_reason == "user_stop"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            actor = loaded(stage.session)
            held = hold_release(stage.session)
            actor.ref.stop(CancelCause.USER_STOP)
            await held.reached.wait()
            nursery.start_soon(stage.session.cancel)
            await wait_all_tasks_blocked()
            held.gate.set()
        assert trio.current_time() == 0
        assert await stage.session.interactions() == ()


async def test_a_session_that_fails_is_no_longer_generating(tmp_path):
    async with open_stage(tmp_path, replies([Hang()], DONE)) as stage:
        failed = []

        async def prompt():
            with pytest.raises(ActorExitedError):
                await stage.session.prompt("go")
            failed.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            async with stage.session.follow() as feed:
                # Nothing of greenroom fails like this; a defect would.
                loaded(stage.session).session.history = None  # pyright: ignore[reportAttributeAccessIssue]
                await stage.session.cancel()
                states = [e.state async for e in feed if isinstance(e, StatusChanged)]
            assert states[-1] == "error"
        assert failed
        assert (await stage.session.prompt("again")).text == "done"


async def test_a_session_that_cannot_be_created_leaves_nothing(tmp_path):
    async with open_stage(tmp_path, []) as stage:
        sessions = stage.session._sessions
        before = dict(sessions._hubs)
        writer, failing = sessions.world.writer, FailingWriter(sessions.world.writer)
        sessions.world = attrs.evolve(sessions.world, writer=failing)
        with pytest.raises(DiskFullError):
            await stage.engine.create_session(workspace=tmp_path)
        sessions.world = attrs.evolve(sessions.world, writer=writer)
        assert sessions._hubs == before
        assert len(await stage.engine.sessions()) == 1


@attrs.define(eq=False)
class FailingWriter:
    """Lets a session be acquired, and fails what follows."""

    inner: Any
    pieces: int = 0

    async def submit(self, piece, told=None):
        self.pieces += 1
        if self.pieces > 1:
            raise DiskFullError("the disk is full")
        return await self.inner.submit(piece, told)

    def submit_soon(self, piece, settled):
        self.inner.submit_soon(piece, settled)


async def test_every_waiting_prompt_is_told_when_the_store_fails(tmp_path):
    async with open_stage(tmp_path, replies([Hang()], DONE, DONE, DONE)) as stage:
        told = []

        async def prompt(text):
            try:
                told.append((await stage.session.prompt(text)).outcome)
            except TurnFailedError as exc:
                told.append(exc.code)

        async with trio.open_nursery() as nursery:
            for text in ("first", "second", "third"):
                nursery.start_soon(prompt, text)
                await wait_all_tasks_blocked()
            spy = spy_on(stage)
            spy.fail = lambda what: (
                DiskFullError("full") if what == "message/recorded" else None
            )
            await stage.session.cancel()
        assert len(told) == 3
        assert "turn_failed" in told
        assert (await stage.session.prompt("fourth")).outcome == "completed"


async def test_a_question_that_nobody_here_waits_for_keeps_no_session_loaded(
    tmp_path, autojump_clock: MockClock
):
    probe = Probe(permission="?")
    async with idle_engine(tmp_path, ASK, DONE) as engine:
        engine.contribute(probe)
        session = await engine.create_session(workspace=tmp_path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.prompt, "go")
            await wait_all_tasks_blocked()
            await trio.sleep(IDLE_SECONDS + 1)
            # Somebody waits for the turn, so it stays.
            assert session._sessions.loaded(session.id) is not None
            nursery.cancel_scope.cancel()
        await trio.sleep(IDLE_SECONDS + 1)
        assert session._sessions.loaded(session.id) is None
        (asked,) = await session.interactions()
        await session.answer(asked.id, Grant())
        await loaded(session).hub.until_settled()
        assert probe.calls == [{"n": 1}]


async def test_status_versions_go_on_when_a_session_is_loaded_again(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.prompt("go")
        async with stage.session.follow() as feed:
            assert feed.snapshot is not None
            before = feed.snapshot.status_version
        await stage.session.close()
        async with stage.session.follow() as feed:
            assert feed.snapshot is not None
            assert feed.snapshot.status_version >= before
        await stage.engine.open_session(stage.session.id)
        assert loaded(stage.session).hub.version >= before > 0
