"""What all actors of one system share, and what the kernel reports."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from ._clock import Clock, Ids
from ._messages import ExitReason, Failed

if TYPE_CHECKING:
    from ._behaviour import Terms
    from ._cell import Cell
    from ._host import Host
    from ._reaper import Reaper
    from ._system import System
    from ._timers import Timers

log: Final = logging.getLogger("greenroom.kernel")


@final
@attrs.frozen
class ExitReport:
    """One actor's exit, for the report hook: failures, and mail that nobody read."""

    path: str
    reason: ExitReason
    tells_left: int
    """How many tells were in its mailbox, unread."""
    restarts: bool
    """Whether its supervisor will start it again."""


ReportHook = Callable[[ExitReport], None]


def log_exit(report: ExitReport) -> None:
    """The report hook by default: a failure is logged with its traceback."""
    if isinstance(report.reason, Failed):
        then = "; its supervisor starts it again" if report.restarts else ""
        log.error(
            "actor %r failed%s, %d tells were left unread",
            report.path,
            then,
            report.tells_left,
            exc_info=report.reason.error,
        )
    else:
        log.warning(
            "actor %r exited (%s) with %d tells unread",
            report.path,
            report.reason,
            report.tells_left,
        )


@final
@attrs.define(eq=False)
class Crash:
    """Ends the system because of an error, which `open_system` raises."""

    body: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Around what the embedder does while the system is open."""
    error: BaseException | None = None

    def __call__(self, error: BaseException) -> None:
        """The first error is the one that counts."""
        if self.error is None:
            self.error = error
        self.body.cancel(f"the actor system crashed: {error!r}")


@final
@attrs.define(eq=False)
class Kernel:
    """The parts of a running system that its actors use."""

    clock: Clock
    ids: Ids
    report: ReportHook
    host: Host
    timers: Timers
    reaper: Reaper
    spawn: Callable[[Cell, str, object, Terms], Cell]
    """Start a child; here because contexts, which can, are made by it."""
    renew: Callable[[Cell], Cell]
    """Start an exited child again."""
    crash: Crash
    system: System | None = None
    """The system itself, for contexts; set when it is made."""

    def report_exit(self, report: ExitReport) -> None:
        """Call the hook; what it raises is logged and stops nothing."""
        try:
            self.report(report)
        except Exception:
            log.exception("the report hook failed for the exit of %r", report.path)
