"""The backend protocol: who does the runs of a session's turns (SES-10).

A session decides when a run begins, what it begins with and what its end means for the
turn. How a run is done is the backend's affair: a loop of ours, or somebody else's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import attrs

from greenroom.actors.kernel import Context, Reaper
from greenroom.actors.tools import ToolContext, ToolSet
from greenroom.protocol import Fact, ItemId, MessageRecord, RunId

from ._active import ActiveRun
from ._ports import RunPorts

Behaviour = Callable[[Context[Any]], Awaitable[None]]
"""What the actor of a run does."""


@attrs.frozen
class Reconciled:
    """A message whose operations are not all in doubt any more."""

    message: MessageRecord
    facts: tuple[Fact, ...]
    """What makes it so; an append of these is all there is to write."""


class RunBackend(Protocol):
    """Does runs. Each is an actor that the session spawns, watches and may cancel.

    A run settles itself, whatever happens to it, and leaves its result in the
    `ActiveRun` (RUN-13); one that exits without a result is lost to the session.
    """

    def turn(self, active: ActiveRun, ports: RunPorts) -> Behaviour:
        """Return the behaviour of a run that works on the turn."""
        ...

    def granted(self, active: ActiveRun, ports: RunPorts, call: ItemId) -> Behaviour:
        """Return the behaviour of a run of one call that the user allowed."""
        ...

    async def reconcile(
        self,
        message: MessageRecord,
        tools: ToolSet,
        context: Callable[[RunId], ToolContext],
        reaper: Reaper,
        now: float,
    ) -> Reconciled | None:
        """Find out what became of operations in doubt; ``None``: nothing is known.

        Executes nothing.
        """
        ...
