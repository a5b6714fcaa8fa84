"""The engine that the demo kills: one turn with one long command, then the end.

Run as ``python -m greenroom.cli._victim STATE WORKSPACE``; prints the session's id
and, once the command runs, what it runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from greenroom.actors.providers import Call, Halt, RehearsalProvider, Say
from greenroom.engine import open_engine
from greenroom.protocol import StreamUpdated

_SCRIPT = "echo started; sleep 60; echo never > never.txt"


async def main(state: str, workspace: str) -> None:
    """Open an engine and run the turn."""
    provider = RehearsalProvider(
        [[Say("I run it.\n"), Call("shell", {"command": _SCRIPT}), Halt("tool_use")]]
    )
    async with open_engine(
        state=state, provider=provider, program="a victim"
    ) as engine:
        session = await engine.create_session(
            workspace=Path(workspace),
            title="Killed",
            model="script",
            permission_mode="full_access",
        )
        print(session.id, flush=True)
        async with session.follow() as events, trio.open_nursery() as nursery:
            nursery.start_soon(session.prompt, "Run the long command.")
            async for event in events:
                if isinstance(event, StreamUpdated) and event.kind == "tool_output":
                    print(_SCRIPT, flush=True)
                    break


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
