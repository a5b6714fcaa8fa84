"""A client of one gateway, that keeps itself connected.

One task connects, again and again. Requests and attachments use the connection that is
up, and wait for the next one when there is none. What connecting again can't mend is
raised to all of them.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar, cast, final

import attrs
import msgspec
import trio

from greenroom.actors.kernel import Ids, SystemIds
from greenroom.protocol import GreenroomError, SessionId
from greenroom.protocol.gateway import (
    METHODS,
    PREFIX,
    Authenticated,
    Method,
    Scope,
    SessionRef,
)

from ._address import Address
from ._attachment import GRACE_SECONDS, Attachment
from ._connect import Visitor, visit
from ._errors import (
    CallError,
    ConnectionLostError,
    GatewayClosedError,
    GatewayProtocolError,
    GatewayRefusedError,
    SilentGatewayError,
    UnreachableGatewayError,
)
from ._link import Link

START_SECONDS: Final = 30.0
"""How long the first connection is waited for, while the gateway says that it is not
ready: it recovers what a dead engine left."""

GIVE_UP_SECONDS: Final = 900.0
"""How long a lost connection is tried again. A suspended machine's time does not
count."""

FIRST_PAUSE: Final = 0.25
LONGEST_PAUSE: Final = 5.0
STEADY_SECONDS: Final = 5.0
"""A connection that lasted so long was a good one: the next try is made at once."""

REPEATABLE: Final = frozenset(
    PREFIX + name for name in ("prompt", "queue", "steer", "cancel")
)
"""What changes something and may be sent again: it has an identity, or no other
effect the second time. All that only reads may."""

_STOPPED: Final = "gateway_stopped"

R = TypeVar("R", bound=msgspec.Struct)


@final
@attrs.define(eq=False)
class Client:
    """A gateway, for whoever uses it; made by `open_client`."""

    address: Address
    _visitor: Visitor
    _on_change: Callable[[bool], object] = bool
    _link: Link | None = attrs.field(default=None, init=False)
    _scopes: frozenset[Scope] = attrs.field(factory=frozenset[Scope], init=False)
    _failure: GreenroomError | None = attrs.field(default=None, init=False)
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _has_begun: bool = attrs.field(default=False, init=False)
    _up_at: float = attrs.field(default=0.0, init=False)
    _following: set[SessionId] = attrs.field(factory=set[SessionId], init=False)

    def __repr__(self) -> str:
        state = "connected" if self._link else self._failure or "not connected"
        return f"<Client {self.address} {state}>"

    @property
    def client_id(self) -> str:
        """How the gateway knows this client, over all of its connections."""
        return self._visitor.client_id

    @property
    def scopes(self) -> frozenset[Scope]:
        """What the token allows."""
        return self._scopes

    async def call(self, method: str, params: msgspec.Struct, result: type[R]) -> R:
        """Ask for *method*, as ``session/list``, and return its *result*.

        The types are those of its row in `METHODS`. If the connection is lost before
        the answer, or the gateway stops, what may be asked again is, over the next one:
        see `REPEATABLE`.
        Cancelling it ends the waiting, and nothing else.

        Raises:
            CallError: the gateway refuses, with the engine's code for why.
            ConnectionLostError: it is not known whether it was done.
            SilentGatewayError: not answered in time, likewise.
            GatewayProtocolError: the answer is of another type.
            GreenroomError: there is no connection, and there will be none.
            TypeError: those are not the types of the method.
        """
        row = METHODS[PREFIX + method]
        if (type(params), result) != (row.params, row.result):
            raise TypeError(
                f"{method} takes {row.params.__name__} and returns "
                f"{row.result.__name__}"
            )
        answer = await self._answer(row, params)
        try:
            return msgspec.json.decode(answer, type=result)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise GatewayProtocolError(
                f"the answer to {method} can't be read: {str(exc)[:200]}"
            ) from exc

    @asynccontextmanager
    async def attach(
        self, session_id: str, *, after: int | None = None
    ) -> AsyncGenerator[Attachment]:
        """Follow a session from a snapshot, or from the cursor *after*.

        Errors are raised by the iteration.

        Raises:
            RuntimeError: this client follows it already.
        """
        scope = SessionId(session_id)
        if scope in self._following:
            raise RuntimeError(f"session {session_id!r} is followed already")
        self._following.add(scope)
        attachment = Attachment(scope, self, after)
        try:
            yield attachment
        finally:
            self._following.discard(scope)
            attachment.drop()
            with trio.move_on_after(1.0, shield=True):
                await self._detach(scope)

    async def linked(self) -> Link:
        """Return the connection that is up, once there is one."""
        while self._link is None or self._link.ended.is_set():
            if self._failure is not None:
                raise self._failure
            await self._changed.wait()
        return self._link

    async def _detach(self, session_id: SessionId) -> None:
        link = self._link
        if link is None or link.ended.is_set():
            return
        row = METHODS[PREFIX + "session/detach"]
        # The end of the connection does the same.
        with suppress(GreenroomError):
            await link.request(row.name, SessionRef(session_id))

    async def _answer(self, row: Method, params: msgspec.Struct) -> msgspec.Raw:
        # A turn may take any time.
        is_turn = row.name == PREFIX + "prompt"
        seconds = math.inf if is_turn else row.seconds + GRACE_SECONDS
        while True:
            link = await self.linked()
            try:
                with trio.move_on_after(seconds):
                    return await link.request(row.name, params)
            except ConnectionLostError:
                if not _may_repeat(row):
                    raise
                continue
            except CallError as exc:
                if exc.code != _STOPPED or not _may_repeat(row):
                    raise
                # The gateway says so just before it goes.
                with trio.move_on_after(GRACE_SECONDS):
                    await link.ended.wait()
                continue
            raise SilentGatewayError(row.name)

    #### Connecting

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Keep connected, until that is of no use; errors before the first are raised.

        Raises:
            GreenroomError: there was no connection.
        """
        try:
            await self._start(task_status)
            await self._come_back()
        except GreenroomError as exc:
            if not self._has_begun:
                raise
            self._failure = exc
            self._tell_change()

    async def _start(self, task_status: trio.TaskStatus[None]) -> None:
        deadline = trio.current_time() + START_SECONDS
        while not self._has_begun:
            error = await self._visit(task_status)
            if self._has_begun and _is_passing(error):
                return
            is_starting = isinstance(error, GatewayRefusedError) and error.is_passing
            if error is not None and not (
                is_starting and trio.current_time() < deadline
            ):
                raise error
            await trio.sleep(FIRST_PAUSE)

    async def _come_back(self) -> None:
        pause, steady_at = FIRST_PAUSE, trio.current_time()
        while True:
            await trio.sleep(pause)
            tried_at = trio.current_time()
            error = await self._visit(trio.TASK_STATUS_IGNORED)
            now = trio.current_time()
            if now - max(tried_at, self._up_at) >= STEADY_SECONDS:
                pause, steady_at = FIRST_PAUSE, now
            else:
                pause = min(2 * pause, LONGEST_PAUSE)
            if not _is_passing(error):
                assert error is not None
                raise error
            if now - steady_at > GIVE_UP_SECONDS:
                raise error or UnreachableGatewayError(
                    self.address, "it ends every connection"
                )

    async def _visit(self, task_status: trio.TaskStatus[None]) -> GreenroomError | None:
        # Returns why there is no connection any more, if that is known.
        async def live(link: Link, told: Authenticated) -> None:
            self._link, self._scopes = link, frozenset(told.scopes)
            self._up_at = trio.current_time()
            if self._has_begun:
                self._on_change(True)
            else:
                self._has_begun = True
                task_status.started()
            self._tell_change()
            await link.ended.wait()

        try:
            error = (await visit(self.address, self._visitor, live)).error
        except (
            ConnectionLostError,
            GatewayClosedError,
            GatewayProtocolError,
            GatewayRefusedError,
            UnreachableGatewayError,
            CallError,
        ) as exc:
            error = exc
        if self._link is not None:
            self._link = None
            self._on_change(False)
        return error

    def _tell_change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()


