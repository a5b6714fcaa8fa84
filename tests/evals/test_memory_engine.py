"""An engine whose sessions are in memory: nothing is written, nothing is left held."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from greenroom.engine import Engine, MemoryStore, open_engine
from greenroom.protocol import ToolCallBlock
from greenroom.storage import MemberLost
from greenroom.testing import (
    Call,
    Halt,
    RecordingTool,
    RehearsalProvider,
    Say,
    Script,
    open_test_engine,
)

TALK = [[Say("one"), Halt()], [Say("two"), Halt()]]


@asynccontextmanager
async def in_memory(
    store: MemoryStore, script: Script, *, state: Path | None = None
) -> AsyncGenerator[Engine]:
    async with open_engine(
        store=store,
        state=state,
        provider=RehearsalProvider(script),
        gc_thresholds=False,
    ) as engine:
        yield engine


async def test_a_session_goes_on_in_the_next_engine_on_the_same_store(tmp_path: Path):
    store = MemoryStore.create()
    async with in_memory(store, TALK[:1]) as engine:
        session = await engine.create_session(workspace=tmp_path)
        assert (await session.prompt("go")).text == "one"
    async with in_memory(store, TALK[1:]) as engine:
        # Nobody holds it: the first engine has left.
        again = await engine.open_session(session.id)
        assert (await again.prompt("on")).text == "two"
        assert len(await again.messages()) == 4
    assert store.locate(session.id) is None


async def test_an_engine_that_is_closed_is_no_member_any_more():
    store = MemoryStore.create()
    async with in_memory(store, TALK) as engine:
        member = engine._world.member
        assert store.beat(member, now=0.0) is None
    assert isinstance(store.beat(member, now=0.0), MemberLost)


async def test_two_engines_on_one_store_share_it_as_two_on_a_folder_do(tmp_path: Path):
    store = MemoryStore.create()
    async with (
        in_memory(store, TALK[:1]) as first,
        in_memory(store, TALK[1:]) as second,
    ):
        session = await first.create_session(workspace=tmp_path)
        await session.prompt("go")
        assert [row.id for row in await second.sessions()] == [session.id]
        await session.close()
        again = await second.open_session(session.id)
        assert (await again.prompt("on")).text == "two"


async def test_no_folder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    async with in_memory(MemoryStore.create(), TALK) as engine:
        session = await engine.create_session(workspace=home)
        await session.prompt("go")
        assert not engine.state.exists()
    assert list(home.iterdir()) == []


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    folder = tmp_path / "crowded"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number:03}-{'x' * 100}").touch()
    return folder


LIST = [[Call("list", {}), Halt("tool_use")], [Say("seen"), Halt()]]


async def listing(engine: Engine, folder: Path) -> ToolCallBlock:
    session = await engine.create_session(workspace=folder)
    turn = await session.prompt("look")
    (call,) = (b for b in turn.message.blocks if isinstance(b, ToolCallBlock))
    return call


async def test_without_a_folder_long_output_is_an_error_that_says_so(crowded: Path):
    async with in_memory(MemoryStore.create(), LIST) as engine:
        call = await listing(engine, crowded)
    assert call.status == "error"
    assert "can't be kept in a file" in (call.response or "")
    assert "ask for less at once" in (call.response or "")


async def test_with_a_folder_beside_the_store_long_output_is_kept_there(
    tmp_path: Path, crowded: Path
):
    state = tmp_path / "state"
    async with in_memory(MemoryStore.create(), LIST, state=state) as engine:
        call = await listing(engine, crowded)
    assert call.status == "success"
    assert [path.name for path in state.iterdir()] == ["scratch"]


async def test_an_engine_of_a_test_needs_no_folder(tmp_path: Path):
    probe = RecordingTool("probe", result="probed")
    script = [[Call("probe", {}), Halt("tool_use")], [Say("done"), Halt()]]
    provider = RehearsalProvider(script)
    async with open_test_engine(None, provider, probe) as engine:
        session = await engine.create_session(workspace=tmp_path)
        assert (await session.prompt("go")).text == "done"
    assert probe.calls == [{}]
