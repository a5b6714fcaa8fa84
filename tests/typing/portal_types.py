"""What a type checker must know of the twins. Checked by pyright, never run."""

from __future__ import annotations

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, assert_type

from greenroom import aio, sync
from greenroom.engine import Tool, TurnResult
from greenroom.protocol import Event, Snapshot
from greenroom.storage import SessionRow


async def in_asyncio() -> None:
    opening = aio.open_engine(state="state", builtin=False)
    assert_type(opening, AbstractAsyncContextManager[aio.Engine])
    aio.open_engine(state=3)  # pyright: ignore[reportArgumentType]
    async with opening as engine:
        session = await engine.create_session(workspace=".")
        assert_type(session, aio.SessionHandle)
        turn = assert_type(session.prompt("x"), Coroutine[Any, Any, TurnResult])
        assert_type(await turn, TurnResult)
        await session.prompt()  # pyright: ignore[reportCallIssue]
        await session.prompt("x", command=3)  # pyright: ignore[reportCallIssue]
        assert_type(await engine.sessions(5), list[SessionRow])
        assert_type(await engine.read(lambda reader: len(reader.agents())), int)
        async with session.follow(after=3) as events:
            assert_type(events.snapshot, Snapshot | None)
            async for event in events:
                assert_type(event, Event)
        agent = await engine.agents.create("x")
        assert_type(agent, str)


def in_threads() -> None:
    opening = sync.open_engine(state="state", builtin=False)
    assert_type(opening, AbstractContextManager[sync.Engine])
    with opening as engine:
        session = engine.create_session(workspace=".")
        assert_type(session, sync.SessionHandle)
        assert_type(session.prompt("x"), TurnResult)
        session.prompt("x", command=3)  # pyright: ignore[reportCallIssue]
        with session.follow() as events:
            for event in events:
                assert_type(event, Event)


@aio.tool(read_only=True, timeout=3)
async def look(operation: aio.Operation, name: str) -> str:
    """Look."""
    await operation.dispatch()
    return name


assert_type(look, Tool)
aio.tool(read_only=3)  # pyright: ignore[reportArgumentType]
