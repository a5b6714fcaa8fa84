"""A session's transcript in memory, and the view that its requests begin with.

The view of finished messages is made once and grows by each new message, so that a
turn costs the same in a long session as in a short one. Other settings (another model,
another system prompt) make another view.

Loading a session reads its newest messages alone; those before them are read when the
first run, or a command that may have been sent before, asks for the whole.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import final

import attrs

from greenroom.protocol import (
    Account,
    MessageId,
    MessageRecord,
    SessionSettings,
    Spent,
    ViewBuilder,
    command_of,
)
from greenroom.protocol.context import (
    Boundary,
    Chosen,
    checkpoint_of,
    choose_policy,
)

from ._earlier import ReadBefore
from ._turns import USER_FOLLOW_UP


@final
@attrs.define(eq=False)
class History:
    """Finished messages, oldest first; all of them once `complete` has returned."""

    _records: list[MessageRecord]
    _read_before: ReadBefore | None = None
    """Reads what is before a place, or everything; ``None``: all of it is known."""
    boundary: Boundary | None = None
    """Where what the model is shown begins; ``None``: at the first message."""
    chosen: Chosen = attrs.field(factory=choose_policy)
    """How views are made."""
    pressed: bool = False
    """A request was too large since the boundary moved, and nobody said so (CTX-19)."""
    _ids: set[str] = attrs.field(init=False)
    _commands: set[str] = attrs.field(init=False)
    """What brought the user's messages."""
    _view: ViewBuilder | None = None
    _made_for: tuple[str, str, str] | None = None
    _account: Account = attrs.field(factory=Account)
    _counted: int = 0
    """Records that the account holds."""
    _retracted: set[str] = attrs.field(factory=set[str], init=False)
    _places: list[int] = attrs.field(factory=list[int], init=False)
    """Of what was taken back, in order; shared with every view."""

    def __attrs_post_init__(self) -> None:
        self._ids = {record.id for record in self._records}
        self._commands = set(_commands_of(self._records))

    async def complete(self) -> None:
        """Read what was not read yet; at once, and no checkpoint, if there is nothing.

        Several tasks may ask at a time.

        Raises:
            StorageError: it can't be read; asked again, it is tried again.
        """
        if self._read_before is None:
            return
        first = self._records[0].order_seq if self._records else None
        earlier = await self._read_before(first)
        if self._read_before is None:
            return  # a compaction beside the session's actor was faster
        self._records[:0] = earlier.records
        self._ids.update(record.id for record in earlier.records)
        self._commands.update(_commands_of(earlier.records))
        self._note_retracted(earlier.retracted)
        self.bill(earlier.spent)
        self._read_before = None

    @property
    def records(self) -> tuple[MessageRecord, ...]:
        """All finished messages, oldest first."""
        assert self._read_before is None
        return tuple(self._records)

    @property
    def pinned(self) -> MessageRecord | None:
        """The user's message that every request holds; ``None``: there is none."""
        return (
            next(filter(_was_said, self._records), None) if self.chosen.pins else None
        )

    @property
    def next_order(self) -> int:
        """The place of the next message, from 1."""
        return self._records[-1].order_seq + 1 if self._records else 1

    @property
    def awaits_user_since(self) -> float | None:
        """When the user said to write a message of their own, if that is next."""
        last = self._records[-1] if self._records else None
        if last is None or last.metadata.run_stop_reason != USER_FOLLOW_UP.stop_reason:
            return None
        return last.updated_at

    @property
    def account(self) -> Account:
        """What was used so far, finished turns and all, and what the user added."""
        assert self._read_before is None
        for record in self._records[self._counted :]:
            self._account = self._account.after(record.metadata, record.blocks)
        self._counted = len(self._records)
        return self._account

    def bill(self, spent: Spent) -> None:
        """Count what was used by no turn."""
        account = self._account
        self._account = attrs.evolve(account, spent=account.spent.plus(spent))

    def append(self, record: MessageRecord) -> None:
        """Add a message that will not change any more."""
        self._records.append(record)
        self._ids.add(record.id)
        self._commands.update(_commands_of([record]))
        if self._view is not None:
            self._place(self._view, record)

    def view(
        self, settings: SessionSettings, said: Iterable[MessageRecord] = ()
    ) -> ViewBuilder:
        """Return what a request begins with, to be added to.

        *said* comes behind what is here: messages that are not on the tape yet.
        """
        assert self._read_before is None
        wanted = settings.provider, settings.model, settings.system_prompt
        if self._view is None or self._made_for != wanted:
            self._view, self._made_for = self._make(settings), wanted
        view = self._view.fork()
        for record in said:
            self._place(view, record)
        return view

    def retract(self, messages: Iterable[MessageRecord]) -> None:
        """Take messages out. What they cost stays spent, their ids stay used."""
        gone = {message.id: message.order_seq for message in messages}
        self._note_retracted(gone.items())
        if gone.keys().isdisjoint(record.id for record in self._records):
            return
        # Counted first, so that a limit counts what came to nothing as well.
        _ = self.account
        self._records = [r for r in self._records if r.id not in gone]
        self._commands = set(_commands_of(self._records))
        self._counted = len(self._records)
        self._view = None

    def _note_retracted(self, messages: Iterable[tuple[MessageId, int]]) -> None:
        for message_id, place in messages:
            if message_id not in self._retracted:
                self._retracted.add(message_id)
                self._ids.add(message_id)
                insort(self._places, place)

    def holds(self, message_id: str) -> bool:
        """Whether a message has that id, or had it before it was retracted."""
        assert self._read_before is None
        return message_id in self._ids

    def took(self, command_id: str) -> bool:
        """Whether a user's message is here that the command brought."""
        assert self._read_before is None
        return command_id in self._commands

    def reply_to(self, command_id: str) -> MessageRecord | None:
        """Return the assistant's answer to what the command brought."""
        assert self._read_before is None
        asked = False
        if not self.took(command_id):
            return None
        for record in self._records:
            if asked and record.role == "assistant":
                return record
            asked = asked or command_id in _commands_of([record])
        return None

    def _make(self, settings: SessionSettings) -> ViewBuilder:
        view = ViewBuilder(settings.provider, settings.model, self._places)
        view.add_system(settings.system_prompt)
        boundary = self.boundary
        if boundary is not None:
            view.anchor_entry = boundary.entry
        checkpoint = None if boundary is None else checkpoint_of(boundary)
        if checkpoint is not None:
            view.add_checkpoint(checkpoint.text, checkpoint.sections)
        for record in self._records:
            self._place(view, record)
        return view

    def _place(self, view: ViewBuilder, record: MessageRecord) -> None:
        if self.chosen.pins and not view.has_pin and _was_said(record):
            view.pin(record)
        if self.boundary is not None and record.order_seq < self.boundary.cursor:
            view.leave_out(record, "before_summary_cursor")
        elif _is_indicator(record):
            view.leave_out(record, "compaction_indicator")
        elif record.status == "pending":
            view.leave_out(record, "pending_not_context_history")
        else:
            view.add_record(record)

    def move_boundary(self, boundary: Boundary) -> None:
        """Show from *boundary* on, which is on the tape; views that exist stay."""
        self.boundary, self._view, self.pressed = boundary, None, False


def _was_said(record: MessageRecord) -> bool:
    counts = record.status != "pending" and not _is_indicator(record)
    return counts and record.role == "user"


def _is_indicator(record: MessageRecord) -> bool:
    # From an older system; here a boundary is an anchor, and no message (TAP-07).
    return record.metadata.message_type == "compaction"


def _commands_of(records: Iterable[MessageRecord]) -> list[str]:
    return [command_of(record) for record in records if record.role == "user"]
