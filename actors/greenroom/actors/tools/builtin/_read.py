"""The ``read`` tool: a window of lines of a text file.

Nothing is loaded that is not shown: lines are read one at a time, the rest of a very
long one is skipped, and a scan ends at a bound. The folder where long output is kept
can be read too (TOL-16).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, BinaryIO, Final

import msgspec

from greenroom.protocol import safe_text

from .._port import Needs, Operation, ToolContext, ToolRefused, ToolResult
from .._typed import TypedTool, define
from ._confined import Place, effect, in_thread, locate, opened_file, status
from ._image import HEAD_BYTES, describe_image

MAX_CHARS: Final = 50_000
MAX_LINE_CHARS: Final = 2_000
MAX_SCAN_BYTES: Final = 64 << 20
"""How far into a file a line is looked for."""

_MAX_LINE_BYTES: Final = 4 * MAX_LINE_CHARS
_BINARY_HEAD: Final = 8_192


class ReadArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to read."""

    path: Annotated[
        str, msgspec.Meta(description="The file, relative to the workspace")
    ]
    offset: Annotated[
        int, msgspec.Meta(ge=1, description="The first line to read, from 1")
    ] = 1
    limit: Annotated[
        int, msgspec.Meta(ge=1, le=10_000, description="How many lines at most")
    ] = 2_000
    line_numbers: Annotated[
        bool, msgspec.Meta(description="Put its number before each line")
    ] = False


async def _check(arguments: ReadArguments, context: ToolContext) -> Needs:
    place = await in_thread(_judge, arguments, context)
    return Needs(
        permission=None,
        title=f"read {place.shown}",
        kind="read",
        locations=(place.location,),
    )


async def _perform(arguments: ReadArguments, operation: Operation) -> ToolResult:
    place = await in_thread(_judge, arguments, operation.context)
    await operation.dispatch()
    return await effect(_read, place, arguments)


def _judge(arguments: ReadArguments, context: ToolContext) -> Place:
    place = locate(
        arguments.path, context.workspace, context.scratch, *context.readable.folders
    )
    if status(place) is None:
        raise ToolRefused(f"{place.shown!r} does not exist")
    return place


def _read(place: Place, arguments: ReadArguments) -> ToolResult:
    with opened_file(place) as file:
        head = file.read(HEAD_BYTES)
        size = file.seek(0, 2)
        if image := describe_image(head):
            return ToolResult(f"{image}, {size} bytes; only its description is text")
        if b"\x00" in head[:_BINARY_HEAD]:
            raise ToolRefused(f"{place.shown!r} is binary ({size} bytes), not text")
        if not size:
            return ToolResult("(the file is empty)")
        file.seek(0)
        return ToolResult(_window(file, place, arguments))


def _window(file: BinaryIO, place: Place, arguments: ReadArguments) -> str:
    first, last = arguments.offset, arguments.offset + arguments.limit - 1
    shown: list[str] = []
    room, number = MAX_CHARS, 0
    for number, line in enumerate(_lines(file), 1):
        if number < first:
            continue
        text = _text(*line, first=number == 1)
        if arguments.line_numbers:
            text = f"{number:>6}  {text}"
        room -= len(text) + 1
        if number > last or (room < 0 and shown):
            shown.append(f"[more lines follow; go on with offset={number}]")
            return "\n".join(shown)
        shown.append(text)
    if file.tell() > MAX_SCAN_BYTES:
        shown.append(f"[the rest lies beyond {MAX_SCAN_BYTES} bytes; it is not read]")
    elif number < first:
        raise ToolRefused(f"{place.shown!r} has only {number} lines")
    return "\n".join(shown)


def _lines(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield the start of each line and the line's whole length, within the bound."""
    while file.tell() <= MAX_SCAN_BYTES and (line := file.readline(_MAX_LINE_BYTES)):
        length, piece = len(line), line
        while not piece.endswith(b"\n") and file.tell() <= MAX_SCAN_BYTES:
            piece = file.readline(1 << 20)
            if not piece:
                break
            length += len(piece)
        yield line, length


def _text(line: bytes, length: int, *, first: bool) -> str:
    text = safe_text(line.decode("utf-8", "replace").rstrip("\r\n"))
    if first:
        text = text.removeprefix("\ufeff")
    if length <= len(line) and len(text) <= MAX_LINE_CHARS:
        return text
    return f"{text[:MAX_LINE_CHARS]} [… line cut, it has {length} bytes]"


READ: Final = TypedTool(
    definition=define(
        "read",
        "Read a text file of the workspace, or a window of its lines. "
        "Images are described.",
        ReadArguments,
    ),
    arguments=ReadArguments,
    check=_check,
    perform=_perform,
    read_only=True,
    parallel_safe=True,
)
