"""Agents and settings of the application, in memory."""

from __future__ import annotations

from typing import final

import attrs

from greenroom.protocol import MAX_AGENTS, AgentRow

from .._agent_rules import full_agents
from ._undo import Undo


@final
@attrs.define(eq=False)
class AgentTables:
    """What is kept of them; changed inside a write of `MemoryStore` only."""

    _undo: Undo
    rows: dict[str, AgentRow] = attrs.field(factory=dict[str, AgentRow])
    settings: dict[str, str] = attrs.field(factory=dict[str, str])

    def all(self) -> list[AgentRow]:
        """See `AgentReader.agents`."""
        return sorted(self.rows.values(), key=lambda row: (row.created_at, row.id))

    def put(self, row: AgentRow) -> None:
        """See `AgentWriter.put_agent`."""
        if row.id not in self.rows and len(self.rows) >= MAX_AGENTS:
            raise full_agents(len(self.rows))
        self._undo.put(self.rows, row.id, row)

    def drop(self, agent_id: str) -> bool:
        """See `AgentWriter.drop_agent`."""
        known = agent_id in self.rows
        self._undo.drop(self.rows, agent_id)
        return known

    def put_setting(self, key: str, value: str | None) -> None:
        """See `AgentWriter.put_app_setting`."""
        if value is None:
            self._undo.drop(self.settings, key)
        else:
            self._undo.put(self.settings, key, value)
