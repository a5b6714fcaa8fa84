"""What must be so of input that waits, whatever befell it (PIN).

Nothing that was accepted is lost, doubled or reordered, and what its client was told
of it was so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Final

from sim.evidence import Evidence
from sim.notes import Accepted, Notes

from greenroom.engine import Other
from greenroom.protocol import (
    MessageRecord,
    PendingInput,
    TextBlock,
    TextPart,
    command_of,
)

SETTLED: Final = ("claimed", "consumed")
"""What the claim of a steer may become."""


def delivery_problems(session: Evidence, notes: Notes) -> Iterator[str]:
    """Say which laws of pending input are broken in *session*."""
    yield from _doubled_problems(session)
    has_others = any(
        scope == session.id and isinstance(answer, Other)
        for scope, _, answer in notes.answers
    )
    yield from _row_problems(session, has_others=has_others)
    yield from _edit_problems(session, notes)
    if session.id not in notes.cleared:
        accepted = [each for each in notes.accepted if each.session_id == session.id]
        yield from _order_problems(session, accepted)
        yield from _truth_problems(session, accepted, notes)


def _doubled_problems(session: Evidence) -> Iterator[str]:
    said = (command_of(m) for m in session.messages if m.role == "user")
    for command, times in Counter(said).items():
        if times > 1:
            yield f"PIN: {command!r} is in the transcript {times} times"


#### The rows


def _row_problems(session: Evidence, *, has_others: bool) -> Iterator[str]:
    rows: dict[str, PendingInput] = {}
    consumed: set[str] = set()
    for seq, row in session.revisions:
        old = rows.get(row.id)
        if old is None and row.mode == "queue" and not row.returned:
            behind = [r for r in rows.values() if r.mode == "queue"]
            if row.order != len(behind) + 1:
                yield f"PIN-02: {row.id!r} came in at place {row.order} at {seq}"
        if row.id in consumed:
            yield f"PIN-10: {row.id!r} was consumed, and is {row.state} at {seq}"
        was_claimed = old is not None and old.state == "claimed"
        if was_claimed and row.mode == "steer" and row.state not in SETTLED:
            yield f"PIN-05: the claim of the steer {row.id!r} was given back"
        if row.state == "claimed" and not was_claimed:
            yield from _claim_problems(session, row, rows, has_others=has_others)
        rows[row.id] = row
        if row.state == "consumed":
            consumed.add(row.id)
            rows.pop(row.id)


def _claim_problems(
    session: Evidence,
    row: PendingInput,
    rows: Mapping[str, PendingInput],
    *,
    has_others: bool,
) -> Iterator[str]:
    waiting = [
        other
        for other in rows.values()
        if other.id != row.id and other.state == "pending" and not other.held
    ]
    if row.mode == "steer":
        yield from _steer_problems(session, row)
        return
    before = [
        other for other in waiting if other.mode == "steer" or other.order < row.order
    ]
    # What was sent after an answer "other" goes before what was there (INT-09).
    if before and not (row.sent and has_others):
        yield f"PIN-08: {row.id!r} was let in before {before[0].id!r}"


# A steer says what its messages say, in the order in which they were said (PIN-04).
def _steer_problems(session: Evidence, row: PendingInput) -> Iterator[str]:
    messages = [session.ever[message] for message in row.message_ids]
    orders = [message.order_seq for message in messages]
    if orders != sorted(orders):
        yield f"PIN-04: the messages of {row.id!r} are at {orders}"
    said = "\n\n".join(_text(message) for message in messages)
    parts = [part.text for part in row.parts or () if isinstance(part, TextPart)]
    if parts != [said]:
        yield f"PIN-04: the steer {row.id!r} says {parts}, its messages {said!r}"


def _text(message: MessageRecord) -> str:
    return "".join(b.text for b in message.blocks if isinstance(b, TextBlock))


#### What clients know


def _edit_problems(session: Evidence, notes: Notes) -> Iterator[str]:
    for message in session.messages:
        command, said = command_of(message), _text(message)
        # What a fork begins with has other ids; it is judged where it was made.
        if message.role != "user" or not command.startswith("command "):
            continue
        wanted = {f"go: {command}", *notes.edits[command]}
        if command in notes.edited:
            wanted.remove(f"go: {command}")
        if said not in wanted:
            yield f"PIN: {command!r} says {said!r}, and not one of {wanted}"


# Who was told of one before putting in the next has them in this order.
def _order_problems(session: Evidence, accepted: list[Accepted]) -> Iterator[str]:
    places = _places(session)
    for first, second in combinations(accepted, 2):
        if first.ended < second.began:
            one, other = places.get(first.command_id), places.get(second.command_id)
            if one is not None and other is not None and one > other:
                late, early = first.command_id, second.command_id
                yield f"PIN: {early!r} was taken in before {late!r}"


def _places(session: Evidence) -> dict[str, int]:
    # Where each command first is on the tape.
    places: dict[str, int] = {}
    for entry in session.tape:
        if entry.fact.name in ("input/recorded", "message/recorded"):
            places.setdefault(entry.fact.source_id, entry.seq)
    return places


def _truth_problems(
    session: Evidence, accepted: list[Accepted], notes: Notes
) -> Iterator[str]:
    for told in accepted:
        begun = session.begun(told.command_id)
        if told.delivery == "delivered" and not begun:
            yield f"PIN: {told.command_id!r} was told to be delivered, and is not"
        if told.delivery == "deleted" and begun:
            yield f"PIN: {told.command_id!r} was told to be deleted, and was let in"
    for scope, taken in notes.taken_back:
        if scope == session.id and session.begun(taken):
            yield f"PIN: {taken!r} was taken back, and was let in"
