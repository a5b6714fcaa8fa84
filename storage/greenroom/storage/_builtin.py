"""The builtin agent: there from the first start, and never gone (AGT-09).

It is an agent like the others. That it is there, enabled and protected is all that is
special about it; none is made from it and none falls back to it (AGT-08).
"""

from __future__ import annotations

from typing import Final

import msgspec

from greenroom.protocol import DEFAULT_AGENT_ID, AgentRow

from ._store import Store

BUILTIN_NAME: Final = "greenroom"


def ensure_builtin(store: Store, now: float) -> bool:
    """Make or mend the builtin agent's row; whether it was changed."""
    found = store.agent(DEFAULT_AGENT_ID)
    row = builtin_row(now)
    if found is not None:
        row = msgspec.structs.replace(
            found, kind="native", source="builtin", enabled=True, protected=True
        )
    if row == found:
        return False
    store.put_agent(row)
    return True


def builtin_row(now: float) -> AgentRow:
    """Return the builtin agent as the code has it."""
    return AgentRow(
        id=DEFAULT_AGENT_ID,
        kind="native",
        source="builtin",
        name=BUILTIN_NAME,
        enabled=True,
        protected=True,
        created_at=now,
        updated_at=now,
    )
