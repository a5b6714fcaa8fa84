"""Agents and settings of the application, in SQLite.

The reads are bound as methods; the writes run inside a write of `SqliteStore`.
"""

from __future__ import annotations

from typing import Final, Protocol

import apsw

from greenroom.protocol import MAX_AGENTS, AgentRow

from .._agent_rules import full_agents
from ._connection import Row, mapped_errors, one, rows, run

_COLUMNS: Final = (
    "id, kind, source, name, enabled, protected, description, icon, avatar_json,"
    " config_json, state_json, created_at, updated_at"
)
_MARKS: Final = ", ".join("?" * 13)


class Connected(Protocol):
    """What a read needs."""

    @property
    def connection(self) -> apsw.Connection:
        """The connection to read from."""
        ...


def agents(self: Connected) -> list[AgentRow]:
    """See `AgentReader.agents`."""
    sql = f"SELECT {_COLUMNS} FROM agents ORDER BY created_at, id LIMIT ?"
    with mapped_errors():
        return [_agent(row) for row in rows(self.connection, sql, MAX_AGENTS)]


def agent(self: Connected, agent_id: str) -> AgentRow | None:
    """See `AgentReader.agent`."""
    sql = f"SELECT {_COLUMNS} FROM agents WHERE id = ?"
    with mapped_errors():
        row = one(self.connection, sql, agent_id)
    return None if row is None else _agent(row)


def app_setting(self: Connected, key: str) -> str | None:
    """See `AgentReader.app_setting`."""
    with mapped_errors():
        row = one(self.connection, "SELECT value FROM app_settings WHERE key = ?", key)
    return None if row is None else row[0]


def put_agent(db: apsw.Connection, row: AgentRow) -> None:
    """See `AgentWriter.put_agent`."""
    known = one(db, "SELECT 1 FROM agents WHERE id = ?", row.id)
    count = one(db, "SELECT count(*) FROM agents")
    if known is None and count is not None and count[0] >= MAX_AGENTS:
        raise full_agents(count[0])
    run(
        db,
        f"INSERT OR REPLACE INTO agents ({_COLUMNS}) VALUES ({_MARKS})",
        row.id,
        row.kind,
        row.source,
        row.name,
        int(row.enabled),
        int(row.protected),
        row.description,
        row.icon,
        row.avatar,
        row.config,
        row.state,
        row.created_at,
        row.updated_at,
    )


def drop_agent(db: apsw.Connection, agent_id: str) -> bool:
    """See `AgentWriter.drop_agent`."""
    known = one(db, "SELECT 1 FROM agents WHERE id = ?", agent_id)
    run(db, "DELETE FROM agents WHERE id = ?", agent_id)
    return known is not None


def put_app_setting(
    db: apsw.Connection, key: str, value: str | None, now: float
) -> None:
    """See `AgentWriter.put_app_setting`."""
    if value is None:
        run(db, "DELETE FROM app_settings WHERE key = ?", key)
        return
    run(db, "INSERT OR REPLACE INTO app_settings VALUES (?, ?, ?)", key, value, now)


def _agent(row: Row) -> AgentRow:
    return AgentRow(
        id=row[0],
        kind=row[1],
        source=row[2],
        name=row[3],
        enabled=bool(row[4]),
        protected=bool(row[5]),
        description=row[6],
        icon=row[7],
        avatar=row[8],
        config=row[9],
        state=row[10],
        created_at=row[11],
        updated_at=row[12],
    )
