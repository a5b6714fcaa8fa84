"""The error tree.

One class for each reaction a caller can have. Every error has a stable ``code``
for programs and may carry a ``hint`` that says how to go on. Errors of one
subject live with it (the kernel's in the kernel); the roots, and the errors
that more than one package raises, are here.
"""

from __future__ import annotations


class GreenroomError(Exception):
    """Everything greenroom raises on purpose. Never raised itself."""

    code: str = "greenroom_error"
    """Stable identifier for programs."""

    hint: str | None = None
    """How to go on, as a sentence for a person; ``None`` when unknown."""


class InternalError(Exception):
    """A bug in greenroom.

    Not a `GreenroomError`, so that nobody catches it by habit; supervisors do not
    restart on it.
    """


class LocalProtocolError(GreenroomError):
    """We broke the rules of a protocol."""

    code = "local_protocol_error"


class RemoteProtocolError(GreenroomError):
    """The peer broke the rules of a protocol."""

    code = "remote_protocol_error"


class StorageError(GreenroomError):
    """A fault of the store. Expected outcomes are returned values, not errors."""

    code = "storage_error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint


class StoreLockedError(StorageError):
    """Another process holds the state folder exclusively, or the lock timed out."""

    code = "store_locked"


class DiskFullError(StorageError):
    """The disk is full; what was awaited and did not return is not stored."""

    code = "disk_full"
    hint = "free some space and try again; nothing that was reported is lost"


class CorruptStoreError(StorageError):
    """The state file is damaged, or a stored value cannot be read back."""

    code = "corrupt_store"


class NewerSchemaError(StorageError):
    """The state file was written by a newer greenroom."""

    code = "newer_schema"

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"state has schema version {found}, this greenroom knows up to {known}",
            hint="install a newer greenroom, or use another state folder (--state)",
        )
        self.found = found
        self.known = known


class JournalError(StorageError):
    """A strict execution fact could not be committed.

    ``code`` is one of ``invalid_fact``, ``persistence_failed``,
    ``conflicting_fact``, ``duplicate_dispatch``, ``projection_failed`` (JRN-07).
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
