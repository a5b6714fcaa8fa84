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
from enum import IntEnum
from typing import Final, Literal, final

import attrs
import msgspec

from ._events import SessionState
from ._ids import MessageId
from ._messages import TextPart
from ._pending import (
    INPUT_TRANSITIONS,
    InputEnd,
    InputRefusedError,
    Parts,
    PendingInput,
    joined,
)

MAX_QUEUED: Final = 5
"""Inputs of the queue that may wait in one session (PIN-02)."""

MAX_SENT: Final = 64
"""Prompts with somebody who waits for their turn, in one session."""

MAX_STEER_MESSAGES: Final = 64
"""Messages that one steer may be made of."""

MAX_STEER_CHARS: Final = 400_000
"""Text of one steer, all its messages together."""

Settlement = Literal["delivered", "returned"]


class Wake(IntEnum):
    """Why the lanes are looked at; of several reasons the strongest counts (PIN-09)."""

    COMPLETED = 0
    """A turn has ended."""
    ENQUEUE = 1
    """Something was put in."""
    MANUAL = 2
    """The user said go on."""


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
        return cls(tuple(sorted(rows, key=_place)))

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
            _check_steer(self.steer, parts)
        released = self.release(now=now)
        added = released.inputs._add_steer(input_id, parts, message_id, now)
        return InputChange(added.inputs, _last(released.revisions + added.revisions))

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
            raise _locked(row, "it is being delivered")
        return self._consume(row, "deleted", now=now)

    def promote(
        self, input_id: str, message_id: MessageId, *, now: float
    ) -> InputChange:
        """Turn a queued input into a steer; *message_id* is its user message.

        Raises:
            InputRefusedError: unknown, a steer, claimed, or the steer is too large.
        """
        row = self._editable(input_id)
        parts = row.parts or ()
        if self.steer is not None:
            _check_steer(self.steer, parts)
            without = self._consume(row, "promoted", now=now)
            added = without.inputs._add_steer(row.id, parts, message_id, now)
            return InputChange(added.inputs, without.revisions + added.revisions)
        turned = msgspec.structs.replace(
            row,
            mode="steer",
            sent=False,
            order=0,
            held=False,
            message_ids=(message_id,),
            updated_at=now,
        )
        rest = self._without(row)
        numbered = rest._renumber(rest.queue, now=now)
        rows = (*numbered.inputs.rows, turned)
        return InputChange(
            PendingInputs.of(rows), (_header(turned), *numbered.revisions)
        )

    def hold(self, *, now: float) -> InputChange:
        """Keep what waits from being let in, after the user stopped the turn."""
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
        return self._revise(
            row, state="blocked", blocking=tuple(reasons), updated_at=now
        )

    def retry(self, input_id: str, *, now: float) -> InputChange:
        """Try a blocked input again as it is.

        Raises:
            InputRefusedError: unknown or not blocked.
        """
        row = self._blocked(input_id)
        return self._revise(row, state="pending", blocking=(), updated_at=now)

    def degrade(self, input_id: str, parts: Parts, *, now: float) -> InputChange:
        """Let a blocked input go on with *parts*, what is left of it.

        Raises:
            InputRefusedError: unknown or not blocked.
        """
        row = self._blocked(input_id)
        return self._revise(
            row, state="pending", blocking=(), parts=parts, updated_at=now
        )

    #### Letting in

    def next(
        self,
        wake: Wake,
        *,
        state: SessionState,
        interaction: bool = False,
        awaits_follow_up: bool = False,
    ) -> PendingInput | None:
        """Return the row to let in now, if one may be (PIN-08).

        After a failed turn only something new, or the user, lets more in.
        """
        if state == "generating" or (state == "error" and wake is Wake.COMPLETED):
            return None
        if interaction or any(r.state in ("blocked", "claimed") for r in self.rows):
            return None
        for row in self.rows:
            if row.held or (awaits_follow_up and not row.sent):
                continue
            return row
        return None

    def claim(
        self, input_id: str, *, now: float, reply: MessageId | None = None
    ) -> InputChange:
        """Take a row for its turn; *reply* is the assistant message of a steer.

        Raises:
            InputRefusedError: unknown, or it does not wait.
        """
        row = self.find(input_id)
        if row.state != "pending":
            raise _locked(row, f"it is {row.state}")
        return self._revise(
            row,
            state="claimed",
            claimed_at=now,
            assistant_message_id=reply,
            held=False,
            updated_at=now,
        )

    def settle(
        self, input_id: str, settlement: Settlement, *, now: float
    ) -> InputChange:
        """End a claim; a row that is gone, or not claimed, stays as it is (PIN-10).

        A steer is always consumed, whatever became of its turn (PIN-11).
        """
        row = next((r for r in self.rows if r.id == input_id), None)
        if row is None or row.state != "claimed":
            return InputChange(self)
        if settlement == "delivered" or row.mode == "steer":
            return self._consume(row, "delivered", now=now)
        return self._revise(
            row, state="pending", returned=True, claimed_at=None, updated_at=now
        )

    #### Restart

    def recovered(
        self, known: Callable[[PendingInput], bool], *, now: float
    ) -> InputChange:
        """Return what a restart makes of the rows (PIN-14).

        *known* says whether the messages of a claimed row are in the transcript.
        """
        inputs, revisions = self, list[PendingInput]()
        for row in self.rows:
            step = inputs._recovered(row, known, now)
            inputs, revisions = step.inputs, revisions + list(step.revisions)
        return InputChange(inputs, tuple(revisions))

    def _recovered(
        self, row: PendingInput, known: Callable[[PendingInput], bool], now: float
    ) -> InputChange:
        if row.state == "claimed":
            delivered = row.mode == "steer" or known(row)
            return self.settle(
                row.id, "delivered" if delivered else "returned", now=now
            )
        if row.mode == "steer" and row.state == "blocked":
            rest = self._without(row)
            queued = msgspec.structs.replace(
                row,
                mode="queue",
                state="pending",
                order=len(rest.queue) + 1,
                blocking=(),
                message_ids=(),
                updated_at=now,
            )
            return InputChange(PendingInputs((*rest.rows, queued)), (_header(queued),))
        return InputChange(self)

    #### Steps

    def _editable(self, input_id: str) -> PendingInput:
        row = self.find(input_id)
        if row.mode == "steer":
            raise _locked(row, "a steer is part of the transcript already")
        if row.state == "claimed":
            raise _locked(row, "it is being delivered")
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
        gone = _stepped(row, state="consumed", end=end, held=False, updated_at=now)
        rest = self._without(row)
        numbered = rest._renumber(rest.queue, now=now)
        return InputChange(numbered.inputs, (_header(gone), *numbered.revisions))

    def _revise(self, row: PendingInput, **fields: object) -> InputChange:
        changed = _stepped(row, **fields)
        rows = tuple(changed if r.id == row.id else r for r in self.rows)
        revision = changed if "parts" in fields else _header(changed)
        return InputChange(PendingInputs(rows), (revision,))

    def _revise_all(
        self, wanted: Callable[[PendingInput], bool], *, held: bool, now: float
    ) -> InputChange:
        rows = tuple(
            _stepped(row, held=held, updated_at=now) if wanted(row) else row
            for row in self.rows
        )
        return InputChange(PendingInputs(rows), _changed(self.rows, rows))

    def _renumber(self, lane: Sequence[PendingInput], *, now: float) -> InputChange:
        numbered = tuple(
            row if row.order == place else _stepped(row, order=place, updated_at=now)
            for place, row in enumerate(lane, start=1)
        )
        steers = tuple(row for row in self.rows if row.mode == "steer")
        return InputChange(
            PendingInputs(steers + numbered), _changed(self.rows, numbered)
        )


