"""What may be kept of an agent, and of a setting: bounds, not meaning.

Pure. A row that can't be decoded may be kept: whoever runs it judges it.
"""

from __future__ import annotations

import math
from typing import Final

from greenroom.protocol import (
    MAX_AGENT_ID,
    MAX_AGENT_NAME,
    MAX_AGENTS,
    MAX_AVATAR_BYTES,
    MAX_DESCRIPTION,
    MAX_ICON,
    MAX_PAYLOAD_BYTES,
    AgentRow,
)

from ._admission import check_json, check_text
from ._errors import RefusedFactError

_MAX_WORD: Final = 40
_MAX_KEY: Final = 200


def check_agent(row: AgentRow) -> None:
    """Refuse *row* unless every field of it is within its bounds."""
    check_text("agent id", row.id, MAX_AGENT_ID)
    check_text("kind of an agent", row.kind, _MAX_WORD)
    check_text("source of an agent", row.source, _MAX_WORD)
    check_text("name of an agent", row.name, MAX_AGENT_NAME)
    _check_kept("description", row.description, MAX_DESCRIPTION)
    _check_kept("icon", row.icon, MAX_ICON)
    _check_kept("avatar", row.avatar, MAX_AVATAR_BYTES)
    _check_kept("config", row.config, MAX_PAYLOAD_BYTES)
    _check_kept("state", row.state, MAX_PAYLOAD_BYTES)
    if not (math.isfinite(row.created_at) and math.isfinite(row.updated_at)):
        raise RefusedFactError(f"agent {row.id[:80]!r} has a time that is none")


def check_app_setting(key: str, value: str | None) -> None:
    """Refuse a setting whose key or value is out of bounds."""
    check_text("key of a setting", key, _MAX_KEY)
    if value is not None:
        check_json(f"setting {key}", value)


def full_agents(count: int) -> RefusedFactError:
    """Return the error that no more agents are kept."""
    return RefusedFactError(
        f"{count} agents are kept already, at most {MAX_AGENTS} are",
        hint="remove some that are not used",
    )


def _check_kept(what: str, text: str | None, limit: int) -> None:
    # May be missing or empty; the limit is in bytes.
    if text:
        check_text(f"{what} of an agent", text, limit)
        if len(text.encode()) > limit:
            raise RefusedFactError(f"{what} of an agent has at most {limit} bytes")
