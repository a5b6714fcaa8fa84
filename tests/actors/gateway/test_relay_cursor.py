"""Where a connection goes on in a session that was unloaded, and comes back."""

from __future__ import annotations

from typing import Any

import attrs
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from greenroom.actors.endpoints.gateway._frames import Flusher, FrameOutbox
from greenroom.actors.endpoints.gateway._relay import Relay
from greenroom.actors.sessions import Told
from greenroom.protocol import Plan, PlanUpdated, SessionId

ID = SessionId("s")


@attrs.define(eq=False)
class Session:
    """A session that is followed live at once; each following is kept."""

    asked: list[int | None] = attrs.field(factory=list)
    sink: Any = None
    snapshot: None = None
    incarnation: str = "i"

    async def start_following(self, *, after=None, incarnation=None) -> Any:
        self.asked.append(after)
        return self

    async def messages(self, *, before=None, limit=100) -> list[Any]:
        return []

    async def hand_over(self, sink, room) -> None:
        await room()
        self.sink = sink

    def close(self) -> None:
        pass


def told(seq: int, *, more: bool) -> Told:
    return Told(PlanUpdated(session_id=ID, seq=seq, plan=Plan(1, ())), more)


async def test_a_fact_of_which_more_was_to_come_is_told_again_from_its_beginning():
    session = Session()
    async with trio.open_nursery() as nursery:
        ours, _ = memory_stream_pair()
        outbox = FrameOutbox(ours, Flusher(nursery))
        relay = Relay(outbox, lambda _: session, nursery)
        relay.answered(await relay.attach(ID, 3, None))
        await wait_all_tasks_blocked()
        session.sink.put(told(4, more=True))
        session.sink.put(told(4, more=False))
        session.sink.put(told(5, more=True))
        # The session is unloaded before the rest of the fact was told.
        session.sink.end()
        await wait_all_tasks_blocked()
        assert session.asked == [3, 4]
        nursery.cancel_scope.cancel()
