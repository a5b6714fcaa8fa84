"""An ask gets an answer or a typed error, and leaves nothing behind."""

from __future__ import annotations

import attrs
import outcome
import pytest
import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from greenroom.actors.kernel import (
    ActorExitedError,
    Ask,
    AskAbandoned,
    CancelCause,
    Context,
    MailboxFullError,
    Reply,
    Request,
    Started,
    Stop,
    Stopped,
    open_system,
)
from greenroom.protocol import InternalError

PARENT = CancelCause.PARENT


@attrs.frozen
class Double(Request[int]):
    number: int


class Answers:
    """Answers at once."""

    def handle(self, message: object, ctx: Context) -> None:
        match message:
            case Ask(request=Double(number), reply=reply):
                reply.set_value(2 * number)
            case Stop():
                ctx.exit()
            case _:
                pass


class Keeps:
    """Keeps the asks it gets, and what it hears of them."""

    def __init__(self) -> None:
        self.asks = []
        self.heard = []

    def handle(self, message: object, ctx: Context) -> None:
        match message:
            case Ask():
                self.asks.append(message)
            case Stop():
                ctx.exit()
            case _:
                self.heard.append(message)


async def sleeper(ctx: Context) -> None:
    await trio.sleep_forever()


async def asks_in_vain(ref, request, reasons) -> None:
    with pytest.raises(ActorExitedError) as caught:
        await ref.ask(request)
    reasons.append(caught.value.reason)


async def test_ask_returns_the_reply_and_is_a_checkpoint() -> None:
    async with open_system() as system:
        ref = system.spawn("a", Answers())
        with assert_checkpoints():
            assert await ref.ask(Double(4)) == 8


async def test_ask_raises_the_error_that_was_answered() -> None:
    keeps = Keeps()
    async with open_system() as system, trio.open_nursery() as nursery:
        ref = system.spawn("a", keeps)

        async def ask() -> None:
            with pytest.raises(KeyError):
                await ref.ask(Double(1))

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        keeps.asks[0].reply.capture({}.__getitem__, 1)


async def test_asking_an_exited_actor_raises_its_reason_and_is_a_checkpoint() -> None:
    async with open_system() as system:
        ref = system.spawn("a", Answers())
        ref.stop(PARENT)
        await ref.wait_exited()
        with assert_checkpoints(), pytest.raises(ActorExitedError) as caught:
            await ref.ask(Double(1))
        assert caught.value.reason == Stopped(PARENT)


async def test_an_exit_settles_asks_in_the_mailbox_and_those_waiting_for_room() -> None:
    reasons = []
    async with open_system() as system, trio.open_nursery() as nursery:
        ref = system.spawn("a", sleeper, capacity=1)
        for number in range(3):
            nursery.start_soon(asks_in_vain, ref, Double(number), reasons)
        await wait_all_tasks_blocked()
        ref.cancel(PARENT)
    assert reasons == [Stopped(PARENT)] * 3


async def test_an_exit_settles_asks_that_were_taken_and_not_answered() -> None:
    keeps, reasons = Keeps(), []
    async with open_system() as system, trio.open_nursery() as nursery:
        ref = system.spawn("a", keeps)
        nursery.start_soon(asks_in_vain, ref, Double(1), reasons)
        await wait_all_tasks_blocked()
        ref.stop(PARENT)
    assert reasons == [Stopped(PARENT)]
    keeps.asks[0].reply.set_value(1)  # too late, and no harm


async def test_asks_are_no_tells_left_unread() -> None:
    reports, reasons = [], []
    async with open_system(report=reports.append) as system:
        ref = system.spawn("a", sleeper)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asks_in_vain, ref, Double(1), reasons)
            await wait_all_tasks_blocked()
            ref.cancel(PARENT)
    assert reports == []


async def test_answering_twice_is_a_bug() -> None:
    keeps = Keeps()
    async with open_system() as system, trio.open_nursery() as nursery:
        ref = system.spawn("a", keeps)
        nursery.start_soon(ref.ask, Double(1))
        await wait_all_tasks_blocked()
        reply = keeps.asks[0].reply
        reply.set_value(1)
        with pytest.raises(InternalError, match="answered already"):
            reply.set_value(2)


async def test_an_asker_that_gives_up_tells_the_actor_that_has_the_ask() -> None:
    keeps = Keeps()
    async with open_system() as system:
        ref = system.spawn("a", keeps)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ref.ask, Double(1))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await wait_all_tasks_blocked()
        reply = keeps.asks[0].reply
        assert reply.abandoned
        assert [m.reply for m in keeps.heard if isinstance(m, AskAbandoned)] == [reply]
        reply.set_value(1)
        reply.set_value(2)


