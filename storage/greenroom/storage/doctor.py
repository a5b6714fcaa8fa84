"""What is wrong with a state folder, and the one repair there is.

An examination only reads, beside whoever writes. What it finds is a value with a
sentence; `MEANING` says of each kind what it means and how to go on. Only projections
are repaired, because only they can be derived from something else: after a backup, from
the tape, in one transaction. A damaged file is never written to and nothing is guessed;
what can still be read of it can be taken out (`readable_entries`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Final, Literal, get_args

import attrs

from greenroom.protocol import CorruptStoreError, SessionId, StorageError, TapeEntry

from ._store import Piece, Reader
from .sqlite import (
    SqliteReader,
    SqliteStore,
    back_up,
    complaints,
    open_reader,
    open_store,
    reading,
)
from .verify import verify_session

FindingCode = Literal[
    "file", "tape", "journal", "unreadable", "projection", "open_run", "scratch"
]
"""In the order of a report, the worst first."""

MEANING: Final[Mapping[FindingCode, str]] = {
    "file": (
        "The file itself is damaged. Nothing is changed in it. Restore a backup, or"
        " take out what can be read (--salvage FILE) and start a new state folder."
    ),
    "tape": (
        "Entries of the session's tape are missing or contradict each other. They"
        " can't be derived from anything; go on in a new session."
    ),
    "journal": (
        "The records of this run contradict each other, so nothing is concluded from"
        " them: look at what its calls did before you repeat them."
    ),
    "unreadable": (
        "Entries of the session's tape can't be read back, and they are stored nowhere"
        " else. Restore a backup, or take out what can be read (--salvage FILE) and go"
        " on in a new session."
    ),
    "projection": (
        "What is shown of the session differs from its tape, which is the truth."
        " --repair derives it anew."
    ),
    "open_run": (
        "Its engine was killed. Start greenroom once on this folder: the run is then"
        " reported and closed, and nothing of it is run again."
    ),
    "scratch": (
        "Output of tools that belongs to no session. It does no harm; greenroom gc"
        " removes it."
    ),
}

BACKUPS: Final = "backups"

_SCRATCH: Final = "scratch"
_PAGE: Final = 256
_ORDER: Final[tuple[FindingCode, ...]] = get_args(FindingCode)
_DAMAGE: Final = ("file", "unreadable")


@attrs.frozen
class Finding:
    """One thing that is not as it must be."""

    code: FindingCode
    text: str
    session_id: SessionId | None = None


@attrs.frozen
class Examination:
    """What was looked at, and what was found."""

    sessions: int
    entries: int
    """Those that can be read."""
    findings: tuple[Finding, ...]
    """The worst first."""

    @property
    def is_damaged(self) -> bool:
        """Whether something can't be read."""
        return any(finding.code in _DAMAGE for finding in self.findings)


@attrs.frozen
class Repair:
    """What a repair did, and what is left after it."""

    before: Examination
    after: Examination
    backup: Path | None
    """The copy made before; ``None`` when there was nothing to repair."""
    rebuilt: tuple[SessionId, ...]


def examine(folder: Path) -> Examination:
    """Return what is wrong with the state in *folder*.

    Raises:
        StorageError: it can't be opened at all, or there is none.
    """
    with closing(open_reader(folder)) as reader:
        return _examine(reader, folder)


def repair(folder: Path, name: str) -> Repair:
    """Derive anew what differs from the tape; the folder is had alone for it.

    Before that the database is copied to the backups, as *name*.

    Raises:
        StoreLockedError: an engine uses the folder; it is named.
        CorruptStoreError: the file is damaged; nothing was changed.
        StorageError: it can't be opened, or the backup can't be written.
    """
    # A reader does not make what is not there, and does not migrate.
    open_reader(folder).close()
    with closing(open_store(folder, exclusive=True)) as store:
        before = _examine(store, folder)
        if any(finding.code == "file" for finding in before.findings):
            raise CorruptStoreError(
                "the file itself is damaged, so nothing was changed in it",
                hint="run greenroom doctor without --repair to see what is lost",
            )
        return _repair(store, folder, name, before)


