"""A session as those who talk to it hold it: requests to its actor, and reads."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar, final

import attrs
import trio

from greenroom.actors.kernel import ActorExitedError, CancelCause, Ids, Normal, Request
from greenroom.protocol import (
    ActionBlock,
    Answer,
    ImagePart,
    MessageRecord,
    SessionId,
    SessionSettings,
    TextPart,
)

from ._follow import Follower, follow
from ._messages import (
    AnswerInteraction,
    CancelTurn,
    ChangeSettings,
    Prompt,
    TurnResult,
)
from ._ports import StoreReaders
from ._registry import STOP_SECONDS, Sessions
from ._turns import unresolved

MAX_LOADS: Final = 3
"""How often a request loads a session that was unloaded with the request unread."""

R = TypeVar("R")


@final
@attrs.define(eq=False)
class SessionHandle:
    """A session, for whoever talks to it. Costs nothing to keep or to make again."""

    id: SessionId
    _sessions: Sessions
    _readers: StoreReaders
    _ids: Ids

    def __repr__(self) -> str:
        return f"<SessionHandle {self.id!r}>"

    @property
    def settings(self) -> SessionSettings | None:
        """The settings, while the session is loaded."""
        loaded = self._sessions.loaded(self.id)
        return None if loaded is None else loaded.session.settings

    async def prompt(
        self, content: str | Sequence[TextPart | ImagePart], *, command_id: str = ""
    ) -> TurnResult:
        """Send a message and return when the turn ends; a pause is not the end.

        The message is durable before anything is done about it. A *command_id* makes
        sending it again safe: the same id with the same content is one turn.
        Cancelling this call stops the turn; a question that waits stays open.

        Raises:
            TurnRefusedError: not taken, nothing was written.
            TurnFailedError: the turn could not be run or stored.
            SessionHeldError: another engine owns the session.
        """
        parts = (TextPart(content),) if isinstance(content, str) else tuple(content)
        command_id = command_id or self._ids.uuid()
        try:
            # Outside the gate: a deletion ends a turn, however long, and awaits none.
            return await self._send(Prompt(parts, command_id))
        except trio.Cancelled:
            stop = CancelTurn(CancelCause.PARENT, command_id)
            self._tell(stop, key=("cancel", command_id))
            raise

    async def answer(self, interaction_id: str, answer: Answer) -> None:
        """Answer a pending permission or question; returns when it is durable.

        Raises:
            InteractionError: unknown, answered before, out of order, or of the wrong
                kind.
        """
        await self._ask(AnswerInteraction(interaction_id, answer))

    async def configure(self, **changes: Any) -> SessionSettings:  # noqa: ANN401 - the fields of SessionSettings
        """Change settings; a run that goes on keeps those it began with.

        Raises:
            TurnRefusedError: no such setting, or a wrong value.
        """
        return await self._ask(ChangeSettings(dict(changes)))

    async def cancel(self) -> None:
        """Stop the turn, if there is one; returns when it has settled, 5 s at most.

        A prompt that was sent before and not looked at yet is refused as taken back.
        """
        loaded = self._sessions.loaded(self.id)
        if loaded is None:
            return
        loaded.session.unread.cancel()
        self._tell(CancelTurn(CancelCause.USER_STOP), key="cancel")
        with trio.move_on_after(STOP_SECONDS):
            await loaded.hub.until_settled()

    async def close(self) -> None:
        """Stop and unload the session; its tape stays (SES-09)."""
        await self._sessions.close(self.id)

    def follow(
        self, *, after: int | None = None
    ) -> AbstractAsyncContextManager[Follower]:
        """Watch the session: a snapshot, or what came after a cursor, then live.

        Entering raises `UnknownCursorError` for a cursor beyond the tape's end.
        """
        return follow(self._sessions, self._readers, self.id, after)

    async def messages(
        self, *, before: int | None = None, limit: int = 100
    ) -> list[MessageRecord]:
        """Return a page of the transcript, oldest first; loads nothing."""
        return await self._readers.read(lambda r: r.messages(self.id, before, limit))

    async def interactions(self) -> tuple[ActionBlock, ...]:
        """Return what waits for an answer, the next one first."""
        newest = await self.messages(limit=1)
        return unresolved(newest[0]) if newest else ()

    async def _ask(self, request: Request[R]) -> R:
        with self._sessions.gates.operation(self.id):
            return await self._send(request)

    async def _send(self, request: Request[R]) -> R:
        loads = 0
        while True:
            loads += 1
            loaded = await self._sessions.open(self.id)
            try:
                with loaded.session.unread.sending(request):
                    return await loaded.ref.ask(request)
            except ActorExitedError as exc:
                # Unloaded for want of work with this unread: nothing was done.
                if loads == MAX_LOADS or not isinstance(exc.reason, Normal):
                    raise

    def _tell(self, message: object, *, key: Hashable) -> None:
        loaded = self._sessions.loaded(self.id)
        if loaded is not None:
            loaded.ref.tell_control(message, key=key)
