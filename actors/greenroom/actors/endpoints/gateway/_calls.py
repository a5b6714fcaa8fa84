"""What one connection asks of the engine, request by request.

A request is judged before anything is done: its name, its scope, its parameters, and
how much its client has open. What changes something is done by a task of the gateway's,
so that a connection that ends, or a deadline, takes nothing back half-way: the caller
only waits (SES-08, SES-21). What only looks is done in the caller's own task.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, final

import attrs
import msgspec
import trio

from greenroom.protocol import GreenroomError, SessionId
from greenroom.protocol.gateway import (
    METHODS,
    Attach,
    Attached,
    Method,
    Metrics,
    Nothing,
    Scope,
    SessionRef,
)
from greenroom.protocol.jsonrpc import ErrorCode, ErrorObject

from .._acp_turn import RefusedError
from ._calls_client import (
    Client,
    ConnectionEndedError,
    DeadlineError,
    ForbiddenError,
    StoppedError,
)
from ._calls_insight import INSIGHT
from ._calls_lives import LIVES
from ._calls_prompts import PROMPTS
from ._calls_sessions import SESSIONS
from ._ports import Attacher, EnginePort, Handler

_LOG: Final = logging.getLogger("greenroom.endpoints")

HANDLERS: Final[Mapping[str, Handler]] = {**SESSIONS, **LIVES, **PROMPTS, **INSIGHT}
"""Every method but those of the connection itself: attach, detach and metrics."""

_PROMPT: Final = "_greenroom/prompt"


@final
@attrs.define(eq=False)
class Calls:
    """The requests of one client connection; `close` it when the connection ends."""

    _engine: EnginePort
    client: Client
    scopes: frozenset[Scope]
    _attacher: Attacher
    _nursery: trio.Nursery
    """The gateway's: what is begun there is not ended with the connection."""
    _counted: Callable[[], Mapping[str, float]] = dict
    """What the gateway counts itself, by name."""
    _attached: set[SessionId] = attrs.field(factory=set[SessionId], init=False)
    _attaching: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    """One attach or detach at a time, so that bindings are counted right."""
    _closed: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.client.connections += 1

    async def call(self, method: str, params: msgspec.Raw) -> msgspec.Struct:
        """Do what is asked, and return what the method's row in `METHODS` says.

        Cancelling it, and its deadline, end the waiting; what has begun to change
        something goes on.

        Raises:
            RefusedError: no such method, or wrong parameters.
            ForbiddenError: not with this token.
            TooManySubmissionsError: the client has too much open.
            DeadlineError: it takes too long.
            GreenroomError: it can't be done; what that means is the engine's to say.
        """
        known = METHODS.get(method)
        if known is None:
            raise _unknown(method)
        if known.scope not in self.scopes:
            raise ForbiddenError(known)
        asked = _decoded(known, params)
        with trio.move_on_after(known.seconds):
            if known.scope == "read":
                return await self._look(known, asked)
            return await self._change(known, asked)
        raise DeadlineError(known)

    async def close(self) -> None:
        """Give up what this connection is bound to, and nothing else (SES-08)."""
        if self._closed:
            return
        self._closed = True
        self.client.connections -= 1
        attached, self._attached = self._attached, set[SessionId]()
        for session_id in attached:
            self._attacher.detach(session_id)
        await self.client.unbind(attached)

    #### Looking

    async def _look(self, method: Method, asked: Any) -> msgspec.Struct:  # noqa: ANN401 - of the type that the method says
        match method.name:
            case "_greenroom/session/attach":
                async with self._attaching:
                    return await self._attach(asked)
            case "_greenroom/session/detach":
                async with self._attaching:
                    return await self._detach(asked)
            case "_greenroom/metrics":
                return Metrics({**self._engine.metrics(), **self._counted()})
            case name:
                return await HANDLERS[name](self._engine, asked)

    async def _attach(self, asked: Attach) -> Attached:
        session_id = SessionId(asked.session_id)
        self._check_open()
        if session_id not in self._attached:
            await self.client.bind(session_id)
            self._attached.add(session_id)
        try:
            # The connection may have ended meanwhile, and given up what it knew of.
            self._check_open()
            attached = await self._attacher.attach(
                session_id, asked.after, asked.incarnation
            )
            self._check_open()
        except BaseException:
            self._attacher.detach(session_id)
            if session_id in self._attached:
                self._attached.discard(session_id)
                self.client.unbind_soon(session_id)
            raise
        return attached

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionEndedError

    async def _detach(self, asked: SessionRef) -> Nothing:
        session_id = SessionId(asked.session_id)
        self._attacher.detach(session_id)
        if session_id in self._attached:
            self._attached.discard(session_id)
            await self.client.unbind([session_id])
        return Nothing()

    #### Changing

    async def _change(self, method: Method, asked: Any) -> msgspec.Struct:  # noqa: ANN401 - of the type that the method says
        job = _Job(self._engine, self.client, method, asked)
        self._nursery.start_soon(job.run)
        await job.done.wait()
        return job.result()


@final
@attrs.define(eq=False)
class _Job:
    # A change that is being made, whoever waits for it.
    engine: EnginePort
    client: Client
    method: Method
    asked: Any
    done: trio.Event = attrs.field(factory=trio.Event, init=False)
    _value: msgspec.Struct | None = attrs.field(default=None, init=False)
    _error: Exception | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        # Before the task begins, so that requests that come at once are counted.
        if self.method.deadline == "send":
            self.client.begin_submission()

    async def run(self) -> None:
        """Make the change; a turn may take any time, everything else its deadline."""
        # A failure is the caller's, not the gateway's.
        seconds = math.inf if self.method.name == _PROMPT else self.method.seconds
        try:
            with trio.move_on_after(seconds):
                self._value = await HANDLERS[self.method.name](self.engine, self.asked)
                return
            self._error = DeadlineError(self.method)
        except Exception as exc:
            self._error = exc
            if not isinstance(exc, GreenroomError):
                _LOG.error("%s failed", self.method.name, exc_info=exc)
        finally:
            if self.method.deadline == "send":
                self.client.end_submission()
            self.done.set()

    def result(self) -> msgspec.Struct:
        """Return what came of it, once it is done."""
        if self._error is not None:
            raise self._error
        if self._value is None:
            raise StoppedError(self.method)
        return self._value


def _unknown(method: str) -> RefusedError:
    named = method[:100]
    return RefusedError(
        ErrorObject(
            ErrorCode.METHOD_NOT_FOUND,
            f"there is no method {named!r}",
            {"method": named},
        )
    )


def _decoded(method: Method, params: msgspec.Raw) -> Any:  # noqa: ANN401 - of the type that the method says
    try:
        return msgspec.json.decode(params, type=method.params)
    except (msgspec.DecodeError, RecursionError) as exc:
        problem = f"the parameters of {method.name} are wrong: {str(exc)[:500]}"
        raise RefusedError(ErrorObject(ErrorCode.INVALID_PARAMS, problem)) from exc
