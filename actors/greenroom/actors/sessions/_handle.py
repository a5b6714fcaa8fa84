"""A session as those who talk to it hold it: requests to its actor, and reads."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar, final

import attrs
import trio

from greenroom.actors.context import Compacted
from greenroom.actors.kernel import ActorExitedError, CancelCause, Ids, Normal, Request
from greenroom.protocol import (
    ActionBlock,
    Answer,
    AttemptTrace,
    ImagePart,
    InteractionError,
    MessageRecord,
    Parts,
    PendingInput,
    PromptCommand,
    QueueCommand,
    SessionId,
    SessionSettings,
    SteerCommand,
    TextPart,
)
from greenroom.storage import Hop, Page, Trail, messages_of_turn

from ._answers import too_late
from ._closed import check_let_in, why_ended
from ._compaction import CompactSession, UndoCompaction
from ._follow import Follower, follow, start_following
from ._messages import (
    AcceptedInput,
    AnswerInteraction,
    CancelTurn,
    ChangeInputs,
    ChangeSettings,
    DegradeInput,
    DeleteInput,
    EditInput,
    MoveInput,
    PromoteInput,
    Prompt,
    PutIn,
    ReleaseInputs,
    RetryInput,
    TurnRefusedError,
    TurnResult,
)
from ._ports import StoreReaders
from ._registry import STOP_SECONDS, Sessions
from ._rewind import ClearSession, RewindSession, Rewound
from ._turns import unresolved

_PAGE: Final = 256
"""Entries that one read looks at."""

MAX_LOADS: Final = 3
"""How often a request loads a session that was unloaded with the request unread."""

LATE_ANSWERS: Final = 20
"""Turns back for which an answer is told that it comes too late."""

R = TypeVar("R")

Content = str | Sequence[TextPart | ImagePart]
"""What the user says."""


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
        self,
        content: Content,
        *,
        command_id: str = "",
        detached: bool = False,
        endpoint: str = "",
    ) -> TurnResult:
        """Send a message and return when the turn ends; a pause is not the end.

        The message is durable before anything is done about it. A *command_id* makes
        sending it again safe: the same id with the same content is one turn.
        Cancelling this call stops the turn; a question that waits stays open. If it is
        *detached* the turn is the engine's alone, and cancelling ends only the waiting.
        *endpoint* is for whoever passes on what others say: where it came in, which is
        the first hop of the message (PER-08).

        Raises:
            TurnRefusedError: not taken, nothing was written.
            InputBlockedError: it waits for a decision of the user.
            TurnFailedError: the turn could not be run or stored.
            SessionHeldError: another engine owns the session.
            BeingDeletedError: the session is deleted, before the turn or in it.
            SessionClosedError: it was closed before the turn ended.
        """
        parts = _parts(content)
        command_id = command_id or self._ids.uuid()
        try:
            # Outside the gate: a deletion ends a turn, however long, and awaits none.
            return await self._send(Prompt(parts, command_id, endpoint))
        except trio.Cancelled:
            if not detached:
                stop = CancelTurn(CancelCause.PARENT, command_id)
                self._tell(stop, key=("cancel", command_id))
            raise

    async def submit(self, content: Content, *, command_id: str = "") -> AcceptedInput:
        """Send a message and return when it is durable; its turn goes on by itself.

        Who wants to wait for the end sends the same content with the same *command_id*
        by `prompt`.

        Raises:
            TurnRefusedError, InputRefusedError: not taken, nothing was written.
            SessionHeldError: another engine owns the session.
        """
        command = PromptCommand(_parts(content))
        return await self._ask(PutIn(command, command_id or self._ids.uuid()))

    async def queue(
        self, content: Content, *, command_id: str = "", endpoint: str = ""
    ) -> AcceptedInput:
        """Let an input wait until the session is idle; returns when it is durable.

        At most 5 wait (PIN-02). A *command_id* makes putting it in again safe: the same
        id with the same content is one input, and tells where that stands now. For
        *endpoint* see `prompt`.

        Raises:
            InputRefusedError: the queue is full.
            TurnRefusedError: not taken; other content under the same id.
        """
        command = QueueCommand(_parts(content))
        return await self._ask(PutIn(command, command_id or self._ids.uuid(), endpoint))

    async def steer(
        self,
        content: Content,
        *,
        expected_turn: str | None = None,
        command_id: str = "",
        endpoint: str = "",
    ) -> AcceptedInput:
        """Say something to the turn that runs; returns when it is durable.

        The turn makes way at its next settled batch of tools, or at once if nothing
        has come of it yet; without one the input is let in. *expected_turn* is the id
        of the assistant's message of the turn that is meant. For *endpoint* see
        `prompt`.

        Raises:
            InputRefusedError: another turn runs, or none; too much was said already.
            TurnRefusedError: not taken.
        """
        command = SteerCommand(_parts(content), expected_turn)
        return await self._ask(PutIn(command, command_id or self._ids.uuid(), endpoint))

    async def inputs(self) -> tuple[PendingInput, ...]:
        """Return what waits, in the order in which it is let in; loads nothing."""
        return (await self._readers.read(lambda r: r.pending_inputs(self.id))).rows

    async def edit_input(
        self, input_id: str, content: Content
    ) -> tuple[PendingInput, ...]:
        """Replace what a queued input says, and return what waits then.

        Raises:
            InputRefusedError: unknown, said to a turn already, or on its way.
        """
        return await self._ask(ChangeInputs(EditInput(input_id, _parts(content))))

    async def move_input(self, input_id: str, to: int) -> tuple[PendingInput, ...]:
        """Move a queued input to place *to*, from 1, which is clamped.

        Raises:
            InputRefusedError: unknown, said to a turn already, or on its way.
        """
        return await self._ask(ChangeInputs(MoveInput(input_id, to)))

    async def delete_input(self, input_id: str) -> tuple[PendingInput, ...]:
        """Take an input back that is not on its way.

        Raises:
            InputRefusedError: unknown, or on its way.
        """
        return await self._ask(ChangeInputs(DeleteInput(input_id)))

    async def promote_input(self, input_id: str) -> tuple[PendingInput, ...]:
        """Say a queued input to the turn that runs.

        Raises:
            InputRefusedError: unknown, said to a turn already, or on its way.
        """
        return await self._ask(ChangeInputs(PromoteInput(input_id)))

    async def retry_input(self, input_id: str) -> tuple[PendingInput, ...]:
        """Try a blocked input again as it is, after a change of the model (PIN-12).

        Raises:
            InputRefusedError: unknown, or not blocked.
        """
        return await self._ask(ChangeInputs(RetryInput(input_id)))

    async def degrade_input(self, input_id: str) -> tuple[PendingInput, ...]:
        """Let a blocked input go on without what can't be sent (PIN-12).

        Raises:
            InputRefusedError: unknown, not blocked, or nothing is left of it.
        """
        return await self._ask(ChangeInputs(DegradeInput(input_id)))

    async def release_inputs(self) -> tuple[PendingInput, ...]:
        """Let what is held go on, also after a turn that failed."""
        return await self._ask(ChangeInputs(ReleaseInputs()))

    async def answer(self, interaction_id: str, answer: Answer) -> None:
        """Answer a pending permission or question; returns when it is durable.

        Raises:
            InteractionError: unknown, answered before, out of order, or of the wrong
                kind.
        """
        try:
            await self._ask(AnswerInteraction(interaction_id, answer))
        except InteractionError as exc:
            raise await self._why_not(exc) from None

    async def configure(self, **changes: Any) -> SessionSettings:  # noqa: ANN401 - the fields of SessionSettings
        """Change settings; a run that goes on keeps those it began with.

        Raises:
            TurnRefusedError: no such setting, or a wrong value.
        """
        return await self._ask(ChangeSettings(dict(changes)))

    async def rewind(
        self, through: str | None, *, files: bool = False, dry_run: bool = False
    ) -> Rewound:
        """Take the conversation back: the message *through* is the last one then.

        It is the end of a turn, or ``None`` for the beginning. What is taken back stays
        on the tape. With *files*, what ``write`` and ``edit`` changed in those turns is
        put back first, all of it or, if one file was changed since, nothing; what
        commands did is not. A *dry_run* only tells. Watchers are told of each message.

        Raises:
            RewindRefusedError: not at rest, no such place, or the files say no.
            StorageError: no message was taken back; files may have been put back.
        """
        return await self._ask(RewindSession(through, files, dry_run))

    async def clear(self) -> None:
        """Forget all that was said; the settings stay (TAP-04).

        Raises:
            RewindRefusedError: a turn is not over, or input waits for one: release it
                or take it back first (PIN-13).
            StorageError: nothing was forgotten.
        """
        await self._ask(ClearSession())

    async def compact(self, focus: str = "") -> Compacted:
        """Hide what was said so far behind a summary; the tape keeps all of it.

        For a session at rest. Input that comes meanwhile has its turn afterwards. If
        no summary can be made nothing is hidden, and the result says why. Cancelling
        this call lets it go on; `cancel` stops it, and then nothing has changed.

        Args:
            focus: what is important, for whoever makes the summary.

        Raises:
            TurnRefusedError: a turn or another compaction goes on (``session_busy``).
            TurnFailedError: it was stopped, or could not be stored.
        """
        return await self._ask(CompactSession(focus))

    async def undo_compaction(self) -> bool:
        """Show again what the newest compaction has hidden; whether there was one.

        Once more goes one further back.

        Raises:
            TurnRefusedError: a turn or a compaction goes on (``session_busy``).
        """
        return await self._ask(UndoCompaction())

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
        self, *, after: int | None = None, incarnation: str | None = None
    ) -> AbstractAsyncContextManager[Follower]:
        """Watch the session: a snapshot, or what came after a cursor, then live.

        Entering raises `UnknownCursorError` for a cursor beyond the tape's end, and
        for one of another *incarnation* than the tape's: a snapshot says its own, and
        a session that was cleared since has another, and counts from 1 again.
        """
        return follow(self._sessions, self._readers, self.id, after, incarnation)

    async def start_following(
        self, *, after: int | None = None, incarnation: str | None = None
    ) -> Follower:
        """Return what `follow` enters; the caller has to close it."""
        return await start_following(
            self._sessions, self._readers, self.id, after, incarnation
        )

    async def messages(
        self, *, before: int | None = None, limit: int = 100
    ) -> list[MessageRecord]:
        """Return a page of the transcript, oldest first; loads nothing."""
        return await self._readers.read(lambda r: r.messages(self.id, before, limit))

    async def traces(
        self, message_id: str | None = None, limit: int = 100
    ) -> list[AttemptTrace]:
        """Return what was sent to the provider, attempt by attempt, oldest first.

        For one message or for all, at most *limit* of the newest 100 that a session
        keeps; without keys, and apart from the messages (PER-08). Loads nothing.
        """
        return await self._readers.read(lambda r: r.traces(self.id, message_id, limit))

    async def hops(self, message_id: str) -> list[Hop]:
        """Follow a message, or the one it answers, through all its hops (PER-08).

        Each is a record with the ids of session, message and run, in the order of the
        tape; none for a message that is not there. Reads the whole tape, a page at a
        time, and loads nothing: for looking into something, not for each message.
        """
        turn = await self._readers.read(
            lambda r: messages_of_turn(r, self.id, message_id)
        )
        trail, after = Trail(turn), 0
        while turn and (entries := (await self._page(after)).entries):
            trail.take(entries)
            after = entries[-1].seq
        return trail.hops

    async def _page(self, after: int) -> Page:
        return await self._readers.read(lambda r: r.page(self.id, after, _PAGE))

    async def interactions(self) -> tuple[ActionBlock, ...]:
        """Return what waits for an answer, the next one first."""
        # Behind it there may be what the user said to its turn.
        newest = await self._readers.read(
            lambda r: r.messages(self.id, None, 1, "assistant")
        )
        return unresolved(newest[0]) if newest else ()

    async def _why_not(self, refused: InteractionError) -> InteractionError:
        # Its turn may have gone on, or be over: then somebody was faster.
        if refused.code != "unknown_interaction":
            return refused
        recent = await self._readers.read(
            lambda r: r.messages(self.id, None, LATE_ANSWERS, "assistant")
        )
        blocks = (block for message in recent for block in message.blocks)
        settled = (b for b in blocks if b.id == refused.interaction_id)
        ended = next((b for b in settled if isinstance(b, ActionBlock)), None)
        return refused if ended is None else too_late(ended)

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
            except TurnRefusedError as exc:
                if exc.code == "session_closing":
                    check_let_in(self._sessions, self.id)
                raise
            except ActorExitedError as exc:
                # Unloaded for want of work with this unread: nothing was done.
                if isinstance(exc.reason, Normal) and loads < MAX_LOADS:
                    continue
                raise await why_ended(self._sessions, self.id, exc) from exc

    def _tell(self, message: object, *, key: Hashable) -> None:
        loaded = self._sessions.loaded(self.id)
        if loaded is not None:
            loaded.ref.tell_control(message, key=key)


def _parts(content: Content) -> Parts:
    return (TextPart(content),) if isinstance(content, str) else tuple(content)


def text_of(content: Content) -> str:
    """Return what *content* says first in words; empty where it says none."""
    texts = (
        part.text.strip() for part in _parts(content) if isinstance(part, TextPart)
    )
    return next(filter(None, texts), "")
