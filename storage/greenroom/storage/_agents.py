"""The contract for agents and for the settings of the application.

Both are primary data, not projections: nothing else says what they say. A row is kept
as it is given, within bounds, whether or not it can be decoded; the decoders of
`greenroom.protocol` judge it. Each method is one transaction, or a part of a piece,
so that a change that reads first is one piece and can't be torn.
"""

from __future__ import annotations

from typing import Protocol

from greenroom.protocol import AgentRow


class AgentReader(Protocol):
    """Reads of agents and settings."""

    def agents(self) -> list[AgentRow]:
        """Return every agent, the oldest first."""
        ...

    def agent(self, agent_id: str) -> AgentRow | None:
        """Return one agent, by reading one row (AGT-14)."""
        ...

    def app_setting(self, key: str) -> str | None:
        """Return the JSON text of a setting of the application."""
        ...


class AgentWriter(Protocol):
    """Writes of agents and settings; none of them needs a grant."""

    def put_agent(self, row: AgentRow) -> None:
        """Keep *row*, new or in the place of the one with its id.

        Raises:
            RefusedFactError: a field is out of bounds, or `MAX_AGENTS` are kept.
        """
        ...

    def drop_agent(self, agent_id: str) -> bool:
        """Remove a row; whether there was one. Who may be removed is not asked here."""
        ...

    def put_app_setting(self, key: str, value: str | None, *, now: float) -> None:
        """Keep the JSON text *value* under *key*; ``None`` removes it.

        Raises:
            RefusedFactError: the key or the value is out of bounds, or no JSON.
        """
        ...
