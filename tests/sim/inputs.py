"""What a client does with input that waits: edit, move, delete, promote (PIN)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

from sim.notes import Accepted

from greenroom.engine import SessionHandle
from greenroom.protocol import PendingInput

if TYPE_CHECKING:
    from sim.clients import Client

CHANGES: Final = ("edit", "edit", "move", "move", "take back", "promote", "retry")
"""What is done with an input that waits."""


async def put(client: Client, how: Literal["queue", "steer"], command_id: str) -> str:
    """Queue an input, or say it to the turn."""
    session, text = client.session, f"go: {command_id}"
    began = client.notes.began.setdefault(command_id, client.notes.step())
    if how == "queue":
        accepted = await session.queue(text, command_id=command_id)
    else:
        turn = _turn(client, session) if client.chance.random() < 0.4 else None
        accepted = await session.steer(text, expected_turn=turn, command_id=command_id)
    told = Accepted(
        session.id, command_id, began, client.notes.step(), accepted.delivery
    )
    client.notes.accepted.append(told)
    return f"{how} {command_id}: {accepted.delivery}"


async def change(client: Client) -> str:
    """Do something with an input that waits."""
    session = client.session
    waiting = await session.inputs()
    if not waiting:
        return "nothing waits"
    chosen, what = client.chance.choice(waiting).id, client.chance.choice(CHANGES)
    _see_places(client, await _changed(client, session, chosen, what))
    return f"{what} {chosen}"


async def release(client: Client) -> str:
    """Let what is held go on."""
    _see_places(client, await client.session.release_inputs())
    return "released"


async def _changed(
    client: Client, session: SessionHandle, chosen: str, what: str
) -> Sequence[PendingInput]:
    notes = client.notes
    match what:
        case "edit":
            text = f"go: {chosen} edited {notes.step()}"
            notes.edits[chosen].add(text)
            rows = await session.edit_input(chosen, text)
            notes.edited.add(chosen)
        case "move":
            rows = await session.move_input(chosen, client.chance.randint(-1, 7))
        case "take back":
            rows = await session.delete_input(chosen)
            notes.taken_back.add((session.id, chosen))
        case "promote":
            rows = await session.promote_input(chosen)
        case _:
            rows = await session.retry_input(chosen)
    return rows


def _see_places(client: Client, rows: Sequence[PendingInput]) -> None:
    places = [row.order for row in rows if row.mode == "queue"]
    if places != list(range(1, len(places) + 1)):
        client.history.complain(f"PIN-02: the queue has the places {places}")


def _turn(client: Client, session: SessionHandle) -> str:
    loaded = session._sessions.loaded(session.id)
    turn = None if loaded is None else loaded.session.turn
    return "another turn" if turn is None else turn.message.id
