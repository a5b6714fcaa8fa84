"""What the kernel says: causes, exit reasons and the mail every actor may get.

Values only. Nothing here knows how mail travels.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, final

import attrs

if TYPE_CHECKING:
    from ._ref import Ref

R_co = TypeVar("R_co", covariant=True)


@final
class CancelCause(StrEnum):
    """Why somebody wants an actor or an operation to end."""

    USER_STOP = "user_stop"
    PENDING_INPUT = "pending_input"
    DEADLINE = "deadline"
    PARENT = "parent"
    SHUTDOWN = "shutdown"
    PROCESS_EXIT = "process_exit"
    SUPERSEDED = "superseded"

    def for_children(self) -> CancelCause:
        """The cause that the children of an actor that ends for this one get.

        The end of the system goes down the tree as it is; whatever else ended an
        actor, its children end because of their parent.
        """
        if self in (CancelCause.SHUTDOWN, CancelCause.PROCESS_EXIT):
            return self
        return CancelCause.PARENT


@final
@attrs.frozen
class Normal:
    """The actor returned (or said `Context.exit`) on its own."""

    def __str__(self) -> str:
        return "normal"


@final
@attrs.frozen
class Stopped:
    """The actor ended because it was asked to stop, or was cancelled."""

    cause: CancelCause

    def __str__(self) -> str:
        return f"stopped ({self.cause})"


@final
@attrs.frozen
class Failed:
    """The actor raised ``error``. Its traceback is on it."""

    error: BaseException

    def __str__(self) -> str:
        return f"failed with {self.error!r}"


@final
@attrs.frozen
class Abandoned:
    """The actor did not end within its bounds; its parent went on without it."""

    def __str__(self) -> str:
        return "abandoned"


ExitReason: TypeAlias = Normal | Stopped | Failed | Abandoned


@final
@attrs.frozen
class Started:
    """The first message of every actor."""


@final
@attrs.frozen
class Stop:
    """Please end. Control mail; one at a time is queued."""

    cause: CancelCause


@final
@attrs.frozen
class Exited:
    """``ref`` has exited. A watcher gets it exactly once, as control mail."""

    ref: Ref[Any]
    reason: ExitReason


@final
@attrs.frozen
class DeadlineReached:
    """The timer set with `Context.deadline` under ``key`` went off. Control mail."""

    key: Hashable


class Request(Generic[R_co]):
    """Base of the requests that `Ref.ask` understands; ``R`` is the reply's type.

    Subclass it as a frozen attrs class: ``class GetCount(Request[int])``. It is a
    marker with no behaviour and the one inheritance that messages know.
    """

    __slots__ = ()


STARTED = Started()
EXITED_NORMALLY = Normal()
