# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# apsw's stubs leave the element types of rows and arrays open.
"""One connection: how it is opened, asked, and what its faults are called.

Every pragma is a function of its own, applied in the order of `_WRITER`. Rows are
read whole: no statement is left open, so no read transaction outlives a call.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import apsw

from greenroom.protocol import (
    CorruptStoreError,
    DiskFullError,
    StorageError,
    StoreLockedError,
)

Row = tuple[Any, ...]
Value = str | bytes | int | float | None

BUSY_MILLISECONDS: Final = 5_000
"""How long a writer waits for another process's commit; a commit takes a few."""

CHECKPOINT_PAGES: Final = 20_000
"""80 MB of log before a commit pays for a checkpoint (measured: docs/storage.md)."""

_CACHE_KIBIBYTES: Final = 16_384


def busy_timeout(db: apsw.Connection) -> None:
    """Wait for other processes, but not for ever."""
    db.set_busy_timeout(BUSY_MILLISECONDS)


def write_ahead_log(db: apsw.Connection) -> None:
    """Let readers read while one writes."""
    mode = db.pragma("journal_mode", "wal")
    if mode != "wal":
        raise StorageError(
            f"the database can't use a write-ahead log, only {mode!r}",
            hint="put the state folder on a local disk",
        )


def synchronous_full(db: apsw.Connection) -> None:
    """Make a commit return when its data is on disk (JRN-05)."""
    db.pragma("synchronous", "full")


def rare_checkpoints(db: apsw.Connection) -> None:
    """Keep checkpoints out of the commit path; the writer makes them when idle."""
    db.wal_autocheckpoint(CHECKPOINT_PAGES)


def page_cache(db: apsw.Connection) -> None:
    """Keep the hot pages of some hundred sessions."""
    db.pragma("cache_size", -_CACHE_KIBIBYTES)


def recursive_triggers(db: apsw.Connection) -> None:
    """Let REPLACE meet the triggers that refuse deletes (TAP-01)."""
    db.pragma("recursive_triggers", 1)


def distrust_schema(db: apsw.Connection) -> None:
    """Run no unknown function on behalf of a file that may be hostile."""
    db.pragma("trusted_schema", 0)


_WRITER: Final[tuple[Callable[[apsw.Connection], None], ...]] = (
    busy_timeout,
    distrust_schema,
    write_ahead_log,
    synchronous_full,
    rare_checkpoints,
    page_cache,
    recursive_triggers,
)
_READER: Final[tuple[Callable[[apsw.Connection], None], ...]] = (
    busy_timeout,
    distrust_schema,
)


def open_writer(path: Path) -> apsw.Connection:
    """Open the database at *path* for writing, made if it isn't there."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    return _open(path, flags, _WRITER)


def open_reader(path: Path) -> apsw.Connection:
    """Open the database at *path* for reading."""
    return _open(path, apsw.SQLITE_OPEN_READONLY, _READER)


def _open(
    path: Path, flags: int, settings: tuple[Callable[[apsw.Connection], None], ...]
) -> apsw.Connection:
    with mapped_errors():
        db = apsw.Connection(str(path), flags=flags)
        try:
            for apply in settings:
                apply(db)
        except BaseException:
            db.close()
            raise
        return db


def run(db: apsw.Connection, sql: str, *values: Value) -> None:
    """Run *sql* for its effect."""
    db.execute(sql, values)


def one(db: apsw.Connection, sql: str, *values: Value) -> Row | None:
    """Return the first row of *sql*."""
    return db.execute(sql, values).fetchone()


def rows(db: apsw.Connection, sql: str, *values: Value) -> list[Row]:
    """Return all rows of *sql*; the statement bounds how many."""
    return db.execute(sql, values).fetchall()


def each(db: apsw.Connection, sql: str, *values: Value) -> Generator[Row]:
    """Yield the rows of *sql*; closing the generator closes the statement."""
    cursor = db.execute(sql, values)
    try:
        yield from cursor
    finally:
        cursor.close(True)


@contextmanager
def impatient(db: apsw.Connection) -> Generator[None]:
    """Do what can be done without waiting for another process or reader."""
    db.set_busy_timeout(0)
    try:
        yield
    finally:
        busy_timeout(db)


@contextmanager
def reading(db: apsw.Connection) -> Generator[None]:
    """Make what is read within one snapshot."""
    with mapped_errors(), db:
        yield


@contextmanager
def mapped_errors() -> Generator[None]:
    """Raise what SQLite raises as the store's own faults."""
    try:
        yield
    except apsw.Error as exc:
        raise storage_error(exc) from exc


def storage_error(exc: apsw.Error) -> StorageError:
    """Return *exc* as the fault that a caller can act on."""
    match exc:
        case apsw.BusyError() | apsw.LockedError():
            return StoreLockedError(
                f"another process kept the database for {BUSY_MILLISECONDS / 1000:g} s",
                hint="try again; if it stays so, end the other greenroom process",
            )
        case apsw.FullError():
            return DiskFullError(f"the disk is full: {exc}")
        case apsw.CorruptError() | apsw.NotADBError():
            return CorruptStoreError(
                f"the database is damaged: {exc}",
                hint="move it aside, with the -wal file, and restore a copy; greenroom"
                " doctor --salvage FILE writes out what can still be read",
            )
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError():
            return StorageError(
                f"the database can't be opened or written: {exc}",
                hint="check that the state folder exists and is yours to write",
            )
        case _:
            return StorageError(f"the database failed: {exc}")
