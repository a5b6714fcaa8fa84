"""The host: one task that runs all hosted actors of a system.

It goes round the actors that have mail, lets each handle what it has, and yields to
the scheduler after 256 messages or 1 ms. An actor that used up a budget goes to the
end of the queue, so a busy one does not starve the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import trio

from greenroom.protocol import InternalError

from ._clock import perf_counter
from ._lanes import EMPTY, Sleeper
from ._life import finish_later, live
from ._messages import STARTED
from ._phase import CLOSING, NEW, STARTING

if TYPE_CHECKING:
    from ._cell import Cell
    from ._supervisor import Supervisor

BUDGET_MESSAGES: Final = 256
BUDGET_SECONDS: Final = 0.001


@final
class Host:
    """Runs the hosted actors that have mail."""

    __slots__ = ("_ready", "_sleeper", "_turn")

    def __init__(self) -> None:
        self._ready: list[Cell] = []
        # This round's actors, the next one last.
        self._turn: list[Cell] = []
        self._sleeper: Sleeper | None = None

    def enqueue(self, cell: Cell) -> None:
        """*cell* has something to do."""
        self._ready.append(cell)
        if self._sleeper is not None:
            sleeper, self._sleeper = self._sleeper, None
            sleeper.wake()

    async def run(self) -> None:
        while True:
            if self._turn or self._ready:
                await trio.lowlevel.checkpoint()
            else:
                await self._park()
            self._spend()

    def _spend(self) -> None:
        budget, until = BUDGET_MESSAGES, perf_counter() + BUDGET_SECONDS
        while budget > 0:
            if not self._turn:
                if not self._ready:
                    return
                self._turn, self._ready = self._ready, []
                self._turn.reverse()
            cell = self._turn.pop()
            budget = drain(cell, budget, until)
            if budget == 0:
                self._ready.append(cell)

    async def _park(self) -> None:
        self._sleeper = Sleeper(trio.lowlevel.current_task())

        def abort(_: object) -> trio.lowlevel.Abort:
            self._sleeper = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


def drain(cell: Cell, budget: int, until: float) -> int:
    """Let *cell* handle its mail. Returns what is left of *budget*, 0 if it is spent.

    An actor may be queued again after it ended or became a task; then it has no
    business here.
    """
    if cell.hosted is None or cell.scope is not None or cell.phase >= CLOSING:
        return budget
    error = None
    try:
        if cell.phase is NEW and cell.turn is None:
            _start(cell)
        budget = _handle(cell, budget, until)
    except BaseException as exc:
        error = exc
    if error is not None or cell.turn is not None:
        _change(cell, error)
    return budget


def _start(cell: Cell) -> None:
    hosted, ctx = cell.hosted, cell.ctx
    assert hosted is not None
    assert ctx is not None
    cell.phase = STARTING
    cell.lanes.current = type(STARTED)
    hosted.handle(STARTED, ctx)
    cell.publish()


def _handle(cell: Cell, budget: int, until: float) -> int:
    hosted, ctx, lanes = cell.hosted, cell.ctx, cell.lanes
    assert hosted is not None
    assert ctx is not None
    while cell.turn is None:
        message = lanes.next()
        if message is EMPTY:
            lanes.rest(cell)
            break
        lanes.current = type(message)
        hosted.handle(message, ctx)
        budget -= 1
        if budget == 0 or perf_counter() > until:
            lanes.current = None
            return 0
    return budget


# The last message asked for it: end *cell*, or make it a task.
def _change(cell: Cell, error: BaseException | None) -> None:
    cell.lanes.current = None
    turn, cell.turn = cell.turn, None
    if error is None and callable(turn):
        # The scope is set now and not by the task, so that a cancel finds it.
        cell.scope = trio.CancelScope()
        _supervisor_of(cell).run(cell.name, live, cell, turn)
        return
    reason = cell.reason_for(error)
    tells_left = cell.close(reason)
    if cell.children:
        _supervisor_of(cell).run(cell.name, finish_later, cell, reason, tells_left)
    else:
        cell.finish(reason, tells_left)


def _supervisor_of(cell: Cell) -> Supervisor:
    if cell.nursery_of is None:
        raise InternalError(f"actor {cell.path!r} has no supervisor above it")
    return cell.nursery_of
