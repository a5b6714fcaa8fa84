"""One prompt and its turn: sent, shown, answered, stopped; wherever its engine is."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final, Protocol, final

import attrs
import trio

from greenroom.engine import TurnFailedError, TurnRefusedError
from greenroom.protocol import (
    ActionBlock,
    Answer,
    Event,
    Grant,
    InteractionError,
    MessageId,
    StreamCompleted,
    StreamFailed,
)
from greenroom.protocol.context import compact_focus
from greenroom.protocol.gateway import PromptResult

from ._exit import CliError, ExitCode
from ._view import Compaction, View

LEAVE_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
_CATCH_UP_SECONDS: Final = 5.0


class Talk(Protocol):
    """A session: of an engine in this process, or of a gateway."""

    def follow(self) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Watch the session, from now on."""
        ...

    async def interactions(self) -> tuple[ActionBlock, ...]:
        """Return what waits for an answer, the next one first."""
        ...

    async def answer(self, interaction_id: str, answer: Answer) -> None:
        """Answer; too late, it is an `InteractionError` or a `TurnRefusedError`."""
        ...

    async def prompt(self, content: str) -> PromptResult:
        """Send a message and return when its turn ends."""
        ...

    async def compact(self, focus: str) -> Compaction:
        """Hide what was said; stopped, it is a `TurnFailedError`."""
        ...

    async def cancel(self) -> None:
        """Stop the turn."""
        ...


@final
@attrs.define(eq=False)
class Conversation:
    """Prompts, shows and answers until the turn has ended."""

    session: Talk
    view: View
    yes: bool
    _changed: trio.Event = attrs.field(factory=trio.Event)
    """Something new may wait for an answer."""
    _ended: set[MessageId] = attrs.field(factory=set[MessageId])
    _interrupts: int = 0
    _turn: PromptResult | None = None
    _compacted: Compaction | None = None
    _failure: CliError | None = None

    async def hold(self, prompt: str) -> int:
        async with (
            self.session.follow() as events,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._watch, events)
            nursery.start_soon(self._heed_signals, nursery)
            nursery.start_soon(self._answer_all, nursery.cancel_scope)
            await self._settle_open_questions()
            if not self._interrupts:
                await self._prompt(prompt)
            nursery.cancel_scope.cancel()
        if self._failure is not None:
            self.view.leave()
            raise self._failure
        if self._compacted is not None:
            self.view.compacted(self._compacted)
            return ExitCode.OK
        if self._turn is None:
            return ExitCode.INTERRUPTED
        # Last, when nothing is left that could show another event.
        self.view.end(self._turn)
        return status_of(self._turn, interrupted=self._interrupts > 0)

    async def _prompt(self, prompt: str) -> None:
        if (focus := compact_focus(prompt)) is not None:
            await self._compact(focus)
            return
        self._turn = await self.session.prompt(prompt)
        with trio.move_on_after(_CATCH_UP_SECONDS):
            await self._shown(self._turn.message_id)

    async def _compact(self, focus: str) -> None:
        try:
            self._compacted = await self.session.compact(focus)
        except TurnFailedError:
            # Stopped: then nothing has changed.
            if not self._interrupts:
                raise

    async def _settle_open_questions(self) -> None:
        # An earlier turn may still wait; its answer comes before the next prompt.
        while True:
            changed = self._changed
            if not await self.session.interactions():
                return
            await changed.wait()

    async def _shown(self, message_id: MessageId) -> None:
        while message_id not in self._ended:
            await self._changed.wait()

    async def _watch(self, events: AsyncIterator[Event]) -> None:
        async for event in events:
            self.view.show(event)
            if isinstance(event, StreamCompleted | StreamFailed):
                self._ended.add(event.message.id)
            self._tell_change()

    def _tell_change(self) -> None:
        # Whoever waits, waits for the event it had before it looked.
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def _answer_all(self, scope: trio.CancelScope) -> None:
        while True:
            changed = self._changed
            questions = await self.session.interactions()
            if not questions:
                await changed.wait()
                continue
            try:
                await self._answer_first(questions[0])
            except CliError as exc:
                self._failure = exc
                scope.cancel()
                return

    async def _answer_first(self, block: ActionBlock) -> None:
        answer = await self._answer(block)
        # It may have been given up while the user thought: then there is a next look.
        with suppress(InteractionError, TurnRefusedError):
            await self.session.answer(block.id, answer)

    async def _answer(self, block: ActionBlock) -> Answer:
        if self.yes and block.action == "tool_call_permission":
            return Grant()
        return await self.view.ask(block)

    async def _heed_signals(self, nursery: trio.Nursery) -> None:
        with trio.open_signal_receiver(signal.SIGINT, *LEAVE_SIGNALS) as signals:
            async for number in signals:
                self._interrupts += 1
                if number in LEAVE_SIGNALS or self._interrupts > 1:
                    nursery.cancel_scope.cancel()
                    return
                self.view.note("stopping; Ctrl-C again leaves at once")
                # Beside this loop: the next signal is heard while the turn stops.
                nursery.start_soon(self.session.cancel)


def status_of(turn: PromptResult, *, interrupted: bool) -> int:
    """Return the exit status that the end of a turn stands for."""
    if turn.outcome == "completed":
        return ExitCode.OK
    if turn.outcome == "aborted" and interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.RUN_FAILED
