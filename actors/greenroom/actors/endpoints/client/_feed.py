"""The events of one session over one connection, as far as they were not taken yet.

What is told is bounded, whoever does not take it: over the budget the feed ends, and
the session is attached to again with the cursor of what was taken. Pure but for the one
event that says that there is news.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Literal, final

import attrs
import msgspec
import trio

from greenroom.protocol import Event, SessionId
from greenroom.protocol.gateway import Attached, EndedNotice, EventNotice

MAX_BYTES: Final = 16 << 20
"""Two budgets of the gateway's: a client that is as slow as it may be is not cut off
twice."""

MAX_EVENTS: Final = 10_000

End = Literal["lost", "rewound", "deleted"]
"""``lost``: attach again with the cursor; ``rewound``: anew."""


@final
@attrs.define(eq=False)
class Feed:
    """What was told of a session; the reader of the connection puts it in."""

    session_id: SessionId
    attached: Attached | None = attrs.field(default=None, init=False)
    end: End | None = attrs.field(default=None, init=False)
    """Set when nothing more comes; what is here can still be taken."""
    _told: int = attrs.field(default=0, init=False)
    """Durable events up to here were put in, whole."""
    _ready: deque[tuple[Event, int | None, int]] = attrs.field(
        factory=deque[tuple[Event, int | None, int]], init=False
    )
    """Each with the cursor behind it, if it moves that, and its size."""
    _held: list[tuple[Event, int]] = attrs.field(
        factory=list[tuple[Event, int]], init=False
    )
    """Events of one fact, of which the last is not there yet."""
    _bytes: int = attrs.field(default=0, init=False)
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)

    def begin(self, attached: Attached) -> None:
        """Events come from here."""
        self.attached = attached
        self._told = attached.seq

    def put(self, notice: EventNotice, size: int) -> None:
        """Take an event in; one that was told before is not told again."""
        if self.end is not None:
            return
        event = notice.event
        seq: int | None = getattr(event, "seq", None)
        if seq is not None and seq <= self._told:
            return
        self._bytes += size
        if self._bytes > MAX_BYTES or len(self._ready) + len(self._held) > MAX_EVENTS:
            self.finish("lost")
            return
        if seq is not None and notice.more:
            self._held.append((event, size))
            return
        if seq is not None:
            self._ready.extend((held, None, of) for held, of in self._held)
            self._held.clear()
            self._told = seq
        self._ready.append((event, seq, size))
        self._news.set()

    def ended(self, notice: EndedNotice) -> None:
        """The gateway tells no more of this session."""
        match notice.reason:
            case "deleted" | "rewound":
                self.finish(notice.reason)
            case "unloaded" | "slow" | "closed":
                self.finish("lost")

    def finish(self, end: End) -> None:
        """Nothing more comes; the first reason holds."""
        self.end = self.end or end
        self._held.clear()
        self._news.set()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to take."""
        return not self._ready

    def take(self) -> tuple[Event, int | None]:
        """Return the next event, and the cursor behind it if it moves that."""
        event, seq, size = self._ready.popleft()
        self._bytes -= size
        return event, seq

    async def wait(self) -> None:
        """Return when there is something to take, or nothing more comes."""
        while self.is_empty and self.end is None:
            self._news = trio.Event()
            await self._news.wait()


def attached_of(result: msgspec.Raw) -> Attached:
    """Return what an attach was answered with.

    Raises:
        DecodeError: it is no such thing.
    """
    return msgspec.json.decode(result, type=Attached)
