"""What can be counted of an engine at one moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from greenroom.actors.kernel import ActorInfo
from greenroom.actors.sessions import Loaded, PieceWriter
from greenroom.actors.writer import Writer
from greenroom.protocol import SessionId

SESSIONS: Final = "sessions/"
"""Where the sessions' actors are in the tree."""


def gauges(
    actors: Sequence[ActorInfo],
    loaded: Callable[[SessionId], Loaded | None],
    writer: PieceWriter,
) -> dict[str, float]:
    """Return counts, and sizes in bytes, by name.

    ``runs`` are the turns that go on, those that wait for an answer among them. The
    writer's are there when it has a thread of its own.
    """
    ids = [
        SessionId(actor.path.removeprefix(SESSIONS))
        for actor in actors
        if actor.path.startswith(SESSIONS)
    ]
    sessions = [found for found in map(loaded, ids) if found is not None]
    counted: dict[str, float] = {
        "actors": len(actors),
        "sessions_loaded": len(sessions),
        "runs": sum(found.hub.state == "generating" for found in sessions),
        "mailbox_work": sum(actor.work for actor in actors),
        "mailbox_control": sum(actor.control for actor in actors),
    }
    if isinstance(writer, Writer):
        statistics = writer.statistics()
        counted["writer_queued"] = statistics.queued
        counted["wal_bytes"] = statistics.log_bytes
    return counted
