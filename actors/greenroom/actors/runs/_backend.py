"""The runs of native agents, as a session asks for them; see `RunBackend`."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import attrs

from greenroom.actors.backend import ActiveRun, Behaviour, Reconciled, RunPorts
from greenroom.actors.kernel import Reaper
from greenroom.actors.tools import ToolContext, ToolSet
from greenroom.protocol import ItemId, MessageRecord, RunId

from ._deferred import deferred_behaviour
from ._loop import loop_behaviour
from ._reconciliation import reconcile


@final
@attrs.frozen
class NativeRuns:
    """Runs of our own loop; it keeps nothing."""

    def turn(self, active: ActiveRun, ports: RunPorts) -> Behaviour:
        """See `RunBackend.turn`."""
        return loop_behaviour(active, ports)

    def granted(self, active: ActiveRun, ports: RunPorts, call: ItemId) -> Behaviour:
        """See `RunBackend.granted`."""
        return deferred_behaviour(active, ports, call)

    async def reconcile(
        self,
        message: MessageRecord,
        tools: ToolSet,
        context: Callable[[RunId], ToolContext],
        reaper: Reaper,
        now: float,
    ) -> Reconciled | None:
        """See `RunBackend.reconcile`."""
        return await reconcile(message, tools, context, reaper, now)
