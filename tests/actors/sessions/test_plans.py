from __future__ import annotations

from typing import Any

import attrs
import pytest
from kit.rehearsal import open_stage, replies

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
