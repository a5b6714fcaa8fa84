"""What a session is while it is loaded: one value, owned by its actor.

Others look at it (those who follow it, those who cancel what is still unread); only
the actor, and the parts that it calls, change it.
"""

from __future__ import annotations

from typing import Any, final

import attrs

from greenroom.actors.context import Compacted
from greenroom.actors.kernel import Ref, ReplySlot
from greenroom.protocol import (
    MessageRecord,
    PendingInputs,
    SessionId,
    SessionSettings,
    Wake,
)

from ._history import History
from ._hub import Hub
from ._messages import TurnRefusedError
from ._turn import Due, SessionPorts, Turn
from ._unread import Unread
from ._waiters import Waiters


@final
@attrs.define(eq=False)
class Compacting:
    """A compaction that the user asked for, while it goes on."""

    ref: Ref[Any]
    reply: ReplySlot[Compacted]
    done: Compacted | None = None


@final
@attrs.define(eq=False)
class Session:
    """A loaded session."""

    id: SessionId
    settings: SessionSettings
    history: History
    """The transcript without the message of the turn."""
    ports: SessionPorts
    hub: Hub
    turn: Turn | None = None
    """None: idle. With a run: generating. Without: paused, the first unresolved
    interaction of its message waits for the answer."""
    inputs: PendingInputs = attrs.field(factory=PendingInputs)
    """What waits for its turn."""
    steered: list[MessageRecord] = attrs.field(factory=list[MessageRecord])
    """The messages of the open steer, which nobody has read yet."""
    idle_seconds: float | None = None
    """Idle time after which the session is unloaded; `None`: never."""
    unread: Unread = attrs.field(factory=Unread, init=False)
    waiters: Waiters = attrs.field(factory=Waiters, init=False)
    leaving: bool = attrs.field(default=False, init=False)
    """It is being unloaded: it takes nothing more."""
    owes: bool = attrs.field(default=True, init=False)
    """The inbox may hold commands that are no rows yet."""
    wake: Wake | None = attrs.field(default=None, init=False)
    """Why the lanes are to be looked at, as soon as there is no turn (PIN-09)."""
    failed: bool = attrs.field(default=False, init=False)
    """How the last turn ended; then only something new lets more in (PIN-08)."""
    due: Due | None = attrs.field(default=None, init=False)
    """A claim whose run has ended, to be settled before anything else."""
    ended: bool = attrs.field(default=False, init=False)
    """A turn has ended, and nobody was told yet that it has settled (SKL-08)."""
    compacting: Compacting | None = attrs.field(default=None, init=False)
    """Until its end no turn begins."""

    @property
    def may_idle(self) -> bool:
        """Whether it may be unloaded because nobody uses it."""
        # A question that nobody here waits for is on the tape: it can be answered by
        # loading the session again.
        turn = self.turn
        if self.compacting is not None:
            return False
        return (turn is None or turn.ref is None) and not self.waiters.anybody

    @property
    def works(self) -> bool:
        """Whether a run or a compaction goes on."""
        running = self.turn is not None and self.turn.ref is not None
        compacting = self.compacting
        return running or (compacting is not None and not compacting.ref.exited)

    @property
    def is_free(self) -> bool:
        """Whether a turn may begin."""
        return self.turn is None and self.compacting is None

    @property
    def at_rest(self) -> bool:
        """Whether nothing is to be done until somebody asks."""
        if self.turn is not None:
            return self.turn.ref is None
        # Who leaves begins nothing more, whatever would be next.
        return (self.leaving or self.wake is None) and self.compacting is None

    @property
    def next_order(self) -> int:
        """The place of the next message in the transcript."""
        said = [*self.steered, *([] if self.turn is None else [self.turn.message])]
        orders = [message.order_seq + 1 for message in said]
        return max([self.history.next_order, *orders])

    def wake_up(self, why: Wake) -> None:
        """Have the lanes looked at; of several reasons the strongest counts."""
        self.wake = why if self.wake is None else max(self.wake, why)

    def tell_settled(self) -> None:
        """Tell that a turn has settled, once it has: what it left stays (SKL-08)."""
        if self.ended:
            self.ended = False
            self.ports.turn_settled(self.id, self.settings)

    def forget(self) -> None:
        """Become a session in which nothing was said, as its tape is by now."""
        self.waiters.fail_all(
            TurnRefusedError("withdrawn_command", "the session was cleared")
        )
        self.history = History([], chosen=self.history.chosen)
        self.inputs, self.steered = PendingInputs(), []
        self.failed, self.wake, self.due = False, None, None
        self.hub.close()
        self.hub.status("idle")
