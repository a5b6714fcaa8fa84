"""``greenroom inspect`` tells what waits in a session."""

from __future__ import annotations

import json

import pytest
import trio

from greenroom.cli import main
from greenroom.testing import Fail, RehearsalProvider, open_test_engine


async def leave_waiting(folder):
    failing = RehearsalProvider([[Fail("no", status=400)]])
    async with open_test_engine(folder, failing) as engine:
        session = await engine.create_session(workspace=folder)
        await session.queue("Run \x1b[31mthe tests", command_id="mine")
        with trio.move_on_after(5):
            while not any(row.returned for row in await session.inputs()):
                await trio.lowlevel.checkpoint()
    return session.id


def test_what_waits_is_listed_behind_the_story(
    tmp_path, capsys: pytest.CaptureFixture[str]
):
    session_id = trio.run(leave_waiting, tmp_path)
    state = str(tmp_path / "state")
    assert main(["inspect", session_id, "--state", state]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("returned: queue mine: Run ")
    assert "\x1b" not in last
    assert main(["inspect", session_id, "--json", "--state", state]) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (row["id"], row["held"], row["returned"]) == ("mine", True, True)
