"""One ``session/prompt``, from its parts to its stop reason.

Five tasks: one prompts, one tells the client what happens, one puts what waits to the
user, one stops the turn when the client wants it, and one names the session after what
was taken in first. The first ends the others. The turn can be cancelled from the moment
it exists, before any of them has begun. A client that leaves takes the two with it that
are for it alone.

Order, as the client sees it: updates, with a permission request after the update that
announces its call; the end of every announced call; then the one response, which the
caller sends.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, final

import attrs
import msgspec
import trio

from greenroom.actors.sessions import SlowWatcherError, TurnRefusedError, TurnResult
from greenroom.protocol import (
    ActionBlock,
    Answer,
    Event,
    GreenroomError,
    ImagePart,
    InteractionError,
    InteractionSettled,
    MessageId,
    MessagesChanged,
    Other,
    StatusChanged,
    StreamCompleted,
    StreamFailed,
    TextPart,
)
from greenroom.protocol.acp import v1
from greenroom.protocol.jsonrpc import ErrorCode, ErrorObject, Failure, Response

from ._ports import AgentSession

_LOG: Final = logging.getLogger("greenroom.endpoints")

CATCH_UP_SECONDS: Final = 5.0
"""How long the end of a turn waits for its last event; what is missing is made up."""

_TOO_LATE: Final = ("already_answered", "turn_ended", "unknown_interaction")


class Client(Protocol):
    """The other end of the connection."""

    def update(self, session_id: str, update: v1.SessionUpdate) -> None:
        """Tell it something. Never waits."""
        ...

    async def ask(self, method: str, params: object) -> Response | Failure:
        """Ask it something; cancelling withdraws the request."""
        ...


class RefusedError(Exception):
    """A request gets this error in the place of a result."""

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.error = error


@final
@attrs.define(eq=False)
class AcpTurn:
    """A prompt while it is worked on."""

    session: AgentSession
    client: Client
    parts: tuple[TextPart | ImagePart, ...]
    narration: v1.Narration
    title: str = ""
    """What the session is to be called from now on; empty: as before."""
    detached: bool = False
    """Cancelling `run` does not stop the turn."""
    _wanted_stop: trio.Event = attrs.field(factory=trio.Event, init=False)
    _following: trio.Event = attrs.field(factory=trio.Event, init=False)
    _taken: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Something was said in the session since it is watched."""
    _entitled: trio.Event = attrs.field(factory=trio.Event, init=False)
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set at each event; replaced by whoever waits for the next."""
    _working: bool = attrs.field(default=False, init=False)
    """The session was told to be at work since the last stop was tried."""
    _answered: set[str] = attrs.field(factory=set[str], init=False)
    _ended: MessageId | None = attrs.field(default=None, init=False)
    _result: TurnResult | None = attrs.field(default=None, init=False)
    _failure: GreenroomError | None = attrs.field(default=None, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _present: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    """Around what is for the client alone."""
    _asked: tuple[str, trio.CancelScope] | None = attrs.field(default=None, init=False)
    """What the client is being asked."""

    def leave(self) -> None:
        """The client is gone: tell and ask nothing more, and let the turn go on.

        What waits for an answer stays for whoever else may give it.
        """
        self._present.cancel()
        self._following.set()

    def cancel(self) -> None:
        """Have the turn stopped; its response says so, whatever else happens."""
        self._wanted_stop.set()

    async def run(self) -> v1.StopReason:
        """Work the prompt through and return why it ended.

        Raises:
            RefusedError: the turn failed.
            GreenroomError: it could not be run.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for work in (
                        self._attend,
                        self._stop,
                        self._entitle,
                        self._prompt,
                    ):
                        nursery.start_soon(self._guarded, work)
            if self._failure is not None:
                # A question that nobody is asked any more would bar the next prompt.
                await self.session.cancel()
        finally:
            self._finish()
        return self._outcome()

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        # The first failure ends the turn, and is told once, not as a group.
        try:
            await work()
        except GreenroomError as exc:
            self._failure = self._failure or exc
            self._scope.cancel()

    async def _attend(self) -> None:
        with self._present:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._guarded, self._watch)
                nursery.start_soon(self._guarded, self._ask_all)

    def _finish(self) -> None:
        message = None if self._result is None else self._result.message
        for update in self.narration.finish(message):
            self.client.update(self.session.id, update)

    def _outcome(self) -> v1.StopReason:
        # Not from what the cleanup looks like: a stop that the client wanted is one.
        if self._wanted_stop.is_set():
            return "cancelled"
        if self._failure is not None:
            raise self._failure
        assert self._result is not None
        metadata = self._result.message.metadata
        reason = v1.stop_reason_of(metadata)
        if reason is None:
            raise RefusedError(v1.turn_error(metadata))
        return reason

    @property
    def _left(self) -> bool:
        return self._present.cancel_called

    #### Prompting

    async def _prompt(self) -> None:
        await self._following.wait()
        if not self._wanted_stop.is_set():
            # With the first hop of what is said (PER-08).
            self._result = await self.session.prompt(
                self.parts, detached=self.detached, endpoint="acp"
            )
            self._taken.set()
            await self._entitled.wait()
            with trio.move_on_after(CATCH_UP_SECONDS):
                while not self._left and self._ended != self._result.message.id:
                    await self._next_event()
        self._scope.cancel()

    async def _entitle(self) -> None:
        # A prompt that is refused names nothing.
        await self._taken.wait()
        if self.title:
            await self.session.configure(title=self.title)
        self._entitled.set()

    async def _stop(self) -> None:
        await self._wanted_stop.wait()
        # A stop that comes before the prompt has become a turn stops nothing, so it
        # is tried again whenever the session says that it works.
        while True:
            self._working = False
            await self.session.cancel()
            while not self._working:
                await self._next_event()

    #### Watching

    async def _watch(self) -> None:
        after: int | None = None
        while True:
            async with self.session.follow(after=after) as events:
                self._following.set()
                try:
                    async for event in events:
                        self._see(event)
                    return
                except SlowWatcherError as slow:
                    after = slow.seq

    def _see(self, event: Event) -> None:
        for update in self.narration.updates_of(event):
            self.client.update(self.session.id, update)
        match event:
            case StreamCompleted(message=message) | StreamFailed(message=message):
                self._ended = message.id
            case StatusChanged(state="generating"):
                self._working = True
            case MessagesChanged():
                self._taken.set()
            case InteractionSettled(interaction_id=settled):
                if self._asked is not None and self._asked[0] == settled:
                    # Somebody else has answered; the request is withdrawn.
                    self._asked[1].cancel()
            case _:
                pass
        self._changed.set()

    async def _next_event(self) -> None:
        # Several tasks wait for it; the first to come back makes the next one.
        if self._changed.is_set():
            self._changed = trio.Event()
        await self._changed.wait()

    #### Asking

    async def _ask_all(self) -> None:
        while True:
            waiting = self.narration.waiting
            action = next((a for a in waiting if a.id not in self._answered), None)
            if action is None:
                await self._next_event()
                continue
            answer = None
            with trio.CancelScope() as asking:
                self._asked = action.id, asking
                answer = await self._ask(action)
            self._asked = None
            if asking.cancelled_caught:
                self._answered.add(action.id)
                continue
            if answer is None:
                self.cancel()
                return
            await self._answer(action, answer)

    async def _ask(self, action: ActionBlock) -> Answer | None:
        call = self.narration.call_of(action)
        request = v1.request_for(self.session.id, action, call)
        if request is None:
            self.client.update(self.session.id, v1.message_for(action))
            return Other()
        reply = await self.client.ask("session/request_permission", request)
        if isinstance(reply, Failure):
            if reply.error.code == ErrorCode.REQUEST_CANCELLED:
                return None
            return v1.refusal_of(action, reply.error.message)
        try:
            response = msgspec.json.decode(
                reply.result, type=v1.RequestPermissionResponse
            )
        except (msgspec.DecodeError, RecursionError):
            return v1.refusal_of(action, "the client's answer can't be read")
        return v1.answer_of(action, response)

    async def _answer(self, action: ActionBlock, answer: Answer) -> None:
        self._answered.add(action.id)
        try:
            await self.session.answer(action.id, answer)
        except (InteractionError, TurnRefusedError) as exc:
            # The turn was stopped while the user thought about it.
            if exc.code not in _TOO_LATE:
                raise
            _LOG.info("an answer came too late: %s", exc)
