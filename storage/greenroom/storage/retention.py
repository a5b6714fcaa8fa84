"""What may go: old traces, files of tools that belong to nobody, what was put away.

A sweep has the folder alone, so nothing that it removes is in use; it says who is in
the way otherwise. A dry one only reads, beside whoever works in the folder, and tells
the same. Tapes of listed sessions are never touched, except those of archived sessions
that the user asked to have removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import attrs

from greenroom.protocol import SessionId, StorageError

from ._store import Reader, Store
from ._values import Grant, Member
from .doctor import strangers
from .forks import is_kept_fork
from .sqlite import SqliteReader, SqliteStore, compact, open_reader, open_store

_TTL: Final = 3_600.0
_PAGE: Final = 500


@attrs.frozen
class Swept:
    """What a sweep removed, or would remove."""

    traces: int
    archived: tuple[SessionId, ...]
    """Sessions that were put away long enough ago, and owe nothing."""
    unfinished: tuple[SessionId, ...]
    """Tapes that no list shows: an import was killed while it made them, or they are
    forks that were discarded, or whose parent is gone."""
    files: tuple[Path, ...]
    """Folders and files of tools that belong to no session."""
    file_bytes: int
    problems: tuple[str, ...]
    """Files that could not be removed, and why."""
    log_bytes: int
    """The log beside the database, afterwards."""


def vacuum(folder: Path) -> None:
    """Give the space back that nothing in the database of *folder* needs, if it pays.

    Has the folder alone for it, and needs room for a copy of the database.

    Raises:
        StoreLockedError: an engine uses the folder; it is named.
        StorageError: it can't be read or written.
    """
    # A reader does not make what is not there, and does not migrate.
    open_reader(folder).close()
    with closing(open_store(folder, exclusive=True)) as store:
        compact(store.connection)


def sweep(
    folder: Path,
    *,
    older_than: float,
    archived: bool,
    dry_run: bool,
    node: str,
    now: float,
) -> Swept:
    """Remove what may go from the state in *folder*.

    Args:
        folder: the state folder; it is not made.
        older_than: seconds that traces, and archived sessions, are kept.
        archived: whether archived sessions are removed at all, for good.
        dry_run: whether only to tell.
        node: who sweeps, for others that want the folder.
        now: seconds since the epoch.

    Raises:
        StoreLockedError: an engine uses the folder; it is named.
        StorageError: it can't be read or written.
    """
    before = now - older_than
    # A reader does not make what is not there, and does not migrate.
    with closing(open_reader(folder)) as reader:
        if dry_run:
            return _found(reader, folder, before, archived=archived)
    with closing(open_store(folder, exclusive=True)) as store:
        found = _found(store, folder, before, archived=archived)
        member = store.join(node, "", _TTL, now=now)
        for scope in (*found.archived, *found.unfinished):
            _delete(store, member, scope, now)
        store.leave(member, now=now)
        store.forget_traces(before)
        problems = tuple(_remove_all(found.files))
        compact(store.connection)
        store.checkpoint()
        return attrs.evolve(found, problems=problems, log_bytes=store.log_bytes())


def _found(
    reader: SqliteReader | SqliteStore, folder: Path, before: float, *, archived: bool
) -> Swept:
    away = tuple(_put_away(reader, before)) if archived else ()
    unfinished = tuple(_unlisted(reader))
    stay = {str(scope) for scope in _scopes(reader)} - {*away, *unfinished}
    files = tuple(strangers(folder, stay))
    return Swept(
        traces=reader.count_traces(before),
        archived=away,
        unfinished=unfinished,
        files=files,
        file_bytes=sum(map(_size, files)),
        problems=(),
        log_bytes=reader.log_bytes(),
    )


def _put_away(reader: Reader, before: float) -> Iterator[SessionId]:
    owing = set(reader.owed_by_dead())
    key: tuple[float, SessionId] | None = None
    while rows := reader.sessions(_PAGE, key, archived=True):
        for row in rows:
            is_old = row.archived_at is not None and row.archived_at < before
            if is_old and not row.has_open_interaction and row.id not in owing:
                yield row.id
        key = rows[-1].updated_at, rows[-1].id


def _unlisted(reader: Reader) -> Iterator[SessionId]:
    for scope in _scopes(reader):
        if reader.session(scope) is None and not is_kept_fork(reader, scope):
            yield scope


def _scopes(reader: Reader) -> Iterator[SessionId]:
    after: SessionId | None = None
    while scopes := reader.scopes(after):
        yield from scopes
        after = scopes[-1]


def _delete(store: Store, member: Member, scope: SessionId, now: float) -> None:
    grant = store.acquire(member, scope, now=now)
    if not isinstance(grant, Grant) or store.delete(grant, grant.head) is not None:
        raise StorageError(f"session {scope!r} can't be removed: it is in use")


#### Files


def _remove_all(paths: tuple[Path, ...]) -> Iterator[str]:
    for path in paths:
        try:
            # A link is removed, never followed; rmtree does not follow any either.
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as exc:
            yield f"{str(path)!r} can't be removed: {exc.strerror or exc}"


def _size(path: Path) -> int:
    try:
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        return sum(p.lstat().st_size for p in path.rglob("*") if not p.is_dir())
    except OSError:
        return 0
