"""What a session shows that nobody has loaded: the same wherever one looks (SES-04)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from kit.gateway import connected, served
from kit.rehearsal import Probe, open_stage, replies

from greenroom.actors.providers import Call, Halt, Say, Use
from greenroom.engine import Engine, Grant, SessionClosedError
from greenroom.protocol import StatusChanged
from greenroom.testing import RehearsalProvider, open_test_engine

DONE = [Say("done"), Use(1, 1), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]


async def paused(tmp_path: Path) -> str:
    """Leave a session whose turn waits for an answer; return its id."""
    async with trio.open_nursery() as outside:  # noqa: SIM117 - leaves first
        async with open_stage(tmp_path, replies(ASK), Probe(permission="?")) as stage:

            async def prompt() -> None:
                with pytest.raises(SessionClosedError):
                    await stage.session.prompt("go")

            outside.start_soon(prompt)
            while not await stage.session.interactions():
                await trio.lowlevel.checkpoint()
    return stage.session.id


@asynccontextmanager
async def opened(tmp_path: Path, *rounds: Any) -> AsyncIterator[Engine]:
    provider = RehearsalProvider(replies(*rounds))
    tool = Probe(permission="?")
    async with open_test_engine(tmp_path, provider, tool, builtin=False) as engine:
        yield engine


async def first_status(engine: Engine, session_id: str) -> StatusChanged:
    async with engine.session(session_id).follow() as feed:
        status = next(e for e in await feed.batch() if isinstance(e, StatusChanged))
        assert feed.snapshot is not None
        assert feed.snapshot.state == status.state
        assert feed.snapshot.status_version == status.version
        return status


async def test_a_pause_that_nobody_has_loaded_is_the_same_in_list_and_snapshot(
    tmp_path: Path,
) -> None:
    session_id = await paused(tmp_path)
    async with (
        opened(tmp_path) as engine,
        served(engine) as gateway,
        connected(gateway) as client,
    ):
        asked = {"sessionId": session_id}
        one = await client.call("_greenroom/session/get", **asked)
        attached = await client.call("_greenroom/session/attach", **asked)
        assert not one["session"].get("isLoaded")
        assert one["session"]["state"] == attached["snapshot"]["state"] == "generating"
        assert len(attached["interactions"]) == 1
        await client.until(lambda: client.events("session/status_changed"))
        (status,) = client.events("session/status_changed")
        assert (status["state"], status["waitingFor"]) == ("generating", "permission")
        assert engine.status(session_id) is None, "looking loads nothing"
        # Looked at again it is no news.
        again = await first_status(engine, session_id)
        assert again.version == attached["snapshot"]["statusVersion"]


async def test_a_pause_that_is_over_elsewhere_is_shown_no_more(tmp_path: Path) -> None:
    session_id = await paused(tmp_path)
    async with (
        opened(tmp_path, DONE) as engine,
        engine.session(session_id).follow() as feed,
    ):
        assert feed.snapshot is not None
        assert feed.snapshot.state == "generating"
        before = feed.snapshot.status_version
        async with opened(tmp_path, DONE) as other:
            session = other.session(session_id)
            (question,) = await session.interactions()
            async with session.follow() as turn:
                await session.answer(question.id, Grant())
                async for event in turn:
                    if isinstance(event, StatusChanged) and event.state == "idle":
                        break
        looked = await first_status(engine, session_id)
        assert (looked.state, looked.waiting_for) == ("idle", None)
        assert looked.version > before


async def test_what_was_a_pause_when_it_was_looked_at_is_idle_once_it_is_loaded(
    tmp_path: Path,
) -> None:
    session_id = await paused(tmp_path)
    async with (
        opened(tmp_path, DONE) as engine,
        engine.session(session_id).follow(),
    ):
        async with opened(tmp_path, DONE) as other:
            session = await other.open_session(session_id)
            await session.cancel()
        await engine.open_session(session_id)
        status = engine.status(session_id)
        assert status is not None
        assert status.state == "idle"
