"""What clients of the gateway are sent, and what they send."""

from __future__ import annotations

from ._agents import AgentDto as AgentDto, agent_dto as agent_dto, dto_kind as dto_kind
