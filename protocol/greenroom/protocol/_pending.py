"""A pending input: what the user said while the session could not take it (PIN-01).

A row is a value; what may be done with the rows of a session is in `_lanes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from ._errors import GreenroomError
from ._ids import MessageId
from ._messages import ImagePart, TextPart

Parts = tuple[TextPart | ImagePart, ...]
"""The input of one turn."""

MAX_STEER_MESSAGES: Final = 64
"""Messages that one steer may be made of."""

MAX_STEER_CHARS: Final = 400_000
"""Text of one steer, all its messages together."""

InputMode = Literal["queue", "steer"]
InputState = Literal["pending", "claimed", "blocked", "consumed"]
InputEnd = Literal["delivered", "deleted", "promoted"]
Delivery = Literal[
    "held", "waiting", "returned", "blocked", "in_flight", "delivered", "deleted"
]

INPUT_TRANSITIONS: Final[Mapping[InputState, tuple[InputState, ...]]] = {
    "pending": ("claimed", "blocked", "consumed"),
    "claimed": ("pending", "consumed", "blocked"),
    "blocked": ("pending", "consumed"),
    "consumed": (),
}
"""What a row may become; a steer's claim is not taken back (PIN-05)."""


class InputRefusedError(GreenroomError):
    """A step on pending input that can't be taken; nothing has changed.

    ``code`` is ``queue_full``, ``steer_full``, ``unknown_input``, ``input_locked``,
    ``not_blocked``, ``nothing_left`` or ``turn_changed``.
    """

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


class PendingInput(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """One row: an input that was accepted and has not had its turn (PIN-01)."""

    id: str
    """That of the command that brought it."""
    mode: InputMode
    state: InputState = "pending"
    sent: bool = False
    """Somebody waits for its turn (a prompt). It is consumed when its run starts, so a
    turn that fails does not bring it back (PIN-11)."""
    order: int = 0
    """Place in the queue, from 1; 0 for a steer."""
    parts: Parts | None = None
    """What was said. In a revision, ``None`` means unchanged."""
    message_ids: tuple[MessageId, ...] = ()
    """Its messages in the transcript."""
    assistant_message_id: MessageId | None = None
    """The reply that was reserved when it was claimed."""
    blocking: tuple[str, ...] = ()
    """Why it needs a decision of the user, while it is blocked (PIN-12)."""
    held: bool = False
    """It stays until the user releases it or sends something."""
    returned: bool = False
    """It came back: its turn failed, or a restart took it out of the transcript. The
    ids of the messages that it had are used up."""
    end: InputEnd | None = None
    """How it left, once consumed."""
    created_at: float
    updated_at: float
    claimed_at: float | None = None

    @property
    def delivery(self) -> Delivery:
        """Where the input stands, for whoever sent it."""
        if self.state == "consumed":
            return "deleted" if self.end == "deleted" else "delivered"
        if self.state == "claimed":
            return "in_flight"
        if self.state == "blocked":
            return "blocked"
        if self.held:
            return "returned" if self.returned else "held"
        return "waiting"


def merged_input(older: PendingInput | None, revision: PendingInput) -> PendingInput:
    """Return *revision* with the parts of the row before it where it has none."""
    if revision.parts is not None or older is None:
        return revision
    return msgspec.structs.replace(revision, parts=older.parts)


def stepped(row: PendingInput, **fields: object) -> PendingInput:
    """Return *row* with *fields*, if it may become that.

    Raises:
        InputRefusedError: not in its state (`INPUT_TRANSITIONS`).
    """
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


def place(row: PendingInput) -> tuple[int, int]:
    """Return the key of the order in which rows are let in."""
    steer = (0, 0) if row.state == "claimed" else (0, 1)
    return steer if row.mode == "steer" else (1, row.order)


def check_steer(opened: PendingInput, parts: Parts) -> None:
    """Check that *parts* may be added to the steer *opened*.

    Raises:
        InputRefusedError: it has grown too large.
    """
    both = (opened.parts or ()) + parts
    chars = sum(len(part.text) for part in both if isinstance(part, TextPart))
    if chars > MAX_STEER_CHARS or len(opened.message_ids) >= MAX_STEER_MESSAGES:
        raise InputRefusedError(
            "steer_full",
            "what was said to the running turn is too much already",
            hint="wait until it is read, or put it into the queue",
        )


def locked(row: PendingInput, why: str) -> InputRefusedError:
    """Return the refusal of a change to *row*."""
    return InputRefusedError(
        "input_locked", f"input {row.id[:80]!r} can't be changed: {why}"
    )


def header(row: PendingInput) -> PendingInput:
    """Return *row* as a revision that leaves its parts as they are."""
    return msgspec.structs.replace(row, parts=None)


def changed_rows(
    before: Sequence[PendingInput], after: Sequence[PendingInput]
) -> tuple[PendingInput, ...]:
    """Return the revisions that lead from the rows *before* to those *after*."""
    old = {row.id: row for row in before}
    return tuple(header(row) for row in after if old.get(row.id) != row)


def newest(revisions: Sequence[PendingInput]) -> tuple[PendingInput, ...]:
    """Return one revision of each row, the last one, with the parts of those before."""
    last: dict[str, PendingInput] = {}
    for row in revisions:
        last[row.id] = merged_input(last.get(row.id), row)
    return tuple(last.values())


def joined(first: Parts, second: Parts) -> Parts:
    """Return both inputs as one: texts that meet are joined by a blank line (PIN-04).

    Nothing else moves against its neighbours, so an image stays where it was said.
    """
    if not first or not second:
        return first + second
    last, following = first[-1], second[0]
    if isinstance(last, TextPart) and isinstance(following, TextPart):
        text = TextPart(f"{last.text}\n\n{following.text}")
        return (*first[:-1], text, *second[1:])
    return first + second
