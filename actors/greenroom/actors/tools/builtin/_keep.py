"""Long output: kept whole in a file, the model reads a preview (TOL-16).

The file lies in the run's scratch folder, is called after the operation, and can be
read with the ``read`` and ``grep`` tools. A preview never points at a file that is
not there: if it can't be written, the result is an error.
"""

from __future__ import annotations

import os
from pathlib import Path

from .._excerpt import PREVIEW_CHARS, cut_end, cut_middle
from .._port import Operation, ToolResult
from ._confined import effect, problem


async def kept(
    text: str, operation: Operation, tool: str, *, ends: bool = False
) -> ToolResult:
    """Return *text* as a result, or a preview of it if it is too long.

    Args:
        ends: The preview shows start and end, not only the start.
    """
    if len(text) <= operation.context.inline_chars:
        return ToolResult(text)
    path = operation.context.scratch / f"{tool}-{operation.id.hash[:24]}.txt"
    return await kept_output(text, path, ends=ends)


async def kept_output(text: str, path: Path, *, ends: bool = False) -> ToolResult:
    """Write *text* to the new file *path* and return a preview that names it.

    If it can't be written, the result is an error that points nowhere.
    """
    return await effect(_keep, text, path, ends, changes=True)


def _keep(text: str, path: Path, ends: bool) -> ToolResult:
    try:
        _write(text, path)
    except OSError as exc:
        return ToolResult(
            f"the output has {len(text)} characters and can't be kept in a file"
            f" ({problem(exc)}); ask for less at once",
            is_error=True,
        )
    preview = cut_middle(text, PREVIEW_CHARS) if ends else cut_end(text, PREVIEW_CHARS)
    note = f"[the output has {len(text)} characters; it is kept in {path}]"
    return ToolResult(f"{note}\n{preview}", kept=path)


def _write(text: str, path: Path) -> None:
    os.makedirs(path.parent, mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
    except BaseException:
        os.unlink(path)
        raise
