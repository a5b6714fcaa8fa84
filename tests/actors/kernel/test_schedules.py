"""Whatever happens in whatever order, the kernel keeps its word.

A schedule is a list of steps, replayed in one run. Trio's scheduler is seeded by
Hypothesis, so a bad interleaving shrinks and repeats. The words kept:

* every ask ends, with its own reply or with a typed error;
* every watcher is told exactly once of each actor it watches;
* every tell is handled once, in order, or refused, or counted as unread;
* every actor has an exit reason in the end, and no task is left.
"""

from __future__ import annotations

from collections import Counter

import attrs
import pytest
import trio
from hypothesis import given, settings, strategies as st
from trio.testing import MockClock

from greenroom.actors.kernel import (
    ActorExitedError,
    Ask,
    CancelCause,
    Context,
    Exited,
    MailboxFullError,
    Ref,
    Reply,
    Request,
    Stop,
    System,
    open_system,
)

ACTORS = 4
CAPACITY = 3


class Crash(Exception):
    """What actors raise on request."""


@attrs.frozen
class Echo(Request[int]):
    number: int


@attrs.frozen
class Tell:
    number: int


@attrs.frozen
class AskOther:
    other: Ref
    tag: int


@attrs.define(eq=False)
class World:
    """What was asked of the kernel and what came of it."""

    system: System
    nursery: trio.Nursery
    refs: list[Ref] = attrs.field(factory=list)
    next_number: int = 0
    sent: dict[str, list[int]] = attrs.field(factory=dict)
    handled: dict[str, list[int]] = attrs.field(factory=dict)
    unread: Counter = attrs.field(factory=Counter)
    asked: Counter = attrs.field(factory=Counter)
    answered: Counter = attrs.field(factory=Counter)
    refused: Counter = attrs.field(factory=Counter)
    nowait: dict[int, str] = attrs.field(factory=dict)
    replied: Counter = attrs.field(factory=Counter)
    watched: set[tuple[str, str]] = attrs.field(factory=set)
    told: Counter = attrs.field(factory=Counter)

    def number(self) -> int:
        self.next_number += 1
        return self.next_number

    #### What actors of every kind do with a message

    def handle(self, message: object, ctx: Context) -> bool:
        """Handle *message*. True when the actor is to end."""
        match message:
            case Tell(number):
                self.handled.setdefault(ctx.path, []).append(number)
            case Ask(request=Echo(number), reply=reply):
                reply.set_value(number)
            case AskOther(other, tag):
                self.ask_nowait(other, ctx.ref, tag)
            case Reply(tag=tag):
                self.replied[tag] += 1
            case Exited(ref=ref):
                self.told[ctx.path, ref.path] += 1
            case Crash():
                raise message
            case "end" | Stop():
                return True
            case _:
                pass
        return False

    def ask_nowait(self, other: Ref, me: Ref, tag: int) -> None:
        try:
            other.ask_nowait(Echo(tag), reply_to=me, tag=tag)
        except MailboxFullError:
            return
        self.nowait[tag] = me.path

    #### Kinds of actors

    async def task(self, ctx: Context) -> None:
        async for message in ctx.mailbox:
            if self.handle(message, ctx):
                return

    async def batches(self, ctx: Context) -> None:
        batch = await ctx.mailbox.receive_batch()
        try:
            while not self.handle(batch.pop(0), ctx):
                batch = batch or await ctx.mailbox.receive_batch()
        finally:
            # What it took, it answers for.
            self.unread[ctx.path] += sum(isinstance(one, Tell) for one in batch)
            with ctx.cleanup():
                await trio.sleep(1)

    async def parent(self, ctx: Context) -> None:
        ctx.spawn("child", self.task)
        ctx.deadline(1, "tick")
        await self.task(ctx)


class Hosted:
    def __init__(self, world: World) -> None:
        self.world = world

    def handle(self, message: object, ctx: Context) -> None:
        if message == "work":
            ctx.become_task(self.work)
        elif self.world.handle(message, ctx):
            ctx.exit()

    async def work(self, ctx: Context) -> None:
        async for message in ctx.mailbox:
            if message == "rest":
                return
            if self.world.handle(message, ctx):
                ctx.exit()
                return


