"""What it costs to make a request, and to say what is in it.

A long conversation lies mostly behind a boundary: it must cost nothing. A round appends
to what was sent; what was weighed and hashed before is not looked at again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import trio
from runner import Case, Figures, Ratio
from stopwatch import Stopwatch

from greenroom.actors.context import RequestViews, SessionViews, Windows
from greenroom.protocol import (
    Fact,
    ItemId,
    MessageId,
    MessageRecord,
    ModelRequest,
    RunId,
    SessionId,
    SessionSettings,
    TextBlock,
    ToolCallBlock,
    ViewBuilder,
)
from greenroom.protocol.context import RequestIdentity

TAIL: Final = 10
ROUNDS: Final = 10
SAID: Final = "Please look at what the last run of the tests has to say about it. " * 8
SETTINGS: Final = SessionSettings(
    agent_id="a", title="t", workspace="/", provider="p", model="m"
)


@attrs.define(eq=False)
class Nowhere:
    """A tape that keeps nothing."""

    head: int = 0

    async def append(self, facts: Sequence[Fact]) -> None:
        """Take *facts*, which are not kept."""
        self.head += len(facts)


def _record(order: int) -> MessageRecord:
    return MessageRecord(
        id=MessageId(f"m{order}"),
        order_seq=order,
        role="user" if order % 2 else "assistant",
        status="sent",
        blocks=(TextBlock(id=ItemId("i"), text=f"{order} {SAID}"),),
        created_at=0.0,
        updated_at=0.0,
    )


def _round(number: int) -> ToolCallBlock:
    return ToolCallBlock(
        id=ItemId(f"c{number}"),
        call_id=f"call_{number}",
        name="read",
        arguments='{"path": "tests/test_it.py"}',
        round=number,
        status="success",
        response=SAID,
    )


def _history(hidden: int, shown: int) -> ViewBuilder:
    view = ViewBuilder("p", "m")
    view.add_system("be brief")
    view.pin(_record(1))
    for order in range(1, hidden + 1):
        view.leave_out(_record(order), "before_summary_cursor")
    for order in range(hidden + 1, hidden + shown + 2):
        view.add_record(_record(order))
    return view


def _views() -> RequestViews:
    views = SessionViews(SessionId("s"), "life", Windows(), lambda: 0.0)
    return views.for_run(SETTINGS, Nowhere())


async def _turns(turns: int, history: ViewBuilder, order: int) -> Figures:
    views = _views()
    await _turn(views, history, order)
    watch = Stopwatch()
    for _ in range(turns):
        await _turn(views, history, order)
    return watch.cpu_us_each(turns * ROUNDS)


async def _turn(views: RequestViews, history: ViewBuilder, order: int) -> None:
    view = history.fork()
    view.begin_turn(_record(order))
    for number in range(1, ROUNDS + 1):
        origin = "chat" if number == 1 else "tool_loop"
        identity = RequestIdentity(RunId("r"), MessageId("m"), number, number, origin)
        request = ModelRequest(model="m", messages=view.messages)
        await views.assemble(request, view, identity)
        view.add_rounds([_round(number)])


def _behind(hidden: int, turns: int) -> Figures:
    # An even number, so that the user has the word behind it.
    history = _history(hidden, TAIL)
    return trio.run(_turns, turns, history, hidden + TAIL + 2)


HIDDEN: Final = Case(
    name="view-hidden",
    question="does a request get dearer by what lies behind the boundary?",
    clock="cpu",
    sides={
        "behind 10 messages": lambda size: _behind(10, 20),
        "behind 50 000 messages": lambda size: _behind(size, 20),
    },
    claims=(
        Ratio(
            "us_each",
            over="behind 50 000 messages",
            under="behind 10 messages",
            at_most=1.2,
        ),
    ),
    size=50_000,
    smoke_size=100,
)


def _shown(messages: int, rounds: int) -> Figures:
    async def run() -> Figures:
        views, view = _views(), _history(0, messages)
        view.begin_turn(_record(messages + 2))
        await _ask(views, view, 1)
        watch = Stopwatch()
        for number in range(2, rounds + 2):
            view.add_rounds([_round(number)])
            await _ask(views, view, number)
        return watch.cpu_us_each(rounds)

    return trio.run(run)


async def _ask(views: RequestViews, view: ViewBuilder, number: int) -> None:
    identity = RequestIdentity(RunId("r"), MessageId("m"), number, number, "tool_loop")
    request = ModelRequest(model="m", messages=view.messages)
    await views.assemble(request, view, identity)


def _shown_anew(messages: int, rounds: int) -> Figures:
    async def run() -> Figures:
        view = _history(0, messages)
        view.begin_turn(_record(messages + 2))
        watch = Stopwatch()
        for number in range(2, rounds + 2):
            view.add_rounds([_round(number)])
            await _ask(_views(), view, number)
        return watch.cpu_us_each(rounds)

    return trio.run(run)


ROUND: Final = Case(
    name="view-round",
    question="is what was sent before weighed and hashed again in each round?",
    clock="cpu",
    sides={
        "a round more": lambda size: _shown(size, 20),
        "all of it anew": lambda size: _shown_anew(size, 20),
    },
    claims=(
        Ratio("us_each", over="all of it anew", under="a round more", at_least=5.0),
    ),
    size=1_000,
    smoke_size=10,
)

CASES: Final = (HIDDEN, ROUND)
