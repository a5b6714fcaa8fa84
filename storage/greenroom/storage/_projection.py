"""How facts become transcript and session list: decisions only, no rows.

Every implementation of the store applies these to what it keeps, inside the
append; `verify` applies them once more and compares.

The law of messages: a finished revision (sent or error) outranks a pending one,
of equal rank the later one holds, and a retracted message never comes back. A revision
holds its header whole and of the blocks only those that are new or changed, so what a
message is, is its revisions merged in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import msgspec

from greenroom.protocol import ActionBlock, MessageRecord

from .names import ModelCalled


@attrs.frozen
class Mark:
    """What a message contributes to its session."""

    finished: bool
    open: bool
    """Waits for the user: pending, with an unanswered permission or question."""
    input_tokens: int | None
    output_tokens: int | None
    retracted: bool = False


@attrs.frozen
class Totals:
    """What the session list shows of a session's messages."""

    messages: int = 0
    open: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None


NO_TOTALS: Final = Totals()


def merged(old: MessageRecord | None, new: MessageRecord) -> MessageRecord:
    """Return the message that the revision *new* makes of *old*.

    A block takes the place of the one with its id; others come behind, in order.
    """
    if old is None:
        return new
    changed = {block.id: block for block in new.blocks}
    kept = tuple(changed.pop(block.id, block) for block in old.blocks)
    added = tuple(block for block in new.blocks if block.id in changed)
    return msgspec.structs.replace(new, blocks=kept + added)


def folded_revisions(revisions: Sequence[MessageRecord]) -> MessageRecord:
    """Return the message that *revisions*, oldest first, at least one, have made."""
    record = revisions[0]
    for revision in revisions[1:]:
        if supersedes(mark_of(revision), mark_of(record)):
            record = merged(record, revision)
    return record


def mark_of(record: MessageRecord) -> Mark:
    """Return what *record* contributes."""
    pending = record.status == "pending"
    return Mark(
        finished=not pending,
        open=pending and any(map(waits, record.blocks)),
        input_tokens=record.metadata.input_tokens,
        output_tokens=record.metadata.output_tokens,
    )


def supersedes(new: Mark, old: Mark | None) -> bool:
    """Whether *new* takes the place of *old*, where `None` is no message yet."""
    return old is None or (
        not old.retracted and (new.finished or not old.finished or new.retracted)
    )


def retracted(mark: Mark) -> Mark:
    """Return *mark* once its message is retracted; what it cost stays spent."""
    return attrs.evolve(mark, retracted=True, open=False)


def after_revision(totals: Totals, old: Mark | None, new: Mark) -> Totals:
    """Return *totals* once *new* took the place of *old*."""
    return Totals(
        messages=totals.messages + _counts(new) - _counts(old),
        open=totals.open + new.open - (old is not None and old.open),
        input_tokens=_moved(
            totals.input_tokens, old and old.input_tokens, new.input_tokens
        ),
        output_tokens=_moved(
            totals.output_tokens, old and old.output_tokens, new.output_tokens
        ),
    )


def after_call(totals: Totals, call: ModelCalled) -> Totals:
    """Return *totals* once a compaction asked a model (CTX-24).

    What belongs to a turn is counted with its message.
    """
    if call.usage is None or call.message_id is not None:
        return totals
    return attrs.evolve(
        totals,
        input_tokens=_moved(totals.input_tokens, None, call.usage.input),
        output_tokens=_moved(totals.output_tokens, None, call.usage.output),
    )


def waits(block: object) -> bool:
    """Whether *block* is a permission or question without an answer."""
    return isinstance(block, ActionBlock) and block.status == "pending"


def _counts(mark: Mark | None) -> bool:
    return mark is not None and not mark.retracted


def _moved(total: int | None, old: int | None, new: int | None) -> int | None:
    if total is None and new is None:
        return None
    return (total or 0) - (old or 0) + (new or 0)
