"""Embedding in asyncio: a tool of asyncio, a permission, events, a time limit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from greenroom.aio import SessionHandle, open_engine, tool
from greenroom.engine import Deny, Grant, Provider
from greenroom.protocol import StatusChanged, StreamUpdated
from greenroom.testing import Call, Halt, Hang, RehearsalProvider, Say


@tool(permission=lambda to, text: f"send {text!r} to {to}")
async def send(to: str, text: str) -> str:
    """Send a message to somebody."""
    await asyncio.sleep(0)  # it runs on the loop of the program
    return f"sent to {to}"


async def decide(session: SessionHandle) -> None:
    """Answer what waits; the first first."""
    asked, *_ = await session.interactions()
    print(f"\n  may it {asked.title}?")
    grant = asked.title.endswith("to ada")
    await session.answer(asked.id, Grant() if grant else Deny("only ada"))


async def watch(session: SessionHandle, watching: asyncio.Event) -> None:
    """Print what the model says, and decide what it may do."""
    async with session.follow() as events:
        watching.set()
        async for event in events:
            if isinstance(event, StreamUpdated) and event.kind == "text":
                print(event.text, end="")
            if isinstance(event, StatusChanged) and event.waiting_for == "permission":
                await decide(session)


async def main(provider: Provider, state: Path) -> None:
    """Run one turn to its end, and one until it takes too long."""
    async with open_engine(state=state, provider=provider, tools=[send]) as engine:
        session = await engine.create_session(workspace=".", model="rehearsed")
        watching = asyncio.Event()
        watcher = asyncio.create_task(watch(session, watching))
        await watching.wait()
        turn = await session.prompt("Tell Ada and Bob that dinner is ready.")
        print(f"\n{turn.outcome}: {turn.text}")
        try:
            async with asyncio.timeout(0.1):
                await session.prompt("And now wait for an answer.")
        except TimeoutError:
            print("\nit took too long, and was stopped")
    await watcher  # ends with its engine


SCRIPT = [
    [
        Say("I tell both."),
        Call("send", {"to": "ada", "text": "dinner"}),
        Call("send", {"to": "bob", "text": "dinner"}),
        Halt("tool_use"),
    ],
    [Say("Ada knows; I may not write to Bob."), Halt()],
    [Say("I wait"), Hang()],
]

if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(RehearsalProvider(SCRIPT), Path(folder)))
