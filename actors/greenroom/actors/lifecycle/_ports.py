"""What belongs to a session and is kept elsewhere: narrow doors to whoever keeps it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, final

import attrs
import trio

from greenroom.protocol import SessionId

Remove = Callable[[SessionId], Awaitable[None]]
"""Removes what there is of a session; what is gone already is no error."""


class Delegation(Protocol):
    """Who works for whom: sessions that were made by sessions. A forest."""

    async def interrupt(self, session_id: SessionId) -> None:
        """End the runs that a session has given away; nothing comes back from them."""
        ...

    async def children(self, session_id: SessionId) -> Sequence[SessionId]:
        """Return the sessions that a session has made."""
        ...

    async def is_child(self, session_id: SessionId) -> bool:
        """Whether a session was made by another one, and is none of the user's."""
        ...


@final
@attrs.frozen
class Nobody:
    """See `Delegation`; nobody works for anybody."""

    async def interrupt(self, session_id: SessionId) -> None:
        """See `Delegation.interrupt`."""
        await trio.lowlevel.checkpoint()

    async def children(self, session_id: SessionId) -> Sequence[SessionId]:
        """See `Delegation.children`."""
        await trio.lowlevel.checkpoint()
        return ()

    async def is_child(self, session_id: SessionId) -> bool:
        """See `Delegation.is_child`."""
        await trio.lowlevel.checkpoint()
        return False


async def _nothing(_session_id: SessionId) -> None:
    await trio.lowlevel.checkpoint()


@final
@attrs.frozen
class Stages:
    """What a deletion removes beside the session's own rows (DEL-03)."""

    resources: Remove = _nothing
    """Files and other things that its tools left."""
    delegation: Delegation = attrs.field(factory=Nobody)
    permissions: Remove = _nothing
    """What the user allowed for it."""
