"""The watchdog of what comes before a model is asked: it logs, and does nothing else.

A step of a turn's preparation that takes long is told three times, by the time since it
began (SES-20). Steps are noted in one place for all sessions; a hosted actor looks at
them when one may be late, so a session at rest costs nothing and a quick turn one note
for each of its steps. All in the trio thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, final

import attrs
import trio

from greenroom.actors.kernel import Context, DeadlineReached, Ref, Stop
from greenroom.actors.logs import of_session
from greenroom.protocol import SessionId

_LOG: Final = logging.getLogger("greenroom.sessions")

LEVELS: Final = (
    (0.5, logging.INFO, "slow"),
    (5.0, logging.WARNING, "very slow"),
    (30.0, logging.ERROR, "stuck"),
)
"""Seconds since a step began, and how it is told then."""

FIRST_TURN_SECONDS: Final = 30.0
"""How long somebody waits for the preparation of a first turn; it goes on then."""


@final
@attrs.define(eq=False)
class _Step:
    name: str
    began: float
    told: int = 0
    """How many of the levels."""
    over: trio.Event = attrs.field(factory=trio.Event)
    """The whole preparation is over."""

    @property
    def due(self) -> float:
        """When it is to be told next."""
        return self.began + LEVELS[self.told][0]


class _Look:
    """Look at the steps, and again when the next one may be late."""


@final
@attrs.define(eq=False)
class Watchdog:
    """Watches the preparations of turns; start it with `start`."""

    now: Callable[[], float]
    """Seconds on the loop's clock."""
    _steps: dict[SessionId, _Step] = attrs.field(
        factory=dict[SessionId, _Step], init=False
    )
    _looks_at: float | None = attrs.field(default=None, init=False)
    """When the actor looks next; ``None``: nothing is watched."""
    _ref: Ref[Any] | None = attrs.field(default=None, init=False)

    def start(self, spawn: Callable[[str, Watchdog], Ref[Any]]) -> None:
        """Begin to look; until then steps are noted and nothing is told."""
        self._ref = spawn("watchdog", self)

    def at(self, session_id: SessionId, step: str | None) -> None:
        """Note which *step* a session's turn is at; ``None``: all are over."""
        before = self._steps.get(session_id)
        if step is None:
            if before is not None:
                del self._steps[session_id]
                before.over.set()
            return
        made = self._steps[session_id] = _Step(step, self.now())
        if before is not None:
            made.over = before.over
        if self._ref is not None and self._is_early(made.due):
            self._looks_at = made.due
            self._ref.tell_control(_Look(), key="look")

    async def until_over(self, session_id: SessionId) -> bool:
        """Return when the turn asks its model or has ended; whether it did in time.

        After `FIRST_TURN_SECONDS` whoever waits gives up; the preparation goes on.
        """
        await trio.lowlevel.checkpoint()
        step = self._steps.get(session_id)
        if step is None:
            return True
        with trio.move_on_after(FIRST_TURN_SECONDS):
            await step.over.wait()
            return True
        return False

    def handle(self, message: object, ctx: Context[Any]) -> None:
        """Tell what is late, and look again when something else may be."""
        if isinstance(message, Stop):
            ctx.exit()
        if not isinstance(message, _Look | DeadlineReached):
            return
        now = self.now()
        for session_id, step in self._steps.items():
            while step.told < len(LEVELS) and step.due <= now:
                _tell(session_id, step)
                step.told += 1
        due = [s.due for s in self._steps.values() if s.told < len(LEVELS)]
        self._looks_at = min(due) if due else None
        if self._looks_at is not None:
            ctx.deadline(max(0.0, self._looks_at - now), "look")

    def _is_early(self, due: float) -> bool:
        return self._looks_at is None or due < self._looks_at


def _tell(session_id: SessionId, step: _Step) -> None:
    seconds, level, word = LEVELS[step.told]
    _LOG.log(
        level,
        "session %s is %s before its model is asked: %s takes more than %g s",
        session_id,
        word,
        step.name,
        seconds,
        extra=of_session(session_id),
    )
