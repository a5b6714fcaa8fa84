"""The commands of a session: taken in, waited for, and handed out one by one.

The durable inbox is the store's; this is its owner's view of it. A command that was
posted has its turn even if its asker is gone, unless it is taken back before.
"""

from __future__ import annotations

import logging
from typing import Final, final

import attrs
import msgspec

from greenroom.actors.kernel import ReplySlot
from greenroom.protocol import (
    Fact,
    FactKind,
    MessageRecord,
    PromptCommand,
    SourceType,
    StorageError,
    canonical_json,
)
from greenroom.storage import InboxCommand, Posted

from ._history import History
from ._input import Parts, check_parts
from ._messages import Prompt, TurnRefusedError, TurnResult
from ._record import SessionRecord
from ._waiters import Waiters

_LOG: Final = logging.getLogger("greenroom.sessions")

MAX_WAITING_PROMPTS: Final = 64
"""Commands that may wait behind a turn."""


@attrs.frozen
class Accepted:
    """A command whose turn may begin."""

    command_id: str
    parts: Parts


@final
@attrs.define(eq=False)
class Inbox:
    """What waits for its turn, and who waits for it."""

    history: History
    waiters: Waiters
    _held: frozenset[str] | None = attrs.field(default=None, init=False)
    """Commands that wait for the message that the user said to write (INT-09)."""

    async def take_in(
        self, record: SessionRecord, request: Prompt, reply: ReplySlot[TurnResult]
    ) -> None:
        """Make a prompt durable and let *reply* wait for its turn.

        Sent again, it waits for the turn that it began, or is answered at once.

        Raises:
            TurnRefusedError: not taken.
            StorageError: not written.
        """
        is_new = request.command_id not in self.waiters
        if is_new and len(self.waiters) >= MAX_WAITING_PROMPTS:
            raise TurnRefusedError(
                "too_many_commands",
                f"{MAX_WAITING_PROMPTS} prompts wait already; let some finish first",
            )
        body = canonical_json(PromptCommand(request.parts))
        posted = await record.post(request.command_id, body)
        if isinstance(posted, Posted):
            self.waiters.add(request.command_id, reply)
        elif not posted.same_body:
            raise TurnRefusedError(
                "conflicting_command",
                f"command {request.command_id[:80]!r} was sent before with other input",
            )
        elif known := await self._reply_to(request.command_id):
            reply.set_value(TurnResult(known))
        else:
            self.waiters.add(request.command_id, reply)

    async def _reply_to(self, command_id: str) -> MessageRecord | None:
        await self.history.complete()
        return self.history.reply_to(command_id)

    async def next(self, record: SessionRecord) -> Accepted | None:
        """Return the command that has waited longest; what is none is dropped.

        While the user's own message is awaited, what came before is held back.
        """
        while True:
            commands = await self._released(record)
            if not commands:
                if not self._held:
                    self._refuse_waiters()
                return None
            await self.history.complete()
            try:
                accepted = self._accepted(commands[0])
            except TurnRefusedError as exc:
                command_id = commands[0].command_id
                _LOG.warning("command %r was dropped: %s", command_id, exc)
                await self._drop(record, command_id, exc)
                continue
            self._held = None
            return accepted

    async def _released(self, record: SessionRecord) -> list[InboxCommand]:
        since = self.history.awaits_user_since
        if since is None:
            return await record.commands(limit=1)
        commands = await record.commands(limit=MAX_WAITING_PROMPTS + 1)
        if self._held is None:
            # The first look after the answer, or after a restart.
            self._held = frozenset(
                each.command_id for each in commands if each.posted_at <= since
            )
        return [each for each in commands if each.command_id not in self._held]

    async def withdraw(self, record: SessionRecord, command_id: str) -> None:
        """Take back a command that somebody waits for; its turn has not begun."""
        if command_id not in self.waiters:
            return
        error = TurnRefusedError("withdrawn_command", "the command was taken back")
        try:
            await self._drop(record, command_id, error)
        except StorageError as exc:
            # Then it has its turn, as if nobody had taken it back.
            _LOG.warning("command %r was not taken back: %s", command_id, exc)

    def _refuse_waiters(self) -> None:
        # Nothing is left that could give them a result.
        self.waiters.fail_all(
            TurnRefusedError(
                "withdrawn_command",
                "this command was taken back, or its turn failed before; "
                "send the input as a new command",
            )
        )

    def _accepted(self, command: InboxCommand) -> Accepted:
        # Whoever posted it need not have been this program.
        if self.history.holds(command.command_id):
            raise TurnRefusedError(
                "conflicting_command",
                f"{command.command_id[:80]!r} is the id of another message",
            )
        try:
            parts = msgspec.json.decode(command.body, type=PromptCommand).parts
        except (msgspec.DecodeError, RecursionError) as exc:
            raise TurnRefusedError(
                "unknown_command", f"a command can't be read: {exc}"
            ) from exc
        check_parts(parts)
        return Accepted(command.command_id, parts)

    async def _drop(
        self, record: SessionRecord, command_id: str, error: TurnRefusedError
    ) -> None:
        await record.append([withdrawal_fact(command_id)], settles=[command_id])
        self.waiters.fail(command_id, error)


def withdrawal_fact(command_id: str) -> Fact:
    """Return the fact that an input was taken back before its turn began."""
    return Fact(
        kind=FactKind.EVENT,
        name="input/withdrawn",
        source_type=SourceType.RUNTIME_EVENT,
        source_id=command_id,
    )
