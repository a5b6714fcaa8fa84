"""From the sessions that a connection follows to its outbox.

A session is followed by a task only until nothing waits any more; from then on whoever
publishes an event puts its frame into the outbox, without a task or a step of the
scheduler between. Each event becomes a frame once, for all who follow it live.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol, final

import attrs
import trio

from greenroom.actors.gates import BeingDeletedError
from greenroom.actors.sessions import (
    Follower,
    SessionNotFoundError,
    SlowWatcherError,
    Told,
    UnknownCursorError,
)
from greenroom.protocol import GreenroomError, MessageRecord, SessionId
from greenroom.protocol.gateway import (
    ENDED,
    Attached,
    EndedNotice,
    attached,
    event_message,
    interactions_of,
    server_frame,
)
from greenroom.protocol.jsonrpc import encode_json

from ._frames import FrameOutbox

_LOG: Final = logging.getLogger("greenroom.endpoints")

MAX_ATTACHED: Final = 1_000
"""Sessions that one connection follows: more than anybody looks at."""


NEWEST: Final = 16
"""Messages among which the one is that may wait for an answer: behind it there is only
what the user said to its turn."""


class TooManyAttachedError(GreenroomError):
    """The connection follows as many sessions as it may; nothing was done."""

    code = "too_many_attached"
    hint = "detach from one, or open another connection"

    def __init__(self) -> None:
        super().__init__(f"a connection follows at most {MAX_ATTACHED} sessions")


class ReplacedError(GreenroomError):
    """While the session was looked at, it was attached to again, or detached from."""

    code = "attach_replaced"
    hint = "the later request holds"

    def __init__(self, session_id: SessionId) -> None:
        super().__init__(f"attaching to session {session_id!r} was superseded")


class Followed(Protocol):
    """A session, as its handle shows it."""

    async def start_following(
        self, *, after: int | None = None, incarnation: str | None = None
    ) -> Follower:
        """Return a follower that the caller closes."""
        ...

    async def messages(
        self, *, before: int | None = None, limit: int = 100
    ) -> list[MessageRecord]:
        """Return the newest messages."""
        ...


def frame_of(told: Told) -> bytes:
    """Return the frame that tells an event, made once for all who get it."""
    if told.frame is None:
        message = event_message(told.event, told.json, more=told.more)
        told.frame = server_frame(message)
    return told.frame


@final
@attrs.define(eq=False)
class _Attachment:
    # A session that is followed, as the sink of its events.
    session_id: SessionId
    relay: Relay
    follower: Follower | None = None
    after: int = 0
    """The connection was told everything up to here."""
    incarnation: str | None = None
    """Which tape of the session that is a place of."""
    result: Attached | None = None
    """Until it is on its way, nothing may be told."""
    scope: trio.CancelScope | None = None
    """Around the task that tells what waits."""

    def put(self, told: Told) -> None:
        seq = told.seq
        if seq is not None and not told.more:
            self.after = seq
        self.relay.outbox.put(told.frame or frame_of(told))

    def end(self) -> None:
        # Called in the middle of what somebody publishes.
        self.relay.resume(self)

    def close(self) -> None:
        if self.scope is not None:
            self.scope.cancel()
        self.stop_following()

    def stop_following(self) -> None:
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.close()


@final
@attrs.define(eq=False)
class Relay:
    """What one connection follows."""

    outbox: FrameOutbox
    _session: Callable[[SessionId], Followed]
    _nursery: trio.Nursery
    """Ends with the connection."""
    _attached: dict[SessionId, _Attachment] = attrs.field(
        factory=dict[SessionId, _Attachment], init=False
    )

    async def attach(
        self, session_id: SessionId, after: int | None, incarnation: str | None
    ) -> Attached:
        """Follow a session from *after*, on that tape of it, or from a snapshot.

        What was followed of it before is replaced. Its events are told when `answered`
        was called with what this returns.

        Raises:
            SessionNotFoundError, UnknownCursorError: as following it does.
            TooManyAttachedError: there are too many.
            ReplacedError: another request came in between.
        """
        self.detach(session_id)
        if len(self._attached) >= MAX_ATTACHED:
            raise TooManyAttachedError
        new = self._attached[session_id] = _Attachment(
            session_id, self, incarnation=incarnation
        )
        try:
            new.result = await self._begin(new, after)
        except BaseException:
            self._forget(new)
            raise
        return new.result

    def answered(self, result: object) -> None:
        """What `attach` returned is on its way, so the events may follow."""
        for attachment in self._attached.values():
            if attachment.result is result:
                attachment.result = None
                self._nursery.start_soon(self._tell, attachment)
                return

    def detach(self, session_id: SessionId) -> None:
        """Follow a session no more; no error if it was not followed."""
        old = self._attached.pop(session_id, None)
        if old is not None:
            old.close()

    def close(self) -> None:
        """Follow nothing more."""
        for session_id in tuple(self._attached):
            self.detach(session_id)

    def resume(self, attachment: _Attachment) -> None:
        """Its session was unloaded, or is gone: find out, and go on if that can be."""
        if self._holds(attachment):
            self._nursery.start_soon(self._tell_again, attachment)

    async def _begin(self, new: _Attachment, after: int | None) -> Attached:
        session = self._session(new.session_id)
        follower = await session.start_following(
            after=after, incarnation=new.incarnation
        )
        snapshot = follower.snapshot
        try:
            messages = (
                await session.messages(limit=NEWEST)
                if snapshot is None
                else snapshot.messages
            )
        except BaseException:
            follower.close()
            raise
        if not self._holds(new):
            follower.close()
            raise ReplacedError(new.session_id)
        new.follower, new.incarnation = follower, follower.incarnation
        new.after = snapshot.seq if snapshot is not None else after or 0
        waiting = interactions_of(new.session_id, messages[-NEWEST:])
        return attached(snapshot, new.after, waiting)

    def _holds(self, attachment: _Attachment) -> bool:
        return self._attached.get(attachment.session_id) is attachment

    def _forget(self, attachment: _Attachment) -> None:
        attachment.close()
        if self._holds(attachment):
            del self._attached[attachment.session_id]

    #### Telling

    async def _tell(self, attachment: _Attachment) -> None:
        with trio.CancelScope() as attachment.scope:
            try:
                await self._catch_up(attachment)
            except (SessionNotFoundError, BeingDeletedError):
                self._end(attachment, "deleted")
            except UnknownCursorError:
                self._end(attachment, "rewound")
            except GreenroomError as exc:
                _LOG.warning(
                    "session %s is followed no more: %s", attachment.session_id, exc
                )
                self._end(attachment, "closed", attachment.after)
        attachment.scope = None

    async def _tell_again(self, attachment: _Attachment) -> None:
        attachment.stop_following()
        await self._tell(attachment)

    async def _catch_up(self, attachment: _Attachment) -> None:
        while self._holds(attachment):
            follower = attachment.follower
            if follower is None:
                await self._follow_again(attachment)
                continue
            try:
                await follower.hand_over(attachment, self.outbox.room)
            except (SlowWatcherError, UnknownCursorError):
                # The tape has what the feed had no room for, or says why it has not.
                attachment.stop_following()
            else:
                return

    async def _follow_again(self, attachment: _Attachment) -> None:
        session = self._session(attachment.session_id)
        attachment.follower = await session.start_following(
            after=attachment.after, incarnation=attachment.incarnation
        )
        if not self._holds(attachment):
            attachment.stop_following()

    def _end(
        self, attachment: _Attachment, reason: str, after: int | None = None
    ) -> None:
        if not self._holds(attachment):
            return
        self._forget(attachment)
        notice = EndedNotice(attachment.session_id, reason, after)  # pyright: ignore[reportArgumentType] - one of its words
        message = {"jsonrpc": "2.0", "method": ENDED, "params": notice}
        self.outbox.put(server_frame(encode_json(message)))
