"""The projections of one session, in plain Python.

The store in memory keeps one per session; `verify` makes one from a tape to compare
it with what a store says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import attrs
import msgspec

from greenroom.protocol import (
    JOURNAL_NAMES,
    MessageId,
    MessageRecord,
    PendingInput,
    Plan,
    SessionSettings,
    TapeEntry,
    merged_input,
)

from .. import names
from .._errors import order_taken
from .._projection import (
    NO_TOTALS,
    Mark,
    Totals,
    after_call,
    after_revision,
    mark_of,
    merged,
    retracted,
    supersedes,
)
from .._words import said
from ._undo import Undo

_ME: Final = "info"


@attrs.frozen
class Info:
    """What the session list shows."""

    created_at: float
    updated_at: float
    settings: SessionSettings | None = None
    plan: Plan | None = None
    totals: Totals = NO_TOTALS
    archived_at: float | None = None


@attrs.frozen
class Message:
    """A message as last recorded."""

    record: MessageRecord
    mark: Mark
    seq: int
    """Its newest fact."""


@final
@attrs.define(eq=False)
class Replica:
    """Everything that is derived from one tape."""

    _info: dict[str, Info] = attrs.field(factory=dict[str, Info])
    _messages: dict[str, Message] = attrs.field(factory=dict[str, Message])
    open_runs: dict[str, None] = attrs.field(factory=dict[str, None])
    """Runs with strict facts, and neither terminal nor acknowledgement."""
    inputs: dict[str, PendingInput] = attrs.field(factory=dict[str, PendingInput])
    """Pending inputs by id."""

    @property
    def info(self) -> Info | None:
        """What the session list shows; ``None`` for an empty tape."""
        return self._info.get(_ME)

    def messages(self) -> list[MessageRecord]:
        """Return the transcript, oldest first."""
        kept = (m.record for m in self._messages.values() if not m.mark.retracted)
        return sorted(kept, key=lambda record: record.order_seq)

    def retracted(self) -> list[tuple[MessageId, int]]:
        """Return the messages that were taken back, with their places, by place."""
        gone = (m.record for m in self._messages.values() if m.mark.retracted)
        places = ((record.id, record.order_seq) for record in gone)
        return sorted(places, key=lambda each: each[::-1])

    def places(self, ids: Sequence[MessageId]) -> list[int]:
        """Return where messages are, or were; nothing for those that never were."""
        known = (self._messages.get(message_id) for message_id in ids)
        return [message.record.order_seq for message in known if message is not None]

    def said(self) -> dict[int, str]:
        """Return what was said in each message, by its newest fact."""
        kept = (m for m in self._messages.values() if not m.mark.retracted)
        return {message.seq: said(message.record) for message in kept}

    def is_finished(self, message_id: str) -> bool:
        """Whether blocks of this message are of no use any more."""
        message = self._messages.get(message_id)
        return message is not None and (message.mark.finished or message.mark.retracted)

    def apply(self, entry: TapeEntry, undo: Undo) -> None:
        """Bring this up to *entry*, the tape's newest."""
        fact, at = entry.fact, entry.created_at
        if entry.seq == 1:
            undo.put(self._info, _ME, Info(created_at=at, updated_at=at))
        match fact.name:
            case names.MESSAGE_RECORDED:
                record = msgspec.json.decode(fact.payload, type=MessageRecord)
                self._record(record, entry.seq, at, undo)
            case names.MESSAGE_RETRACTED:
                gone = msgspec.json.decode(fact.payload, type=names.Retracted)
                self._retract(gone.message_id, undo)
            case names.SESSION_CONFIGURED:
                settings = msgspec.json.decode(fact.payload, type=SessionSettings)
                self._evolve(undo, settings=settings, updated_at=at)
            case names.SESSION_ARCHIVED:
                archived = msgspec.json.decode(fact.payload, type=names.Archived)
                self._evolve(undo, archived_at=at if archived.archived else None)
            case names.PLAN_UPDATED:
                plan = msgspec.json.decode(fact.payload, type=Plan)
                self._evolve(undo, plan=plan, updated_at=at)
            case names.MODEL_CALLED:
                call = msgspec.json.decode(fact.payload, type=names.ModelCalled)
                self._evolve(undo, totals=after_call(self._totals(), call))
            case names.INPUT_RECORDED:
                row = msgspec.json.decode(fact.payload, type=PendingInput)
                self._record_input(row, undo)
            case names.RUN_ACKNOWLEDGED | "execution/run_terminal":
                undo.drop(self.open_runs, fact.source_id)
            case name if name in JOURNAL_NAMES:
                undo.put(self.open_runs, fact.source_id, None)
            case _:
                pass

    def _record_input(self, row: PendingInput, undo: Undo) -> None:
        if row.state == "consumed":
            undo.drop(self.inputs, row.id)
            return
        row = merged_input(self.inputs.get(row.id), row)
        undo.put(
            self.inputs, row.id, msgspec.structs.replace(row, parts=row.parts or ())
        )

    def _record(self, record: MessageRecord, seq: int, at: float, undo: Undo) -> None:
        known = self._messages.get(record.id)
        record = merged(known and known.record, record)
        old, new = known and known.mark, mark_of(record)
        if not supersedes(new, old):
            if known is not None:
                undo.put(self._messages, record.id, attrs.evolve(known, seq=seq))
            return
        self._check_order(record)
        undo.put(self._messages, record.id, Message(record, new, seq))
        totals = after_revision(self._totals(), old, new)
        self._evolve(undo, totals=totals, updated_at=at)

    def _check_order(self, record: MessageRecord) -> None:
        for other in self._messages.values():
            if (
                other.record.order_seq == record.order_seq
                and other.record.id != record.id
                and not other.mark.retracted
            ):
                raise order_taken(record.id, record.order_seq)

    def _retract(self, message_id: str, undo: Undo) -> None:
        known = self._messages.get(message_id)
        if known is None or known.mark.retracted:
            return
        new = retracted(known.mark)
        undo.put(self._messages, message_id, attrs.evolve(known, mark=new))
        self._evolve(undo, totals=after_revision(self._totals(), known.mark, new))

    def _totals(self) -> Totals:
        return self._info[_ME].totals

    def _evolve(self, undo: Undo, **changes: object) -> None:
        undo.put(self._info, _ME, attrs.evolve(self._info[_ME], **changes))
