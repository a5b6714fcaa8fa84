"""What loading a session reads of it, once its owner before is known to be gone."""

from __future__ import annotations

from typing import Final

from greenroom.actors.context import (
    Beginning,
    read_beginning,
)
from greenroom.protocol import (
    MessageRecord,
    Plan,
    SessionId,
    command_of,
)
from greenroom.storage import (
    Reader,
    SessionRow,
)

from ._turn import Turn
from ._turns import unresolved
from ._waiting import Waiting, read_waiting
from ._world import SessionNotFoundError

NEWEST: Final = 2
"""Messages that loading reads: one that may still wait, and the user's before it."""


def read_session(
    reader: Reader, session_id: SessionId
) -> tuple[SessionRow, list[MessageRecord], Plan | None, Beginning, Waiting]:
    """Return the row, the newest messages, the plan, its tape's state, what waits.

    Raises:
        SessionNotFoundError: there is no row.
    """
    row = reader.session(session_id)
    if row is None:
        raise SessionNotFoundError(session_id)
    waiting = read_waiting(reader, session_id)
    newest = reader.messages(session_id, waiting.begins, NEWEST)
    begun = read_beginning(reader, session_id)
    return row, newest, reader.plan(session_id), begun, waiting


def open_turn(newest: list[MessageRecord]) -> Turn | None:
    """Take the turn that goes on out of the *newest* messages, if one does."""
    # A message that still waits for the user is the turn that goes on (INT-05); the
    # user's message before it has the id of the command that began it.
    if newest and newest[-1].status == "pending" and unresolved(newest[-1]):
        message = newest.pop()
        return Turn(message, command_of(newest[-1]) if newest else "")
    return None
