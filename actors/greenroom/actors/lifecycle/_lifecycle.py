"""All of it together, as an engine holds it."""

from __future__ import annotations

from typing import final

import attrs

from greenroom.actors.agents import AgentManager
from greenroom.actors.sessions import Sessions

from ._deletion import Deletion
from ._first_turn import FirstTurns
from ._fork import Forks
from ._ports import Stages
from ._transfer import Transfers


@final
@attrs.frozen
class Lifecycle:
    """What begins sessions from others, ends them, and gives them away."""

    deletion: Deletion
    forks: Forks
    transfers: Transfers
    first_turns: FirstTurns

    @classmethod
    def of(cls, sessions: Sessions, agents: AgentManager, stages: Stages) -> Lifecycle:
        """Return what works on *sessions* and *agents*."""
        deletion = Deletion(sessions, agents, stages)
        return cls(
            deletion,
            Forks(sessions, agents),
            Transfers(sessions, agents, deletion),
            FirstTurns(sessions, deletion),
        )
