"""Which pending input is let in next, and what a restart makes of those there are.

*Rule 1*: nothing else decides either. *Rule 2*: both are functions of the rows and what
they are told; the session, or the recovery, makes the result durable (PIN-08, PIN-14).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import IntEnum

from ._events import SessionState
from ._ids import MessageId
from ._lanes import InputChange, PendingInputs
from ._pending import PendingInput, newest


class Wake(IntEnum):
    """Why the lanes are looked at; of several reasons the strongest counts (PIN-09)."""

    COMPLETED = 0
    """A turn has ended."""
    ENQUEUE = 1
    """Something was put in."""
    MANUAL = 2
    """The user said go on."""


def next_input(
    inputs: PendingInputs,
    wake: Wake,
    *,
    state: SessionState,
    interaction: bool = False,
    kept_back: Collection[str] | None = None,
) -> PendingInput | None:
    """Return the row to let in now, if one may be (PIN-08).

    After a failed turn only something new, or the user, lets more in; a prompt that
    somebody waits for, and a steer, are such a thing for as long as they wait.

    *kept_back*: while a message of the user's own is awaited, what was there before
    it was; ``None``: none is awaited (INT-09). Only a prompt or a steer is that
    message.
    """
    if state == "generating" or interaction:
        return None
    if any(row.state in ("blocked", "claimed") for row in inputs.rows):
        return None
    rows = [row for row in inputs.rows if not row.held]
    said = [row for row in rows if row.sent or row.mode == "steer"]
    if state == "error" and wake is Wake.COMPLETED and not said:
        return None
    if kept_back is not None:
        own = [row for row in said if row.id not in kept_back]
        # A steer has its place in the transcript, before whatever comes now.
        rows = [r for r in rows if own and (r in own or r.mode == "steer")]
    return rows[0] if rows else None


def recovered_inputs(
    inputs: PendingInputs,
    known: Callable[[PendingInput], bool],
    *,
    now: float,
    half_open: Callable[[PendingInput], bool] = lambda _: False,
) -> InputChange:
    """Return what a restart makes of the rows (PIN-14).

    *known* says whether the messages of a claimed row are in the transcript, and
    *half_open* whether the user's is there alone: then it is taken out again.
    """
    revisions: list[PendingInput] = []
    for row in inputs.rows:
        step = _recovered(inputs, row, known, half_open, now)
        inputs, revisions = step.inputs, revisions + list(step.revisions)
    return InputChange(inputs, newest(revisions))


def _recovered(
    inputs: PendingInputs,
    row: PendingInput,
    known: Callable[[PendingInput], bool],
    half_open: Callable[[PendingInput], bool],
    now: float,
) -> InputChange:
    if row.state == "claimed":
        delivered = row.mode == "steer" or known(row)
        if not delivered:
            retracts = half_open(row)
            return inputs.settle(row.id, "released", now=now, retracts=retracts)
        return inputs.settle(row.id, "delivered", now=now)
    if row.mode == "steer" and row.state == "blocked":
        return inputs.requeue(row.id, now=now)
    if row.mode == "steer" and not row.message_ids:
        return inputs.link(row.id, MessageId(f"{row.id}.message"), now=now)
    return InputChange(inputs)
