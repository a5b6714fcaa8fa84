"""Agents on the wire, under the names of today and those of older clients.

The one mapper between the two (AGT-05): it emits the old names beside the new, and it
is the only reader of them on the wire. Inside there is ``kind`` and nothing else.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from .._agents import CatalogueEntry
from .._errors import RemoteProtocolError

_OLD_KINDS: Final = {"native": "deepchat", "acp": "acp"}
_KINDS: Final = {old: kind for kind, old in _OLD_KINDS.items()} | {"native": "native"}


class AgentDto(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An agent, as a client sees it."""

    id: str
    kind: str
    type: str
    """The kind, as older clients call it."""
    agent_type: str
    """The same, under the other old name."""
    source: str
    name: str
    enabled: bool
    protected: bool
    description: str
    icon: str
    avatar: Any
    config: dict[str, Any] | None
    unavailable: str | None


def agent_dto(entry: CatalogueEntry) -> AgentDto:
    """Return *entry* for the wire, with both old names."""
    old = _OLD_KINDS.get(entry.kind, entry.kind)
    return AgentDto(**msgspec.structs.asdict(entry), type=old, agent_type=old)


class _Told(msgspec.Struct, frozen=True, rename="camel"):
    kind: str | None = None
    type: str | None = None
    agent_type: str | None = None


def dto_kind(data: bytes | str) -> str:
    """Return the kind that a client's JSON names, by the new name or an old one.

    Raises:
        RemoteProtocolError: it names none, an unknown one, or two that differ.
    """
    try:
        told = msgspec.json.decode(data, type=_Told)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise RemoteProtocolError(f"an agent's kind can't be read: {exc}") from exc
    named = {each for each in (told.kind, told.type, told.agent_type) if each}
    kinds = {_KINDS.get(each) for each in named}
    if len(kinds) != 1 or None in kinds:
        shown = ", ".join(sorted(named))[:80] or "nothing"
        raise RemoteProtocolError(f"an agent has one kind, native or acp, not {shown}")
    return str(kinds.pop())
