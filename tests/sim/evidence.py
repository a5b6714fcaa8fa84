"""A session as its disk has it in the end, read once for all laws."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import attrs
import msgspec
from kit.laws import followed

from greenroom.protocol import (
    MessageRecord,
    PendingInput,
    SessionId,
    TapeEntry,
    command_of,
    merged_input,
)
from greenroom.storage import MESSAGE_RETRACTED, Reader, Rewound, SessionRow

INPUT_RECORDED: Final = "input/recorded"
SESSION_REWOUND: Final = "session/rewound"


@attrs.define(eq=False, slots=False)
class Evidence:
    """What a session's tape and projections have."""

    id: SessionId
    row: SessionRow | None
    """``None``: it was never made whole."""
    tape: Sequence[TapeEntry]
    messages: Sequence[MessageRecord]
    """The transcript."""
    waiting: dict[str, PendingInput]
    """What is left of pending input, by its id."""

    @cached_property
    def ever(self) -> dict[str, MessageRecord]:
        """Every message that there was, as it was last."""
        return followed(self.tape)

    @cached_property
    def revisions(self) -> list[tuple[int, PendingInput]]:
        """Every revision of pending input, with its place on the tape."""
        rows: dict[str, PendingInput] = {}
        found: list[tuple[int, PendingInput]] = []
        for entry in self.tape:
            if entry.fact.name == INPUT_RECORDED:
                row = msgspec.json.decode(entry.fact.payload, type=PendingInput)
                rows[row.id] = merged_input(rows.get(row.id), row)
                found.append((entry.seq, rows[row.id]))
        return found

    @cached_property
    def withdrawn(self) -> frozenset[str]:
        """Commands that were taken back, or deleted before they were let in."""
        gone = {e.fact.source_id for e in self.tape if e.fact.name == "input/withdrawn"}
        for _, row in self.revisions:
            if row.end == "deleted":
                said = [m for m in row.message_ids if m in self.ever]
                gone |= {row.id, *(command_of(self.ever[m]) for m in said)}
        return frozenset(gone)

    @cached_property
    def _read(self) -> frozenset[str]:
        # Of commands that are in the transcript, or were until a rewind.
        returned = self._returned
        return frozenset(
            command_of(message)
            for message in self.ever.values()
            if message.role == "user"
            and message.status != "pending"
            and message.id not in returned
        )

    @cached_property
    def _returned(self) -> frozenset[str]:
        # Messages that a failed turn, a deletion or a restart took back; those of a
        # rewind are right before what tells of it.
        taken: list[str] = []
        rewound: set[str] = set()
        for entry in self.tape:
            if entry.fact.name == MESSAGE_RETRACTED:
                taken.append(entry.fact.source_id)
            elif entry.fact.name == SESSION_REWOUND:
                done = msgspec.json.decode(entry.fact.payload, type=Rewound)
                rewound |= set(taken[-done.messages :])
        return frozenset(taken) - rewound

    def message(self, message_id: str) -> MessageRecord | None:
        """Return a message, also one that was taken back."""
        current = next((m for m in self.messages if m.id == message_id), None)
        return current or self.ever.get(message_id)

    def begun(self, command: str) -> bool:
        """Whether a command was let in, for good."""
        return command in self._read


def evidence_of(reader: Reader, scope: SessionId) -> Evidence:
    """Read a session."""
    tape: list[TapeEntry] = []
    while page := reader.page(scope, len(tape)).entries:
        tape += page
    messages: list[MessageRecord] = []
    before = None
    while more := reader.messages(scope, before, 100):
        messages, before = more + messages, more[0].order_seq
    rows = reader.pending_inputs(scope).rows
    waiting = {row.id: row for row in rows}
    return Evidence(scope, reader.session(scope), tape, messages, waiting)
