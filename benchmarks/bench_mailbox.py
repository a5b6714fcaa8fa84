"""Mail to a task actor: telling it things, and asking it one.

Baselines: a trio memory channel of the same depth, and a question as one writes it by
hand without a kernel: a task that reads requests from a channel, each of which brings
the Event that says it is answered. The request is the same value on all sides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs
import trio
from runner import Case, Figures, Ratio
from stopwatch import Stopwatch

from greenroom.actors.kernel import Ask, CancelCause, Context, Request, open_system

DEPTH: Final = 64
BURST: Final = 10

Work = Callable[[], Awaitable[None]]


#### Tell


async def _tell(bursts: int) -> Figures:
    count, done = bursts * BURST, trio.Event()

    async def reader(ctx: Context[int]) -> None:
        left = count + 1  # `Started` too
        while left:
            left -= len(await ctx.mailbox.receive_batch())
        done.set()

    async with open_system() as system:
        ref = system.spawn("reader", reader, capacity=DEPTH)
        await ref.wait_started()
        watch = Stopwatch()
        for _ in range(bursts):
            for number in range(BURST):
                ref.tell_nowait(number)
            await trio.lowlevel.checkpoint()
        await done.wait()
        return watch.cpu_us_each(count)


async def _tell_one_by_one(bursts: int) -> Figures:
    count, done = bursts * BURST, trio.Event()

    async def reader(ctx: Context[int]) -> None:
        left = count + 1
        async for _ in ctx.mailbox:
            left -= 1
            if not left:
                done.set()
                return

    async with open_system() as system:
        ref = system.spawn("reader", reader, capacity=DEPTH)
        await trio.lowlevel.checkpoint()
        watch = Stopwatch()
        for _ in range(bursts):
            for number in range(BURST):
                ref.tell_nowait(number)
            await trio.lowlevel.checkpoint()
        await done.wait()
        return watch.cpu_us_each(count)


async def _send(bursts: int) -> Figures:
    count, done = bursts * BURST, trio.Event()

    async def reader(receive: trio.MemoryReceiveChannel[int]) -> None:
        left = count
        async with receive:
            async for _ in receive:
                left -= 1
                if not left:
                    done.set()
                    return

    async with trio.open_nursery() as nursery:
        send, receive = trio.open_memory_channel[int](DEPTH)
        nursery.start_soon(reader, receive)
        await trio.lowlevel.checkpoint()
        watch = Stopwatch()
        async with send:
            for _ in range(bursts):
                for number in range(BURST):
                    await send.send(number)
            await done.wait()
            return watch.cpu_us_each(count)


#### Ask


@attrs.frozen
class Double(Request[int]):
    """Asks for twice the number."""

    number: int


async def _doubler(ctx: Context[Any]) -> None:
    async for message in ctx.mailbox:
        match message:
            case Ask(request=Double(number=number), reply=reply):
                reply.set_value(number * 2)
            case _:
                pass


async def _ask_actor(callers: int, asks: int) -> Figures:
    async with open_system() as system:
        ref = system.spawn("doubler", _doubler, capacity=max(DEPTH, callers))
        await ref.wait_started()

        async def caller() -> None:
            for number in range(asks):
                await ref.ask(Double(number))

        watch = Stopwatch()
        async with trio.open_nursery() as nursery:
            for _ in range(callers):
                nursery.start_soon(caller)
        figures = watch.cpu_us_each(callers * asks)
        ref.cancel(CancelCause.SHUTDOWN)
        return figures


@attrs.define(eq=False)
class _Pending:
    request: Double
    answered: trio.Event
    answer: int = 0

    def settle(self) -> None:
        match self.request:
            case Double(number=number):
                self.answer = number * 2
        self.answered.set()


async def _ask_by_event(callers: int, asks: int) -> Figures:
    send, receive = trio.open_memory_channel[_Pending](max(DEPTH, callers))

    async def server() -> None:
        async for pending in receive:
            pending.settle()

    async def caller() -> None:
        for number in range(asks):
            pending = _Pending(Double(number), trio.Event())
            send.send_nowait(pending)
            await pending.answered.wait()

    async with send, receive:
        return await _serve(server, caller, callers, asks)


# Less than this trio can't do: no depth, no order of waiting senders, no end.
async def _ask_by_two_events(callers: int, asks: int) -> Figures:
    waiting: list[_Pending] = []
    arrived = trio.Event()

    async def server() -> None:
        nonlocal arrived, waiting
        while True:
            await arrived.wait()
            arrived = trio.Event()
            batch, waiting = waiting, []
            for pending in batch:
                pending.settle()

    async def caller() -> None:
        for number in range(asks):
            pending = _Pending(Double(number), trio.Event())
            waiting.append(pending)
            arrived.set()
            await pending.answered.wait()

    return await _serve(server, caller, callers, asks)


async def _ask_by_channels(callers: int, asks: int) -> Figures:
    send, receive = trio.open_memory_channel[Any](max(DEPTH, callers))

    async def server() -> None:
        async for request, reply in receive:
            match request:
                case Double(number=number):
                    await reply.send(number * 2)
                case _:
                    pass

    async def caller() -> None:
        for number in range(asks):
            reply, answer = trio.open_memory_channel[int](1)
            send.send_nowait((Double(number), reply))
            await answer.receive()
            reply.close()
            answer.close()

    async with send, receive:
        return await _serve(server, caller, callers, asks)


async def _serve(server: Work, caller: Work, callers: int, asks: int) -> Figures:
    async with trio.open_nursery() as outer:
        outer.start_soon(server)
        await trio.lowlevel.checkpoint()
        watch = Stopwatch()
        async with trio.open_nursery() as nursery:
            for _ in range(callers):
                nursery.start_soon(caller)
        figures = watch.cpu_us_each(callers * asks)
        outer.cancel_scope.cancel()
    return figures


TELL = Case(
    name="tell",
    question="how dear is a message, ten at a time, to an actor that reads all it has?",
    clock="cpu",
    sides={
        "tell_nowait, batches": lambda size: trio.run(_tell, size),
        "tell_nowait, async for": lambda size: trio.run(_tell_one_by_one, size),
        "await send, memory channel": lambda size: trio.run(_send, size),
    },
    claims=(
        Ratio(
            "us_each",
            over="await send, memory channel",
            under="tell_nowait, batches",
            at_least=5.0,
        ),
        Ratio(
            "us_each", over="await send, memory channel", under="tell_nowait, async for"
        ),
    ),
    size=3_000,
    smoke_size=10,
)

ASK = Case(
    name="ask",
    question="how dear is a question to a task actor, from one task?",
    clock="cpu",
    sides={
        "ask": lambda size: trio.run(_ask_actor, 1, size),
        "an Event per request": lambda size: trio.run(_ask_by_event, 1, size),
        "two Events, no channel": lambda size: trio.run(_ask_by_two_events, 1, size),
        "a reply channel": lambda size: trio.run(_ask_by_channels, 1, size),
    },
    claims=(
        Ratio("us_each", over="an Event per request", under="ask", at_least=1.0),
        Ratio("us_each", over="two Events, no channel", under="ask"),
        Ratio("us_each", over="a reply channel", under="ask"),
    ),
    size=5_000,
    smoke_size=10,
)

ASK_MANY = Case(
    name="ask-100",
    question="and from a hundred tasks at once?",
    clock="cpu",
    sides={
        "ask": lambda size: trio.run(_ask_actor, 100, size),
        "an Event per request": lambda size: trio.run(_ask_by_event, 100, size),
        "two Events, no channel": lambda s: trio.run(_ask_by_two_events, 100, s),
    },
    claims=(
        Ratio("us_each", over="an Event per request", under="ask"),
        Ratio("us_each", over="two Events, no channel", under="ask"),
    ),
    size=100,
    smoke_size=2,
)

CASES: Final = (TELL, ASK, ASK_MANY)
