# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""A disk that crashes: what SQLite writes, stopped, torn or lost at the n-th operation.

    with crash_disk(at=40, kind="lose") as disk:
        ...                    # open a store or an engine, work, meet its failure
    disk.restore()             # the files are what the machine finds when it is back

A layer over the system's own file system that every connection of the process uses
while the block runs, write-ahead log and shared memory included. Operations that change
a file are counted: write, sync, truncate, delete. The operation with number *at* and
all after it fail, as if the process had been stopped there:

- *stop*: the process died. What it wrote is in the system's cache and stays.
- *tear*: the same, in the middle of a write: only its first bytes are there.
- *lose*: the machine died. Of what was written to a file since its last sync, some
  parts are on the disk and some are not, in no order.
- *full*: nobody died; the disk is full until `CrashDisk.make_room`.

Equal seeds choose equal bytes. A sync keeps its promise here; a disk that lies about
it is not what this can show.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final, Literal, final

import apsw
import attrs

from greenroom.actors.kernel import SeededIds

CrashKind = Literal["stop", "tear", "lose", "full"]

_NUMBERS: Final = count()
_SYNCS_ITS_FOLDER: Final = (
    apsw.SQLITE_OPEN_WAL
    | apsw.SQLITE_OPEN_MAIN_JOURNAL
    | apsw.SQLITE_OPEN_SUPER_JOURNAL
)
"""Files whose first sync makes the names in their folder durable too."""


@attrs.frozen
class _Write:
    offset: int
    data: bytes

    def apply(self, image: bytearray) -> None:
        missing = self.offset - len(image)
        image.extend(bytes(max(0, missing)))
        image[self.offset : self.offset + len(self.data)] = self.data


@attrs.frozen
class _Truncate:
    size: int

    def apply(self, image: bytearray) -> None:
        del image[self.size :]
        image.extend(bytes(self.size - len(image)))


@attrs.define(eq=False)
class _Stored:
    """What the disk has of one file, and what only the cache has."""

    image: bytearray
    named: bool
    """Its name is durable; otherwise the file may be gone after a crash."""
    unsynced: list[_Write | _Truncate] = attrs.field(factory=list["_Write | _Truncate"])
    deleted: bool = False
    """Deleted, which the disk may not know yet."""

    def sync(self) -> None:
        for change in self.unsynced:
            change.apply(self.image)
        self.unsynced.clear()


def _gone() -> apsw.Error:
    return apsw.IOError("the disk has crashed")


