"""Bounded cleanup (rule 6).

A cleanup is a shielded scope with a budget. Budgets nest: one never lasts longer
than the cleanup around it in the same actor, nor than what the actor's canceller
granted, not even when that is lowered while it runs.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from math import inf
from typing import TYPE_CHECKING, Final, final

import trio

if TYPE_CHECKING:
    from types import TracebackType

    from ._cell import Cell


@final
class Cleanup:
    """``with ctx.cleanup(): ...``: cancellation waits outside until the hard bound.

    At the hard bound what is inside is cancelled and the block ends; then `expired`
    is true. Open one only when there is something to clean up.
    """

    __slots__ = (
        "_cell",
        "_hard",
        "_scope",
        "_soft",
        "_token",
        "deadline",
        "soft_deadline",
    )

    deadline: float
    """The hard bound, on the loop's clock, once it has begun."""
    soft_deadline: float
    """When to stop being polite, on the loop's clock. Nothing happens by itself."""

    def __init__(self, cell: Cell, soft: float, hard: float) -> None:
        if not 0 <= soft <= hard:
            raise ValueError(
                f"a cleanup needs 0 <= soft <= hard seconds, got {soft!r} and {hard!r}"
            )
        self._cell = cell
        self._soft = soft
        self._hard = hard
        self._scope: trio.CancelScope | None = None
        self._token: Token[Cleanup | None] | None = None
        self.deadline = self.soft_deadline = inf

    @property
    def expired(self) -> bool:
        """Whether the hard bound cut it short."""
        return self._scope is not None and self._scope.cancelled_caught

    def limit(self, deadline: float) -> None:
        """The kernel's: end by *deadline* at the latest."""
        if deadline < self.deadline:
            self.deadline = deadline
            self.soft_deadline = min(self.soft_deadline, deadline)
            if self._scope is not None:
                self._scope.deadline = deadline

    def __enter__(self) -> Cleanup:
        cell, now = self._cell, trio.current_time()
        self.soft_deadline = now + self._soft
        self.limit(min(now + self._hard, cell.budget_at))
        outer = _current.get()
        # An actor that was spawned inside another's cleanup has its own budget.
        if outer is not None and outer._cell is cell:
            self.limit(outer.deadline)
        self._scope = trio.CancelScope(shield=True, deadline=self.deadline)
        self._scope.__enter__()
        self._token = _current.set(self)
        if cell.cleanups is None:
            cell.cleanups = {self}
        else:
            cell.cleanups.add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        assert self._scope is not None
        assert self._token is not None
        assert self._cell.cleanups is not None
        self._cell.cleanups.discard(self)
        _current.reset(self._token)
        return self._scope.__exit__(kind, error, traceback)


_current: Final[ContextVar[Cleanup | None]] = ContextVar("cleanup", default=None)


def cleanup_deadline() -> float | None:
    """When the cleanup around the caller must end, if there is one."""
    cleanup = _current.get()
    return None if cleanup is None else cleanup.deadline