def _repair(store: SqliteStore, folder: Path, name: str, before: Examination) -> Repair:
    broken = {f.session_id for f in before.findings if f.code == "projection"}
    scopes = sorted(scope for scope in broken if scope is not None)
    if not scopes:
        return Repair(before, before, None, ())
    backup = back_up(store.connection, folder / BACKUPS, name)
    settled = store.run_group([_rebuilding(scope) for scope in scopes])
    while store.index_pending():
        pass
    rebuilt = [s for s, end in zip(scopes, settled, strict=True) if end.error is None]
    return Repair(before, _examine(store, folder), backup, tuple(rebuilt))


def _rebuilding(scope: SessionId) -> Piece:
    return Piece(lambda store: store.rebuild(scope))


#### Looking


def _examine(reader: SqliteReader | SqliteStore, folder: Path) -> Examination:
    findings = [Finding("file", text) for text in complaints(reader.connection)]
    is_sound = not findings
    scopes: list[SessionId] = []
    entries = 0
    try:
        for scope in _scopes(reader):
            scopes.append(scope)
            # One snapshot: what another engine writes meanwhile is no contradiction.
            # In a damaged file a failing read would end it, with all that follows.
            with reading(reader.connection) if is_sound else nullcontext():
                readable, found = _examine_session(reader, scope)
            entries += readable
            findings += found
        findings += _open_runs(reader)
        for path in strangers(folder, set(scopes)):
            text = f"{str(path)!r} belongs to no session"
            findings.append(Finding("scratch", text))
    except StorageError as exc:
        findings.append(Finding("file", f"the list of sessions can't be read: {exc}"))
    findings.sort(key=lambda finding: _ORDER.index(finding.code))
    return Examination(len(scopes), entries, tuple(findings))


def _scopes(reader: Reader) -> Iterator[SessionId]:
    after: SessionId | None = None
    while scopes := reader.scopes(after):
        yield from scopes
        after = scopes[-1]


def _examine_session(reader: Reader, scope: SessionId) -> tuple[int, list[Finding]]:
    head = _head(reader, scope)
    try:
        problems = verify_session(reader, scope)
        found = [Finding(p.code, p.text, scope) for p in problems]
    except ValueError as exc:
        # A stored value that is none of those it can have.
        found = [Finding("unreadable", str(exc), scope)]
    if all(finding.code != "unreadable" for finding in found):
        return head, found
    readable = sum(1 for _ in readable_entries(reader, scope))
    if readable == head:
        # The tape is whole, so what can't be read is derived from it.
        return readable, [attrs.evolve(f, code="projection") for f in found]
    text = f"{readable} of its {head} entries can be read"
    return readable, [*found, Finding("unreadable", text, scope)]


def _head(reader: Reader, scope: SessionId) -> int:
    return next((head for _, head in reader.heads([scope])), 0)


def _open_runs(reader: Reader) -> Iterator[Finding]:
    for scope in reader.owed_by_dead():
        for run in reader.open_runs(scope):
            text = f"run {run.run_id} started and has no end"
            yield Finding("open_run", text, scope)


def strangers(folder: Path, scopes: Collection[str]) -> Iterator[Path]:
    """Yield what lies with the output of tools and belongs to none of *scopes*."""
    scratch = folder / _SCRATCH
    if scratch.is_dir() and not scratch.is_symlink():
        yield from (p for p in sorted(scratch.iterdir()) if p.name not in scopes)


#### Taking out what can be read


def readable_entries(reader: Reader, scope: SessionId) -> Iterator[TapeEntry]:
    """Yield every entry of *scope* that can be read, in order; others are left out.

    Raises:
        StorageError: not even the session's head can be read.
    """
    after, head = 0, _head(reader, scope)
    while after < head:
        entries = _readable_page(reader, scope, after)
        yield from entries
        # Nothing from here: what lies behind the next one may still be whole.
        after = entries[-1].seq if entries else after + 1


def _readable_page(
    reader: Reader, scope: SessionId, after: int
) -> tuple[TapeEntry, ...]:
    for limit in (_PAGE, 1):
        try:
            return reader.page(scope, after, limit).entries
        except (StorageError, ValueError):
            continue
    return ()


def salvage(folder: Path) -> Iterator[TapeEntry]:
    """Yield every entry of every session that can be read.

    Raises:
        StorageError: the file can't be opened, or its sessions can't be listed.
    """
    with closing(open_reader(folder)) as reader:
        for scope in _scopes(reader):
            yield from readable_entries(reader, scope)
