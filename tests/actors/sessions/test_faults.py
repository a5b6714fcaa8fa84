"""What a session does when its store fails under it."""

from __future__ import annotations

import pytest
from kit.rehearsal import Probe, open_stage, replies, spy_on

from greenroom.actors.providers import Call, Halt, Say
from greenroom.engine import TurnFailedError
from greenroom.protocol import DiskFullError, RunTerminal

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]


def full_disk_at(number):
    """Fail the n-th write, counted from now."""
    seen = []

    def fail(what):
        seen.append(what)
        return DiskFullError("the disk is full") if len(seen) == number else None

    return fail


FAULTS = ("raised", "error")
END_OF_ROUND = 7


@pytest.mark.parametrize("number", range(1, 11))
async def test_a_full_disk_at_any_write_is_an_error_and_the_session_goes_on(
    tmp_path, number
):
    probe = Probe()
    async with open_stage(tmp_path, replies(ASK, DONE, DONE, DONE), probe) as stage:
        spy_on(stage).fail = full_disk_at(number)
        outcome = None
        try:
            outcome = (await stage.session.prompt("go")).outcome
        except TurnFailedError:
            outcome = "raised"
        # The end of a round is written again with the end of the run.
        assert outcome in (("completed",) if number == END_OF_ROUND else FAULTS)
        again = await stage.session.prompt("again")
        assert again.outcome == "completed"
        # Each run that started has one terminal, or was acknowledged as lost.
        names = stage.names()
        ended = [r for r in stage.journal() if isinstance(r, RunTerminal)]
        lost = names.count("recovery/run_acknowledged")
        assert names.count("execution/run_started") == len(ended) + lost
        assert len(probe.calls) <= 1
        for message in await stage.session.messages():
            assert message.status != "pending"
