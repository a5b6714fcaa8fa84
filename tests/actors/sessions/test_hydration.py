"""What a session is loaded from: its row, once, into an instance that holds nothing."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from kit.rehearsal import open_stage, replies

from greenroom.actors.sessions import _registry
from greenroom.engine import SessionNotFoundError
from greenroom.protocol import PendingInputs
from greenroom.testing import Halt, Say

DONE = [Say("done"), Halt()]


def actors_of(stage: Any) -> list[str]:
    return [info.path for info in stage.engine.tree() if stage.session.id in info.path]


def lose_row(stage: Any) -> None:
    store = stage.engine._world.readers._reader
    sql = "DELETE FROM session_info WHERE name = ?"
    store.connection.execute(sql, (stage.session.id,))


@pytest.mark.contract("SES-06")
async def test_an_instance_whose_row_is_gone_is_evicted(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.prompt("go")
        assert actors_of(stage)
        lose_row(stage)
        with pytest.raises(SessionNotFoundError):
            await stage.engine.open_session(stage.session.id)
        assert stage.session._sessions._loaded == {}
        assert actors_of(stage) == []
        # From here on there is none, whoever asks.
        handle = stage.engine.session(stage.session.id)
        assert handle.settings is None
        assert await stage.engine.sessions() == []
        for ask in (lambda: handle.prompt("again"), handle.clear, handle.compact):
            with pytest.raises(SessionNotFoundError):
                await ask()
        with pytest.raises(SessionNotFoundError):
            async with handle.follow():
                pass
        assert len(stage.provider.requests) == 1
        assert actors_of(stage) == []


@pytest.mark.contract("SES-06")
async def test_opening_reads_settings_once_however_many_ask(tmp_path, monkeypatch):
    reads, inner = [], _registry.read_session

    def read(reader: Any, session_id: Any) -> Any:
        reads.append(session_id)
        return inner(reader, session_id)

    monkeypatch.setattr(_registry, "read_session", read)
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        assert reads == []
        await stage.session.prompt("go")
        await stage.session.configure(title="other")
        before = stage.session._sessions._loaded[stage.session.id].session
        assert before.history.records
        await stage.session.close()
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(stage.engine.open_session, stage.session.id)
        assert reads == [stage.session.id]
        instance = stage.session._sessions._loaded[stage.session.id].session
        assert instance is not before
        assert instance.settings.title == "other"
        # Whatever the one before it was at, this one is at nothing.
        assert (instance.turn, instance.due, instance.compacting) == (None, None, None)
        assert (instance.inputs, instance.steered) == (PendingInputs(), [])
        assert (len(instance.waiters), instance.failed) == (0, False)
        assert stage.session._sessions.hub(stage.session.id).state == "idle"
        await stage.engine.open_session(stage.session.id)
        await stage.session.prompt("again")
        assert reads == [stage.session.id]
