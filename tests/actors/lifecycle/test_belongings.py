"""What an agent leaves in the store when it is removed: nothing of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.rehearsal import open_stage, replies

from greenroom.protocol import (
    Chunk,
    IngestMark,
    SkillRecord,
    SkillState,
    with_binding,
    with_skill,
)
from greenroom.storage import put_skill_state, read_skill_state


@pytest.mark.contract("DEL-06")
async def test_memories_and_bindings_of_a_removed_agent_go_and_others_stay(
    tmp_path: Path,
) -> None:
    async with open_stage(tmp_path, replies()) as stage:
        writer: Any = stage.engine._world.writer
        store, agents = writer._store, stage.engine.agents
        mine, other = await agents.create("mine"), await agents.create("other")
        record = SkillRecord(name="a-skill", path="a-skill", source="x")
        state = with_skill(SkillState(), record)
        for agent_id in (mine, other):
            state = with_binding(state, agent_id, "a-skill", assigned=True)
            chunks = [Chunk(1, f"what {agent_id} knows")]
            assert store.keep_recollections(
                agent_id, stage.session.id, IngestMark(), 1, chunks, now=0.0
            )
        put_skill_state(store, state, 0.0)
        kept = store.recollections(other)
        await agents.remove(mine)
        left = read_skill_state(store)
        assert left.skills == state.skills
        assert left.agents == {other: state.agents[other]}
        assert store.recollections(mine) == []
        assert store.recollections(other) == kept != []