@final
@attrs.define(eq=False)
class CrashDisk:
    """The files of a process, up to their crash; made by `crash_disk`."""

    at: int | None
    """The first operation that fails; ``None``: none does."""
    kind: CrashKind
    operations: int = attrs.field(default=0, init=False)
    """How many there were, the failing ones too."""
    crashed: bool = attrs.field(default=False, init=False)
    _chance: SeededIds
    _files: dict[str, _Stored] = attrs.field(factory=dict[str, _Stored], init=False)

    def __repr__(self) -> str:
        state = "crashed" if self.crashed else "works"
        return f"<CrashDisk {self.kind} at {self.at}, {state}>"

    def crash(self) -> None:
        """Crash now: the next operation fails, and every one after it."""
        self.at, self.crashed = self.operations + 1, True

    def make_room(self) -> None:
        """Let operations succeed again, after ``full``."""
        self.at, self.crashed = None, False

    def restore(self) -> None:
        """Put on the real disk what a machine finds there after the crash.

        Called when everything that used the files is closed. After ``stop`` and
        ``tear`` they are that already.
        """
        if self.kind != "lose":
            return
        for name, file in self._files.items():
            self._restore(Path(name), file)
            Path(f"{name}-shm").unlink(missing_ok=True)

    #### Called by the files

    def begin(self) -> None:
        """Count an operation; fails if it is the one that crashes, or after it."""
        self.operations += 1
        if self.at is not None and self.operations >= self.at:
            self.crashed = True
        if not self.crashed:
            return
        if self.kind == "full":
            raise apsw.FullError("no space left on the device")
        raise _gone()

    def check(self) -> None:
        """Fail what changes nothing, too: nothing is read after a crash."""
        if self.crashed and self.kind != "full":
            raise _gone()

    def tears(self) -> bool:
        """Whether the next operation is the one that tears."""
        return self.kind == "tear" and self.operations + 1 == self.at

    def part_of(self, data: bytes) -> bytes:
        """Return the first bytes of *data*, by chance from none to all."""
        return data[: round(self._chance.random() * len(data))]

    def file(self, name: str) -> _Stored:
        """Return what is stored of *name*, as it is before it is opened or made."""
        file = self._files.get(name)
        if file is None:
            path = Path(name)
            there = path.exists()
            file = _Stored(bytearray(path.read_bytes() if there else b""), there)
            self._files[name] = file
        elif file.deleted:
            file.deleted = False
            file.unsynced = [_Truncate(0)]
        return file

    def delete(self, name: str, *, synced: bool) -> None:
        """Note that *name* was deleted."""
        self.file(name).deleted = True
        if synced:
            self.sync_folder(name)

    def sync_folder(self, name: str) -> None:
        """Make names beside *name* durable: new files stay, deleted ones are gone."""
        folder = os.path.dirname(name)
        for each, file in list(self._files.items()):
            if os.path.dirname(each) != folder:
                continue
            file.named = True
            if file.deleted:
                del self._files[each]

    #### After the crash

    def _restore(self, path: Path, file: _Stored) -> None:
        if (file.deleted or not file.named) and self._happens():
            path.unlink(missing_ok=True)
            return
        image = bytearray(file.image)
        for change in () if file.deleted else file.unsynced:
            if self._happens():
                self._some_of(change).apply(image)
        path.write_bytes(image)

    def _some_of(self, change: _Write | _Truncate) -> _Write | _Truncate:
        if isinstance(change, _Write) and self._chance.random() < 0.1:
            return _Write(change.offset, self.part_of(change.data))
        return change

    def _happens(self) -> bool:
        return self._chance.random() < 0.5


@final
class _File(apsw.VFSFile):
    """A file whose changes the disk hears of first."""

    def __init__(
        self,
        disk: CrashDisk,
        base: str,
        name: str | apsw.URIFilename,
        flags: list[int],
    ) -> None:
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._stored = disk.file(self._name)
        self._syncs_folder = bool(flags[0] & _SYNCS_ITS_FOLDER)
        super().__init__(base, name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:
        self._disk.check()
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        data = bytes(data)
        if self._disk.tears():
            self._write(self._disk.part_of(data), offset)
        self._disk.begin()
        self._write(data, offset)

    def _write(self, data: bytes, offset: int) -> None:
        self._stored.unsynced.append(_Write(offset, data))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._disk.begin()
        self._stored.unsynced.append(_Truncate(newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        # Not passed on: no real disk is meant here, and waiting for one is slow.
        self._disk.begin()
        self._stored.sync()
        if self._syncs_folder:
            self._syncs_folder = False
            self._disk.sync_folder(self._name)


@final
class _FileSystem(apsw.VFS):
    """The file system over the one that was there; the default while it is used."""

    def __init__(self, disk: CrashDisk) -> None:
        self._disk = disk
        self._base = apsw.vfs_names()[0]
        name = f"greenroom-crash-{next(_NUMBERS)}"
        super().__init__(name, self._base, makedefault=True)

    def xOpen(
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        if name is None:
            # A file without a name dies with its process: nothing to be found again.
            return apsw.VFSFile(self._base, name, flags)
        self._disk.check()
        return _File(self._disk, self._base, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self._disk.begin()
        super().xDelete(filename, syncdir)
        self._disk.delete(filename, synced=syncdir)


@contextmanager
def crash_disk(
    at: int | None = None, kind: CrashKind = "stop", *, seed: int = 0
) -> Generator[CrashDisk]:
    """Let everything SQLite does in this process meet a crash at operation *at*.

    Connections that are open already are not touched. Without *at* nothing fails and
    ``operations`` counts.
    """
    disk = CrashDisk(at, kind, SeededIds(seed))
    system = _FileSystem(disk)
    try:
        yield disk
    finally:
        system.unregister()
