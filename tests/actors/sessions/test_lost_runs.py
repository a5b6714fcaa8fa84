"""What becomes of a turn whose run could not begin."""

from __future__ import annotations

import pytest
from kit.aftermath import granted_turn
from kit.rehearsal import Probe, calls_of, open_stage, replies, spy_on

from greenroom.actors.providers import Call, Halt, Say
from greenroom.engine import TurnFailedError
from greenroom.protocol import DiskFullError, TextPart
from greenroom.storage import MESSAGE_RETRACTED

ASK = [Say("I ask."), Call("probe", {"n": 1}), Halt("tool_use")]
DONE = [Say("done"), Halt()]


def fails(*failing: tuple[str, int]):
    """Fail the n-th write of a kind, for each of *failing*."""
    seen: dict[str, int] = {}

    def fail(what):
        seen[what] = seen.get(what, 0) + 1
        return (
            DiskFullError("the disk is full") if (what, seen[what]) in failing else None
        )

    return fail


# The second is that of the granted call: see tests/actors/runs/test_deferred.py.
@pytest.mark.parametrize("run", [3])
async def test_a_later_run_that_cannot_begin_takes_nothing_of_the_message(
    tmp_path, run
):
    probe = Probe(permission="may it?")
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        spy_on(stage).fail = fails(("RunStarted", run))
        with pytest.raises(TurnFailedError):
            await granted_turn(stage.session, "go")
        assert (await stage.session.prompt("again")).outcome == "completed"
        messages = await stage.session.messages()
        assert MESSAGE_RETRACTED not in stage.names()
        assert messages[1].status == "error"
        assert getattr(messages[1].blocks[0], "text", "") == "I ask."
        (call,) = calls_of(messages[1])
        assert (call.status == "success") == (len(probe.calls) == 1)


async def test_a_first_run_that_cannot_begin_leaves_no_message(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        spy_on(stage).fail = fails(("RunStarted", 1))
        with pytest.raises(TurnFailedError):
            await stage.session.prompt("go")
        assert await stage.session.messages() == []
        (row,) = await stage.session.inputs()
        assert (row.delivery, row.parts) == ("returned", (TextPart("go"),))


async def test_a_message_that_cannot_be_retracted_is_mended_by_the_next_load(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        spy_on(stage).fail = fails(("RunStarted", 1), ("input/recorded", 3))
        with pytest.raises(TurnFailedError):
            await stage.session.prompt("go")
        assert (await stage.session.prompt("again")).outcome == "completed"
        statuses = [m.status for m in await stage.session.messages()]
        assert statuses == ["sent", "error", "sent", "sent"]
