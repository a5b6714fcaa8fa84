"""The state folder: who is in it, and who has it for himself.

Everybody who opens the store to write holds ``store.lock`` shared, for as long as
the store is open. Migration, repair and maintenance hold it alone. Locks end with
the process that holds them, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path
from typing import Final, final

import attrs

from greenroom.protocol import StorageError, StoreLockedError

DATABASE: Final = "greenroom.db"
MEMBERS: Final = "members"
_LOCK: Final = "store.lock"
_TRIES: Final = 100
_PAUSE: Final = 0.05
"""Two windows opened at once make a new store in turn: 5 s for the other's turn."""


@final
@attrs.define(eq=False)
class FolderLock:
    """A hold on the folder; shared or exclusive."""

    _fd: int
    _path: Path

    @classmethod
    def open(cls, folder: Path) -> FolderLock:
        """Open the lock of *folder* without taking it."""
        path = folder / _LOCK
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / MEMBERS).mkdir(mode=0o700, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise StorageError(
                f"the state folder {str(folder)!r} can't be used: {exc.strerror}",
                hint="check that it is a folder of yours on a local disk",
            ) from exc
        return cls(fd, path)

    def share(self) -> bool:
        """Hold the folder beside others; `False` while somebody has it alone."""
        return self._take(fcntl.LOCK_SH)

    def take(self) -> bool:
        """Hold the folder alone; `False` while anybody else holds it."""
        return self._take(fcntl.LOCK_EX)

    def drop(self) -> None:
        """Hold it no more."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def holder(self) -> str:
        """Return who took hold last, for display."""
        note = self._path.read_text(errors="replace")[:200].strip()
        return note or "another process"

    def close(self) -> None:
        """Hold it no more, and close its file."""
        os.close(self._fd)

    def _take(self, how: int) -> bool:
        try:
            fcntl.flock(self._fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        note = f"process {os.getpid()} ({Path(sys.argv[0] or 'python').name})".encode()
        os.pwrite(self._fd, note, 0)
        os.ftruncate(self._fd, len(note))
        return True


def locked_error(holder: str, what: str) -> StoreLockedError:
    """Return the error that names who is in the way of *what*."""
    return StoreLockedError(
        f"can't {what}: {holder} uses the state folder",
        hint="end it and try again",
    )


def wait_turn(tries: int = _TRIES) -> list[float]:
    """Return the pauses between attempts to take a lock."""
    return [_PAUSE] * tries


def pause(seconds: float) -> None:
    """Let another process have its turn."""
    time.sleep(seconds)


@final
@attrs.define(eq=False)
class Proofs:
    """Proofs of life: a locked file for each member, held by its process.

    Files are made, probed for removal and removed only within a write transaction,
    so that no member's file is swept before it is locked.
    """

    _folder: Path
    _held: dict[int, int] = attrs.field(factory=dict[int, int])
    """Member to file descriptor."""

    def hold(self, member: int) -> None:
        """Prove that *member* lives until `drop`, `close` or the process's end."""
        fd = os.open(self._path(member), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Blocks at most for another member's probe, which lets go at once.
        fcntl.flock(fd, fcntl.LOCK_EX)
        self._held[member] = fd

    def lives(self, member: int) -> bool:
        """Whether some process holds the proof of *member*."""
        if member in self._held:
            return True
        try:
            fd = os.open(self._path(member), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def drop(self, member: int) -> None:
        """End the proof of *member*."""
        fd = self._held.pop(member, None)
        if fd is not None:
            os.close(fd)
        self.sweep(member)

    def sweep(self, member: int) -> None:
        """Remove what is left of a dead member's proof."""
        self._path(member).unlink(missing_ok=True)

    def close(self) -> None:
        """End all proofs that this store holds."""
        for member in list(self._held):
            self.drop(member)

    def _path(self, member: int) -> Path:
        return self._folder / f"{member}.lock"
