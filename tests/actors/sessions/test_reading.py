"""Reading loads nothing, and what a session does is never written down."""

from __future__ import annotations

import subprocess
from contextlib import closing

import pytest
import trio
from kit.rehearsal import Probe, open_stage, replies

from greenroom.actors.providers import Call, Fail, Halt, Say
from greenroom.engine import Engine, SessionHeldError, SessionNotFoundError
from greenroom.protocol import SessionId
from greenroom.storage import open_reader, open_store
from greenroom.testing import RehearsalProvider, open_test_engine

MANY = 100
DONE = [Say("done"), Halt()]


def state_of(engine: Engine) -> list[str]:
    return sorted(info.path for info in engine.tree())


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(trio.lowlevel, "open_process", refuse)
    monkeypatch.setattr(trio, "run_process", refuse)


async def snapshot_of(engine, session_id):
    async with engine.session(session_id).follow() as feed:
        return feed.snapshot


@pytest.mark.contract("SES-05")
async def test_no_read_of_a_hundred_sessions_loads_one(tmp_path, no_process):
    provider = RehearsalProvider(replies(*[DONE] * (MANY + 1)))
    async with open_test_engine(tmp_path, provider) as engine:
        ids = []
        for n in range(MANY):
            made = await engine.create_session(workspace=tmp_path, title=f"s{n}")
            ids.append(made.id)
            if n % 10 == 0:
                await made.prompt("hello there")
    async with open_test_engine(tmp_path, provider, seed=1) as engine:
        before = state_of(engine)
        assert len(await engine.sessions(500)) == MANY
        assert await engine.sessions(agent="nobody", title="s", archived=True) == []
        for session_id in ids:
            handle = engine.session(session_id)
            assert handle.settings is None
            await handle.messages()
            await handle.interactions()
            await engine.search("hello", session_id=session_id)
            await handle.close()
            await handle.cancel()
            assert (await snapshot_of(engine, session_id)).state == "idle"
        await engine.search("hello")
        await engine.archive_session(ids[-1])
        assert state_of(engine) == before
        store = engine._world.readers._reader  # type: ignore[attr-defined]
        assert {store.locate(SessionId(i)) for i in ids} == {None}
        await engine.session(ids[0]).prompt("go on")
        loaded = set(state_of(engine)) - set(before)
        assert [path for path in loaded if ids[0] in path]
        assert not [p for p in loaded if any(i in p for i in ids[1:])]


@pytest.mark.contract("SES-04")
async def test_what_a_session_does_is_not_kept_and_a_question_alone_makes_it_busy(
    tmp_path,
):
    script = replies(
        [Fail("broken", code="no_provider")],
        [Call("probe", {}), Halt("tool_use")],
        DONE,
    )
    async with open_stage(tmp_path, script, Probe(permission="may it?")) as stage:
        async with stage.session.follow() as feed:
            await stage.session.prompt("fails")
            async for event in feed:
                if getattr(event, "state", None) == "error":
                    break
        asked = await stage.engine.create_session(workspace=tmp_path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asked.prompt, "asks")
            while not await asked.interactions():
                await trio.testing.wait_all_tasks_blocked()
            rows = {row.id: row.state for row in await stage.engine.sessions()}
            assert rows == {stage.session.id: "idle", asked.id: "generating"}
            nursery.cancel_scope.cancel()
        failed, session_id = stage.session.id, asked.id
    provider = RehearsalProvider(replies(DONE))
    async with open_test_engine(tmp_path, provider, seed=1) as engine:
        rows = {row.id: row.state for row in await engine.sessions()}
        assert rows == {failed: "idle", session_id: "generating"}
        assert (await snapshot_of(engine, failed)).state == "idle"
        await engine.open_session(failed)
        assert (await snapshot_of(engine, failed)).state == "idle"


@pytest.mark.contract("SES-04")
def test_no_table_has_a_column_for_what_a_session_does(tmp_path):
    store = open_store(tmp_path)
    try:
        for table in ("session", "session_info"):
            info = store.connection.execute(f"PRAGMA table_info({table})").fetchall()
            names = {str(name) for _, name, *_ in info}
            assert not {name for name in names if "stat" in name}, names
            assert "head" in names or "settings" in names
    finally:
        store.close()


@pytest.mark.contract("PER-06")
async def test_a_long_session_is_restored_as_its_newest_page(tmp_path):
    script = replies(*[DONE] * 60)
    async with open_stage(tmp_path, script) as stage:
        for n in range(60):
            await stage.session.prompt(f"prompt {n}")
        snapshot = await snapshot_of(stage.engine, stage.session.id)
        assert len(snapshot.messages) == 100
        assert snapshot.messages[-1].order_seq == 120
        older = await stage.session.messages(before=snapshot.messages[0].order_seq)
        assert [m.order_seq for m in older] == list(range(1, 21))


@pytest.mark.contract("PER-06")
async def test_a_session_of_an_agent_that_is_gone_is_listed_and_read(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        gone = await stage.engine.agents.create("gone")
        session = await stage.engine.create_session(workspace=tmp_path, agent=gone)
        await session.prompt("hello")
        session_id = session.id
    with closing(open_store(tmp_path / "state")) as store:
        store.drop_agent(gone)
    reader = open_reader(tmp_path / "state")
    try:
        (row,) = reader.sessions(agent=gone)
        assert row.id == session_id
        assert len(reader.messages(session_id)) == 2
    finally:
        reader.close()


async def test_an_archived_session_is_closed_and_works_when_it_is_used_again(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        await stage.session.prompt("hello")
        assert stage.session.settings is not None
        row = await stage.engine.archive_session(stage.session.id)
        assert row.archived_at is not None
        assert stage.session.settings is None
        assert await stage.engine.sessions(archived=False) == []
        assert (await stage.session.prompt("again")).text == "done"
        back = await stage.engine.archive_session(stage.session.id, archived=False)
        assert back.archived_at is None
        with pytest.raises(SessionNotFoundError):
            await stage.engine.archive_session("nobody")
        stage.check_laws()


async def test_a_session_that_another_engine_has_is_not_archived(tmp_path):
    provider = RehearsalProvider(replies(DONE))
    async with open_stage(tmp_path, replies(DONE)) as stage:
        async with open_test_engine(tmp_path, provider, seed=1) as other:
            with pytest.raises(SessionHeldError, match="is held by"):
                await other.archive_session(stage.session.id)
        (row,) = await stage.engine.sessions()
        assert row.archived_at is None
        page = await stage.engine.sessions(before=row)
        assert page == []


async def test_what_was_said_is_found_once_it_is_indexed(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.prompt("where is the lighthouse?")
        await stage.engine._world.writer.flush()  # type: ignore[attr-defined]
        (hit,) = await stage.engine.search("LIGHTHOUSE")
        assert (hit.session_id, hit.role) == (stage.session.id, "user")
        assert await stage.engine.search("lighthouse", session_id="other") == []
