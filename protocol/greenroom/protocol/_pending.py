"""A pending input: what the user said while the session could not take it (PIN-01).

A row is a value; what may be done with the rows of a session is in `_lanes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from ._errors import GreenroomError
from ._ids import MessageId
from ._messages import ImagePart, TextPart

Parts = tuple[TextPart | ImagePart, ...]
"""The input of one turn."""

InputMode = Literal["queue", "steer"]
InputState = Literal["pending", "claimed", "blocked", "consumed"]
InputEnd = Literal["delivered", "deleted", "promoted"]
Delivery = Literal["held", "waiting", "blocked", "in_flight", "delivered", "deleted"]

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
    ``not_blocked``, ``nothing_held`` or ``turn_changed``.
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
    """Its turn failed and it came back."""
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
        return "held" if self.held else "waiting"


def merged_input(older: PendingInput | None, revision: PendingInput) -> PendingInput:
    """Return *revision* with the parts of the row before it where it has none."""
    if revision.parts is not None or older is None:
        return revision
    return msgspec.structs.replace(revision, parts=older.parts)


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
