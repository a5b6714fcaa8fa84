"""What a file was before a tool changed it: kept beside the session, for a rewind.

Contents are kept by their hash, so that the same is kept once; a record of each change
says which file it was, what it was and what it became. Both are written before the
file is changed: what is missing here did not happen, or can't be put back.

Everything is bounded, for each session: one content, all contents, and the number of
changes; the oldest go first. It lies with the session's other output of tools, and goes
with it: when the session is deleted, or with a sweep.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from greenroom.protocol import OperationId

from .._port import ToolRefused
from ._confined import Place, opened_file, status

_LOG: Final = logging.getLogger("greenroom.tools")

MAX_IMAGE_BYTES: Final = 8 << 20
"""A bigger file is changed without its content being kept."""
MAX_KEPT_BYTES: Final = 64 << 20
MAX_CHANGES: Final = 2_000

_MAX_RECORD_BYTES: Final = 64 << 10
_FOLDER: Final = "before"
_CHUNK: Final = 1 << 20


class FileChange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One change of one file by one tool call, as it was about to be made."""

    operation: OperationId
    root: str
    """The workspace, resolved."""
    parts: tuple[str, ...]
    """The names below it."""
    before: str | None
    """SHA-256 of the content; ``None``: there was no file."""
    after: str

    @property
    def path(self) -> str:
        """The file, for a person."""
        return "/".join(self.parts)


def keep_before(scratch: Path, place: Place, data: bytes, of: OperationId) -> None:
    """Keep what is at *place* before *data* takes its place.

    Never in the way of the change: where it can't be kept, a rewind refuses it.
    """
    try:
        _keep(scratch / _FOLDER, place, data, of)
    except (OSError, ValueError, ToolRefused) as exc:
        _LOG.warning("what %s was is not kept: %s", place.shown, exc)


def file_changes(scratch: Path) -> list[FileChange]:
    """Return the changes that are kept, the oldest first; damaged ones are left out."""
    found: list[FileChange] = []
    for path in _records(scratch / _FOLDER):
        with suppress(OSError, msgspec.DecodeError), path.open("rb") as file:
            data = file.read(_MAX_RECORD_BYTES)
            found.append(msgspec.json.decode(data, type=FileChange))
    return found


def kept_content(scratch: Path, digest: str) -> bytes | None:
    """Return the content of that hash, if it is kept and still has it."""
    try:
        data = _object(scratch / _FOLDER, digest).read_bytes()
    except (OSError, ValueError):
        return None
    return data if hashlib.sha256(data).hexdigest() == digest else None


def content_hash(place: Place) -> str | None:
    """Return the hash of the file at *place*; ``None`` if there is nothing.

    Raises:
        ToolRefused: there is something else than a file, or it can't be read.
    """
    if status(place) is None:
        return None
    digest = hashlib.sha256()
    with opened_file(place) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _keep(folder: Path, place: Place, data: bytes, of: OperationId) -> None:
    os.makedirs(folder / "contents", mode=0o700, exist_ok=True)
    os.makedirs(folder / "changes", mode=0o700, exist_ok=True)
    change = FileChange(
        operation=of,
        root=str(place.root),
        parts=place.parts,
        before=_keep_content(folder, place),
        after=hashlib.sha256(data).hexdigest(),
    )
    names = [path.name for path in _records(folder)]
    number = int(names[-1].split("-")[0]) + 1 if names else 1
    name = f"{number:012d}-{of.hash[:24]}.json"
    _write(folder / "changes" / name, msgspec.json.encode(change))
    _trim(folder)


def _keep_content(folder: Path, place: Place) -> str | None:
    found = status(place)
    if found is None:
        return None
    if found.st_size > MAX_IMAGE_BYTES:
        # Its hash tells a rewind what is missing.
        return content_hash(place)
    with opened_file(place) as file:
        data = file.read(MAX_IMAGE_BYTES + 1)
    digest = hashlib.sha256(data).hexdigest()
    path = _object(folder, digest)
    if not path.exists():
        _write(path, data)
    else:
        # The newest use counts when the oldest go.
        os.utime(path)
    return digest


def _trim(folder: Path) -> None:
    for path in list(_records(folder))[:-MAX_CHANGES]:
        path.unlink(missing_ok=True)
    with os.scandir(folder / "contents") as entries:
        kept = sorted(
            ((e.stat().st_mtime_ns, e.stat().st_size, e.path) for e in entries),
            reverse=True,
        )
    room = MAX_KEPT_BYTES
    for _, size, path in kept:
        room -= size
        if room < 0:
            Path(path).unlink(missing_ok=True)


def _records(folder: Path) -> Iterator[Path]:
    try:
        names = sorted(os.listdir(folder / "changes"))
    except OSError:
        return
    # A name that is none of ours would be no number.
    for name in names:
        number, _, rest = name.partition("-")
        if number.isdecimal() and number.isascii() and rest.endswith(".json"):
            yield folder / "changes" / name


def _object(folder: Path, digest: str) -> Path:
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise ValueError(f"{digest[:80]!r} is no hash")
    return folder / "contents" / digest


def _write(path: Path, data: bytes) -> None:
    hidden = path.with_name(f".{path.name}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(hidden, flags, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    os.replace(hidden, path)
