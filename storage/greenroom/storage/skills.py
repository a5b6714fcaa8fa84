"""The state of Skill management, as one value in the store, and its transactions.

Bindings and selections change together or not at all: each function here is the body
of one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from greenroom.protocol import CorruptStoreError, SessionId, SkillState

from ._store import Reader, Store

STATE_KEY: Final = "skills.state"


def read_skill_state(reader: Reader) -> SkillState:
    """Return the state; an empty one where nothing was ever managed.

    Raises:
        CorruptStoreError: what is stored can't be read; then no Skill may be used.
    """
    text = reader.app_setting(STATE_KEY)
    if text is None:
        return SkillState()
    try:
        return msgspec.json.decode(text, type=SkillState)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise CorruptStoreError(
            f"the state of Skills can't be read: {exc}",
            hint="restore the state folder from a backup",
        ) from exc


def put_skill_state(store: Store, state: SkillState, now: float) -> None:
    """Keep *state* in the place of the one before."""
    text = msgspec.json.encode(state, order="sorted").decode()
    store.put_app_setting(STATE_KEY, text, now=now)


def change_skill_state(
    store: Store, change: Callable[[SkillState], SkillState], now: float
) -> SkillState:
    """Apply *change* to the state and return what it made."""
    made = change(read_skill_state(store))
    put_skill_state(store, made, now)
    return made


def filter_selections(
    store: Store, doomed: Collection[str], agent_id: str | None = None
) -> int:
    """Take names out of what sessions selected, of one agent or of all; how many.

    The agent is the one that the session is of now (SKL-04).
    """
    changed = 0
    for scope, names in store.skill_selections():
        left = [name for name in names if name not in doomed]
        if len(left) == len(names) or not _is_of(store, scope, agent_id):
            continue
        store.put_skill_selection(scope, left)
        changed += 1
    return changed


def remap_selections(
    store: Store,
    selections: Mapping[SessionId, Collection[str]],
    renamed: Mapping[str, Mapping[str, str]],
) -> None:
    """Keep what sessions selected before, under the names of now.

    *renamed* is by agent. A session that is gone, or of an agent that is not among
    them, is left as it is (SKL-06).
    """
    for scope, names in selections.items():
        row = store.session(scope)
        mapping = None if row is None else renamed.get(row.settings.agent_id)
        if mapping is not None:
            kept = sorted({mapping[name] for name in names if name in mapping})
            store.put_skill_selection(scope, kept)


def _is_of(store: Store, scope: SessionId, agent_id: str | None) -> bool:
    if agent_id is None:
        return True
    row = store.session(scope)
    return row is not None and row.settings.agent_id == agent_id
