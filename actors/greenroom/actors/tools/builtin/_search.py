"""The ``find`` and ``grep`` tools: search a folder, within a time and a size.

The work is done by a process of its own, `_search_worker`, so that an expression
that never ends can be ended. It is killed on every way out. What it found until then
is kept and said to be a part.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, Final, final

import attrs
import msgspec
import trio

from .._excerpt import one_line
from .._port import Needs, Operation, ToolContext, ToolRefused, ToolResult
from .._typed import TypedTool, define
from ._confined import (
    Place,
    in_thread,
    locate,
    open_folder,
    opened_folder,
    status,
)
from ._keep import kept
from ._script import MARKER

SECONDS: Final = 10.0
MAX_OUTPUT_BYTES: Final = 4 << 20

_WORKER: Final = Path(__file__).with_name("_search_worker.py")
# The worker ends itself should nobody be left to end it.
_ALARM_SECONDS: Final = 15
_LINES: Final = msgspec.json.Decoder(dict[str, Any])

_Glob = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
_Folder = Annotated[
    str, msgspec.Meta(description="The folder to search, relative to the workspace")
]


class FindArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which paths."""

    pattern: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=500,
            description="Glob; ** is any number of folders, and a pattern without / "
            "matches names at any depth",
        ),
    ]
    path: _Folder = "."
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 500


class GrepArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which lines of which files."""

    pattern: Annotated[
        str,
        msgspec.Meta(
            min_length=1, max_length=1_000, description="Python regular expression"
        ),
    ]
    path: Annotated[
        str, msgspec.Meta(description="A folder or a file, relative to the workspace")
    ] = "."
    glob: Annotated[
        _Glob | None, msgspec.Meta(description="Only files whose path matches it")
    ] = None
    ignore_case: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 200


@final
@attrs.frozen
class _Target:
    place: Place
    folder: Place
    name: str
    """The one file to search, in ``folder``; empty: everything below ``folder``."""


@final
@attrs.frozen
class _Found:
    lines: tuple[dict[str, Any], ...]
    summary: dict[str, Any] | None
    """``None`` when the search did not come to its end."""
    timed_out: bool


async def _check_find(arguments: FindArguments, context: ToolContext) -> Needs:
    target = await in_thread(_judge_folder, arguments.path, context)
    return _needs(f"find {arguments.pattern}", target)


async def _check_grep(arguments: GrepArguments, context: ToolContext) -> Needs:
    _check_expression(arguments)
    target = await in_thread(_judge_any, arguments.path, context)
    return _needs(f"grep {arguments.pattern}", target)


def _needs(title: str, target: _Target) -> Needs:
    return Needs(
        permission=None,
        title=f"{one_line(title)} in {target.place.shown}",
        kind="search",
        locations=(target.place.location,),
    )


async def _find(arguments: FindArguments, operation: Operation) -> ToolResult:
    target = await in_thread(_judge_folder, arguments.path, operation.context)
    request = {"glob": arguments.pattern, "limit": arguments.limit}
    found = await _search(target, request, operation)
    lines = sorted(_below(target, line["path"]) for line in found.lines)
    return await _finished("find", lines, found, operation)


async def _grep(arguments: GrepArguments, operation: Operation) -> ToolResult:
    _check_expression(arguments)
    target = await in_thread(_judge_any, arguments.path, operation.context)
    request = {
        "pattern": arguments.pattern,
        "ignore_case": arguments.ignore_case,
        "glob": arguments.glob,
        "name": target.name,
        "limit": arguments.limit,
    }
    found = await _search(target, request, operation)
    lines = [
        f"{_below(target, line['path'])}:{line['line']}: {line['text']}"
        for line in found.lines
    ]
    return await _finished("grep", lines, found, operation)


def _judge_folder(path: str, context: ToolContext) -> _Target:
    place = locate(path, context.workspace, *context.readable.folders)
    with opened_folder(place):
        return _Target(place, place, "")


def _judge_any(path: str, context: ToolContext) -> _Target:
    place = locate(path, context.workspace, context.scratch, *context.readable.folders)
    if os.path.isdir(place.root.joinpath(*place.parts)):
        return _Target(place, place, "")
    if status(place) is None:
        raise ToolRefused(f"{place.shown!r} does not exist")
    return _Target(place, place.parent, place.parts[-1])


def _check_expression(arguments: GrepArguments) -> None:
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(arguments.pattern)
    except (re.error, RecursionError, OverflowError) as exc:
        raise ToolRefused(f"the pattern is no regular expression: {exc}") from exc


def _below(target: _Target, path: str) -> str:
    if target.name:
        return target.place.shown
    return path if target.place.shown == "." else f"{target.place.shown}/{path}"


async def _finished(
    tool: str, lines: list[str], found: _Found, operation: Operation
) -> ToolResult:
    note = _note(found, bool(lines))
    if found.summary is None and not lines:
        return ToolResult(note, is_error=True)
    return await kept("\n".join([*lines, *([note] if note else [])]), operation, tool)


def _note(found: _Found, any_lines: bool) -> str:
    if found.summary is None:
        why = f"took more than {SECONDS:g} s" if found.timed_out else "broke off"
        part = "; this is what was found until then" if any_lines else ""
        return f"[the search {why}{part}; narrow the path or simplify the pattern]"
    notes: list[str] = [] if any_lines else ["nothing found"]
    if found.summary["more"]:
        notes.append("there is more; narrow the path or the pattern")
    if skipped := found.summary["skipped"]:
        notes.append(f"{skipped} binary, very big or unreadable files were left out")
    return f"[{'; '.join(notes)}]" if notes else ""


#### The process


async def _search(
    target: _Target, request: dict[str, Any], operation: Operation
) -> _Found:
    # Opened before the dispatch: what was judged is what is searched.
    folder = await trio.to_thread.run_sync(open_folder, target.folder)
    try:
        await operation.dispatch()
        process = await _start(folder, operation.id.hash)
    finally:
        os.close(folder)
    output, timed_out = bytearray(), True
    try:
        with trio.move_on_after(SECONDS):
            await _talk(process, msgspec.json.encode(request), output)
            timed_out = False
    finally:
        await _end(process)
    return _decoded(bytes(output), timed_out)


async def _start(folder: int, marker: str) -> trio.Process:
    return await trio.lowlevel.open_process(
        [sys.executable, "-I", "-S", _WORKER, str(folder), str(_ALARM_SECONDS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(folder,),
        env={MARKER: marker, "LC_ALL": "C.UTF-8"},
        start_new_session=True,
    )


async def _talk(process: trio.Process, request: bytes, output: bytearray) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        await process.stdin.send_all(request)
        await process.stdin.aclose()
    except trio.BrokenResourceError:
        pass  # It died; its output says how far it came.
    async for chunk in process.stdout:
        output += chunk
        if len(output) > MAX_OUTPUT_BYTES:
            return


async def _end(process: trio.Process) -> None:
    process.kill()
    with trio.CancelScope(shield=True):
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                await stream.aclose()
        await process.wait()


def _decoded(output: bytes, timed_out: bool) -> _Found:
    # The last piece is empty, or a line that was cut when the process was killed.
    lines = [_LINES.decode(line) for line in output.split(b"\n")[:-1]]
    if lines and "done" in lines[-1]:
        return _Found(tuple(lines[:-1]), lines[-1], timed_out)
    return _Found(tuple(lines), None, timed_out)


FIND: Final = TypedTool(
    definition=define(
        "find",
        "Find files and folders by a glob pattern on their path. Links are not "
        "followed, .git is left out.",
        FindArguments,
    ),
    arguments=FindArguments,
    check=_check_find,
    perform=_find,
    read_only=True,
    parallel_safe=True,
)

GREP: Final = TypedTool(
    definition=define(
        "grep",
        "Search the lines of text files with a Python regular expression. Links are "
        "not followed; binary files and .git are left out.",
        GrepArguments,
    ),
    arguments=GrepArguments,
    check=_check_grep,
    perform=_grep,
    read_only=True,
    parallel_safe=True,
)
