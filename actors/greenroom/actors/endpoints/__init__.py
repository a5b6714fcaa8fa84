"""Endpoints: how others reach the sessions of an engine.

An endpoint is a watcher and a prompter like any other: it holds handles, and nothing
in a session knows of it. A client can only hurt itself: what it sends is bounded, what
it does not read is bounded, and then its connection ends, not its sessions.
"""

from __future__ import annotations

from ._acp_agent import AgentInfo as AgentInfo, serve_acp as serve_acp
from ._outbox import MAX_UNSENT_BYTES as MAX_UNSENT_BYTES
from ._ports import AgentSession as AgentSession, SessionMaker as SessionMaker
from ._stdio import (
    DescriptorReader as DescriptorReader,
    DescriptorWriter as DescriptorWriter,
)
