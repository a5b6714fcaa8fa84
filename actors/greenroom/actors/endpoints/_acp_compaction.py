"""``/compact`` in a client: a prompt that is no turn.

It is worked on like one: the client waits for its end, may cancel it, and is told in
the agent's words what came of it.
"""

from __future__ import annotations

from typing import Final, final

import attrs
import trio

from greenroom.actors.context import Compacted
from greenroom.actors.sessions import SlowWatcherError
from greenroom.protocol import GreenroomError, StatusChanged
from greenroom.protocol.acp import v1
from greenroom.protocol.context import COMPACT

from ._acp_turn import Client
from ._ports import AgentSession

COMMANDS: Final = (
    v1.AvailableCommand(
        COMPACT,
        "replace what was said so far by a summary; nothing is lost",
        v1.CommandInput("what matters, for the summary (optional)"),
    ),
)
"""What a client may offer its user."""


@final
@attrs.define(eq=False)
class AcpCompaction:
    """A compaction while it is worked on; see `AcpTurn`."""

    session: AgentSession
    client: Client
    focus: str
    _wanted_stop: trio.Event = attrs.field(factory=trio.Event, init=False)
    _following: trio.Event = attrs.field(factory=trio.Event, init=False)
    _present: bool = attrs.field(default=True, init=False)
    _done: Compacted | None = attrs.field(default=None, init=False)
    _failure: GreenroomError | None = attrs.field(default=None, init=False)

    def leave(self) -> None:
        """The client is gone: tell nothing more, and let it go on."""
        self._present = False

    def cancel(self) -> None:
        """Have it stopped; its response says so, and nothing is changed."""
        self._wanted_stop.set()

    async def run(self) -> v1.StopReason:
        """Compact, say what came of it, and return why it ended.

        Raises:
            GreenroomError: it could not be done.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop)
            nursery.start_soon(self._stop_when_begun)
            await self._following.wait()
            try:
                self._done = await self.session.compact(self.focus)
            except GreenroomError as exc:
                self._failure = exc
            nursery.cancel_scope.cancel()
        if self._done is not None and self._present:
            text = v1.TextContent(str(self._done))
            self.client.update(self.session.id, v1.AgentMessageChunk(text))
        if self._wanted_stop.is_set():
            return "cancelled"
        if self._failure is not None:
            raise self._failure
        return "end_turn"

    async def _stop(self) -> None:
        await self._wanted_stop.wait()
        await self.session.cancel()

    async def _stop_when_begun(self) -> None:
        # A stop that comes before it has begun stops nothing, so it is tried again.
        while True:
            try:
                async with self.session.follow() as events:
                    self._following.set()
                    async for event in events:
                        begun = isinstance(event, StatusChanged)
                        if begun and self._wanted_stop.is_set():
                            await self.session.cancel()
                    return
            except SlowWatcherError:
                continue
