"""News of agents, for whoever shows them. A watcher that is slow is let go."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, Literal, final

import attrs
import trio

MAX_UNREAD: Final = 256
"""Changes that a watcher may be behind; beyond that its feed ends."""


@attrs.frozen
class AgentChanged:
    """An agent is durably another than before."""

    agent_id: str
    change: Literal["created", "updated", "reset", "removed", "imported"]


@final
@attrs.define(eq=False)
class Changes:
    """The watchers."""

    _feeds: set[trio.MemorySendChannel[AgentChanged]] = attrs.field(
        factory=set["trio.MemorySendChannel[AgentChanged]"]
    )

    @contextmanager
    def watch(self) -> Generator[trio.MemoryReceiveChannel[AgentChanged]]:
        """Receive what changes from now on.

        A feed that ends on its own was too far behind: list the agents, watch anew.
        """
        send, receive = trio.open_memory_channel[AgentChanged](MAX_UNREAD)
        self._feeds.add(send)
        try:
            yield receive
        finally:
            self._feeds.discard(send)
            send.close()
            receive.close()

    def tell(self, changed: AgentChanged) -> None:
        """Tell every watcher; waits for none."""
        for feed in tuple(self._feeds):
            try:
                feed.send_nowait(changed)
            except (trio.WouldBlock, trio.BrokenResourceError):
                self._feeds.discard(feed)
                feed.close()
