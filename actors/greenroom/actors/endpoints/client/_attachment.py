"""A session that is followed, over any number of connections."""

from __future__ import annotations

from typing import Final, Protocol, final

import attrs
import msgspec
import trio

from greenroom.protocol import Event, SessionId
from greenroom.protocol.gateway import METHODS, PREFIX, Attach, Attached

from ._errors import CallError, ConnectionLostError, SilentGatewayError
from ._feed import Feed
from ._link import Link

ATTACH: Final = PREFIX + "session/attach"
GRACE_SECONDS: Final = 5.0
"""Beyond the gateway's own deadline, for the way."""

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
"""Between two attaches that nothing was told after."""

_PASSING: Final = frozenset(
    {"deadline_exceeded", "gateway_stopped", SilentGatewayError.code}
)
"""Why a session that is followed already can't be attached to for a moment."""


class Linked(Protocol):
    """Whoever has the connection."""

    async def linked(self) -> Link:
        """Return the connection that is up, once there is one."""
        ...


@final
@attrs.define(eq=False)
class Attachment:
    """An asynchronous iterator over a session: where it begins, then its events.

    The first item is an `Attached`, with a snapshot where no cursor was given. After a
    lost connection the events go on behind the last one that was taken, without one
    left out or told twice. Where that can't be, because the session was cleared, or its
    state put back, another `Attached` with a snapshot comes, and what was known of the
    session is forgotten. It ends when the session is deleted. For one task.
    """

    session_id: SessionId
    _client: Linked
    _after: int | None
    _feed: Feed | None = attrs.field(default=None, init=False)
    _link: Link | None = attrs.field(default=None, init=False)
    _has_begun: bool = attrs.field(default=False, init=False)
    _pause: float = attrs.field(default=0.0, init=False)
    _incarnation: str | None = attrs.field(default=None, init=False)
    """Of the newest snapshot: what the cursor is a place of."""

    @property
    def after(self) -> int | None:
        """The cursor: durable events up to here were taken."""
        return self._after

    def __aiter__(self) -> Attachment:
        return self

    async def __anext__(self) -> Event | Attached:
        """Return the next event. Cancelled, it takes none.

        Raises:
            CallError: the session can't be followed.
            GreenroomError: there is no connection any more, see `Client`.
        """
        await trio.lowlevel.checkpoint()
        while True:
            feed = self._feed
            if feed is None:
                attached = await self._begin()
                if attached is not None:
                    return attached
            elif not feed.is_empty:
                event, seq = feed.take()
                self._after = seq or self._after
                self._pause = 0.0
                return event
            elif feed.end is None:
                await feed.wait()
            elif feed.end == "deleted":
                raise StopAsyncIteration
            else:
                self.drop()
                if feed.end == "rewound":
                    self._after = None

    def drop(self) -> None:
        """Take no more from the connection that is up."""
        if self._feed is not None and self._link is not None:
            self._link.forget(self._feed)
        self._feed = None

    async def _begin(self) -> Attached | None:
        link = await self._client.linked()
        await self._rest()
        feed = Feed(self.session_id)
        try:
            await self._ask(link, feed)
        except ConnectionLostError:
            return None
        except (CallError, SilentGatewayError) as exc:
            if self._has_begun and exc.code in _PASSING:
                return None
            if exc.code != "unknown_cursor" or self._after is None:
                raise
            self._after = None
            return None
        self._feed, self._link = feed, link
        attached = feed.attached
        assert attached is not None
        is_new = self._after is None or not self._has_begun
        self._has_begun = True
        if self._after is None:
            self._after = attached.seq
        if attached.snapshot is not None:
            self._incarnation = attached.snapshot.incarnation
        return attached if is_new else None

    async def _ask(self, link: Link, feed: Feed) -> msgspec.Raw:
        with trio.move_on_after(METHODS[ATTACH].seconds + GRACE_SECONDS):
            known = None if self._after is None else self._incarnation
            asked = Attach(self.session_id, self._after, known)
            return await link.request(ATTACH, asked, feed)
        raise SilentGatewayError(ATTACH)

    async def _rest(self) -> None:
        # The first attach, and the first after an event, are made at once.
        pause = self._pause
        self._pause = min(max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE)
        await trio.sleep(pause)
