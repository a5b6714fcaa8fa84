"""Who watches a session, and what they are told.

One hub for each session that is loaded or watched. Publishing never waits: a feed
has a byte budget, and one that falls behind it is closed with the cursor to come
back with (architecture, Events). Deltas of one item are joined until the hub is
flushed, which its owner does at most 20 ms after the first one.

All in the trio thread. A durable event is published after its fact is on disk, never
before (output gate).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, final

import attrs
import msgspec
import trio

from greenroom.protocol import (
    Change,
    Event,
    GreenroomError,
    ItemId,
    MessageId,
    RunId,
    SessionId,
    SessionState,
    StatusChanged,
    StreamUpdated,
    WaitReason,
    rate_limit_notice,
)
from greenroom.protocol.jsonrpc import encode_json

FEED_BYTES: Final = 4 << 20
"""What a watcher may be behind before it is told to come back."""

JOIN_SECONDS: Final = 0.020
"""How long deltas of an item are joined."""


class SlowWatcherError(GreenroomError):
    """The watcher fell too far behind; follow again after ``seq``."""

    code = "slow_watcher"
    hint = "follow again from the last sequence number that was seen"

    def __init__(self, session_id: SessionId, seq: int) -> None:
        super().__init__(f"fell behind the events of session {session_id!r} at {seq}")
        self.seq = seq


@final
@attrs.define(eq=False)
class Told:
    """An event on its way to all who watch, so that it is encoded once for them."""

    event: Event
    more: bool = False
    """Another event of the same fact follows; the cursor moves with the last one."""
    frame: bytes | None = None
    """What an endpoint has made of it for all of its clients; theirs to set."""
    seq: int | None = attrs.field(init=False)
    """The sequence number; a transient event has none."""
    _json: bytes | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        event = self.event
        transient = isinstance(event, StreamUpdated | StatusChanged)
        self.seq = None if transient else event.seq

    @property
    def json(self) -> bytes:
        """The event as JSON."""
        if self._json is None:
            self._json = encode_json(self.event)
        return self._json


class Sink(Protocol):
    """Who is handed events at once, in the task that publishes them.

    Neither method may raise, wait, or publish anything.
    """

    def put(self, told: Told) -> None:
        """Take the next event."""
        ...

    def end(self) -> None:
        """Nothing more comes: the session is gone, or was unloaded."""
        ...


@final
@attrs.define(eq=False)
class Feed:
    """The live events of one watcher, in order."""

    session_id: SessionId
    _events: list[tuple[Told, int]] = attrs.field(factory=list[tuple[Told, int]])
    """With what each counts of the budget."""
    _bytes: int = 0
    _is_slow: bool = False
    _closed: bool = False
    _parked: trio.lowlevel.Task | None = None
    _sink: Sink | None = None
    """Takes what comes, once nothing waits any more."""
    _sink_after: int = 0
    """The sink was told what is up to here."""

    def put(self, told: Told, size: int) -> None:
        """Add an event; over the budget the feed is closed instead."""
        if self._sink is not None:
            if told.seq is None or told.seq > self._sink_after:
                self._sink.put(told)
            return
        if self._closed or self._is_slow:
            return
        if self._bytes + size > FEED_BYTES:
            self._is_slow = True
            self._events.clear()
        else:
            self._events.append((told, size))
            self._bytes += size
        self._wake()

    def drop_transient(self) -> None:
        """Forget what is never replayed; the watcher is told it in another way."""
        self._events = [e for e in self._events if e[0].seq is not None]
        self._bytes = sum(size for _, size in self._events)

    def close(self) -> None:
        """End the feed after what it holds."""
        self._closed = True
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.end()
        self._wake()

    def hand_over(self, sink: Sink, after: int = 0) -> bool:
        """Give everything from now on to *sink*; ``False``: something waits still.

        But not durable events up to *after*, which it knows, though some may be
        published only now. A feed that has ended ends it.

        Raises:
            SlowWatcherError: as `receive` does, with no cursor of its own.
        """
        if self._is_slow:
            raise SlowWatcherError(self.session_id, 0)
        if self._events:
            return False
        if self._closed:
            sink.end()
        else:
            self._sink, self._sink_after = sink, after
        return True

    def drop_sink(self) -> None:
        """Tell the sink, if there is one, nothing more."""
        self._sink = None

    def take(self, most: int) -> list[Told]:
        """Return what waits, *most* events of it; waits for nothing."""
        taken, self._events = self._events[:most], self._events[most:]
        self._bytes -= sum(size for _, size in taken)
        return [told for told, _ in taken]

    async def receive(self, seen: int = 0) -> list[Told]:
        """Return every event that waits; an empty list when the feed has ended.

        Raises:
            SlowWatcherError: the watcher fell behind its budget; it has *seen* the
                durable events up to there.
        """
        while not self._events:
            if self._is_slow:
                raise SlowWatcherError(self.session_id, seen)
            if self._closed:
                return []
            await self._park()
        events, self._events, self._bytes = self._events, [], 0
        return [told for told, _ in events]

    async def _park(self) -> None:
        self._parked = trio.lowlevel.current_task()

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._parked = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _wake(self) -> None:
        if self._parked is not None:
            trio.lowlevel.reschedule(self._parked)
            self._parked = None


@final
@attrs.define(eq=False)
class Hub:
    """The watchers of one session, and its status."""

    session_id: SessionId
    state: SessionState = "idle"
    version: int = 0
    run_id: RunId | None = None
    waiting_for: WaitReason | None = None
    wait_until: float | None = None
    """In the clock of `trio.current_time`."""
    on_delta: Callable[[], None] | None = None
    """Called at the first delta after a flush: flush me within `JOIN_SECONDS`."""
    _feeds: list[Feed] = attrs.field(factory=list[Feed])
    # By item and kind: a call's arguments and its output are two texts of one item.
    _joined: dict[tuple[ItemId, str], tuple[StreamUpdated, list[str]]] = attrs.field(
        factory=dict[tuple[ItemId, str], tuple[StreamUpdated, list[str]]]
    )

    @property
    def watched(self) -> bool:
        """Whether anybody watches."""
        return bool(self._feeds)

    def open_feed(self) -> Feed:
        """Start a feed; it holds what is published from now on."""
        feed = Feed(self.session_id)
        self._feeds.append(feed)
        return feed

    def close_feed(self, feed: Feed) -> None:
        """End a feed; no error if it was ended before."""
        feed.close()
        if feed in self._feeds:
            self._feeds.remove(feed)

    def drop_feed(self, feed: Feed) -> None:
        """End a feed at its watcher's wish; its sink is told nothing more."""
        feed.drop_sink()
        self.close_feed(feed)

    def close(self) -> None:
        """End every feed."""
        self.flush()
        for feed in tuple(self._feeds):
            self.close_feed(feed)

    def break_off(self) -> None:
        """End every feed because the session failed; it works on nothing more."""
        if self.state == "generating":
            self.status("error")
        self.close()
        self.on_delta = None

    def publish(self, event: Event, *, more: bool = False) -> None:
        """Tell every watcher, after whatever was joined before.

        *more*: another event of the same fact follows at once.
        """
        self.flush()
        self._put(event, more=more)

    def status(self, state: SessionState, run_id: RunId | None = None) -> None:
        """Change the session's state and tell watchers, with a new version."""
        self.state, self.run_id = state, run_id
        self.waiting_for = self.wait_until = None
        self.version += 1
        self.publish(self.status_event())

    def show(self, state: SessionState, reason: WaitReason | None) -> None:
        """Change the state to one in which nothing works; no news if it is that."""
        if (self.state, self.waiting_for) != (state, reason):
            self.status(state)
            self.waiting(reason)

    def waiting(self, reason: WaitReason | None, until: float | None = None) -> None:
        """Say what the run waits for; ``None``: it works."""
        again = reason == self.waiting_for and (
            reason == "stream" or until == self.wait_until
        )
        self.waiting_for, self.wait_until = reason, until
        if again:
            # A stream's clock starts anew with each chunk; that is no news.
            return
        self.version += 1
        self.publish(self.status_event())

    async def until_settled(self) -> None:
        """Return when the turn has ended, or the session was unloaded."""
        while self.state == "generating":
            told = await self.next_told()
            if told is None or any(_is_settled(each.event) for each in told):
                return

    async def next_told(self) -> list[Told] | None:
        """Return what watchers are told next; ``None``: the session was unloaded.

        Empty if it was more than a watcher is kept: look at how things are then.
        """
        feed = self.open_feed()
        try:
            return await feed.receive() or None
        except SlowWatcherError:
            return []
        finally:
            self.close_feed(feed)

    def status_event(self) -> StatusChanged:
        """Return the status as it is now."""
        remaining = notice = None
        if self.wait_until is not None:
            remaining = max(0.0, self.wait_until - trio.current_time())
        if self.waiting_for == "rate_gate" and self.run_id is not None:
            notice = rate_limit_notice(self.run_id)
        return StatusChanged(
            session_id=self.session_id,
            version=self.version,
            state=self.state,
            run_id=self.run_id,
            waiting_for=self.waiting_for,
            remaining=remaining,
            notice=notice,
        )

    def change(self, run_id: RunId, message_id: MessageId, change: Change) -> None:
        """Tell watchers of a change to an item; text is joined for a moment."""
        if not self._feeds:
            return
        event = StreamUpdated(
            session_id=self.session_id,
            run_id=run_id,
            message_id=message_id,
            item_id=change.item_id,
            kind=change.kind,
            offset=change.offset,
            text=change.text,
            block=change.block,
        )
        if change.block is not None:
            self.publish(event)
        else:
            self._join(event)

    def output(
        self,
        run_id: RunId,
        message_id: MessageId,
        item_id: ItemId,
        offset: int,
        text: str,
    ) -> None:
        """Tell watchers what a running tool printed."""
        if self._feeds:
            self._join(
                StreamUpdated(
                    session_id=self.session_id,
                    run_id=run_id,
                    message_id=message_id,
                    item_id=item_id,
                    kind="tool_output",
                    offset=offset,
                    text=text,
                )
            )

    def flush(self) -> None:
        """Hand out what was joined."""
        joined, self._joined = self._joined, {}
        for event, parts in joined.values():
            self._put(msgspec.structs.replace(event, text="".join(parts)))

    def _join(self, event: StreamUpdated) -> None:
        first = not self._joined
        _, parts = self._joined.setdefault((event.item_id, event.kind), (event, []))
        parts.append(event.text)
        if first and self.on_delta is not None:
            self.on_delta()

    def _put(self, event: Event, *, more: bool = False) -> None:
        if not self._feeds:
            return
        told = Told(event, more)
        size = len(told.json)
        # A sink that gives up closes its feed.
        for feed in tuple(self._feeds):
            feed.put(told, size)


def _is_settled(event: Event) -> bool:
    return isinstance(event, StatusChanged) and event.state != "generating"
