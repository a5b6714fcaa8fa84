"""The ``write`` and ``edit`` tools: change one file, atomically, with a diff first.

What the user is shown before is judged anew when it runs: the path, the file, and
for an edit whether the old text is still there, exactly once. The new content is
complete on disk before it takes the file's name, so no reader and no crash sees half
of it. What the file was is kept first, for a rewind.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Annotated, Final, final

import attrs
import msgspec

from greenroom.protocol import Diff, OperationId

from .._excerpt import cut_end
from .._port import Needs, Operation, ToolContext, ToolRefused, ToolResult
from .._typed import TypedTool, define
from ._confined import (
    Place,
    Version,
    effect,
    in_thread,
    locate,
    opened_file,
    replace_file,
    status,
)
from ._snapshots import keep_before

MAX_BYTES: Final = 2 << 20
"""Bigger files are not edited; a bigger old file is not shown in a diff."""

MAX_DIFF_CHARS: Final = 32_768
"""Each side of a diff; longer ones are cut to what differs, and then cut."""

_CONTEXT_LINES: Final = 3
_MAX_LINES_NAMED: Final = 5
_MAX_LINES_COMPARED: Final = 2_000


class WriteArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to write, and where."""

    path: Annotated[
        str, msgspec.Meta(description="The file, relative to the workspace")
    ]
    content: Annotated[str, msgspec.Meta(description="The whole new content")]


class EditArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to replace by what."""

    path: Annotated[
        str, msgspec.Meta(description="The file, relative to the workspace")
    ]
    old_text: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            description="Text of the file, exactly as it is there; found once",
        ),
    ]
    new_text: Annotated[str, msgspec.Meta(description="What takes its place")]
    replace_all: Annotated[
        bool, msgspec.Meta(description="Replace it wherever it is found")
    ] = False


@final
@attrs.frozen
class _Change:
    place: Place
    old: str | None
    new: str
    note: str
    version: Version | None = None

    @property
    def diff(self) -> Diff:
        return excerpt_diff(self.place.path, self.old, self.new)


#### write


async def _check_write(arguments: WriteArguments, context: ToolContext) -> Needs:
    return _needs("write", await in_thread(_judge_write, arguments, context))


async def _write(arguments: WriteArguments, operation: Operation) -> ToolResult:
    change = await in_thread(_judge_write, arguments, operation.context)
    await operation.dispatch()
    scratch = operation.context.scratch
    return await effect(_replace, change, operation.id, scratch, changes=True)


def _judge_write(arguments: WriteArguments, context: ToolContext) -> _Change:
    place = locate(arguments.path, context.workspace)
    if not place.parts or arguments.path.endswith("/"):
        raise ToolRefused(f"{place.shown!r} is a folder, not a file")
    size = len(_encoded(arguments.content))
    found = status(place)
    if found is None:
        return _Change(place, None, arguments.content, f"new file, {size} bytes")
    old = _text_or_none(place, found)
    note = f"{size} bytes, in place of {found.st_size}"
    if old is None:
        note += " that can't be shown"
    return _Change(place, old, arguments.content, note)


def _text_or_none(place: Place, found: os.stat_result) -> str | None:
    if found.st_size > MAX_BYTES:
        return None
    with opened_file(place) as file:
        try:
            text = file.read(MAX_BYTES).decode()
        except UnicodeDecodeError:
            return None
    return None if "\x00" in text else text


#### edit


async def _check_edit(arguments: EditArguments, context: ToolContext) -> Needs:
    return _needs("edit", await in_thread(_judge_edit, arguments, context))


async def _edit(arguments: EditArguments, operation: Operation) -> ToolResult:
    change = await in_thread(_judge_edit, arguments, operation.context)
    await operation.dispatch()
    scratch = operation.context.scratch
    return await effect(_replace, change, operation.id, scratch, changes=True)


def _judge_edit(arguments: EditArguments, context: ToolContext) -> _Change:
    place = locate(arguments.path, context.workspace)
    if status(place) is None:
        raise ToolRefused(f"{place.shown!r} does not exist; write makes new files")
    with opened_file(place) as file:
        version = Version.of(os.fstat(file.fileno()))
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ToolRefused(f"{place.shown!r} has more than {MAX_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ToolRefused(f"{place.shown!r} is not UTF-8 text") from None
    new, lines = replace_text(
        text, arguments.old_text, arguments.new_text, everywhere=arguments.replace_all
    )
    if len(_encoded(new)) > MAX_BYTES:
        raise ToolRefused(f"{place.shown!r} would have more than {MAX_BYTES} bytes")
    note = f"{len(lines)} place{'s' if len(lines) > 1 else ''}, line {_named(lines)}"
    return _Change(place, text, new, note, version)


def replace_text(
    text: str, old: str, new: str, *, everywhere: bool
) -> tuple[str, list[int]]:
    """Return *text* with *old* replaced by *new*, and the lines where that was.

    In a text whose every line ends in CRLF, so do the lines of *new*.

    Raises:
        ToolRefused: *old* is not there, or more than once without *everywhere*.
    """
    if "\r\n" in text and text.count("\n") == text.count("\r\n"):
        old, new = _with_crlf(old), _with_crlf(new)
    if old == new:
        raise ToolRefused("old_text and new_text are equal; that changes nothing")
    count = text.count(old)
    if not count:
        raise ToolRefused(f"old_text is not in the file{_hint(text, old)}")
    lines = _lines_of(text, old, count)
    if count > 1 and not everywhere:
        raise ToolRefused(
            f"old_text is in the file {count} times (lines {_named(lines)}); "
            "give more of the text around it, or replace_all"
        )
    return text.replace(old, new), lines


def _with_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _lines_of(text: str, old: str, count: int) -> list[int]:
    lines: list[int] = []
    at, line = 0, 1
    for _ in range(count):
        found = text.index(old, at)
        line += text.count("\n", at, found)
        lines.append(line)
        # Only what lies before the match is counted so far.
        line += old.count("\n")
        at = found + len(old)
    return lines


def _named(lines: list[int]) -> str:
    names = ", ".join(map(str, lines[:_MAX_LINES_NAMED]))
    return names + (", …" if len(lines) > _MAX_LINES_NAMED else "")


def _hint(text: str, old: str) -> str:
    """Say where something like *old* is, so that the model looks there."""
    wanted = next((line.strip() for line in old.splitlines() if line.strip()), "")
    lines = [line.strip() for line in text.splitlines()[:_MAX_LINES_COMPARED]]
    if wanted and wanted in lines:
        number = lines.index(wanted) + 1
        return (
            f"; line {number} has its first line, so white space, line ends or what "
            "follows differs: read it again"
        )
    short = [line[:200] for line in lines]
    close = difflib.get_close_matches(wanted[:200], short, n=1, cutoff=0.7)
    if close:
        number = short.index(close[0]) + 1
        return f"; the nearest is line {number}: {close[0]!r}"
    return "; read the file again"


#### both


def _needs(verb: str, change: _Change) -> Needs:
    sentence = f"{verb} {change.place.shown}"
    return Needs(
        permission=sentence,
        title=sentence,
        kind="edit",
        locations=(change.place.location,),
        diffs=(change.diff,),
        detail=change.note,
    )


def _replace(change: _Change, of: OperationId, scratch: Path) -> ToolResult:
    data = _encoded(change.new)
    keep_before(scratch, change.place, data, of)
    replace_file(change.place, data, of.hash[:32], change.version)
    return ToolResult(
        f"{change.place.shown}: {change.note}",
        locations=(change.place.location,),
        diffs=(change.diff,),
    )


def _encoded(text: str) -> bytes:
    if "\x00" in text:
        raise ToolRefused("the text holds a NUL character, which no text file has")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolRefused("the text holds a lone surrogate") from None


def excerpt_diff(path: str, old: str | None, new: str) -> Diff:
    """Return the change as a diff; of long texts only the lines around it."""
    if old is None or max(len(old), len(new)) <= MAX_DIFF_CHARS:
        return Diff(path, cut_end(new, MAX_DIFF_CHARS), old)
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    start = _common(before, after)
    end = _common(before[start:][::-1], after[start:][::-1])
    first, rest = max(0, start - _CONTEXT_LINES), max(0, end - _CONTEXT_LINES)
    old_part = "".join(before[first : len(before) - rest])
    new_part = "".join(after[first : len(after) - rest])
    return Diff(
        path, cut_end(new_part, MAX_DIFF_CHARS), cut_end(old_part, MAX_DIFF_CHARS)
    )


def _common(before: list[str], after: list[str]) -> int:
    same = 0
    for one, other in zip(before, after, strict=False):
        if one != other:
            break
        same += 1
    return same


WRITE: Final = TypedTool(
    definition=define(
        "write",
        "Write a file of the workspace: a new one, or all of an existing one. "
        "Folders on the way are made.",
        WriteArguments,
    ),
    arguments=WriteArguments,
    check=_check_write,
    perform=_write,
)

EDIT: Final = TypedTool(
    definition=define(
        "edit",
        "Replace a piece of text in a file of the workspace. The old text must be "
        "exactly as it is in the file, and be there once, unless replace_all is set.",
        EditArguments,
    ),
    arguments=EditArguments,
    check=_check_edit,
    perform=_edit,
)
