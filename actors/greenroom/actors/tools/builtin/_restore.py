"""Files put back to what they were before some tool calls; decided first, then done.

A file is put back only if its content now is what those calls made of it, one after
the other: whatever somebody else changed since, or in between, is never lost. One file
that can't be put back keeps all from being so. A call that did not come to its effect
changes nothing of this, nor does what a restore that was cut off has done: doing it
again does the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

import attrs

from greenroom.protocol import Diff, OperationId

from .._port import ToolRefused
from ._change import MAX_BYTES, excerpt_diff
from ._confined import (
    Place,
    Version,
    drop_leftover,
    locate,
    opened_file,
    opened_folder,
    problems_of,
    replace_file,
    status,
    status_in,
)
from ._snapshots import FileChange, content_hash, file_changes, kept_content

CHANGING_TOOLS: Final = ("write", "edit")
"""The tools whose changes are kept."""

Action = Literal["restore", "remove", "unchanged", "refused"]


@attrs.frozen
class FileRestore:
    """What would be done with one file."""

    path: str
    """Relative to the workspace."""
    action: Action
    reason: str = ""
    """Why it is refused."""
    diff: Diff | None = None
    """From what it is to what it would be, where both are text."""


def changes_of(scratch: Path, operations: Iterable[OperationId]) -> list[FileChange]:
    """Return the changes that *operations* were about to make, the oldest first."""
    wanted = frozenset(operations)
    return [c for c in file_changes(scratch) if c.operation in wanted]


def plan_restore(
    scratch: Path, workspace: Path, changes: Sequence[FileChange]
) -> list[FileRestore]:
    """Return what putting back all *changes* would do, by file; touches nothing."""
    return [
        _planned(scratch, workspace, of_file) for of_file in _by_file(changes).values()
    ]


def restore_files(
    scratch: Path, workspace: Path, changes: Sequence[FileChange]
) -> list[FileRestore]:
    """Put back all *changes*, or nothing if one is refused; return what was done.

    Raises:
        ToolRefused: a file could not be written, or was changed at this very moment.
            Others may have been put back; doing it again does the rest.
    """
    planned = plan_restore(scratch, workspace, changes)
    if any(each.action == "refused" for each in planned):
        return planned
    for each, of_file in zip(planned, _by_file(changes).values(), strict=True):
        if each.action in ("restore", "remove"):
            _put_back(scratch, workspace, of_file)
    return planned


def _by_file(changes: Sequence[FileChange]) -> dict[object, list[FileChange]]:
    found: dict[object, list[FileChange]] = {}
    for change in changes:
        found.setdefault((change.root, change.parts), []).append(change)
    return found


def _planned(
    scratch: Path, workspace: Path, changes: Sequence[FileChange]
) -> FileRestore:
    path, before = changes[0].path, changes[0].before
    try:
        place = _place(workspace, changes[0])
        now = content_hash(place)
    except ToolRefused as refused:
        return FileRestore(path, "refused", str(refused))
    if now == before:
        return FileRestore(path, "unchanged")
    if not leads_back(now, changes):
        return FileRestore(path, "refused", "it has been changed since")
    data = None if before is None else kept_content(scratch, before)
    if before is not None and data is None:
        return FileRestore(path, "refused", "what it was is not kept any more")
    diff = _diff(place, data)
    return FileRestore(path, "remove" if before is None else "restore", diff=diff)


def leads_back(now: str | None, changes: Sequence[FileChange]) -> bool:
    """Whether undoing *changes*, the newest first, leads from *now* to their start."""
    for change in reversed(changes):
        if now == change.after:
            now = change.before
        elif now != change.before:
            return False
    return now == changes[0].before


def _place(workspace: Path, change: FileChange) -> Place:
    if change.root != str(workspace) or not change.parts:
        raise ToolRefused("it was not in the workspace as it is now")
    place = locate(os.path.join(workspace, *change.parts), workspace)
    if place.parts != change.parts:
        raise ToolRefused("a link leads to it that was not there")
    return place


def _put_back(scratch: Path, workspace: Path, changes: Sequence[FileChange]) -> None:
    place, before = _place(workspace, changes[0]), changes[0].before
    with opened_file(place) as file:
        version = Version.of(os.fstat(file.fileno()))
    if not leads_back(content_hash(place), changes):
        raise ToolRefused(f"{place.shown!r} has just been changed by another")
    if before is None:
        _remove(place, version)
        return
    data = kept_content(scratch, before)
    if data is None:
        raise ToolRefused(f"what {place.shown!r} was is not kept any more")
    token = f"rewind-{changes[-1].operation.hash[:24]}"
    drop_leftover(place, token)
    replace_file(place, data, token, version)


def _remove(place: Place, version: Version) -> None:
    with opened_folder(place.parent) as folder, problems_of(place):
        if Version.of(status_in(folder, place)) != version:
            raise ToolRefused(f"{place.shown!r} has just been changed by another")
        os.unlink(place.parts[-1], dir_fd=folder)
        os.fsync(folder)


def _diff(place: Place, data: bytes | None) -> Diff | None:
    new = "" if data is None else _text(data)
    old = _text(_content(place))
    return None if old is None or new is None else excerpt_diff(place.path, old, new)


def _content(place: Place) -> bytes | None:
    found = status(place)
    if found is None or found.st_size > MAX_BYTES:
        return None
    with opened_file(place) as file:
        return file.read(MAX_BYTES)


def _text(data: bytes | None) -> str | None:
    if data is None or len(data) > MAX_BYTES or b"\x00" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
