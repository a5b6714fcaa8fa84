"""The ``list`` tool: what is in one folder."""

from __future__ import annotations

import os
from itertools import islice
from typing import Annotated, Final

import msgspec

from greenroom.protocol import safe_text

from .._port import Needs, Operation, ToolContext, ToolResult
from .._typed import TypedTool, define
from ._confined import Place, effect, in_thread, locate, opened_folder
from ._keep import kept

MAX_ENTRIES: Final = 1_000
MAX_READ: Final = 100_000
"""Entries that are looked at, so that the first ones by name can be shown."""


class ListArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which folder."""

    path: Annotated[
        str, msgspec.Meta(description="The folder, relative to the workspace")
    ] = "."


async def _check(arguments: ListArguments, context: ToolContext) -> Needs:
    place = await in_thread(_judge, arguments, context)
    return Needs(
        permission=None,
        title=f"list {place.shown}",
        kind="search",
        locations=(place.location,),
    )


async def _perform(arguments: ListArguments, operation: Operation) -> ToolResult:
    place = await in_thread(_judge, arguments, operation.context)
    await operation.dispatch()
    result = await effect(_list, place)
    return result if result.is_error else await kept(result.text, operation, "list")


def _judge(arguments: ListArguments, context: ToolContext) -> Place:
    place = locate(arguments.path, context.workspace, *context.readable.folders)
    with opened_folder(place):
        return place


def _list(place: Place) -> ToolResult:
    with opened_folder(place) as folder, os.scandir(folder) as found:
        entries = list(islice(found, MAX_READ + 1))
        more = len(entries) > MAX_READ
        entries.sort(key=lambda entry: entry.name)
        lines = [_line(entry, folder) for entry in entries[:MAX_ENTRIES]]
    if not lines:
        return ToolResult("(the folder is empty)")
    if len(entries) > MAX_ENTRIES:
        count = f"more than {MAX_READ}" if more else str(len(entries))
        lines.append(f"[the first {MAX_ENTRIES} of {count} entries; find narrows it]")
    return ToolResult("\n".join(lines))


def _line(entry: os.DirEntry[str], folder: int) -> str:
    try:
        if entry.is_symlink():
            target = os.readlink(entry.name, dir_fd=folder)
            return _one_line(f"{entry.name} -> {target}")
        if entry.is_dir(follow_symlinks=False):
            return _one_line(f"{entry.name}/")
        size = entry.stat(follow_symlinks=False).st_size
        return _one_line(f"{entry.name}  {size} bytes")
    except OSError:
        return _one_line(f"{entry.name}  (gone)")


def _one_line(text: str) -> str:
    return safe_text(text).replace("\n", "\\n")


LIST: Final = TypedTool(
    definition=define(
        "list",
        "List a folder of the workspace: folders end in /, files have their size.",
        ListArguments,
    ),
    arguments=ListArguments,
    check=_check,
    perform=_perform,
    read_only=True,
    parallel_safe=True,
)
