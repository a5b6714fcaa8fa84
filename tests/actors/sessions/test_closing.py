"""An engine begins and ends in a fixed order, and ends in bounded time."""

from __future__ import annotations

import logging
from pathlib import Path

import attrs
import pytest
import trio
from kit.rehearsal import replies
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.kernel import Ref
from greenroom.actors.providers import Halt, Hang, RehearsalProvider, Say
from greenroom.engine import open_engine
from greenroom.protocol import HookEvent, StorageError
from greenroom.storage import SqliteStore, open_reader

DONE = [Say("done"), Halt()]


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


async def test_sessions_end_before_what_they_use_and_the_store_ends_last(
    tmp_path: Path, trace: list[str]
) -> None:
    provider = RehearsalProvider(replies([Say("let me see"), Hang()]))
    async with trio.open_nursery() as nursery:
        async with open_engine(
            state=tmp_path / "state", provider=provider, threads=False
        ) as engine:
            session = await engine.create_session(workspace=tmp_path)
            for name in ("hooks", "skills", "memory", "sessions"):
                ref = engine._system.child(name)
                assert ref is not None
                nursery.start_soon(note_exit, ref, name, trace)
            nursery.start_soon(prompt_until_closed, session)
            await wait_all_tasks_blocked()
        trace.append("closed")
    # The sessions have settled their runs while all that they use was there.
    assert trace[0] == "sessions"
    assert set(trace[1:4]) == {"memory", "skills", "hooks"}
    assert trace[4:] == ["store", "closed"]
    with_reader = open_reader(tmp_path / "state")
    try:
        (message,) = with_reader.messages(session.id, limit=1)
    finally:
        with_reader.close()
    assert message.metadata.run_stop_reason == "shutdown"


async def prompt_until_closed(session) -> None:
    await session.prompt("go")


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
