"""Why a session that was asked something has ended before it answered.

Its actor knows only that it was to stop. Whoever asked is told what is done with the
session, and how to go on.
"""

from __future__ import annotations

from greenroom.actors.kernel import ActorExitedError, CancelCause, Normal, Stopped
from greenroom.protocol import GreenroomError, SessionId

from ._registry import Sessions
from ._world import SessionClosedError, SessionNotFoundError


def check_let_in(sessions: Sessions, session_id: SessionId) -> None:
    """Refuse what is asked of a session that can't be had for a while.

    Raises:
        BeingDeletedError: it is deleted.
        MaintenanceError: nobody gets a session now.
    """
    sessions.gates.check(session_id)
    sessions.check_open()


async def why_ended(
    sessions: Sessions, session_id: SessionId, exited: ActorExitedError
) -> GreenroomError:
    """Return what to tell whoever asked, or raise it as `check_let_in` does.

    A failure of the actor is a defect, and told as what it is.
    """
    reason = exited.reason
    if not isinstance(reason, Normal | Stopped):
        return exited
    check_let_in(sessions, session_id)
    # At the end of an engine nothing is read any more.
    if reason == Stopped(CancelCause.USER_STOP):
        row = await sessions.world.readers.read(lambda r: r.session(session_id))
        if row is None:
            return SessionNotFoundError(session_id)
    return SessionClosedError(session_id, reason)
