"""The lanes of a session's pending input, as a value and its steps (PIN).

*Queue*: waits for the session to be idle, in an order the user may change; not part of
the transcript before it is claimed. *Steer*: is for the turn that runs; its messages
are in the transcript at once, its content is locked, and there is one open row, to
which further steers are added (PIN-04).

*Rule 1*: a step changes nothing; the session makes its revisions durable and adopts
its rows then. *Rule 2*: the order of the rows is the order they are let in, and nothing
else decides that: the steer first, then the queue (PIN-08). *Rule 3*: a row leaves only
as ``consumed``, once; what was accepted and is not consumed is a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, final

import attrs
import msgspec

from ._ids import MessageId
from ._pending import (
    InputEnd,
    InputRefusedError,
    Parts,
    PendingInput,
    changed_rows,
    check_steer,
    header,
    joined,
    locked,
    newest,
    place,
    stepped,
)

MAX_QUEUED: Final = 5
"""Inputs of the queue that may wait in one session (PIN-02)."""

MAX_SENT: Final = 64
"""Prompts with somebody who waits for their turn, in one session."""

Settlement = Literal["delivered", "returned", "released"]
"""Of a claim: it had its turn; its turn failed; or nothing has come of it yet."""


@attrs.frozen
class InputChange:
    """A step: the rows after it, and the revisions that have to be made durable."""

    inputs: PendingInputs
    revisions: tuple[PendingInput, ...] = ()
    """Rows that are new or changed; parts only where those are new."""


@final
@attrs.frozen
class PendingInputs:
    """The rows of a session that are not consumed, in the order they are let in."""

    rows: tuple[PendingInput, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[PendingInput]) -> PendingInputs:
        """Return *rows* as lanes, each row in its place."""
        return cls(tuple(sorted(rows, key=place)))

    def find(self, input_id: str) -> PendingInput:
        """Return a row.

        Raises:
            InputRefusedError: there is none.
        """
        for row in self.rows:
            if row.id == input_id:
                return row
        raise InputRefusedError(
            "unknown_input",
            f"there is no pending input {input_id[:80]!r}; it was delivered or deleted",
        )

    @property
    def steer(self) -> PendingInput | None:
        """The open steer, if there is one: further ones are added to it."""
        found = [r for r in self.rows if r.mode == "steer" and r.state != "claimed"]
        return found[0] if found else None

    @property
    def steers(self) -> bool:
        """Whether a steer waits for the running turn to make way (PIN-06)."""
        opened = self.steer
        return opened is not None and opened.state == "pending" and not opened.held

    @property
    def queue(self) -> tuple[PendingInput, ...]:
        """The lane of the queue, in order."""
        return tuple(row for row in self.rows if row.mode == "queue")

    @property
    def claimed(self) -> PendingInput | None:
        """The row whose turn is being prepared or runs."""
        found = [row for row in self.rows if row.state == "claimed"]
        return found[0] if found else None

    #### Putting in

    def enqueue(
        self, input_id: str, parts: Parts, *, now: float, sent: bool = False
    ) -> InputChange:
        """Put an input at the end of the queue. What was held goes on with it.

        Raises:
            InputRefusedError: the queue is full (PIN-02).
        """
        same = [row for row in self.queue if row.sent == sent and row.end is None]
        most = MAX_SENT if sent else MAX_QUEUED
        if len([row for row in same if row.state != "claimed"]) >= most:
            raise InputRefusedError(
                "queue_full",
                f"{most} inputs wait already",
                hint="wait for one to be taken, or delete one",
            )
        row = PendingInput(
            id=input_id,
            mode="queue",
            sent=sent,
            order=len(self.queue) + 1,
            parts=parts,
            created_at=now,
            updated_at=now,
        )
        released = self.release(now=now)
        added = attrs.evolve(released.inputs, rows=(*released.inputs.rows, row))
        return InputChange(added, (*released.revisions, row))

    def add_steer(
        self, input_id: str, parts: Parts, message_id: MessageId, *, now: float
    ) -> InputChange:
        """Add to the open steer, or open one (PIN-03, PIN-04). What was held goes on.

        Raises:
            InputRefusedError: the steer has grown too large.
        """
        if self.steer is not None:
            check_steer(self.steer, parts)
        released = self.release(now=now)
        added = released.inputs._add_steer(input_id, parts, message_id, now)
        return InputChange(added.inputs, newest(released.revisions + added.revisions))

    def give_back(self, input_id: str, parts: Parts, *, now: float) -> InputChange:
        """Put an input in front that went straight to its turn, which never began.

        It had no row (PIN-11). It stays until something new comes, or the user says
        so: who waited for it was told that it failed.
        """
        row = PendingInput(
            id=input_id,
            mode="queue",
            sent=True,
            order=1,
            parts=parts,
            held=True,
            returned=True,
            created_at=now,
            updated_at=now,
        )
        steers = tuple(each for each in self.rows if each.mode == "steer")
        placed = PendingInputs((*steers, row, *self.queue))
        numbered = placed._renumber(placed.queue, now=now)
        return InputChange(numbered.inputs, (row, *numbered.revisions))

    def _add_steer(
        self, input_id: str, parts: Parts, message_id: MessageId, now: float
    ) -> InputChange:
        opened = self.steer
        if opened is None:
            row = PendingInput(
                id=input_id,
                mode="steer",
                parts=parts,
                message_ids=(message_id,),
                created_at=now,
                updated_at=now,
            )
            return InputChange(PendingInputs.of((*self.rows, row)), (row,))
        return self._revise(
            opened,
            parts=joined(opened.parts or (), parts),
            message_ids=(*opened.message_ids, message_id),
            updated_at=now,
        )

    #### The user's edits

    def edit(self, input_id: str, parts: Parts, *, now: float) -> InputChange:
        """Replace what a queued input says.

        Raises:
            InputRefusedError: unknown, a steer (its content is locked), or claimed.
        """
        row = self._editable(input_id)
        return self._revise(
            row, parts=parts, state="pending", blocking=(), updated_at=now
        )

    def move(self, input_id: str, to: int, *, now: float) -> InputChange:
        """Move a queued input to place *to*, which is clamped (PIN-02).

        Raises:
            InputRefusedError: unknown, a steer, or claimed.
        """
        row = self._editable(input_id)
        lane = [other for other in self.queue if other.id != row.id]
        first = len([other for other in lane if other.state == "claimed"])
        place = min(max(to - 1, first), len(lane))
        lane.insert(place, row)
        return self._renumber(lane, now=now)

    def delete(self, input_id: str, *, now: float) -> InputChange:
        """Take an input back. A steer may be deleted until it is read.

        Raises:
            InputRefusedError: unknown or claimed.
        """
        row = self.find(input_id)
        if row.state == "claimed":
            raise locked(row, "it is being delivered")
        return self._consume(row, "deleted", now=now)

    def promote(
        self, input_id: str, message_id: MessageId, *, now: float
    ) -> InputChange:
        """Turn a queued input into a steer; *message_id* is its user message.

        What was held goes on with it: the user wants it said now.

        Raises:
            InputRefusedError: unknown, a steer, claimed, or the steer is too large.
        """
        row = self._editable(input_id)
        if self.steer is not None:
            check_steer(self.steer, row.parts or ())
        released = self.release(now=now)
        step = released.inputs._promote(released.inputs.find(row.id), message_id, now)
        return InputChange(step.inputs, newest(released.revisions + step.revisions))

    def _promote(
        self, row: PendingInput, message_id: MessageId, now: float
    ) -> InputChange:
        if self.steer is not None:
            parts = row.parts or ()
            without = self._consume(row, "promoted", now=now)
            added = without.inputs._add_steer(row.id, parts, message_id, now)
            return InputChange(added.inputs, without.revisions + added.revisions)
        turned = msgspec.structs.replace(
            row,
            mode="steer",
            sent=False,
            order=0,
            message_ids=(message_id,),
            updated_at=now,
        )
        rest = self._without(row)
        numbered = rest._renumber(rest.queue, now=now)
        rows = (*numbered.inputs.rows, turned)
        return InputChange(
            PendingInputs.of(rows), (header(turned), *numbered.revisions)
        )

    def hold(self, *, now: float) -> InputChange:
        """Keep what waits from being let in, after the user stopped the turn.

        With a prompt that somebody waits for nothing is held: that is the input which
        would let it go on, and in its order.
        """
        if any(
            row.sent and row.state == "pending" and not row.held for row in self.rows
        ):
            return InputChange(self)
        return self._revise_all(
            lambda row: row.state == "pending" and not row.held, held=True, now=now
        )

    def release(self, *, now: float) -> InputChange:
        """Let what is held go on."""
        return self._revise_all(lambda row: row.held, held=False, now=now)

    #### Blocked

    def block(
        self, input_id: str, reasons: Sequence[str], *, now: float
    ) -> InputChange:
        """Say that an input needs a decision before it can have its turn (PIN-12)."""
        row = self.find(input_id)
        ids = row.message_ids if row.mode == "steer" else ()
        return self._revise(
            row,
            assistant_message_id=None,
            state="blocked",
            blocking=tuple(reasons),
            claimed_at=None,
            message_ids=ids,
            updated_at=now,
        )

    def retry(self, input_id: str, *, now: float) -> InputChange:
        """Try a blocked input again as it is.

        Raises:
            InputRefusedError: unknown or not blocked.
        """
        row = self._blocked(input_id)
        return self._revise(row, state="pending", blocking=(), updated_at=now)

    def degrade(
        self,
        input_id: str,
        parts: Parts,
        *,
        now: float,
        message_ids: tuple[MessageId, ...] | None = None,
    ) -> InputChange:
        """Let a blocked input go on with *parts*, what is left of it.

        *message_ids* are those that a steer has then.

        Raises:
            InputRefusedError: unknown or not blocked.
        """
        row = self._blocked(input_id)
        ids = row.message_ids if message_ids is None else message_ids
        return self._revise(
            row,
            state="pending",
            blocking=(),
            parts=parts,
            message_ids=ids,
            updated_at=now,
        )

    #### Letting in

    def claim(
        self,
        input_id: str,
        *,
        now: float,
        reply: MessageId | None = None,
        message_id: MessageId | None = None,
    ) -> InputChange:
        """Take a row for its turn.

        *reply* is the id that is reserved for the assistant's message (PIN-05), by
        which a restart knows whether the turn began; *message_id* is that of the user's
        message which a queued input is going to have.

        Raises:
            InputRefusedError: unknown, or it does not wait.
        """
        row = self.find(input_id)
        if row.state != "pending":
            raise locked(row, f"it is {row.state}")
        ids = row.message_ids if message_id is None else (message_id,)
        return self._revise(
            row,
            state="claimed",
            claimed_at=now,
            message_ids=ids,
            assistant_message_id=reply,
            held=False,
            updated_at=now,
        )

    def claim_at_once(
        self,
        input_id: str,
        parts: Parts,
        *,
        message_id: MessageId,
        reply: MessageId,
        now: float,
    ) -> InputChange:
        """Take an input for its turn that had no row, because nothing waits."""
        queued = self.enqueue(input_id, parts, now=now, sent=True)
        taken = queued.inputs.claim(
            input_id, message_id=message_id, reply=reply, now=now
        )
        return InputChange(taken.inputs, newest(queued.revisions + taken.revisions))

    def settle(
        self,
        input_id: str,
        settlement: Settlement,
        *,
        now: float,
        retracts: bool = False,
    ) -> InputChange:
        """End a claim; a row that is gone, or not claimed, stays as it is (PIN-10).

        A steer is always consumed, whatever became of its turn (PIN-11). What comes
        back stays until something new comes, or the user says go on. *retracts*: its
        message was in the transcript and is taken out, so the id is used up.
        """
        row = next((r for r in self.rows if r.id == input_id), None)
        if row is None or row.state != "claimed":
            return InputChange(self)
        if settlement == "delivered" or row.mode == "steer":
            return self._consume(row, "delivered", now=now)
        return self._revise(
            row,
            state="pending",
            returned=row.returned or retracts or settlement == "returned",
            held=settlement == "returned",
            claimed_at=None,
            message_ids=(),
            assistant_message_id=None,
            updated_at=now,
        )

    def requeue(self, input_id: str, *, now: float) -> InputChange:
        """Turn a blocked steer into a queued input, whose content can be edited.

        Its messages leave the transcript with it (PIN-14).
        """
        row = self._blocked(input_id)
        rest = self._without(row)
        queued = msgspec.structs.replace(
            row,
            mode="queue",
            state="pending",
            order=len(rest.queue) + 1,
            blocking=(),
            returned=True,
            message_ids=(),
            updated_at=now,
        )
        return InputChange(PendingInputs((*rest.rows, queued)), (header(queued),))

    def link(self, input_id: str, message_id: MessageId, *, now: float) -> InputChange:
        """Give a steer without a message its *message_id* (PIN-14)."""
        row = self.find(input_id)
        return self._revise(row, message_ids=(message_id,), updated_at=now)

    #### Steps

    def _editable(self, input_id: str) -> PendingInput:
        row = self.find(input_id)
        if row.mode == "steer":
            raise locked(row, "a steer is part of the transcript already")
        if row.state == "claimed":
            raise locked(row, "it is being delivered")
        return row

    def _blocked(self, input_id: str) -> PendingInput:
        row = self.find(input_id)
        if row.state != "blocked":
            raise InputRefusedError(
                "not_blocked", f"input {input_id[:80]!r} is {row.state}, not blocked"
            )
        return row

    def _without(self, row: PendingInput) -> PendingInputs:
        return PendingInputs(tuple(r for r in self.rows if r.id != row.id))

    def _consume(self, row: PendingInput, end: InputEnd, *, now: float) -> InputChange:
        gone = stepped(row, state="consumed", end=end, held=False, updated_at=now)
        rest = self._without(row)
        numbered = rest._renumber(rest.queue, now=now)
        return InputChange(numbered.inputs, (header(gone), *numbered.revisions))

    def _revise(self, row: PendingInput, **fields: object) -> InputChange:
        changed = stepped(row, **fields)
        rows = tuple(changed if r.id == row.id else r for r in self.rows)
        revision = changed if "parts" in fields else header(changed)
        return InputChange(PendingInputs(rows), (revision,))

    def _revise_all(
        self, wanted: Callable[[PendingInput], bool], *, held: bool, now: float
    ) -> InputChange:
        rows = tuple(
            stepped(row, held=held, updated_at=now) if wanted(row) else row
            for row in self.rows
        )
        return InputChange(PendingInputs(rows), changed_rows(self.rows, rows))

    def _renumber(self, lane: Sequence[PendingInput], *, now: float) -> InputChange:
        numbered = tuple(
            row if row.order == place else stepped(row, order=place, updated_at=now)
            for place, row in enumerate(lane, start=1)
        )
        steers = tuple(row for row in self.rows if row.mode == "steer")
        return InputChange(
            PendingInputs(steers + numbered), changed_rows(self.rows, numbered)
        )
