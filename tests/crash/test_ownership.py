"""What a session owns is on disk, and nowhere else."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kit.rehearsal import read_tape

from greenroom.engine import open_engine
from greenroom.protocol import SessionId
from greenroom.testing import RehearsalProvider

OWNER = Path(__file__).with_name("owner.py")


def killed_owner(state: Path, workspace: Path) -> dict[str, Any]:
    workspace.mkdir()
    command = [sys.executable, str(OWNER), str(state), str(workspace)]
    ended = subprocess.run(command, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    return msgspec.json.decode(ended.stdout)


def plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


@pytest.mark.contract("SES-01")
async def test_all_that_a_session_owns_outlives_its_process(tmp_path: Path) -> None:
    state = tmp_path / "state"
    held = killed_owner(state, tmp_path / "workspace")
    session_id = SessionId(held["identity"])
    before = read_tape(state, session_id)
    provider = RehearsalProvider([])
    async with open_engine(state=state, provider=provider) as engine:
        (row,) = await engine.sessions()
        session = await engine.open_session(row.id)
        loaded = session._sessions.loaded(session.id)
        assert loaded is not None
        instance = loaded.session
        await instance.history.complete()
        assert row.id == instance.id == session_id
        assert row.settings.agent_id == held["assignment"]
        assert plain(row.settings) == plain(instance.settings) == held["settings"]
        assert plain(await session.messages()) == held["transcript"]
        assert plain([*instance.history.records]) == held["transcript"]
        assert row.head == instance.ports.record.head == held["tape"] == len(before)
        assert plain(await session.inputs()) == held["pending input"]
        assert plain(instance.inputs.rows) == held["pending input"]
        skills = await engine._readers.read(lambda r: r.skill_selection(session_id))
        assert plain(skills) == held["skills"]
    # Reading it back wrote nothing, and none of it is empty.
    assert read_tape(state, session_id) == before
    assert held["settings"]["maxRounds"] == 7
    assert [m["status"] for m in held["transcript"]] == ["sent"] * 3 + ["error"]
    assert [(r["id"], r["held"]) for r in held["pending input"]] == [("waits", True)]
    assert held["skills"] == ["pdf"]