def _may_repeat(row: Method) -> bool:
    return row.scope == "read" or row.name in REPEATABLE


def _is_passing(error: GreenroomError | None) -> bool:
    match error:
        case None | UnreachableGatewayError() | ConnectionLostError():
            return True
        case GatewayRefusedError():
            return error.is_passing
        case _:
            return False


@asynccontextmanager
async def open_client(
    url: str,
    *,
    token: str | None = None,
    client_id: str | None = None,
    tls: ssl.SSLContext | None = None,
    insecure: bool = False,
    on_change: Callable[[bool], object] = bool,
    ids: Ids | None = None,
) -> AsyncGenerator[Client]:
    """Connect to a gateway, and stay connected as long as this lasts.

    Leaving it changes nothing: turns go on without their client.

    Args:
        url: of the console, as ``http://127.0.0.1:8427/``, or of the WebSocket.
        token: where the gateway needs one. It goes into a header, never into the URL.
        client_id: the client's own name, the same over its connections, at most 64
            characters of printable ASCII; by default a new one.
        tls: whom to trust; by default whom the system trusts.
        insecure: send the token unencrypted, to another machine too.
        on_change: called with whether there is a connection, when it is lost and when
            there is one again. It may not block.
        ids: identities of clients, for tests.

    Raises:
        AddressError: it is no URL of a gateway, or no place for a token.
        UnreachableGatewayError, GatewayRefusedError, GatewayClosedError,
        GatewayProtocolError: there is no first connection.
    """
    address = Address.of(url)
    if token is not None:
        address.check_token(token, insecure=insecure)
    visitor = Visitor(client_id or (ids or SystemIds()).uuid(), token, tls)
    async with running(Client(address, visitor, on_change)) as client:
        yield client


@asynccontextmanager
async def running(client: Client) -> AsyncGenerator[Client]:
    """Have *client* connected as long as this lasts; errors as in `open_client`."""
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run)
            yield client
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # What was raised inside comes out as it is.
        if len(group.exceptions) != 1:
            raise
        raise cast("BaseException", group.exceptions[0]) from None
