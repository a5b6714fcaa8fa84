"""Following a session: snapshot, replay and live feed on one cursor.

The feed is opened before anything is read, so no event falls between what was read
and what is told (law: snapshot and follow share one cursor). Durable events at or
below the cursor are skipped; text that the snapshot holds is not told again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, final

import attrs
import msgspec

from greenroom.actors.backend import ActiveRun
from greenroom.actors.context import incarnation_of
from greenroom.protocol import (
    Event,
    GreenroomError,
    MessageRecord,
    PendingInput,
    Plan,
    SessionId,
    Snapshot,
    StreamUpdated,
    events_of,
    item_kind,
)
from greenroom.storage import Page, Reader, SessionRow

from ._hub import Feed, Hub, Sink, SlowWatcherError, Told
from ._ports import StoreReaders
from ._registry import Sessions
from ._turns import unresolved, wait_reason
from ._world import SessionNotFoundError

SNAPSHOT_MESSAGES: Final = 100
PAGE: Final = 256

SLICE: Final = 256
"""Events that a sink is handed before it is asked again whether it has room."""


class UnknownCursorError(GreenroomError):
    """The cursor is none of this tape: beyond its end, or of one that was cleared."""

    code = "unknown_cursor"
    hint = "follow without a cursor to begin with a snapshot"


@attrs.frozen
class _Seen:
    row: SessionRow
    incarnation: str
    messages: list[MessageRecord]
    plan: Plan | None
    inputs: tuple[PendingInput, ...]


@final
@attrs.define(eq=False)
class Follower:
    """An asynchronous iterator over a session's events.

    ``snapshot`` is where it starts when no cursor was given; the events go on from
    there. With a cursor there is no snapshot, and the events after it come first.

    It is iterated, or hands over to a sink once; `close` ends it either way.
    """

    snapshot: Snapshot | None
    incarnation: str
    """Which tape of the session it is; its cursors are of this one."""
    _feed: Feed
    _readers: StoreReaders
    _after: int
    """Durable events up to here were handed out, or are in the snapshot."""
    _replay_to: int
    """Durable events up to here are read from the tape."""
    _release: Callable[[], None]
    """Gives back what following holds."""
    _ready: deque[Told] = attrs.field(factory=deque[Told], init=False)

    def __aiter__(self) -> Follower:
        return self

    async def __anext__(self) -> Event:
        """Return the next event.

        Raises:
            SlowWatcherError: too far behind; follow again.
            UnknownCursorError: it was cleared before all of it was read.
        """
        if not await self._fill():
            raise StopAsyncIteration
        return self._ready.popleft().event

    async def batch(self) -> list[Event]:
        """Return every event that is there, at least one; none when there are no more.

        Cancelled, it takes none.

        Raises:
            SlowWatcherError: too far behind; follow again.
            UnknownCursorError: it was cleared before all of it was read.
        """
        await self._fill()
        events = [told.event for told in self._ready]
        self._ready.clear()
        return events

    async def hand_over(self, sink: Sink, room: Callable[[], Awaitable[None]]) -> None:
        """Tell *sink* what came before, then leave it to those who publish.

        *room* is awaited before each piece. When this returns the sink is live: it is
        called by whoever publishes, without a task between, until `close`. Nothing is
        told twice or left out, because between the last piece and the switch nothing
        else runs.

        Raises:
            SlowWatcherError: so much happened meanwhile that it has to begin anew,
                after ``seq``.
            UnknownCursorError: it was cleared before all of it was told.
        """
        while True:
            await room()
            if self._after < self._replay_to:
                pieces = await self._replay()
            elif self._moved(sink):
                return
            else:
                pieces = [t for t in self._feed.take(SLICE) if self._is_new(t)]
            for start in range(0, len(pieces), SLICE):
                await room()
                for told in pieces[start : start + SLICE]:
                    sink.put(told)

    def close(self) -> None:
        """Follow no longer; a sink is told nothing more."""
        self._release()

    def _moved(self, sink: Sink) -> bool:
        try:
            return self._feed.hand_over(sink, self._replay_to)
        except SlowWatcherError:
            raise SlowWatcherError(self._feed.session_id, self._after) from None

    async def _fill(self) -> bool:
        while not self._ready:
            if self._after < self._replay_to:
                self._ready.extend(await self._replay())
                continue
            told = await self._feed.receive(self._after)
            if not told:
                return False
            self._ready.extend(each for each in told if self._is_new(each))
        return True

    async def _replay(self) -> list[Told]:
        after, session_id = self._after, self._feed.session_id
        page, incarnation = await self._readers.read(
            lambda reader: _next_page(reader, session_id, after)
        )
        if incarnation not in (None, self.incarnation):
            raise _cleared(session_id, after)
        # The tape may have grown; what is beyond comes from the feed.
        entries = [entry for entry in page.entries if entry.seq <= self._replay_to]
        self._after = entries[-1].seq if entries else self._replay_to
        return [told for entry in entries for told in _told(events_of(entry))]

    def _is_new(self, told: Told) -> bool:
        seq = told.seq
        if seq is None:
            return True
        # Several events may come from one fact.
        self._after = max(self._after, seq)
        return seq > self._replay_to


def _told(events: tuple[Event, ...]) -> list[Told]:
    return [Told(event, event is not events[-1]) for event in events]


@asynccontextmanager
async def follow(
    sessions: Sessions,
    readers: StoreReaders,
    session_id: SessionId,
    after: int | None,
    incarnation: str | None = None,
) -> AsyncGenerator[Follower]:
    """Follow one session, loaded or not, from *after* or from a snapshot.

    With *incarnation*, *after* is a cursor of that tape.

    Raises:
        SessionNotFoundError: there is no such session.
        BeingDeletedError: it was cleared because it is being deleted.
        UnknownCursorError: *after* is beyond the end of the tape, or negative, or of
            another tape.
    """
    follower = await start_following(sessions, readers, session_id, after, incarnation)
    try:
        yield follower
    finally:
        follower.close()


async def start_following(
    sessions: Sessions,
    readers: StoreReaders,
    session_id: SessionId,
    after: int | None,
    incarnation: str | None = None,
) -> Follower:
    """Return a follower that the caller has to close; otherwise as `follow`."""
    hub = sessions.hub(session_id)
    feed = hub.open_feed()

    def release() -> None:
        hub.drop_feed(feed)
        sessions.release_hub(session_id)

    try:
        seen = await readers.read(lambda reader: _look(reader, session_id))
        # From here to the yield nothing else runs: the feed, the draft and the head
        # that was read are one moment.
        if sessions.loaded(session_id) is None:
            _show_at_rest(hub, seen)
        active = _active(sessions, session_id)
        _catch_up(hub, feed, active)
        head, tape = seen.row.head, seen.incarnation
        if after is None:
            snapshot = _snapshot(hub, seen, active)
            return Follower(snapshot, tape, feed, readers, head, head, release)
        if incarnation not in (None, tape):
            # A deletion clears it first.
            sessions.gates.check(session_id)
            raise _cleared(session_id, after)
        if 0 <= after <= head:
            return Follower(None, tape, feed, readers, after, head, release)
        raise UnknownCursorError(
            f"can't follow after {after}: the tape of session "
            f"{session_id[:80]!r} ends at {head}"
        )
    except BaseException:
        release()
        raise


def _next_page(
    reader: Reader, session_id: SessionId, after: int
) -> tuple[Page, str | None]:
    page = reader.page(session_id, after, PAGE)
    # Of a session that is gone there is neither.
    return page, incarnation_of(reader, session_id) if page.entries else None


def _cleared(session_id: SessionId, after: int) -> UnknownCursorError:
    return UnknownCursorError(
        f"can't follow after {after}: session {session_id[:80]!r} was cleared since"
    )


def _look(reader: Reader, session_id: SessionId) -> _Seen:
    row = reader.session(session_id)
    if row is None:
        raise SessionNotFoundError(session_id)
    messages = reader.messages(session_id, None, SNAPSHOT_MESSAGES)
    inputs = reader.pending_inputs(session_id).rows
    incarnation = incarnation_of(reader, session_id)
    return _Seen(row, incarnation, messages, reader.plan(session_id), inputs)


def _active(sessions: Sessions, session_id: SessionId) -> ActiveRun | None:
    loaded = sessions.loaded(session_id)
    turn = None if loaded is None else loaded.session.turn
    return None if turn is None else turn.active


def _show_at_rest(hub: Hub, seen: _Seen) -> None:
    # Nobody works on it here, so it shows what its tape says (SES-04): that it waits
    # for an answer, or nothing.
    state = seen.row.state
    said = [message for message in seen.messages if message.role == "assistant"]
    asked = unresolved(said[-1]) if said and state == "generating" else ()
    reason = wait_reason(asked[0]) if asked else None
    if state == "generating" or hub.state == "generating":
        hub.show(state, reason)


def _snapshot(hub: Hub, seen: _Seen, active: ActiveRun | None) -> Snapshot:
    messages = tuple(
        msgspec.structs.replace(message, blocks=active.draft.blocks)
        if active is not None and message.id == active.plan.message.id
        else message
        for message in seen.messages
    )
    return Snapshot(
        session_id=seen.row.id,
        seq=seen.row.head,
        incarnation=seen.incarnation,
        settings=seen.row.settings,
        state=hub.state,
        status_version=hub.version,
        messages=messages,
        plan=seen.plan,
        inputs=seen.inputs,
    )


def _catch_up(hub: Hub, feed: Feed, active: ActiveRun | None) -> None:
    # Whoever starts now has missed deltas: every item is told whole, once, after what
    # the feed holds already and before what comes next.
    hub.flush()
    feed.drop_transient()
    events: list[Event] = [hub.status_event()]
    if active is not None:
        events += [
            StreamUpdated(
                session_id=hub.session_id,
                run_id=active.plan.run_id,
                message_id=active.plan.message.id,
                item_id=block.id,
                kind=item_kind(block),
                block=block,
            )
            for block in active.draft.blocks
        ]
    for event in events:
        feed.put(Told(event), 0)
