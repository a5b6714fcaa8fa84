"""What clients are bound to while the store can't be written, and after it was away."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from kit.gateway import connected, served
from kit.rehearsal import replies

from greenroom.actors.providers import Halt, RehearsalProvider, Say
from greenroom.actors.sessions import SessionNotFoundError
from greenroom.engine import Engine, SessionHandle, open_engine
from greenroom.protocol import SessionId
from greenroom.storage import Piece, RefusedFactError, open_store
from greenroom.testing import CrashDisk, crash_disk, open_test_engine

DONE = [Say("done"), Halt()]
BEHIND = Piece(lambda store: None)
"""What is written behind everything that was accepted before."""


@attrs.define(eq=False)
class Stage:
    engine: Engine
    session: SessionHandle


@asynccontextmanager
async def opened(tmp_path: Path, *rounds: Any) -> AsyncIterator[Stage]:
    provider = RehearsalProvider(replies(*rounds))
    async with open_test_engine(tmp_path, provider, builtin=False) as engine:
        yield Stage(engine, await engine.create_session(workspace=tmp_path))


@pytest.fixture
def disk() -> Iterator[CrashDisk]:
    with crash_disk(kind="full") as disk:
        yield disk


async def bound(engine: Engine) -> list[tuple[str, str]]:
    rows = await engine.read(lambda reader: reader.bindings())
    return [(row.client_id, row.session_id) for row in rows]


#### A full disk


@pytest.mark.contract("SES-08")
async def test_a_session_can_be_looked_at_while_the_disk_is_full(
    tmp_path: Path, disk: CrashDisk, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        opened(tmp_path, DONE, DONE) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as phone,
    ):
        await stage.session.prompt("go")
        scope = stage.session.id
        await phone.call("_greenroom/authenticate", clientId="phone")
        disk.crash()
        attached = await phone.call("_greenroom/session/attach", sessionId=scope)
        assert len(attached["snapshot"]["messages"]) == 2
        shown = await phone.call("_greenroom/session/messages", sessionId=scope)
        assert len(shown["messages"]) == 2
        # That of a session which is not there is refused as ever.
        asked = {"sessionId": "none"}
        code = await phone.refused("_greenroom/session/attach", **asked)
        assert code == "session_not_found"
        refused = await phone.refused(
            "_greenroom/prompt", sessionId=scope, content="x", commandId="c"
        )
        assert refused == "disk_full"
        warned = [r for r in caplog.records if r.levelno == logging.WARNING]
        assert any(
            "what clients follow could not be written" in str(r.msg) for r in warned
        )
        assert await bound(stage.engine) == []
        disk.make_room()
        # It was bound all along, and is written with the next change.
        other = await stage.engine.create_session(workspace=tmp_path)
        await phone.call("_greenroom/session/attach", sessionId=other.id)
        assert sorted(await bound(stage.engine)) == sorted(
            [("phone", scope), ("phone", other.id)]
        )
        # And it follows live, as it was told.
        await stage.session.prompt("again")
        await phone.until_idle()


@pytest.mark.contract("SES-08")
async def test_a_client_leaves_while_the_disk_is_full_and_is_forgotten_later(
    tmp_path: Path, disk: CrashDisk
) -> None:
    async with opened(tmp_path) as stage:
        engine, scope = stage.engine, stage.session.id
        async with served(engine) as gateway:
            async with connected(gateway) as phone:
                await phone.call("_greenroom/authenticate", clientId="phone")
                await phone.call("_greenroom/session/attach", sessionId=scope)
                disk.crash()
                await phone.call("_greenroom/session/detach", sessionId=scope)
            assert await bound(engine) == [("phone", scope)]
            disk.make_room()
            async with connected(gateway) as laptop:
                await laptop.call("_greenroom/authenticate", clientId="laptop")
                await laptop.call("_greenroom/session/attach", sessionId=scope)
                assert await bound(engine) == [("laptop", scope)]


async def test_what_was_never_written_is_not_kept_in_mind(
    tmp_path: Path, disk: CrashDisk
) -> None:
    async with opened(tmp_path) as stage:
        bindings, scope = stage.engine.bindings, stage.session.id
        disk.crash()
        await bindings.bind("phone", scope)
        for number in range(20):
            await bindings.bind(f"client-{number}", scope)
        assert len(bindings._owed) == 21
        for number in range(20):
            await bindings.unbind(f"client-{number}", [scope])
        # What is owed still goes along, so each of these failed.
        assert bindings._owed == bindings._held == {("phone", scope)}
        await bindings.unbind("phone", [scope])
        assert not bindings._owed
        assert not bindings._held
        disk.make_room()


async def test_a_binding_to_what_is_gone_meanwhile_is_not_made(
    tmp_path: Path, disk: CrashDisk
) -> None:
    async with opened(tmp_path) as stage:
        bindings = stage.engine.bindings
        doomed = await stage.engine.create_session(workspace=tmp_path)
        disk.crash()
        await bindings.bind("phone", doomed.id)
        disk.make_room()
        await stage.engine.delete_session(doomed.id)
        await bindings.bind("phone", stage.session.id)
        assert await bound(stage.engine) == [("phone", stage.session.id)]


async def test_what_can_never_be_bound_is_refused_and_forgotten(tmp_path: Path) -> None:
    async with opened(tmp_path) as stage:
        bindings = stage.engine.bindings
        with pytest.raises(SessionNotFoundError):
            await bindings.bind("phone", "none")
        with pytest.raises(RefusedFactError):
            await bindings.bind("x" * 10_000, stage.session.id)
        assert not bindings._held
        assert not bindings._owed


#### Maintenance


def a_short_life(folder: Path) -> None:
    """Start another engine on *folder* and end it, as ``greenroom run`` does."""

    async def live() -> None:
        async with open_engine(state=folder, gc_thresholds=False):
            pass

    trio.run(live)


@pytest.mark.contract("SES-08")
async def test_bindings_outlive_an_engine_that_starts_during_maintenance(
    tmp_path: Path,
) -> None:
    provider: Any = RehearsalProvider(replies(DONE))
    state = tmp_path / "state"
    async with open_engine(
        state=state, provider=provider, gc_thresholds=False
    ) as engine:
        session = await engine.create_session(workspace=tmp_path)
        gone = await engine.create_session(workspace=tmp_path)
        for each in (session, gone):
            await engine.bindings.bind("phone", each.id)
        await engine.bindings.unbind("phone", [gone.id])
        await engine.maintain(a_short_life)
        await engine._world.writer.submit(BEHIND)
        assert await bound(engine) == [("phone", session.id)]
        # It is this engine's: it goes with it.
        await engine.bindings.unbind("phone", [session.id])
        assert await bound(engine) == []


async def test_a_client_that_came_through_another_engine_meanwhile_stays_there(
    tmp_path: Path,
) -> None:
    with ExitStack() as lives:

        def another(folder: Path) -> str:
            store = lives.enter_context(closing(open_store(folder)))
            member = store.join("another", "", 1e9, now=0.0)
            store.drop_stale_bindings()
            store.bind(member, "phone", SessionId(session.id), now=0.0)
            return member.id

        state = tmp_path / "state"
        async with open_engine(state=state, gc_thresholds=False) as engine:
            session = await engine.create_session(workspace=tmp_path)
            for client in ("phone", "laptop"):
                await engine.bindings.bind(client, session.id)
            # The store is another thread's, which has ended by the time it is closed.
            other = await engine.maintain(another)
            await engine._world.writer.submit(BEHIND)
            rows = await engine.read(lambda reader: reader.bindings())
            through = {row.client_id: row.member_id for row in rows}
            assert through == {"phone": other, "laptop": engine._world.member.id}
