"""Embedding: a tool that asks, a permission answered by code, events as they come."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from greenroom.engine import Deny, Grant, Provider, SessionHandle, open_engine, tool
from greenroom.protocol import StatusChanged, StreamUpdated
from greenroom.testing import Call, Halt, RehearsalProvider, Say


@tool(permission=lambda to, text: f"send {text!r} to {to}")
def send(to: str, text: str) -> str:
    """Send a message to somebody."""
    return f"sent to {to}"


async def decide(session: SessionHandle) -> None:
    """Answer what waits; the first first."""
    asked, *_ = await session.interactions()
    print(f"\n  may it {asked.title}?")
    grant = asked.title.endswith("to ada")
    await session.answer(asked.id, Grant() if grant else Deny("only ada"))


async def watch(
    session: SessionHandle,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Print what the model says, and decide what it may do."""
    async with session.follow() as events:
        task_status.started()
        async for event in events:
            if isinstance(event, StreamUpdated) and event.kind == "text":
                print(event.text, end="")
            if isinstance(event, StatusChanged) and event.waiting_for == "permission":
                await decide(session)


async def main(provider: Provider, state: Path) -> None:
    """Run one turn to its end."""
    async with (
        open_engine(state=state, provider=provider, tools=[send]) as engine,
        trio.open_nursery() as nursery,
    ):
        session = await engine.create_session(workspace=".", model="rehearsed")
        await nursery.start(watch, session)
        turn = await session.prompt("Tell Ada and Bob that dinner is ready.")
        nursery.cancel_scope.cancel()
    print(f"\n{turn.outcome}: {turn.text}")


SCRIPT = [
    [
        Say("I tell both."),
        Call("send", {"to": "ada", "text": "dinner"}),
        Call("send", {"to": "bob", "text": "dinner"}),
        Halt("tool_use"),
    ],
    [Say("Ada knows; I may not write to Bob."), Halt()],
]

if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        trio.run(main, RehearsalProvider(SCRIPT), Path(folder))
