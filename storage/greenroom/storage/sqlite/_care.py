# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""The file as a whole: whether SQLite can read all of it, and a copy of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import apsw

from greenroom.protocol import StorageError

from ._connection import mapped_errors, one, rows, run

MAX_COMPLAINTS: Final = 20

_STEP_PAGES: Final = 1_000
_FREE_PART: Final = 4
"""A quarter of the pages: less is filled again soon, and is not worth a copy."""


def complaints(db: apsw.Connection) -> list[str]:
    """Return what SQLite finds wrong with its own file; empty when all is well."""
    try:
        found = rows(db, f"PRAGMA integrity_check({MAX_COMPLAINTS})")
    except (apsw.CorruptError, apsw.NotADBError) as exc:
        return [str(exc)]
    return [str(text) for (text,) in found if text != "ok"]


def log_bytes(db: apsw.Connection) -> int:
    """Return the size of the write-ahead log."""
    try:
        return Path(f"{db.filename}-wal").stat().st_size
    except FileNotFoundError:
        return 0


def compact(db: apsw.Connection) -> None:
    """Give pages back that hold nothing, if they are a good part of the file.

    Needs the folder alone, and room for a copy on the disk.
    """
    with mapped_errors():
        free, pages = one(db, "PRAGMA freelist_count"), one(db, "PRAGMA page_count")
        assert free is not None
        assert pages is not None
        if free[0] * _FREE_PART > pages[0]:
            run(db, "VACUUM")


def back_up(db: apsw.Connection, folder: Path, name: str) -> Path:
    """Copy the database into *folder* and return the copy, once it is on disk.

    Raises:
        StorageError: it can't be written, or there is a copy of that name.
    """
    path, part = folder / f"{name}.db", folder / f"{name}.part"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if path.exists():
            raise FileExistsError(f"{str(path)!r} is there already")
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with mapped_errors():
            _copy(db, part)
        _sync(part)
        part.rename(path)
        _sync(folder)
    except OSError as exc:
        raise StorageError(
            f"the backup can't be written: {exc}",
            hint="make room, or check who may write; nothing else was changed",
        ) from exc
    return path


def _copy(db: apsw.Connection, path: Path) -> None:
    copy = apsw.Connection(str(path))
    try:
        with copy.backup("main", db, "main") as backup:
            while not backup.done:
                backup.step(_STEP_PAGES)
    finally:
        copy.close()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
