"""An engine whose tool keeps its own books, for the test of operations in doubt.

    shipper.py ship STATE WORKSPACE            ships once, and is killed in that
    shipper.py ask STATE WORKSPACE SESSION     loads the session, says one thing

The books are the file ``books``, one line for each shipment: its idempotency key. They
are what the tool looks into when it is asked what became of an operation.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path

import trio

from greenroom.engine import Doubt, Operation, open_engine, tool
from greenroom.protocol import ToolMessage
from greenroom.testing import Call, Halt, RehearsalProvider, Say


def say(line: str) -> None:
    """Write a line at once, past every buffer."""
    os.write(1, f"{line}\n".encode())


async def look(doubt: Doubt) -> str | None:
    """Tell from the books."""
    books = doubt.context.workspace / "books"
    if doubt.idempotency_key in books.read_text().split():
        return f"shipped {doubt.arguments['fruit']}"
    return None


@tool(reconcile=look)
async def ship(operation: Operation, fruit: str) -> str:
    """Ship one fruit."""
    await operation.dispatch()
    say(f"ships {operation.idempotency_key}")
    with (operation.context.workspace / "books").open("a") as books:
        books.write(f"{operation.idempotency_key}\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never told"


async def main(role: str, state: str, workspace: str, session_id: str = "") -> None:
    """Play the part."""
    call = [Call("ship", {"fruit": "pear"}), Halt("tool_use")]
    provider = RehearsalProvider([call if role == "ship" else [Say("done"), Halt()]])
    async with open_engine(state=state, provider=provider, tools=[ship]) as engine:
        if role == "ship":
            session = await engine.create_session(workspace=Path(workspace))
            say(f"session {session.id}")
        else:
            session = await engine.open_session(session_id)
        await session.prompt("go")
        for message in provider.requests[0].messages:
            if isinstance(message, ToolMessage):
                say(f"told {message.text}")


if __name__ == "__main__":
    trio.run(partial(main, *sys.argv[1:]))
