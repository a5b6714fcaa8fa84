"""What ends a pause, made durable: an answer, a clock that ran out, a cancel.

One append each: all of it is on the tape, or the interaction still waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import msgspec

from greenroom.actors.backend import append_revisions
from greenroom.protocol import (
    Block,
    CancelWord,
    Fact,
    InteractionEnd,
    ItemId,
    MessageRecord,
    SessionSettings,
    Terminal,
    fit_block,
    interrupted_terminal,
    reopened,
    revisions,
)

from ._answers import Answered
from ._turns import ended, fault_block, give_up, merged, with_clock

STOPPED_WHILE_PAUSED: Final = "not executed: the turn was stopped before an answer came"


class FactWriter(Protocol):
    """The part of a session's record that this needs."""

    async def append(self, facts: Sequence[Fact]) -> None:
        """Write facts; all or none."""
        ...


async def record_answer(
    record: FactWriter,
    message: MessageRecord,
    answered: Answered,
    settings: SessionSettings,
    now: float,
) -> MessageRecord:
    """Write what an answer changed; the clock of the next interaction starts."""
    changed = answered.changed
    message = merged(message, changed)
    if isinstance(answered.after, Terminal):
        return await _end(record, message, changed, answered.after, "cancelled", now)
    clock = with_clock(message, settings, now)
    return await _revise(record, merged(message, clock), (*changed, *clock), now)


async def record_stop(
    record: FactWriter,
    message: MessageRecord,
    cause: CancelWord,
    end: InteractionEnd,
    now: float,
) -> MessageRecord:
    """Write that the turn was ended for *cause* while it waited."""
    terminal = interrupted_terminal(cause)
    return await _end(record, message, (), terminal, end, now)


async def reopen(
    record: FactWriter, message: MessageRecord, call: ItemId, now: float
) -> MessageRecord:
    """Write that the approval of *call* waits again: it was not dispatched (TOL-26)."""
    changed = reopened(message.blocks, call)
    return await _revise(record, merged(message, changed), changed, now)


async def start_clock(
    record: FactWriter, message: MessageRecord, settings: SessionSettings, now: float
) -> MessageRecord:
    """Start the clock of the interaction that is next, if it has one and it stands."""
    clock = with_clock(message, settings, now)
    if not clock:
        return message
    return await _revise(record, merged(message, clock), clock, now)


async def _end(
    record: FactWriter,
    message: MessageRecord,
    changed: Sequence[Block],
    terminal: Terminal,
    end: InteractionEnd,
    now: float,
) -> MessageRecord:
    rest = give_up(message, STOPPED_WHILE_PAUSED, end)
    message = merged(message, rest)
    if terminal.fault is not None:
        rest += (fault_block(message, terminal.fault),)
    message = ended(merged(message, rest), terminal)
    return await _revise(record, message, (*changed, *rest), now)


async def _revise(
    record: FactWriter, message: MessageRecord, changed: Iterable[Block], now: float
) -> MessageRecord:
    # The newest form of each block, cut for everybody alike where the tape demands it.
    newest = {block.id: block for block in changed}
    fitting = tuple(map(fit_block, newest.values()))
    message = msgspec.structs.replace(merged(message, fitting), updated_at=now)
    await append_revisions(record, revisions(message, fitting), fitting, message.blocks)
    return message
