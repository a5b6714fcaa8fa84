"""What an actor holds of itself: its reference, mail, children, time and chance."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

import trio

from ._behaviour import (
    DEFAULT_CAPACITY,
    DEFAULT_SHUTDOWN,
    Behaviour,
    ChildSpec,
    Restart,
    spawn_terms,
    terms_of,
)
from ._cell import CLEANUP_HARD, CLEANUP_SOFT
from ._cleanup import Cleanup
from ._mailbox import Mailbox

if TYPE_CHECKING:
    from ._cell import Cell
    from ._clock import Clock, Ids
    from ._messages import CancelCause
    from ._reaper import Reaper
    from ._ref import Ref
    from ._system import System

M = TypeVar("M")
C = TypeVar("C")


@final
class Context(Generic[M]):
    """Handed to an actor's behaviour, and of use only to it."""

    __slots__ = ("_cell", "_mailbox", "ref")

    ref: Ref[M]
    """The actor's own reference."""

    def __init__(self, cell: Cell, ref: Ref[M]) -> None:
        self._cell = cell
        self._mailbox: Mailbox[M] | None = None
        self.ref = ref

    def __repr__(self) -> str:
        return f"<Context of {self.ref!r}>"

    @property
    def path(self) -> str:
        """Where the actor is in the tree."""
        return self._cell.path

    @property
    def clock(self) -> Clock:
        """The system's clock."""
        return self._cell.kernel.clock

    @property
    def ids(self) -> Ids:
        """The system's source of ids and chance."""
        return self._cell.kernel.ids

    @property
    def system(self) -> System:
        """The system the actor lives in."""
        system = self._cell.kernel.system
        assert system is not None
        return system

    @property
    def reaper(self) -> Reaper:
        """Where operations that may have to be abandoned are started."""
        return self._cell.kernel.reaper

    @property
    def cancel_cause(self) -> CancelCause | None:
        """Why the actor is being cancelled; ``None`` while it is not."""
        return self._cell.cancel_cause

    @property
    def mailbox(self) -> Mailbox[M]:
        """The actor's mail, for an actor that has a task."""
        if self._mailbox is None:
            self._mailbox = Mailbox(self._cell)
        return self._mailbox

    #### Children

    def spawn(
        self,
        name: str,
        behaviour: Behaviour[C],
        *,
        capacity: int = DEFAULT_CAPACITY,
        restart: Restart = Restart.TEMPORARY,
        shutdown: float = DEFAULT_SHUTDOWN,
        watch: bool = False,
    ) -> Ref[C]:
        """Start a child and return its reference, which works at once.

        When this actor ends, its children get `Stop`, the youngest first, each has
        *shutdown* seconds until it is cancelled, and this actor's exit is published
        when all of them have exited. With *watch* this actor gets `Exited`.

        Raises `ValueError` when a child of that name lives, and `ActorExitedError`
        when this actor is ending.
        """
        terms = spawn_terms(behaviour, capacity, restart, shutdown, watch)
        cell = self._cell
        return cell.kernel.spawn(cell, name, behaviour, terms).ref

    def start_child(self, child: ChildSpec, *, watch: bool = False) -> Ref[Any]:
        """Start a child that can be started again; otherwise as `spawn`."""
        cell = self._cell
        terms = terms_of(child, ordered=False, watch=watch)
        return cell.kernel.spawn(cell, child.name, None, terms).ref

    def child(self, name: str) -> Ref[Any] | None:
        """The published child called *name*, in its present incarnation."""
        return self._cell.published_child(name)

    #### Time

    def deadline(self, seconds: float, key: Hashable) -> None:
        """In *seconds* send this actor `DeadlineReached(key)` as control mail.

        One timer a key: setting it again replaces it, and takes a message of the
        former one back that was not read yet.
        """
        self._cell.kernel.timers.set(self._cell, seconds, key)

    def cancel_deadline(self, key: Hashable) -> None:
        """Forget the timer of *key*, and its message if that was not read yet."""
        self._cell.kernel.timers.cancel(self._cell, key)

    def cleanup(
        self, soft: float = CLEANUP_SOFT, hard: float = CLEANUP_HARD
    ) -> Cleanup:
        """Return a shielded scope for cleaning up, bounded by *hard* seconds.

        Never longer than the cleanup around it, or than the actor's canceller
        granted. *soft* only sets `Cleanup.soft_deadline`, for the cleanup to read.
        """
        return Cleanup(self._cell, soft, hard)

    #### State

    def set_state(self, text: str, *, deadline: float | None = None) -> None:
        """Say what the actor is doing, for the tree.

        *deadline* is when that must be over, on the loop's clock.
        """
        self._cell.status = (text, deadline)
        self._cell.since = trio.current_time()

    def exit(self) -> None:
        """End a hosted actor when it has handled the present message."""
        cell = self._cell
        if cell.hosted is None:
            raise RuntimeError(
                f"actor {cell.path!r} is a task: it ends by returning, not by exit()"
            )
        cell.turn = True

    def become_task(self, fn: Callable[[Context[M]], Awaitable[None]]) -> None:
        """Make this hosted actor a task that runs *fn*, after the present message.

        Same reference and mailbox, nothing lost or reordered. When *fn* returns, the
        actor is hosted again; when it raises, the actor fails; when the actor is
        cancelled meanwhile, it exits. `exit` in *fn* ends it when *fn* returns.
        """
        cell = self._cell
        if cell.hosted is None or cell.scope is not None:
            raise RuntimeError(f"actor {cell.path!r} is a task already")
        if cell.turn is not None:
            raise RuntimeError(
                f"actor {cell.path!r} is ending, or becomes another task already"
            )
        cell.turn = fn