KINDS = ("task", "batches", "parent", "hosted")


async def step(world: World, kind: str, one: int, two: int) -> None:
    refs = world.refs
    if kind == "spawn" or not refs:
        name = KINDS[one]
        made = Hosted(world) if name == "hosted" else getattr(world, name)
        path = f"a{len(refs)}"
        refs.append(world.system.spawn(path, made, capacity=CAPACITY, shutdown=two))
        return
    ref, other = refs[one % len(refs)], refs[two % len(refs)]
    match kind:
        case "tell":
            number = world.number()
            if try_tell(ref, Tell(number)):
                world.sent.setdefault(ref.path, []).append(number)
        case "work" | "rest" | "end":
            try_tell(ref, kind)
        case "crash":
            ref.tell_control(Crash(), key="crash")
        case "ask":
            world.nursery.start_soon(ask, world, ref, two)
        case "ask_nowait":
            try_tell(ref, AskOther(other, world.number()))
        case "watch":
            if not other.exited and not ref.exited:
                ref.watch(other)
                world.watched.add((other.path, ref.path))
        case "cancel":
            ref.cancel(CancelCause.USER_STOP)
        case "stop":
            ref.stop(CancelCause.USER_STOP)
        case _:
            await trio.lowlevel.checkpoint()


def try_tell(ref: Ref, message: object) -> bool:
    try:
        ref.tell_nowait(message)
    except (MailboxFullError, ActorExitedError):
        return False
    return True


async def ask(world: World, ref: Ref, patience: int) -> None:
    number = world.number()
    world.asked[number] += 1
    with trio.move_on_after(patience) if patience else trio.CancelScope():
        try:
            assert await ref.ask(Echo(number)) == number
        except ActorExitedError:
            world.refused[number] += 1
    world.answered[number] += 1


async def replay(steps) -> None:
    reports = []
    async with (
        open_system(report=reports.append) as system,
        trio.open_nursery() as nursery,
    ):
        world = World(system, nursery)
        for one in steps:
            await step(world, *one)
        for _ in range(3):
            await trio.sleep(3)
        check_the_living(world)
        for ref in world.refs:
            ref.cancel(CancelCause.PARENT)
    for report in reports:
        world.unread[report.path] += report.tells_left
    check_the_dead(world)


def check_the_living(world: World) -> None:
    lives = {ref.path for ref in world.refs if not ref.exited}
    for watcher, watched in world.watched:
        if watcher in lives:
            assert world.told[watcher, watched] == (watched not in lives)
    for tag, asker in world.nowait.items():
        if asker in lives:
            assert world.replied[tag] == 1


def check_the_dead(world: World) -> None:
    assert all(ref.exit_reason is not None for ref in world.refs)
    assert world.answered == world.asked
    assert all(count <= 1 for count in (*world.told.values(), *world.replied.values()))
    for path, sent in world.sent.items():
        handled = world.handled.get(path, [])
        assert handled == sent[: len(handled)]
        # Other work may be unread too; what was not handled is at least counted.
        assert len(sent) - len(handled) <= world.unread[path]
    assert world.system.tree() == ()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("spawn", "tell", "tell", "ask", "ask_nowait", "watch", "yield"),
                *("work", "rest", "end", "crash", "cancel", "stop", "yield"),
            )
        ),
        st.integers(0, ACTORS - 1),
        st.integers(0, ACTORS - 1),
    ),
    max_size=40,
)


def run(steps) -> None:
    trio.run(replay, steps, clock=MockClock(autojump_threshold=0))


@given(STEPS)
@settings(max_examples=60)
def test_the_kernel_keeps_its_word_in_any_order(steps) -> None:
    run(steps)


@pytest.mark.sweep
@given(STEPS)
@settings(max_examples=3000)
def test_the_kernel_keeps_its_word_in_thousands_of_orders(steps) -> None:
    run(steps)
