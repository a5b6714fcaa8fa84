from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from kit.rehearsal import open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.protocol import DiskFullError, PlanEntry


@attrs.define(eq=False)
class FullDisk:
    """A writer that takes nothing until it is mended."""

    inner: Any
    full: bool = True

    async def submit(self, piece, told=None):
        if self.full:
            raise DiskFullError("no room")
        return await self.inner.submit(piece, told)

    def submit_soon(self, piece, settled):
        self.inner.submit_soon(piece, settled)


async def test_a_plan_that_was_not_written_counts_no_revision(tmp_path):
    async with open_stage(tmp_path, replies()) as stage:
        loaded = stage.session._sessions.loaded(stage.session.id)
        assert loaded is not None
        record = loaded.session.ports.record
        disk = record.writer = FullDisk(record.writer)
        with pytest.raises(DiskFullError):
            await record.update_plan((PlanEntry("lost"),))
        assert record.plan is None
        disk.full = False
        assert await record.update_plan((PlanEntry("kept"),)) == 1
        async with stage.session.follow() as feed:
            assert feed.snapshot is not None
            assert feed.snapshot.plan == record.plan


@attrs.define(eq=False)
class SlowDisk:
    """A writer that lets nothing through until it is told to."""

    inner: Any
    gate: trio.Event = attrs.field(factory=trio.Event)

    async def submit(self, piece, told=None):
        await self.gate.wait()
        return await self.inner.submit(piece, told)

    def submit_soon(self, piece, settled):
        self.inner.submit_soon(piece, settled)


async def test_plans_that_are_made_at_once_have_revisions_of_their_own(tmp_path):
    async with open_stage(tmp_path, replies()) as stage:
        loaded = stage.session._sessions.loaded(stage.session.id)
        assert loaded is not None
        record = loaded.session.ports.record
        disk = record.writer = SlowDisk(record.writer)
        revisions: dict[str, int] = {}

        async def plan(what: str) -> None:
            revisions[what] = await record.update_plan((PlanEntry(what),))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(plan, "one")
            nursery.start_soon(plan, "two")
            await wait_all_tasks_blocked()
            disk.gate.set()
        assert sorted(revisions.values()) == [1, 2]
        assert record.plan is not None
        assert revisions[record.plan.entries[0].content] == 2
