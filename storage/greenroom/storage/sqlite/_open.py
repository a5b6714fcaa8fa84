"""Opening a state folder: to write, to read, or alone.

A writer shares the folder with other engines; a migration, or ``exclusive=True``,
has it alone and says who is in the way. A reader asks for nothing.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import apsw

from greenroom.protocol import StorageError

from .._errors import NoStoreError
from ._connection import mapped_errors, open_reader as _connect_reader, open_writer
from ._folder import (
    DATABASE,
    MEMBERS,
    FolderLock,
    Proofs,
    locked_error,
    pause,
    wait_turn,
)
from ._groups import Writes
from ._members import living_nodes
from ._migrations import SCHEMA_VERSION, migrate, schema_version
from ._store import SqliteReader, SqliteStore


def open_store(folder: Path, *, exclusive: bool = False) -> SqliteStore:
    """Open the state in *folder* to write, made or migrated if need be.

    Raises:
        StoreLockedError: somebody has the folder alone; or, with *exclusive* or to
            migrate, somebody is in it.
        NewerSchemaError: a newer greenroom wrote it.
        CorruptStoreError: it is damaged, or not greenroom's.
        StorageError: it can't be used for another reason.
    """
    lock = FolderLock.open(folder)
    proofs = Proofs(folder / MEMBERS)
    try:
        db = _open_alone(folder, lock) if exclusive else _open_shared(folder, lock)
    except BaseException:
        lock.close()
        raise
    return SqliteStore(db, proofs, folder, lock, Writes(db, proofs))


def open_reader(folder: Path) -> SqliteReader:
    """Open the state in *folder* to read, beside whoever writes.

    Raises:
        NoStoreError: there is none yet.
        StorageError: it needs a migration first, or can't be read.
    """
    path = folder / DATABASE
    # Not `Path.exists`, which raises for a name that no file can have.
    if not os.path.exists(path):
        raise NoStoreError(f"there is no state in {str(folder)!r}")
    db = _connect_reader(path)
    try:
        with mapped_errors():
            version = schema_version(db)
        if version < SCHEMA_VERSION:
            raise StorageError(
                f"state has schema version {version}, {SCHEMA_VERSION} is needed",
                hint="start greenroom once on this folder to migrate it",
            )
    except BaseException:
        db.close()
        raise
    return SqliteReader(db, Proofs(folder / MEMBERS))


def _open_alone(folder: Path, lock: FolderLock) -> apsw.Connection:
    if not lock.take():
        raise _named(folder, lock, "have the state alone")
    return _open_migrated(folder)


def _open_shared(folder: Path, lock: FolderLock) -> apsw.Connection:
    # Two windows may open a new folder at once: one makes the schema, the other
    # waits for it.
    for seconds in wait_turn():
        if lock.share():
            db = _open_current(folder)
            if db is not None:
                return db
            lock.drop()
            if lock.take():
                db = _open_migrated(folder)
                lock.share()
                return db
        pause(seconds)
    raise _named(folder, lock, "open or migrate the state")


def _open_current(folder: Path) -> apsw.Connection | None:
    path = folder / DATABASE
    if not path.exists():
        return None
    db = open_writer(path)
    try:
        with mapped_errors():
            if schema_version(db) == SCHEMA_VERSION:
                return db
    except BaseException:
        db.close()
        raise
    db.close()
    return None


def _open_migrated(folder: Path) -> apsw.Connection:
    db = open_writer(folder / DATABASE)
    try:
        with mapped_errors():
            migrate(db)
    except BaseException:
        db.close()
        raise
    return db


def _named(folder: Path, lock: FolderLock, what: str) -> StorageError:
    try:
        with closing(_connect_reader(folder / DATABASE)) as reader:
            nodes = living_nodes(reader, Proofs(folder / MEMBERS))
    except (StorageError, apsw.Error):
        nodes = []
    return locked_error(", ".join(nodes) or lock.holder(), what)
