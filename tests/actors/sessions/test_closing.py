"""An engine begins and ends in a fixed order, and ends in bounded time."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import attrs
import pytest
import trio
from kit.rehearsal import replies
from trio.testing import MockClock, wait_all_tasks_blocked

import greenroom.actors.engine._open as front_door
from greenroom.actors import opening
from greenroom.actors.agents import AgentManager
from greenroom.actors.kernel import Context, Ref, SupervisorHandle
from greenroom.actors.providers import Halt, Hang, RehearsalProvider, Say
from greenroom.engine import Engine, open_engine
from greenroom.protocol import HookEvent, StorageError
from greenroom.storage import SqliteStore, open_reader

DONE = [Say("done"), Halt()]
STOPS = ["hooks", "sessions", "skills", "memory"]


@attrs.define(eq=False)
class Listener:
    """A hook that notes what it is told, and may never return."""

    name: str = "listener"
    on: frozenset[str] = frozenset({"finished", "failed"})
    seconds: float = 10.0
    hangs: bool = False
    told: list[HookEvent] = attrs.field(factory=list)

    async def tell(self, event: HookEvent) -> None:
        self.told.append(event)
        while self.hangs:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)


async def note_exit(ref: Ref[object], name: str, trace: list[str]) -> None:
    await ref.wait_exited()
    trace.append(name)


def watch(engine: Engine, nursery: trio.Nursery, trace: list[str]) -> None:
    for name in STOPS:
        ref = engine._system.child(name)
        assert ref is not None
        nursery.start_soon(note_exit, ref, name, trace)


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ended, in order; of the store, that it was closed."""
    ended: list[str] = []
    close = SqliteStore.close

    def noted(store: SqliteStore) -> None:
        ended.append("store")
        close(store)

    monkeypatch.setattr(SqliteStore, "close", noted)
    return ended


#### The end


@pytest.mark.contract("PER-11")
async def test_sessions_end_before_what_they_use_and_the_store_ends_last(
    tmp_path: Path, trace: list[str]
) -> None:
    provider = RehearsalProvider(replies([Say("let me see"), Hang()]))
    async with trio.open_nursery() as nursery:
        async with open_engine(
            state=tmp_path / "state", provider=provider, threads=False
        ) as engine:
            session = await engine.create_session(workspace=tmp_path)
            watch(engine, nursery, trace)
            nursery.start_soon(prompt_until_closed, session)
            await wait_all_tasks_blocked()
        trace.append("closed")
    # The sessions have settled their runs while all that they use was there.
    assert trace == [*STOPS, "store", "closed"]
    with_reader = open_reader(tmp_path / "state")
    try:
        (message,) = with_reader.messages(session.id, limit=1)
    finally:
        with_reader.close()
    assert message.metadata.run_stop_reason == "shutdown"


async def prompt_until_closed(session) -> None:
    await session.prompt("go")


@pytest.mark.contract("PER-11")
@pytest.mark.parametrize("stage", STOPS)
async def test_a_stage_that_hangs_is_abandoned_at_its_bound_and_reported(
    tmp_path: Path,
    stage: str,
    autojump_clock: MockClock,
    trace: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = trio.Event()

    async def hang(ctx: Context[object]) -> None:
        with trio.CancelScope(shield=True):
            await release.wait()

    caplog.set_level(logging.ERROR)
    async with trio.open_nursery() as nursery:
        async with open_engine(state=tmp_path / "state", threads=False) as engine:
            watch(engine, nursery, trace)
            SupervisorHandle(engine._system._root, stage).spawn("hangs", hang)
            await wait_all_tasks_blocked()
            began = trio.current_time()
        assert trio.current_time() - began < 25
        release.set()
    # What comes after it ended all the same, and in its order.
    assert trace == [*STOPS, "store"]
    said = [record.getMessage() for record in caplog.records]
    assert any(f"{stage}/hangs' did not end within its bounds" in text for text in said)


#### The beginning


@attrs.define(eq=False)
class Start:
    """What a start did, in order; and for each step whether a port was open then."""

    port: int
    steps: list[str] = attrs.field(factory=list)

    def note(self, what: str) -> None:
        # It blocks: it is asked from within a step.
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            reached = "connected"
        except ConnectionRefusedError:
            reached = "refused"
        self.steps.append(f"{what}, {reached}")


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        start = Start(taken.getsockname()[1])

    def spy(owner: object, name: str, what: str) -> None:
        real = getattr(owner, name)

        def noted(*args: object, **kwargs: object) -> object:
            start.note(what)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    spy(opening, "open_store", "database")
    spy(AgentManager, "migrate", "agents")
    spy(opening, "recover", "recovery")
    spy(front_door, "open_system", "actors")
    spy(front_door, "Sessions", "sessions")
    return start


@pytest.mark.contract("PER-11")
async def test_the_start_has_one_order_and_nobody_can_connect_before_its_end(
    tmp_path: Path, start: Start
) -> None:
    async with open_engine(state=tmp_path / "state") as engine:
        # An endpoint has an engine, or does not exist.
        listeners = await trio.open_tcp_listeners(start.port, host="127.0.0.1")
        start.note("endpoint")
        await engine.create_session(workspace=tmp_path)
        for listener in listeners:
            await listener.aclose()
    assert start.steps == [
        "database, refused",
        "agents, refused",
        "recovery, refused",
        "actors, refused",
        "sessions, refused",
        "endpoint, connected",
    ]


async def test_nobody_gets_an_engine_whose_state_can_t_be_made_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: list[str]
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("no recovery today")

    monkeypatch.setattr("greenroom.actors.opening.recover", fail)
    with pytest.raises(StorageError, match="no recovery"):
        async with open_engine(state=tmp_path / "state", threads=False):
            raise AssertionError("it was handed out before it was ready")
    assert trace == ["store"]


async def test_what_hangs_is_left_behind_at_its_bound_and_reported(
    tmp_path: Path,
    autojump_clock: MockClock,
    trace: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    hook = Listener(hangs=True)
    provider = RehearsalProvider(replies(DONE))
    caplog.set_level(logging.WARNING)
    async with open_engine(
        state=tmp_path / "state", provider=provider, threads=False, hooks=[hook]
    ) as engine:
        session = await engine.create_session(workspace=tmp_path)
        await session.prompt("go")
        await wait_all_tasks_blocked()
        assert len(hook.told) == 1
        began = trio.current_time()
    assert trio.current_time() - began < 20
    assert trace == ["store"]
    assert [r for r in caplog.records if "listener" in r.message or "tell" in r.message]
    hook.hangs = False
    await trio.sleep(2)
