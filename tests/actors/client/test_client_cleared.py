"""A client that comes back does not take the tape after a clear for the one before."""

from __future__ import annotations

import trio
from kit.gateway import served
from kit.rehearsal import open_stage, replies
from kit.remote import client_of, of_gateway
from trio.testing import MockClock

from greenroom.actors.providers import Halt, Say
from greenroom.protocol.gateway import Attached

DONE = [Say("done"), Halt()]


async def test_a_clear_that_was_missed_begins_anew_however_far_the_tape_is(
    tmp_path, autojump_clock: MockClock
):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        async with (
            served(stage.engine) as gateway,
            client_of(of_gateway(gateway)) as client,
            client.attach(stage.session.id) as attachment,
        ):
            first = await anext(attachment)
            attachment.drop()
            await stage.session.clear()
            await stage.session.prompt("go")
            with trio.fail_after(60):
                again = await anext(attachment)
        assert isinstance(first, Attached)
        assert isinstance(again, Attached)
        assert first.snapshot is not None
        assert again.snapshot is not None
        assert again.seq > first.seq
        assert again.snapshot.incarnation != first.snapshot.incarnation
