"""Databases of the older system, as small as a test needs them."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

SCHEMA = """
CREATE TABLE agents (
    id TEXT PRIMARY KEY, agent_type, source, name, enabled DEFAULT 1,
    protected DEFAULT 0, description, icon, avatar_json, config_json, state_json,
    created_at, updated_at
);
CREATE TABLE app_settings (key TEXT PRIMARY KEY, value);
"""


def legacy_file(path: Path, *rows: dict[str, Any], version: int | None = None) -> Path:
    """Make the database at *path*; a ``config`` that is no text is made JSON."""
    with closing(apsw.Connection(str(path))) as db:
        db.execute(SCHEMA)
        for row in rows:
            put_legacy_agent(db, **row)
        if version is not None:
            key = "unifiedAgentsMigrationVersion"
            db.execute("INSERT INTO app_settings VALUES (?, ?)", (key, version))
    return path


def put_legacy_agent(db: apsw.Connection, config: Any = None, **fields: Any) -> None:
    """Put one agent; a native one unless *fields* say otherwise."""
    is_text = config is None or isinstance(config, str | bytes)
    kept: dict[str, Any] = {
        "agent_type": "deepchat",
        "source": "manual",
        "name": f"the {fields['id']!r}",
        "config_json": config if is_text else json.dumps(config),
        "created_at": 1_700_000_000_000,
        "updated_at": 1_700_000_000_000,
    }
    kept |= fields
    sql = (
        f"INSERT INTO agents ({', '.join(kept)}) VALUES ({', '.join('?' * len(kept))})"
    )
    db.execute(sql, [*kept.values()])
