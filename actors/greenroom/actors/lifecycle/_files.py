"""The folder that the tools of a session leave their output in."""

from __future__ import annotations

import shutil
from pathlib import Path

import trio

from greenroom.protocol import SessionId

from ._ports import Remove


def removes_folder(parent: Path) -> Remove:
    """Return what removes a session's folder in *parent*; a link is not followed.

    The removal is not cut off by a cancel. It raises `OSError` for what can't go.
    """

    async def remove(session_id: SessionId) -> None:
        if Path(session_id).name == session_id:
            await trio.to_thread.run_sync(_remove, parent / session_id)

    return remove


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        # Nothing was left there, or the engine has no folder at all.
        pass
