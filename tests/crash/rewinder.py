"""An engine that is killed in the middle of a rewind, as a program.

    rewinder.py talk STATE WORKSPACE               writes files in one turn
    rewinder.py rewind STATE WORKSPACE ID POINT    takes it back; dies at POINT

POINT is ``never``, ``restore N`` (before the Nth file is put back), ``removed`` (when a
file was removed), ``before`` or ``after`` the transaction that takes messages back.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import trio

from greenroom.engine import open_engine
from greenroom.storage import SqliteStore
from greenroom.testing import Call, Halt, RehearsalProvider, Say


def die() -> None:
    """End as a process does that is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(point: str) -> None:
    """Let the process end at *point*."""
    replace, unlink = os.replace, os.unlink
    commit = SqliteStore.run_group
    left = [int(point.split()[1])] if point.startswith("restore") else [0]

    def replaces(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            die()
        replace(*args, **kwargs)

    def unlinks(*args, **kwargs):
        unlink(*args, **kwargs)
        die()

    def commits(self, pieces):
        is_rewind = any("batches_piece" in p.run.__qualname__ for p in pieces)
        if is_rewind and point == "before":
            die()
        done = commit(self, pieces)
        if is_rewind and point == "after":
            die()
        return done

    if point.startswith("restore"):
        os.replace = replaces
    elif point == "removed":
        os.unlink = unlinks
    SqliteStore.run_group = commits


def script():
    """Return a turn that changes two files, makes a third, and says so."""
    calls = [
        Call("write", {"path": f"{name}.txt", "content": "changed"}, id=name)
        for name in "abc"
    ]
    return [[*calls, Halt("tool_use")], [Say("done"), Halt()]]


async def main(what: str, state: Path, workspace: Path, *more: str) -> None:
    """Do what the first argument says."""
    async with open_engine(state=state, provider=RehearsalProvider(script())) as engine:
        if what == "talk":
            session = await engine.create_session(
                workspace=workspace, permission_mode="full_access"
            )
            await session.prompt("go")
            print(session.id)
            return
        session_id, point = more
        session = await engine.open_session(session_id)
        die_at(point)
        done = await session.rewind(None, files=True)
        print(len(done.messages))


if __name__ == "__main__":
    trio.run(main, sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