def _stepped(row: PendingInput, **fields: object) -> PendingInput:
    changed = msgspec.structs.replace(row, **fields)
    allowed = (*INPUT_TRANSITIONS[row.state], row.state)
    if row.mode == "steer" and row.state == "claimed":
        # A steer's claim is not taken back (PIN-05).
        allowed = ("claimed", "consumed")
    if changed.state not in allowed:
        raise InputRefusedError(
            "input_locked", f"input {row.id[:80]!r} is {row.state}: not {changed.state}"
        )
    return changed


def _check_steer(opened: PendingInput, parts: Parts) -> None:
    both = (opened.parts or ()) + parts
    chars = sum(len(part.text) for part in both if isinstance(part, TextPart))
    if chars > MAX_STEER_CHARS or len(opened.message_ids) >= MAX_STEER_MESSAGES:
        raise InputRefusedError(
            "steer_full",
            "what was said to the running turn is too much already",
            hint="wait until it is read, or put it into the queue",
        )


def _locked(row: PendingInput, why: str) -> InputRefusedError:
    return InputRefusedError(
        "input_locked", f"input {row.id[:80]!r} can't be changed: {why}"
    )


def _place(row: PendingInput) -> tuple[int, int]:
    steer = (0, 0) if row.state == "claimed" else (0, 1)
    return steer if row.mode == "steer" else (1, row.order)


def _header(row: PendingInput) -> PendingInput:
    return msgspec.structs.replace(row, parts=None)


def _changed(
    before: Sequence[PendingInput], after: Sequence[PendingInput]
) -> tuple[PendingInput, ...]:
    old = {row.id: row for row in before}
    return tuple(_header(row) for row in after if old.get(row.id) != row)


def _last(revisions: Sequence[PendingInput]) -> tuple[PendingInput, ...]:
    # One revision of each row: the last one, which holds what the others changed.
    return tuple({row.id: row for row in revisions}.values())