@pytest.mark.parametrize("capacity", [1, 64])
async def test_an_ask_given_up_before_it_was_read_leaves_nothing(capacity) -> None:
    """Neither in the mailbox nor among those who wait for room."""
    seen, gate = [], trio.Event()

    async def actor(ctx: Context) -> None:
        await gate.wait()
        async for message in ctx.mailbox:
            seen.append(message)  # noqa: PERF401 - it never ends

    async with open_system() as system:
        ref = system.spawn("a", actor, capacity=capacity, shutdown=0)
        ref.tell_nowait("work")
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(ref.ask, Double(number))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        gate.set()
        await wait_all_tasks_blocked()
        assert seen == [Started(), "work"]


async def test_an_ask_given_up_makes_room_for_who_waits() -> None:
    async with open_system(report=lambda _: None) as system:
        ref = system.spawn("a", sleeper, capacity=1, shutdown=0)
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def ask() -> None:
                with scope:
                    await ref.ask(Double(1))

            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            nursery.start_soon(ref.tell, "waits")
            await wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 2
            scope.cancel()
        assert [info.work for info in system.tree()] == [1]


class AsksOn:
    """Asks another actor for each message, and keeps the replies."""

    def __init__(self, other) -> None:
        self.other = other
        self.replies = []

    def handle(self, message: object, ctx: Context) -> None:
        match message:
            case int():
                self.other.ask_nowait(Double(message), reply_to=ctx.ref, tag=message)
            case Reply():
                self.replies.append((message.tag, message.outcome))
            case Stop():
                ctx.exit()
            case _:
                pass


async def test_a_hosted_actor_gets_the_reply_as_mail_with_its_tag() -> None:
    async with open_system() as system:
        asks = AsksOn(system.spawn("b", Answers()))
        ref = system.spawn("a", asks)
        for number in range(3):
            ref.tell_nowait(number)
        await wait_all_tasks_blocked()
    assert asks.replies == [(n, outcome.Value(2 * n)) for n in range(3)]


async def test_asking_nowait_an_exited_actor_gets_the_error_as_a_reply() -> None:
    async with open_system() as system:
        other = system.spawn("b", Answers())
        other.stop(PARENT)
        await other.wait_exited()
        asks = AsksOn(other)
        system.spawn("a", asks).tell_nowait(1)
        await wait_all_tasks_blocked()
    [(tag, result)] = asks.replies
    assert tag == 1
    with pytest.raises(ActorExitedError):
        result.unwrap()


async def test_an_exit_settles_asks_made_nowait() -> None:
    async with open_system() as system:
        other = system.spawn("b", Keeps())
        asks = AsksOn(other)
        system.spawn("a", asks).tell_nowait(1)
        await wait_all_tasks_blocked()
        other.stop(PARENT)
        await wait_all_tasks_blocked()
    [(_, result)] = asks.replies
    assert isinstance(result.error, ActorExitedError)


async def test_an_asker_that_exits_gives_up_what_it_asked() -> None:
    keeps = Keeps()
    async with open_system() as system:
        ref = system.spawn("a", AsksOn(system.spawn("b", keeps)))
        ref.tell_nowait(1)
        await wait_all_tasks_blocked()
        ref.stop(PARENT)
        await wait_all_tasks_blocked()
        assert keeps.asks[0].reply.abandoned
        assert isinstance(keeps.heard[-1], AskAbandoned)
        keeps.asks[0].reply.set_value(1)


async def test_what_is_asked_for_an_exited_actor_is_not_sent() -> None:
    keeps = Keeps()
    async with open_system() as system:
        other, gone = system.spawn("b", keeps), system.spawn("a", Keeps())
        gone.stop(PARENT)
        await gone.wait_exited()
        other.ask_nowait(Double(1), reply_to=gone, tag=None)
        await wait_all_tasks_blocked()
        assert keeps.asks == []


async def test_asking_nowait_a_full_mailbox_raises() -> None:
    async with open_system(report=lambda _: None) as system:
        other = system.spawn("b", sleeper, capacity=1, shutdown=0)
        other.tell_nowait(1)
        me = system.spawn("a", Keeps())
        with pytest.raises(MailboxFullError):
            other.ask_nowait(Double(1), reply_to=me, tag=None)


async def test_a_hundred_askers_at_once_each_get_their_own_answer() -> None:
    answers = {}
    async with open_system() as system, trio.open_nursery() as nursery:
        ref = system.spawn("a", Answers(), capacity=7)

        async def ask(number: int) -> None:
            answers[number] = await ref.ask(Double(number))

        for number in range(100):
            nursery.start_soon(ask, number)
    assert answers == {number: 2 * number for number in range(100)}
