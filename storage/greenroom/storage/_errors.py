"""Faults of the store that only its callers meet.

The faults every package meets (`StorageError`, `DiskFullError`, …) are the
protocol's. These are raised by `Tape`, for a session that can't go on with the
grant it has.
"""

from __future__ import annotations

from greenroom.protocol import (
    CorruptStoreError,
    Fact,
    JournalError,
    SessionId,
    StorageError,
)


class FencedError(StorageError):
    """Somebody else owns the session now; nothing was written."""

    code = "fenced"
    hint = "stop the session here and acquire it again"

    def __init__(self, scope: SessionId, token: int) -> None:
        super().__init__(f"token {token} of session {scope!r} is no longer current")
        self.scope = scope
        self.token = token


class HeadMovedError(StorageError):
    """The tape is not where its owner believed it to be; nothing was written."""

    code = "head_moved"
    hint = "stop the session here, acquire it again and read its tape"

    def __init__(self, scope: SessionId, expected: int, found: int) -> None:
        super().__init__(
            f"session {scope!r} has its head at {found}, expected {expected}"
        )
        self.scope = scope
        self.expected = expected
        self.found = found


class RefusedFactError(StorageError):
    """A fact, command or id is malformed or too large; nothing was written."""

    code = "refused_fact"


class NoStoreError(StorageError):
    """There is no state in this folder yet."""

    code = "no_store"
    hint = "start a session first, or name another state folder (--state)"


def corrupt(what: str, exc: Exception) -> CorruptStoreError:
    """Return the error that a stored value can't be read back."""
    return CorruptStoreError(
        f"{what} can't be read back: {exc}",
        hint="run greenroom doctor; projections can be rebuilt from the tape",
    )


def full_inbox(scope: SessionId, count: int) -> RefusedFactError:
    """Return the error that the inbox of *scope* takes no more commands."""
    return RefusedFactError(
        f"the inbox of {scope!r} holds {count} unsettled commands",
        hint="wait until the session has worked on some",
    )


def unknown_command(command_id: str) -> RefusedFactError:
    """Return the error that there is nothing to settle under *command_id*."""
    return RefusedFactError(f"there is no command {command_id[:80]!r} to settle")


def order_taken(message_id: str, order: int) -> RefusedFactError:
    """Return the error that two messages would have one place in the transcript."""
    return RefusedFactError(
        f"order {order} of message {message_id!r} is another message's"
    )


def conflicting_fact(fact: Fact) -> JournalError:
    """Return the error that a strict *fact* is on the tape with another payload."""
    return JournalError(
        "conflicting_fact",
        f"{fact.name} {fact.key[:80]!r} is on the tape with another payload",
    )
