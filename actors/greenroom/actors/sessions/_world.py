"""What sessions are made from, and why one can't be had."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import attrs
import trio

from greenroom.actors.backend import Contribute, Prepare, RunBackend
from greenroom.actors.context import (
    CompactionSetup,
    Windows,
)
from greenroom.actors.hooks import no_hooks
from greenroom.actors.kernel import Clock, Ids, System
from greenroom.actors.providers import Provider, RateGate
from greenroom.actors.tools import INLINE_CHARS, ToolSet
from greenroom.protocol import (
    GreenroomError,
    Notice,
    SessionId,
    SessionSettings,
)
from greenroom.protocol.context import Chosen, choose_policy
from greenroom.storage import (
    Member,
    Owner,
    Store,
)

from ._ports import PieceWriter, StoreReaders
from ._turn import Cost, no_price, unheard


class SessionNotFoundError(GreenroomError):
    """There is no such session."""

    code = "session_not_found"
    hint = "list the sessions to see their ids"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is no session {session_id[:80]!r}")


class SessionHeldError(GreenroomError):
    """Another living engine owns the session."""

    code = "session_held"
    hint = "use the session there, or close it there first"

    def __init__(self, session_id: str, owner: Owner) -> None:
        super().__init__(f"session {session_id!r} is held by {owner.node}")
        self.owner = owner


class SessionClosedError(GreenroomError):
    """The session was closed before it had answered; what was taken in is kept."""

    code = "session_closed"
    hint = "send it again with the same command id: a prompt that was taken in goes on"

    def __init__(self, session_id: str, how: object) -> None:
        super().__init__(f"session {session_id[:80]!r} was closed meanwhile: {how}")


async def _admit_all(agent_id: str) -> None:
    await trio.lowlevel.checkpoint()


def _require_nothing(store: Store, agent_id: str) -> None:
    pass


@attrs.frozen
class SessionWorld:
    """What sessions are made from; the same for all of an engine."""

    system: System
    writer: PieceWriter
    readers: StoreReaders
    member: Member
    clock: Clock
    ids: Ids
    backend: RunBackend
    """Does the runs of all sessions (SES-10)."""
    providers: Mapping[str, Provider]
    tools: Callable[[], ToolSet]
    scratch: Path
    environment: Mapping[str, str]
    idle_seconds: float | None
    inline_chars: int = INLINE_CHARS
    """Longer output of tools that list is kept in a file (TOL-16)."""
    windows: Windows = attrs.field(factory=Windows)
    """How many tokens requests to a model may have."""
    view_policy: Chosen = attrs.field(factory=choose_policy)
    compaction: CompactionSetup | None = None
    """What histories are compacted with; ``None``: they are not."""
    cost: Cost = no_price
    """What usage of a provider's model costs."""
    gates: Mapping[str, RateGate] = attrs.field(factory=dict[str, RateGate])
    """One for each provider, by its id."""
    tell_hooks: Callable[[Notice], None] = no_hooks
    """Tells what happened to whoever looks on; never waits (SKL-10)."""
    prepare: Prepare | None = None
    """Gathers what a run begins with beside its tools (SKL-09)."""
    contribute: Contribute | None = None
    """Asks an agent's memory what a turn should know (SKL-07)."""
    turn_settled: Callable[[SessionId, SessionSettings], None] = unheard
    """Told when a turn has ended (SKL-08)."""
    admit: Callable[[str], Awaitable[None]] = _admit_all
    """Refuses a session, by raising, whose agent (by id) may not run here."""
    require: Callable[[Store, str], None] = _require_nothing
    """Refuses, in the transaction that names it, an agent that is gone (DEL-09)."""
