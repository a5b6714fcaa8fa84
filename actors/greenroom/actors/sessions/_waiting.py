"""What waited for its turn when a session was put away, as loading reads it."""

from __future__ import annotations

import attrs

from greenroom.protocol import MessageRecord, PendingInputs, SessionId
from greenroom.storage import Reader


@attrs.frozen
class Waiting:
    """The rows, and what belongs to them in the transcript."""

    inputs: PendingInputs = attrs.field(factory=PendingInputs)
    steered: tuple[MessageRecord, ...] = ()
    """The messages of the open steer, in order; they come behind all others."""

    @property
    def begins(self) -> int | None:
        """The place of the first of those messages."""
        return self.steered[0].order_seq if self.steered else None


def read_waiting(reader: Reader, session_id: SessionId) -> Waiting:
    """Return what waits in a session that was recovered."""
    inputs = reader.pending_inputs(session_id)
    ids = () if inputs.steer is None else inputs.steer.message_ids
    found = [reader.message(session_id, each) for each in ids]
    said = [message for message in found if message is not None]
    said.sort(key=lambda message: message.order_seq)
    return Waiting(inputs, tuple(said))
