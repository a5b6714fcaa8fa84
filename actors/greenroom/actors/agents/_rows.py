"""Changes of agents' rows, each to be run as one piece: read, judge, write.

A refusal leaves the row as it was, to the byte (AGT-18).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from greenroom.protocol import (
    MAX_AGENTS,
    AgentConfig,
    AgentNotFoundError,
    AgentRefusedError,
    AgentRow,
    decode_agent,
    patched_config,
)
from greenroom.storage import AgentReader, Reader, Store, builtin_row
from greenroom.storage.legacy import aliases, builtin_changed, effective_config


def find(reader: AgentReader, agent_id: str) -> AgentRow:
    """Return the row of *agent_id*, or of the agent that this is another name of.

    Raises:
        AgentNotFoundError: there is none; no other takes its place (AGT-10).
    """
    row = reader.agent(agent_id)
    other = None if row is not None else aliases(reader).get(agent_id)
    if other is not None:
        row = reader.agent(other)
    if row is None:
        raise AgentNotFoundError(agent_id)
    return row


def add(store: Store, row: AgentRow) -> bool:
    """Keep a new agent; whether its id was free.

    Raises:
        AgentRefusedError: ``too_many_agents``.
        AgentUnavailableError: it could not be run.
    """
    if store.agent(row.id) is not None:
        return False
    if len(store.agents()) >= MAX_AGENTS:
        raise AgentRefusedError(
            "too_many_agents",
            f"there are {MAX_AGENTS} agents already",
            hint="remove some that are not used (greenroom agents remove ID)",
        )
    decode_agent(row)
    store.put_agent(row)
    return True


def patch(
    store: Store, agent_id: str, changes: dict[str, Any], now: float
) -> tuple[str, AgentConfig]:
    """Change a native agent's configuration; return its id and what is in force."""
    row = _native(find(store, agent_id))
    text = patched_config(row.config, changes)
    made = msgspec.structs.replace(row, config=text, updated_at=now)
    _put(store, made, now)
    return row.id, effective_config(store, made)


def describe(
    store: Store, agent_id: str, changes: dict[str, Any], now: float
) -> AgentRow:
    """Change how an agent is shown, or whether it may begin sessions."""
    row = find(store, agent_id)
    if row.protected and changes.get("enabled") is False:
        raise _protected(row, "disabled")
    made = msgspec.structs.replace(row, **changes, updated_at=now)
    store.put_agent(made)
    return made


def reset(store: Store, agent_id: str, now: float) -> str:
    """Give a native agent the code's defaults, and no other row; return its id."""
    row = _native(find(store, agent_id))
    made = msgspec.structs.replace(row, config=None, updated_at=now)
    if row.source == "builtin":
        made = msgspec.structs.replace(builtin_row(now), created_at=row.created_at)
    _put(store, made, now)
    return row.id


def removable(reader: Reader, agent_id: str) -> AgentRow:
    """Return the row of the agent with this very id, if it may be removed.

    Raises:
        AgentNotFoundError: there is none.
        AgentRefusedError: ``agent_protected``; ``agent_in_use``, a session refers to
            it, be it by another name.
    """
    row = reader.agent(agent_id)
    if row is None:
        raise AgentNotFoundError(agent_id)
    if row.protected:
        raise _protected(row, "removed")
    others = [name for name, meant in aliases(reader).items() if meant == agent_id]
    if any(reader.sessions(1, agent=name) for name in (agent_id, *others)):
        raise AgentRefusedError(
            "agent_in_use",
            f"agent {row.id!r} has sessions",
            hint="delete them, or move them to another agent, before it is removed",
        )
    return row


def remove(store: Store, agent_id: str, retire: Callable[[Store, str], None]) -> None:
    """Remove an agent that may be, with what *retire* removes; see `removable`."""
    removable(store, agent_id)
    retire(store, agent_id)
    store.drop_agent(agent_id)


def _put(store: Store, row: AgentRow, now: float) -> None:
    store.put_agent(row)
    if row.source == "builtin":
        builtin_changed(store, now)


def _native(row: AgentRow) -> AgentRow:
    if row.kind != "native":
        raise AgentRefusedError(
            "not_native",
            f"agent {row.id!r} is of kind {row.kind}, which has no configuration here",
            hint="remove it and add it anew with another command",
        )
    return row


def _protected(row: AgentRow, what: str) -> AgentRefusedError:
    return AgentRefusedError(
        "agent_protected",
        f"agent {row.id!r} is protected and can't be {what}",
        hint="reset it to have the defaults again (greenroom agents reset ID)",
    )
