"""One turn with one tool call: a question, a call, its result, an answer.

The model is a rehearsal on both sides. The engine makes the turn durable, watchable,
cancellable and recoverable; the baseline is the bare loop on trio, which streams, runs
the tool as a task, keeps the history in a list, and writes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Final

import trio
from runner import Case, Figures, Ratio
from stopwatch import Stopwatch
from tapes import scratch

from greenroom.engine import SessionHandle, open_engine, tool
from greenroom.protocol import (
    ModelRequest,
    TextDelta,
    ToolCallEnd,
    canonical_json,
)
from greenroom.testing import Call, Cue, Halt, RehearsalProvider, Say

WINDOW: Final = 25
QUESTION: Final = "How many apples are there?"
ANSWER: Final = "There are three apples, which is enough for a small cake."
REPLIES: Final[Sequence[Sequence[Cue]]] = (
    [Say("I will look."), Call("stock", {"fruit": "apple"}), Halt("tool_use")],
    [Say(ANSWER, chunk=12), Halt()],
)


@tool(read_only=True)
async def stock(fruit: str) -> str:
    """Tell how many of a fruit are in stock."""
    return f"3 of {fruit}"


def _rehearsal() -> RehearsalProvider:
    replies = cycle(REPLIES)
    return RehearsalProvider(lambda request: next(replies))


#### The engine


@asynccontextmanager
async def _session() -> AsyncGenerator[tuple[SessionHandle, RehearsalProvider]]:
    provider = _rehearsal()
    with scratch() as folder:
        async with open_engine(
            state=folder, provider=provider, tools=[stock], builtin=False
        ) as engine:
            session = await engine.create_session(workspace=folder.parent)
            yield session, provider


async def _play(session: SessionHandle, rehearsal: RehearsalProvider) -> None:
    turn = await session.prompt(QUESTION)
    assert turn.text.endswith(ANSWER)
    rehearsal.requests.clear()  # it keeps every request, which no model does


async def _engine_turns(turns: int) -> Figures:
    async with _session() as (session, rehearsal):
        await _play(session, rehearsal)
        watch = Stopwatch()
        for _ in range(turns):
            await _play(session, rehearsal)
        wall = watch.wall() / turns * 1e6
        return watch.cpu_us_each(turns) | {"wall_us_each": wall}


async def _after(before: int) -> Figures:
    async with _session() as (session, rehearsal):
        for _ in range(before):
            await _play(session, rehearsal)
        watch = Stopwatch()
        for _ in range(WINDOW):
            await _play(session, rehearsal)
        return watch.cpu_us_each(WINDOW)


#### Bare trio


async def _bare_turns(turns: int) -> Figures:
    rehearsal = _rehearsal()
    history: list[object] = []
    await _bare_turn(rehearsal, history)
    watch = Stopwatch()
    for _ in range(turns):
        await _bare_turn(rehearsal, history)
        rehearsal.requests.clear()
    wall = watch.wall() / turns * 1e6
    return watch.cpu_us_each(turns) | {"wall_us_each": wall}


async def _bare_turn(rehearsal: RehearsalProvider, history: list[object]) -> None:
    history.append(QUESTION)
    while True:
        text, calls = "", list[ToolCallEnd]()
        async with rehearsal.stream(_request()) as events:
            async for event in events:
                match event:
                    case TextDelta(text=piece):
                        text += piece
                    case ToolCallEnd():
                        calls.append(event)
                    case _:
                        pass
        history.append(text)
        if not calls:
            break
        async with trio.open_nursery() as nursery:
            for call in calls:
                nursery.start_soon(_bare_call, call, history)
    assert text == ANSWER


async def _bare_call(call: ToolCallEnd, history: list[object]) -> None:
    await trio.lowlevel.checkpoint()
    history.append((call.id, canonical_json({"result": "3 of apple"})))


def _request() -> ModelRequest:
    return ModelRequest(model="default", messages=(), tools=())


TURN: Final = Case(
    name="turn",
    question="how dear is a durable turn with one tool?",
    clock="cpu",
    sides={
        "engine": lambda size: trio.run(_engine_turns, size),
        "bare trio, nothing kept": lambda size: trio.run(_bare_turns, size),
    },
    claims=(Ratio("us_each", over="engine", under="bare trio, nothing kept"),),
    size=50,
    smoke_size=1,
)

LONG: Final = Case(
    name="turn-200",
    question="does a turn get dearer as its session gets longer?",
    clock="cpu",
    sides={
        "after 10 turns": lambda size: trio.run(_after, size // 20),
        "after 200 turns": lambda size: trio.run(_after, size),
    },
    claims=(
        Ratio("us_each", over="after 200 turns", under="after 10 turns", at_most=1.1),
    ),
    size=200,
    smoke_size=2,
)

CASES: Final = (TURN, LONG)
