"""What the kernel raises on purpose.

One class for each reaction a caller can have. Misuse (a bad name, a second reader
of one mailbox) raises `TypeError`, `ValueError` or `RuntimeError`, as trio does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from greenroom.protocol import GreenroomError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._messages import CancelCause, ExitReason


class ActorError(GreenroomError):
    """Everything the kernel raises on purpose. Never raised itself."""

    code = "actor_error"


@final
class MailboxFullError(ActorError):
    """The work lane of an actor holds as many messages as it may."""

    code = "mailbox_full"
    hint = "wait for room with `await ref.tell(message)`, or send less"

    def __init__(self, path: str, capacity: int) -> None:
        super().__init__(
            f"the mailbox of actor {path!r} is full at {capacity} messages; "
            "wait for room with tell(), or send less"
        )
        self.path = path
        self.capacity = capacity


@final
class ActorExitedError(ActorError):
    """The actor has ended, or is ending: it reads no more mail.

    ``reason`` is its exit reason; when that is a failure, the failure is the
    ``__cause__`` of this error.
    """

    code = "actor_exited"
    hint = "look the actor up again; a restarted one has a new reference"

    def __init__(self, path: str, reason: ExitReason | None) -> None:
        how = "is ending" if reason is None else f"has exited: {reason}"
        super().__init__(f"actor {path!r} {how}; look it up again or go on without it")
        self.path = path
        self.reason = reason
        self.__cause__ = getattr(reason, "error", None)


@final
class RestartLimitError(ActorError):
    """A supervisor gave up: its children failed too often in too short a time.

    ``causes`` are the failures within the period, oldest first; the newest is also
    the ``__cause__``.
    """

    code = "restart_limit"

    def __init__(self, path: str, causes: Sequence[BaseException]) -> None:
        last = f"; the last was {causes[-1]!r}" if causes else ""
        super().__init__(
            f"supervisor {path!r} gave up after {len(causes)} failures of its "
            f"children in its restart period{last}"
        )
        self.path = path
        self.causes = tuple(causes)
        self.__cause__ = causes[-1] if causes else None


@final
class OperationCancelledError(ActorError):
    """The outcome of an operation that was cancelled and ended by it."""

    code = "operation_cancelled"

    def __init__(self, path: str, cause: CancelCause) -> None:
        super().__init__(f"operation {path!r} was cancelled: {cause}")
        self.path = path
        self.cause = cause


@final
class OperationAbandonedError(ActorError):
    """The outcome of an operation that did not end by its hard bound.

    It may still run: nothing is known about its effects.
    """

    code = "operation_abandoned"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"operation {path!r} did not end by its hard bound and was left behind; "
            "what it did is not known"
        )
        self.path = path
