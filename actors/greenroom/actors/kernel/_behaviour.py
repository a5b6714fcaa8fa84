"""What an actor does, and how its supervisor treats it: values only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar, final

import attrs
import msgspec

if TYPE_CHECKING:
    from ._context import Context

M = TypeVar("M")

DEFAULT_CAPACITY: Final = 64
DEFAULT_SHUTDOWN: Final = 5.0
MAX_NAME: Final = 255


class Hosted(Protocol[M]):
    """The behaviour of a hosted actor: it handles mail and never waits."""

    def handle(self, message: Any, ctx: Context[M], /) -> None:  # noqa: ANN401
        """Handle one message.

        Called in the host's task, one message at a time. What it raises is the
        actor's exit reason. It must not block: all hosted actors share the task.
        """
        ...


TaskBehaviour: TypeAlias = "Callable[[Context[M]], Awaitable[None]]"
Behaviour: TypeAlias = "Hosted[M] | TaskBehaviour[M] | Supervise"
SetUp: TypeAlias = "Callable[[Any, Context[Any]], AbstractAsyncContextManager[object]]"


@final
class Restart(Enum):
    """When a supervisor starts a child again. Who was told to end stays ended."""

    PERMANENT = "permanent"
    """After a failure and after a normal exit."""
    TRANSIENT = "transient"
    """After a failure."""
    TEMPORARY = "temporary"
    """Never."""


# Read for each spawn and exit; see `_phase` for what reading it off its class costs.
TEMPORARY: Final = Restart.TEMPORARY


@final
class Strategy(Enum):
    """Which children go down with one that is restarted."""

    ONE_FOR_ONE = "one_for_one"
    """None."""
    ONE_FOR_ALL = "one_for_all"
    """All of the supervisor's."""
    REST_FOR_ONE = "rest_for_one"
    """Those started after it."""


@final
@attrs.frozen
class ChildSpec:
    """How to start a child, and start it again.

    ``start`` is called anew for each incarnation and returns its behaviour: a
    coroutine function, an object with ``handle``, or `Supervise`.

    ``async_setup`` is for actors whose set-up waits and may fail (a process, a
    socket). It gets the behaviour and the context and returns an async context
    manager, entered in the actor's task around the behaviour; the actor is published
    when it has been entered. What it raises is the actor's failure.
    """

    name: str
    start: Callable[[], Any]
    restart: Restart = Restart.PERMANENT
    shutdown: float = DEFAULT_SHUTDOWN
    """Seconds between `Stop` and cancel."""
    capacity: int = DEFAULT_CAPACITY
    async_setup: SetUp | None = None


@final
@attrs.frozen
class Supervise:
    """The behaviour of a supervisor.

    More than ``max_restarts`` restarts within ``max_seconds`` are too many: it stops
    its children and fails with `RestartLimitError`, which is its own supervisor's
    case. It answers no messages but `Stop`.
    """

    children: tuple[ChildSpec, ...] = ()
    """Started in order, stopped one after another in reverse order."""
    strategy: Strategy = Strategy.ONE_FOR_ONE
    max_restarts: int = 3
    max_seconds: float = 5.0


@final
class Terms(msgspec.Struct, frozen=True, eq=False):
    """The kernel's: on what terms a child lives. Most children share one."""

    start: Callable[[], Any] | None = None
    """Makes a behaviour for each incarnation; ``None`` when there is only one."""
    restart: Restart = Restart.TEMPORARY
    shutdown: float = DEFAULT_SHUTDOWN
    capacity: int = DEFAULT_CAPACITY
    set_up: Any = None
    watch: bool = False
    ordered: bool = False
    """Stopped alone, before what was started earlier gets its `Stop`."""


SPAWNED: Final = Terms()


def terms_of(child: ChildSpec, *, ordered: bool, watch: bool = False) -> Terms:
    """The terms of a child given by its spec."""
    return _checked(
        Terms(
            child.start,
            child.restart,
            child.shutdown,
            child.capacity,
            child.async_setup,
            watch,
            ordered,
        )
    )


def spawn_terms(
    behaviour: object, capacity: int, restart: Restart, shutdown: float, watch: bool
) -> Terms:
    """The terms of a child given by its behaviour."""
    if restart is TEMPORARY:
        if capacity == DEFAULT_CAPACITY and shutdown == DEFAULT_SHUTDOWN and not watch:
            return SPAWNED
        return _checked(Terms(None, restart, shutdown, capacity, None, watch))
    if is_hosted(behaviour):
        raise TypeError(
            "a hosted object can't be started again, its state would come along; "
            "give start_child() a ChildSpec with a factory"
        )
    return _checked(Terms(lambda: behaviour, restart, shutdown, capacity, None, watch))


def _checked(terms: Terms) -> Terms:
    if terms.capacity < 1:
        raise ValueError(f"a mailbox holds at least 1 message, got {terms.capacity!r}")
    if not terms.shutdown >= 0:
        raise ValueError(f"shutdown is 0 seconds or more, got {terms.shutdown!r}")
    return terms


def is_hosted(behaviour: object) -> bool:
    return hasattr(behaviour, "handle")


def check_name(name: str) -> None:
    """Raise for a name that could not be part of a path."""
    if not name or len(name) > MAX_NAME or "/" in name:
        raise ValueError(
            f"an actor's name is 1 to {MAX_NAME} characters without a slash, "
            f"got {name[: MAX_NAME + 1]!r}"
        )


def check_behaviour(name: str, behaviour: object) -> None:
    """Raise for a behaviour that is no function and no object with ``handle``."""
    if isinstance(behaviour, type) or not callable(behaviour):
        raise TypeError(
            f"the behaviour of actor {name!r} is a coroutine function, an object "
            f"with handle(), or Supervise(...), got {behaviour!r}"
        )


def check_set_up(name: str, behaviour: object) -> None:
    """Raise for a behaviour that a set-up can't go round."""
    if not callable(behaviour):
        raise TypeError(
            f"actor {name!r} has an asynchronous set-up, so its behaviour is a "
            f"coroutine function, got {behaviour!r}"
        )
