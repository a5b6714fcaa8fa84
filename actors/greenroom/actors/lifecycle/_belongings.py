"""What the store keeps of an agent beside its row: memories, and bindings of Skills."""

from __future__ import annotations

from collections.abc import Callable

from greenroom.actors.agents import Belongings, PieceWriter
from greenroom.protocol import SkillState, with_only_agents
from greenroom.storage import Piece, Store, put_skill_state, read_skill_state


def belongings_of(writer: PieceWriter, now: Callable[[], float]) -> Belongings:
    """Return what removes an agent's own, and nothing of anybody else (DEL-06)."""

    async def clear_memory(agent_id: str) -> None:
        await writer.submit(Piece(lambda store: store.forget_recollections(agent_id)))

    def retire(store: Store, agent_id: str) -> None:
        # Once more: what was taken in since is of an epoch that ends here.
        store.forget_recollections(agent_id)

    async def clear_skills(agent_id: str) -> None:
        await writer.submit(Piece(lambda store: _unbind(store, agent_id, now())))

    return Belongings(clear_memory, retire, clear_skills)


def _unbind(store: Store, agent_id: str, now: float) -> None:
    state: SkillState = read_skill_state(store)
    if agent_id in state.agents:
        others = state.agents.keys() - {agent_id}
        put_skill_state(store, with_only_agents(state, others), now)
