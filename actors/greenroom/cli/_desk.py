"""Whoever sits at a session of a gateway: what they see, type, answer and stop."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, final

import attrs
import msgspec
import trio

from greenroom.actors.kernel import SystemIds
from greenroom.client import (
    Attachment,
    CallError,
    ConnectionLostError,
    SilentGatewayError,
)
from greenroom.engine import TurnFailedError
from greenroom.protocol import (
    ActionBlock,
    Event,
    Grant,
    InteractionError,
    LocalProtocolError,
    MessageId,
    PendingInput,
    StatusChanged,
    StreamCompleted,
    StreamFailed,
)
from greenroom.protocol.gateway import (
    Attached,
    ForkSession,
    InputAccepted,
    InputList,
    InputRef,
    OneSession,
    QueueInput,
    SendPrompt,
    SessionRef,
    SteerTurn,
)

from ._conversation import LEAVE_SIGNALS, status_of
from ._exit import ExitCode
from ._harmless import one_line
from ._prompts import (
    Lines,
    LongLineError,
    NoLineError,
    UnansweredError,
    answer_hint,
    parse_answer,
    question_lines,
)
from ._remote import RemoteSession
from ._typed import SAY, Typed, help_lines, parse_typed, place_in
from ._view import View
from ._waiting import waiting_line

MAX_SAID: Final = 100
"""Lines of a script that wait for their turn; then it is not read on."""

_SHOWN_MESSAGES: Final = 20
_CATCH_UP_SECONDS: Final = 5.0
_REFUSED: Final = (
    CallError,
    ConnectionLostError,
    SilentGatewayError,
    LocalProtocolError,
    InteractionError,
    TurnFailedError,
)
"""What is told and does not end the command."""


@final
@attrs.define(eq=False)
class Desk:
    """Shows a session and does what is typed, until the user leaves."""

    session: RemoteSession
    view: View
    lines: Lines
    yes: bool
    own: set[str]
    """Ids of what was said here."""
    _nursery: trio.Nursery = attrs.field(init=False)
    _left: trio.Event = attrs.field(factory=trio.Event, init=False)
    _status: int = attrs.field(default=ExitCode.OK, init=False)
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _asked: ActionBlock | None = attrs.field(default=None, init=False)
    """What waits for an answer, as far as it was shown."""
    _is_running: bool = attrs.field(default=False, init=False)
    _interrupts: int = attrs.field(default=0, init=False)
    _ended: set[MessageId] = attrs.field(factory=set[MessageId], init=False)
    """Turns of a script whose end was shown."""
    _unended: int = attrs.field(default=0, init=False)
    """Lines of a script whose turns have not ended."""
    _has_all_input: bool = attrs.field(default=False, init=False)
    _listed: tuple[PendingInput, ...] | None = attrs.field(default=None, init=False)
    """The inbox as the user saw it: what the numbers are numbers of."""

    async def hold(self) -> int:
        """Return the exit status when the user has left."""
        said, to_say = trio.open_memory_channel[Typed](MAX_SAID)
        async with (
            self.session.client.attach(self.session.id) as attachment,
            trio.open_nursery() as self._nursery,
        ):
            await self._nursery.start(self._heed_signals)
            self._nursery.start_soon(self._watch, attachment)
            self._nursery.start_soon(self._ask_all)
            self._nursery.start_soon(self._read, said)
            self._nursery.start_soon(self._send_all, to_say)
            await self._left.wait()
            self._nursery.cancel_scope.cancel()
        self.view.leave()
        return self._status

    def _leave(self, status: int | None = None) -> None:
        if status is not None:
            self._status = status
        self._left.set()

    #### Seeing

    async def _watch(self, attachment: Attachment) -> None:
        async for item in attachment:
            self.session.see(item)
            if isinstance(item, Attached):
                self._begin(item)
            else:
                self._show(item)
            self._tell_change()
        self.view.note("the session was deleted")
        self._leave(ExitCode.RUN_FAILED)

    def _tell_change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def _begin(self, attached: Attached) -> None:
        if self.view.json:
            about = {"type": "attached", "sessionId": self.session.id}
            self.view.line(about | msgspec.to_builtins(attached))
        snapshot = attached.snapshot
        if snapshot is None:
            return
        self._is_running = snapshot.state == "generating"
        if self.view.json:
            return
        self._tell(f"session {snapshot.session_id[:8]}: {snapshot.settings.title}")
        shown = snapshot.messages[-_SHOWN_MESSAGES:]
        if attached.older or len(shown) < len(snapshot.messages):
            self.view.note("(there are older messages)")
        self.view.terminal.show_past(shown)
        self.view.terminal.show(snapshot.status)
        if snapshot.inputs:
            self.view.note(f"(in the inbox: {len(snapshot.inputs)}; /inbox lists it)")

    def _show(self, event: Event) -> None:
        self.view.show(event)
        match event:
            case StatusChanged():
                is_running = event.state == "generating"
                if is_running and not self._is_running:
                    self._interrupts = 0
                self._is_running = is_running
            case StreamCompleted() | StreamFailed():
                if not self.lines.is_terminal:
                    self._ended.add(event.message.id)
            case _:
                pass

    #### What waits for an answer

    async def _ask_all(self) -> None:
        # First it is shown what the question is about.
        await self._changed.wait()
        while True:
            changed = self._changed
            questions = await self.session.interactions()
            first = questions[0] if questions else None
            if first is None:
                self._asked = None
            elif self._asked is None or self._asked.id != first.id:
                await self._ask(first)
            self._check_answerable()
            await changed.wait()

    async def _ask(self, block: ActionBlock) -> None:
        if self.yes and block.action == "tool_call_permission":
            with suppress(InteractionError):
                await self.session.answer(block.id, Grant())
            return
        self._asked = block
        if self.lines.is_terminal and not self.view.json:
            # What was typed before it was shown is no answer to it.
            self.lines.forget()
            self.view.terminal.finish()
            shown = "\n".join(question_lines(block))
            self.view.terminal.ask(f"{shown}\n{answer_hint(block)}")

    def _check_answerable(self) -> None:
        nobody = not self.lines.is_terminal and self._has_all_input
        if nobody and self._unended and self._asked is not None:
            raise UnansweredError("the input has ended")

    async def _answer(self, text: str) -> None:
        block = self._asked
        if block is None:
            self._refuse("nothing waits for an answer")
            return
        answer = parse_answer(block, text)
        if isinstance(answer, str):
            self._refuse(answer)
            if self.lines.is_terminal and not self.view.json:
                self.view.terminal.ask(answer_hint(block))
            return
        await self.session.answer(block.id, answer)

    #### Typing

    async def _read(self, said: trio.MemorySendChannel[Typed]) -> None:
        async with said:
            while True:
                try:
                    line = await self.lines.read()
                except NoLineError as exc:
                    if isinstance(exc, LongLineError):
                        self._refuse(str(exc))
                    break
                self.view.terminal.answered()
                if line:
                    await self._take(line, said)
        self._has_all_input = True
        if self.lines.is_terminal:
            self._leave()
        self._check_answerable()

    async def _take(self, line: str, said: trio.MemorySendChannel[Typed]) -> None:
        typed = parse_typed(line)
        if isinstance(typed, str):
            self._refuse(typed)
        elif typed.name not in (SAY, "compact"):
            await self._try(partial(self._do, typed))
        elif not self.lines.is_terminal:
            self._unended += 1
            await said.send(typed)
        elif typed.name == "compact":
            # It may take long, and can be stopped meanwhile.
            compact = partial(self._compact, typed.text)
            self._nursery.start_soon(self._try, compact)
        elif self._asked is not None:
            await self._try(partial(self._answer, typed.text))
        else:
            await self._try(partial(self._queue, typed.text))

    async def _try(self, action: Callable[[], Awaitable[None]]) -> None:
        try:
            await action()
        except _REFUSED as exc:
            self._refuse(f"{exc}{f' ({exc.hint})' if exc.hint else ''}")

    def _refuse(self, why: str) -> None:
        self._tell(why)
        if not self.lines.is_terminal:
            self._status = ExitCode.RUN_FAILED

    def _tell(self, text: str) -> None:
        self.view.note(one_line(text, 1_000))

    async def _do(self, typed: Typed) -> None:
        match typed.name:
            case "steer" | "answer" | "promote" | "delete":
                await self._with_text()[typed.name](typed.text)
            case name:
                await self._alone()[name]()

    def _with_text(self) -> Mapping[str, Callable[[str], Awaitable[None]]]:
        return {
            "steer": self._steer,
            "answer": self._answer,
            "promote": partial(self._change_input, "input/promote"),
            "delete": partial(self._change_input, "input/delete"),
        }

    def _alone(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        return {
            "cancel": self.session.cancel,
            "inbox": self._inbox,
            "release": self._release,
            "fork": self._fork,
            "help": self._help,
            "quit": self._quit,
        }

    async def _help(self) -> None:
        for line in help_lines():
            self.view.note(line)

    async def _quit(self) -> None:
        self._leave()

    #### Saying

    async def _queue(self, text: str) -> None:
        has_to_wait = self._is_running
        asked = QueueInput(self.session.id, text, self._new_id())
        accepted = await self.session.client.call("queue", asked, InputAccepted)
        if has_to_wait or accepted.delivery in ("held", "blocked"):
            self._tell(f"in the inbox: {accepted.delivery}")

    async def _steer(self, text: str) -> None:
        asked = SteerTurn(
            session_id=self.session.id, content=text, command_id=self._new_id()
        )
        await self.session.client.call("steer", asked, InputAccepted)

    def _new_id(self) -> str:
        new = SystemIds().uuid()
        self.own.add(new)
        return new

    async def _send_all(self, to_say: trio.MemoryReceiveChannel[Typed]) -> None:
        # Lines of a script that need a session at rest, one after the other.
        has_said = False
        async for typed in to_say:
            has_said = True
            send = self._compact if typed.name == "compact" else self._send
            await self._try(partial(send, typed.text))
            self._unended -= 1
        # One that says nothing came to look.
        if has_said:
            self._leave()

    async def _send(self, text: str) -> None:
        asked = SendPrompt(self.session.id, text, self._new_id())
        turn = await self.session.send(asked)
        with trio.move_on_after(_CATCH_UP_SECONDS):
            while turn.message_id not in self._ended:
                await self._changed.wait()
        self._ended.discard(turn.message_id)
        if self.view.json:
            self.view.end(turn)
        self._status = status_of(turn, interrupted=self._interrupts > 0) or self._status

    #### The inbox, and the session as a whole

    async def _inbox(self) -> None:
        rows = self._listed = await self._inputs()
        if self.view.json:
            self.view.line({"type": "inbox", "inputs": rows})
            return
        for number, row in enumerate(rows, 1):
            self.view.note(f"{number}. {one_line(waiting_line(row), 160)}")
        if not rows:
            self._tell("nothing waits")

    async def _inputs(self) -> tuple[PendingInput, ...]:
        asked = SessionRef(self.session.id)
        return (await self.session.client.call("input/list", asked, InputList)).inputs

    async def _change_input(self, method: str, text: str) -> None:
        # What has gone since it was listed keeps its number: another input never gets
        # what was meant for it.
        rows = await self._inputs() if self._listed is None else self._listed
        place = place_in(text, len(rows), "name it by its number")
        if isinstance(place, str):
            self._refuse(f"{place}: /inbox lists what waits now")
            return
        asked = InputRef(self.session.id, rows[place].id)
        await self.session.client.call(method, asked, InputList)

    async def _release(self) -> None:
        asked = SessionRef(self.session.id)
        await self.session.client.call("input/release", asked, InputList)

    async def _compact(self, focus: str) -> None:
        done = await self.session.compact(focus)
        if self.view.json:
            self.view.compacted(done)
        else:
            self._tell(str(done))

    async def _fork(self) -> None:
        asked = ForkSession(self.session.id)
        made = await self.session.client.call("session/fork", asked, OneSession)
        told: dict[str, Any] = {"type": "forked", "sessionId": made.session.id}
        if self.view.json:
            self.view.line(told)
        else:
            self._tell(f"forked: attach to session {made.session.id}")

    #### Signals

    async def _heed_signals(self, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, *LEAVE_SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                self._interrupts += 1
                if number in LEAVE_SIGNALS or self._interrupts > 1:
                    self._leave(ExitCode.INTERRUPTED)
                elif self._is_running:
                    self.view.note("stopping; Ctrl-C again leaves, and it goes on")
                    self._nursery.start_soon(self._try, self.session.cancel)
                else:
                    self.view.note("nothing runs; Ctrl-C again leaves")
