"""Which client follows which session, for endpoints that serve clients (SES-08).

A binding is for others to read; it decides nothing. So it holds as soon as it is said,
and the store has it as soon as it can: what a full disk did not take is written with
the next change that it takes. Looking at a session needs no room on the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, final

import attrs
import trio

from greenroom.actors.sessions import PieceWriter, SessionNotFoundError
from greenroom.protocol import SessionId, StorageError
from greenroom.storage import Member, Piece, RefusedFactError, Settled, Store

_LOG: Final = logging.getLogger("greenroom.endpoints")

MAX_CARRIED: Final = 100
"""Changes that could not be written and go with the next one, which stays short."""

_Key = tuple[str, SessionId]


@attrs.define(eq=False)
class _Sent:
    # A change on its way to the disk.
    done: trio.Event = attrs.field(factory=trio.Event)
    there: bool = True
    """There is a session to be bound to."""
    error: BaseException | None = None
    """Why it can't ever be written."""

    async def wait(self) -> None:
        await self.done.wait()
        if self.error is not None:
            raise self.error


@final
@attrs.define(eq=False)
class Bindings:
    """Keeps bindings of the clients that came through one engine."""

    _writer: PieceWriter
    _member: Member
    _now: Callable[[], float]
    _held: set[_Key] = attrs.field(factory=set[_Key], init=False)
    """What clients are bound to, be it written or not."""
    _written: set[_Key] = attrs.field(factory=set[_Key], init=False)
    """What the store has of it, as far as that is known."""
    _owed: set[_Key] = attrs.field(factory=set[_Key], init=False)
    """Where a write has failed that made the store differ from what is held."""

    async def bind(self, client_id: str, session_id: str) -> None:
        """Keep that a client follows a session; returns when it is durable.

        If it can't be written it holds all the same, and that is logged. Cancelled, it
        may hold.

        Raises:
            SessionNotFoundError: there is no such session.
            RefusedFactError: an id is too long, or is none.
        """
        key = client_id, SessionId(session_id)
        self._held.add(key)
        sent = self._send([key], new=key)
        await sent.wait()
        if not sent.there:
            raise SessionNotFoundError(session_id)

    async def unbind(self, client_id: str, session_ids: Sequence[str]) -> None:
        """Forget that a client follows these sessions, and nothing else.

        Returns when that is durable. If it can't be written, that is logged, and what
        is kept goes with a later change or with this engine.
        """
        await self._let_go(client_id, session_ids).wait()

    def unbind_soon(self, client_id: str, session_ids: Sequence[str]) -> None:
        """Forget it with the next group, behind what was asked before; never waits."""
        self._let_go(client_id, session_ids)

    def restore_soon(self) -> None:
        """Write again what is held, after the store was closed for a while.

        Another engine that started meanwhile took this one for dead, and forgot what
        came through it. Who came through another one since stays bound there.
        """
        if self._held:
            self._send(list(self._held))

    def _let_go(self, client_id: str, session_ids: Sequence[str]) -> _Sent:
        keys = [(client_id, SessionId(each)) for each in session_ids]
        self._held.difference_update(keys)
        return self._send(keys)

    #### Writing; what is settled is told in the order in which it was sent

    def _send(self, keys: Sequence[_Key], new: _Key | None = None) -> _Sent:
        sent, now = _Sent(), self._now()
        every = dict.fromkeys([*keys, *islice(self._owed, MAX_CARRIED)])
        changes = [(key, key in self._held) for key in every]

        def run(store: Store) -> bool:
            if new is not None and store.session(new[1]) is None:
                return False
            if new is not None:
                # Whoever the client came through before, it is here now.
                store.bind(self._member, *new, now=now)
            self._write(store, changes, now)
            return True

        def settled(result: Settled) -> None:
            if result.error is None:
                sent.there = result.value
                self._wrote(changes if sent.there else ())
            else:
                sent.error = None if _may_pass(result.error) else result.error
            if new is not None and (sent.error is not None or not sent.there):
                self._held.discard(new)
            if result.error is not None:
                self._failed(every, result.error)
            sent.done.set()

        self._writer.submit_soon(Piece(run), settled)
        return sent

    def _write(
        self, store: Store, changes: Iterable[tuple[_Key, bool]], now: float
    ) -> None:
        for (client_id, scope), is_bound in changes:
            if not is_bound:
                store.unbind(self._member, client_id, [scope])
            elif store.session(scope) is not None and not store.bindings(
                client=client_id, session=scope
            ):
                store.bind(self._member, client_id, scope, now=now)

    def _wrote(self, changes: Iterable[tuple[_Key, bool]]) -> None:
        for key, is_bound in changes:
            self._owed.discard(key)
            if is_bound:
                self._written.add(key)
            else:
                self._written.discard(key)

    def _failed(self, keys: Iterable[_Key], error: BaseException) -> None:
        for key in keys:
            if (key in self._held) == (key in self._written):
                self._owed.discard(key)
            else:
                self._owed.add(key)
        _LOG.warning(
            "what clients follow could not be written (%d bindings wait): %s",
            len(self._owed),
            error,
        )


def _may_pass(error: BaseException) -> bool:
    # A disk may have room again; an id stays what it is.
    return isinstance(error, StorageError) and not isinstance(error, RefusedFactError)
