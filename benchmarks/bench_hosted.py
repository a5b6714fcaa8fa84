"""Questions to a hosted actor, which has no task: from another one, and from a task.

Baseline: pykka, an actor library on threads; install it with ``pip install pykka``.
Both sides answer the same request. An actor of pykka that asks blocks its thread.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
import trio
from runner import Case, Figures, Ratio
from stopwatch import Stopwatch

from greenroom.actors.kernel import (
    Ask,
    Context,
    Ref,
    Reply,
    Request,
    Started,
    Stop,
    open_system,
)


@attrs.frozen
class Double(Request[int]):
    """Asks for twice the number."""

    number: int


class Doubler:
    """Hosted: answers `Double`."""

    def handle(self, message: object, ctx: Context[Any]) -> None:
        """Answer."""
        match message:
            case Ask(request=Double(number=number), reply=reply):
                reply.set_value(number * 2)
            case Stop():
                ctx.exit()
            case _:
                pass


class Asker:
    """Hosted: asks the other one, the next time when it has the answer."""

    def __init__(self, other: Ref[Any], asks: int, done: trio.Event) -> None:
        self._other = other
        self._left = asks
        self._done = done

    def handle(self, message: object, ctx: Context[Any]) -> None:
        """Take an answer and ask again."""
        match message:
            case Reply(outcome=outcome):
                outcome.unwrap()
                self._left -= 1
                self._ask(ctx)
            case Started():
                self._ask(ctx)
            case Stop():
                ctx.exit()
            case _:
                pass

    def _ask(self, ctx: Context[Any]) -> None:
        if self._left:
            request = Double(self._left)
            self._other.ask_nowait(request, reply_to=ctx.ref, tag=self._left)
        else:
            self._done.set()


async def _hosted_asks_hosted(asks: int) -> Figures:
    done = trio.Event()
    async with open_system() as system:
        doubler = system.host("doubler", Doubler())
        await doubler.wait_started()
        watch = Stopwatch()
        system.host("asker", Asker(doubler, asks, done))
        await done.wait()
        return watch.cpu_us_each(asks)


async def _task_asks_hosted(asks: int) -> Figures:
    async with open_system() as system:
        doubler = system.host("doubler", Doubler())
        await doubler.wait_started()
        watch = Stopwatch()
        for number in range(asks):
            await doubler.ask(Double(number))
        return watch.cpu_us_each(asks)


def _pykka_doubler() -> Any:  # noqa: ANN401 - pykka's own type
    import pykka

    class PykkaDoubler(pykka.ThreadingActor):
        def on_receive(self, message: Double) -> int:
            return message.number * 2

    return PykkaDoubler.start()


def _pykka_from_outside(asks: int) -> Figures:
    doubler = _pykka_doubler()
    try:
        watch = Stopwatch()
        for number in range(asks):
            doubler.ask(Double(number))
        return watch.cpu_us_each(asks)
    finally:
        doubler.stop()


def _pykka_from_an_actor(asks: int) -> Figures:
    import pykka

    class PykkaAsker(pykka.ThreadingActor):
        def on_receive(self, message: int) -> None:
            for number in range(message):
                doubler.ask(Double(number))

    doubler, asker = _pykka_doubler(), PykkaAsker.start()
    try:
        watch = Stopwatch()
        asker.ask(asks)
        return watch.cpu_us_each(asks)
    finally:
        asker.stop()
        doubler.stop()


FROM_HOSTED = Case(
    name="ask-hosted-to-hosted",
    question="how dear is a question from one hosted actor to another?",
    clock="cpu",
    sides={
        "ask_nowait": lambda size: trio.run(_hosted_asks_hosted, size),
        "pykka, actor to actor": _pykka_from_an_actor,
    },
    claims=(
        Ratio(
            "us_each", over="pykka, actor to actor", under="ask_nowait", at_least=8.0
        ),
    ),
    size=10_000,
    smoke_size=10,
    needs="pykka",
)

FROM_TASK = Case(
    name="ask-task-to-hosted",
    question="how dear is a question from a task to a hosted actor?",
    clock="cpu",
    sides={
        "ask": lambda size: trio.run(_task_asks_hosted, size),
        "pykka, from outside": _pykka_from_outside,
    },
    claims=(Ratio("us_each", over="pykka, from outside", under="ask", at_least=2.0),),
    size=10_000,
    smoke_size=10,
    needs="pykka",
)

CASES: Final = (FROM_HOSTED, FROM_TASK)
