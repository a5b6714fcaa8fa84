"""What the tree of actors looks like at one moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, final

import attrs

from ._messages import CancelCause
from ._phase import Phase

if TYPE_CHECKING:
    from ._cell import Cell
    from ._reaper import Operation


@final
@attrs.frozen
class ActorInfo:
    """One actor, or one operation, as the tree shows it."""

    path: str
    grade: str
    """``task``, ``hosted``, ``supervisor`` or ``operation``."""
    state: str
    """What the actor says it does; else starting, idle, busy, closing, restarting."""
    since: float
    """When it said so, or began, on the loop's clock."""
    work: int = 0
    """Messages that wait in the work lane, or in hand."""
    control: int = 0
    """Control messages that wait."""
    current: str | None = None
    """The type of the message it handles."""
    deadline: float | None = None
    """When what it does must be over, on the loop's clock."""
    cancel_cause: CancelCause | None = None
    """Why it is being cancelled."""
    restarts: int = 0
    """How often it has been started again."""


def actor_infos(root: Cell) -> Iterator[ActorInfo]:
    """Every actor below *root*: parents before children, in the order of start."""
    below = _children(root)
    while below:
        cell = below.pop()
        yield _actor_info(cell)
        below += _children(cell)


def operation_info(operation: Operation) -> ActorInfo:
    return ActorInfo(
        operation.path,
        "operation",
        operation.state,
        operation.since,
        cancel_cause=operation.cancel_cause,
    )


def _children(cell: Cell) -> list[Cell]:
    return list(reversed((cell.children or {}).values()))


def _actor_info(cell: Cell) -> ActorInfo:
    work, control = cell.lanes.depth()
    current = cell.lanes.current
    text, deadline = cell.status or (None, None)
    return ActorInfo(
        cell.path,
        _grade(cell),
        text or _state(cell),
        cell.since,
        work,
        control,
        None if current is None else current.__name__,
        deadline,
        cell.cancel_cause,
        cell.restarts,
    )


def _grade(cell: Cell) -> str:
    if cell.supervises is not None:
        return "supervisor"
    if cell.hosted is not None and cell.scope is None:
        return "hosted"
    return "task"


def _state(cell: Cell) -> str:
    match cell.phase:
        case Phase.NEW | Phase.STARTING:
            return "starting"
        case Phase.LIVE:
            return "idle" if cell.lanes.reader is not None else "busy"
        case Phase.CLOSING:
            return "closing"
        case Phase.EXITED:
            return "restarting"
