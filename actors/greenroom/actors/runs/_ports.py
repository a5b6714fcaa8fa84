"""What a run needs from the world, as narrow ports (RUN-26).

A run is made from these and nothing else; a test makes them from fakes. Nothing here
reaches back to an engine, a client or a registry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import attrs

from greenroom.actors.providers import Provider
from greenroom.actors.tools import ToolContext, ToolSet
from greenroom.protocol import (
    Change,
    Fact,
    ItemId,
    JournalRecord,
    MessageId,
    MessageRecord,
    PlanEntry,
    RunId,
    SessionId,
    SessionSettings,
    ViewBuilder,
    WaitReason,
)


class Record(Protocol):
    """The session's tape and journal, as its one owner writes them.

    Every method returns when the data is on disk and is not abandoned half-way by a
    cancellation.
    """

    async def append(self, facts: Sequence[Fact]) -> None:
        """Write facts, then tell watchers."""
        ...

    def append_soon(self, facts: Sequence[Fact]) -> None:
        """Write facts with the next group; a failure is reported, not raised."""
        ...

    async def commit(self, record: JournalRecord) -> bool:
        """Commit a strict fact; whether it was created (JRN-07).

        Raises:
            JournalError: it is not on disk.
        """
        ...

    async def update_plan(self, entries: tuple[PlanEntry, ...]) -> int:
        """Replace the plan and return its revision."""
        ...


class Watchers(Protocol):
    """Those who look on; telling them never waits."""

    def change(self, run_id: RunId, message_id: MessageId, change: Change) -> None:
        """An item of the message changed."""
        ...

    def output(
        self,
        run_id: RunId,
        message_id: MessageId,
        item_id: ItemId,
        offset: int,
        text: str,
    ) -> None:
        """A running tool printed something."""
        ...

    def waiting(self, reason: WaitReason | None, until: float | None = None) -> None:
        """The run waits, until a time in the loop's clock; ``None``: it works."""
        ...


def _nothing_waits() -> bool:
    return False


@attrs.frozen
class RunPorts:
    """Everything outside a run."""

    provider: Provider
    tools: ToolSet
    """A snapshot; the run never sees another."""
    record: Record
    watchers: Watchers
    steer_waiting: Callable[[], bool] = _nothing_waits
    """Whether the user steers: looked at where a batch has settled (RUN-19)."""


@attrs.frozen
class RunPlan:
    """What one run is to do; fixed when it starts."""

    run_id: RunId
    session_id: SessionId
    settings: SessionSettings
    """A snapshot: a change during the run is for the next one (SES-14)."""
    message: MessageRecord
    """The assistant message, pending, with all its blocks so far."""
    view: ViewBuilder
    """What requests begin with: instructions and the messages before that one. The
    run's own, to add its rounds to."""
    context: ToolContext
