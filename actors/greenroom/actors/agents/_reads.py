"""What is read of an agent: its row, decoded, with what is in force for it."""

from __future__ import annotations

import msgspec

from greenroom.protocol import (
    AgentConfig,
    AgentDescriptor,
    AgentNotFoundError,
    NativeAgent,
    chosen_agent,
    decode_agent,
)
from greenroom.storage import Reader, read_app_settings
from greenroom.storage.legacy import effective_config

from . import _rows
from ._settings import Selected


def decoded(reader: Reader, agent_id: str) -> AgentDescriptor:
    """Return the strictly decoded agent, with what is in force for it."""
    row = _rows.find(reader, agent_id)
    agent = decode_agent(row)
    if isinstance(agent, NativeAgent):
        config = effective_config(reader, row)
        return msgspec.structs.replace(agent, config=config)
    return agent


def config(reader: Reader, agent_id: str) -> AgentConfig | None:
    """Return what is in force for a native agent; ``None`` for any other."""
    try:
        row = _rows.find(reader, agent_id)
    except AgentNotFoundError:
        return None
    return effective_config(reader, row) if row.kind == "native" else None


def kind(reader: Reader, agent_id: str) -> str | None:
    """Return the kind of an agent, whether or not it can be decoded."""
    try:
        return _rows.find(reader, agent_id).kind
    except AgentNotFoundError:
        return None


def selected(reader: Reader, named: str | None) -> Selected:
    """Return the agent that a session of *named* is of (AGT-10)."""
    app = read_app_settings(reader)
    return Selected(decoded(reader, chosen_agent(named, app.default_agent)), app)
