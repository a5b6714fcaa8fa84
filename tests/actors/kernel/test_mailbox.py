"""Two lanes, batches, bounds, and who waits for room."""

from __future__ import annotations

import pytest
import trio
from trio.testing import (
    assert_checkpoints,
    assert_no_checkpoints,
    wait_all_tasks_blocked,
)

from greenroom.actors.kernel import (
    ActorExitedError,
    CancelCause,
    Context,
    Failed,
    MailboxFullError,
    Started,
    Stop,
    Stopped,
    open_system,
)

PARENT = CancelCause.PARENT


class Gate:
    """A task actor that reads only when it is let."""

    def __init__(self) -> None:
        self.open = trio.Event()
        self.seen = []

    async def __call__(self, ctx: Context) -> None:
        await self.open.wait()
        async for message in ctx.mailbox:
            self.seen.append(message)
            if isinstance(message, Stop):
                return


async def test_started_comes_first_even_when_mail_and_a_stop_were_earlier() -> None:
    gate = Gate()
    async with open_system() as system:
        ref = system.spawn("a", gate)
        ref.tell_nowait("work")
        ref.stop(PARENT)
        gate.open.set()
        await ref.wait_exited()
    assert gate.seen == [Started(), Stop(PARENT)]


async def test_control_overtakes_work_and_keeps_its_own_order() -> None:
    gate = Gate()
    async with open_system() as system:
        ref = system.spawn("a", gate)
        ref.tell_nowait("work")
        ref.tell_control("one", key=1)
        ref.tell_control("two", key=2)
        gate.open.set()
        await wait_all_tasks_blocked()
        assert gate.seen == [Started(), "one", "two", "work"]


async def test_control_that_comes_during_a_batch_overtakes_the_rest_of_it() -> None:
    seen = []

    async def actor(ctx: Context) -> None:
        async for message in ctx.mailbox:
            seen.append(message)
            if message == 1:
                ctx.ref.tell_control("urgent", key="u")

    async with open_system() as system:
        ref = system.spawn("a", actor, shutdown=0)
        for number in range(3):
            ref.tell_nowait(number)
        await wait_all_tasks_blocked()
    assert seen[:5] == [Started(), 0, 1, "urgent", 2]


async def test_a_thousand_control_messages_cost_few_steps() -> None:
    """A list of control mail is a batch like one of work."""
    seen = []

    async def actor(ctx: Context) -> None:
        async for message in ctx.mailbox:
            seen.append(message)
            if message == 999:
                return

    async with open_system() as system:
        ref = system.spawn("a", actor)
        await ref.wait_started()
        for number in range(1000):
            ref.tell_control(number, key=number)
        steps = 0
        while not ref.exited:
            await trio.lowlevel.checkpoint()
            steps += 1
    assert seen == [Started(), *range(1000)]
    assert steps < 500


async def test_one_control_message_a_key_waits_and_the_first_wins() -> None:
    gate = Gate()
    async with open_system() as system:
        ref = system.spawn("a", gate)
        ref.tell_control("first", key="k")
        ref.tell_control("second", key="k")
        gate.open.set()
        await wait_all_tasks_blocked()
        ref.tell_control("third", key="k")
        await wait_all_tasks_blocked()
        assert gate.seen == [Started(), "first", "third"]


async def test_control_is_taken_when_work_is_full() -> None:
    gate = Gate()
    async with open_system() as system:
        ref = system.spawn("a", gate, capacity=1)
        ref.tell_nowait(1)
        ref.tell_control("urgent", key="u")
        gate.open.set()
        await wait_all_tasks_blocked()
        assert gate.seen == [Started(), "urgent", 1]


async def test_a_full_mailbox_refuses_and_says_who_and_how_many() -> None:
    gate = Gate()
    async with open_system() as system:
        ref = system.spawn("a", gate, capacity=2, shutdown=0)
        ref.tell_nowait(1)
        ref.tell_nowait(2)
        with pytest.raises(MailboxFullError, match="'a' is full at 2") as caught:
            ref.tell_nowait(3)
        assert (caught.value.path, caught.value.capacity) == ("a", 2)


async def test_tell_does_not_checkpoint_while_there_is_room() -> None:
    gate = Gate()
    async with open_system() as system:
        ref = system.spawn("a", gate, capacity=1, shutdown=0)
        with assert_no_checkpoints():
            await ref.tell(1)


async def test_senders_that_wait_are_let_in_in_the_order_they_came() -> None:
    gate = Gate()
    async with open_system() as system, trio.open_nursery() as nursery:
        ref = system.spawn("a", gate, capacity=2)
        for number in range(2):
            ref.tell_nowait(number)
        for number in range(2, 9):
            nursery.start_soon(ref.tell, number)
            await wait_all_tasks_blocked()
        gate.open.set()
        await wait_all_tasks_blocked()
        assert gate.seen == [Started(), *range(9)]


async def test_a_sender_that_is_cancelled_said_nothing() -> None:
    gate = Gate()
    async with open_system() as system:
        ref = system.spawn("a", gate, capacity=1)
        ref.tell_nowait("in")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ref.tell, "out")
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        gate.open.set()
        await wait_all_tasks_blocked()
        assert gate.seen == [Started(), "in"]


async def test_a_sender_that_waits_learns_of_the_exit() -> None:
    gate = Gate()
    async with open_system(report=lambda _: None) as system:
        ref = system.spawn("a", gate, capacity=1)
        ref.tell_nowait("in")
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                with pytest.raises(ActorExitedError):
                    await ref.tell("late")

            nursery.start_soon(send)
            await wait_all_tasks_blocked()
            ref.cancel(PARENT)
        with pytest.raises(ActorExitedError) as caught:
            await ref.tell("later")
        assert caught.value.reason == Stopped(PARENT)


async def test_telling_an_exited_actor_raises_with_its_failure_as_the_cause() -> None:
    failure = ValueError("no")

    async def crash(ctx: Context) -> None:
        raise failure

    async with open_system(report=lambda _: None) as system:
        ref = system.spawn("a", crash)
        await ref.wait_exited()
        with pytest.raises(ActorExitedError, match="'a' has exited: failed") as caught:
            ref.tell_nowait(1)
        assert caught.value.reason == Failed(failure)
        assert caught.value.__cause__ is failure
        ref.tell_control("nobody reads it", key=1)
        ref.stop(PARENT)
        ref.cancel(PARENT)


async def test_tells_that_nobody_read_are_counted_and_reported() -> None:
    reports = []

    async def leave(ctx: Context) -> None:
        async for message in ctx.mailbox:
            if message == 1:
                return

    async with open_system(report=reports.append) as system:
        ref = system.spawn("a", leave)
        for number in range(5):
            ref.tell_nowait(number)
        await ref.wait_exited()
    assert [(report.path, report.tells_left) for report in reports] == [("a", 3)]


async def test_a_batch_is_all_the_mail_control_first_after_started_alone() -> None:
    batches = []

    async def actor(ctx: Context) -> None:
        while True:
            batches.append(await ctx.mailbox.receive_batch())
            if batches[-1][-1] == "end":
                return

    async with open_system() as system:
        ref = system.spawn("a", actor)
        ref.tell_nowait(1)
        ref.tell_control("urgent", key=1)
        ref.tell_nowait("end")
        await ref.wait_exited()
    assert batches == [[Started()], ["urgent", 1, "end"]]


async def test_a_nowait_batch_is_empty_without_mail_and_never_checkpoints() -> None:
    batches = []

    async def actor(ctx: Context) -> None:
        ctx.ref.tell_nowait(1)
        with assert_no_checkpoints():
            batches.extend(ctx.mailbox.receive_nowait_batch() for _ in range(3))

    async with open_system() as system:
        await system.spawn("a", actor).wait_exited()
    assert batches == [[Started()], [1], []]


async def test_both_ways_of_reading_see_each_message_once_in_order() -> None:
    seen = []

    async def actor(ctx: Context) -> None:
        async for message in ctx.mailbox:
            seen.append(message)
            if message == 1:
                ctx.ref.tell_control("urgent", key=1)
                seen.extend(await ctx.mailbox.receive_batch())
                return

    async with open_system() as system:
        ref = system.spawn("a", actor)
        for number in range(4):
            ref.tell_nowait(number)
        await ref.wait_exited()
    assert seen == [Started(), 0, 1, "urgent", 2, 3]


async def test_receiving_a_batch_is_a_checkpoint_with_and_without_mail() -> None:
    async def actor(ctx: Context) -> None:
        await ctx.mailbox.receive_batch()
        ctx.ref.tell_nowait(1)
        with assert_checkpoints():
            await ctx.mailbox.receive_batch()

    async with open_system() as system:
        await system.spawn("a", actor).wait_exited()


async def test_a_busy_reader_lets_others_run_after_32_messages() -> None:
    """However long its list is: the other task runs before it is through."""
    order = []

    async def actor(ctx: Context) -> None:
        async for message in ctx.mailbox:
            order.append(message)
            if message == 99:
                return

    async def other() -> None:
        for _ in range(2):
            await trio.lowlevel.checkpoint()
        order.append("other")

    async with open_system() as system, trio.open_nursery() as nursery:
        ref = system.spawn("a", actor, capacity=200)
        for number in range(100):
            ref.tell_nowait(number)
        nursery.start_soon(other)
        await ref.wait_exited()
    assert 0 <= order.index("other") <= 70


async def test_a_reader_that_is_cancelled_between_messages_stops_there() -> None:
    seen = []

    async def actor(ctx: Context) -> None:
        async for message in ctx.mailbox:
            seen.append(message)
            if message == 1:
                ctx.ref.cancel(CancelCause.DEADLINE)

    async with open_system(report=lambda _: None) as system:
        ref = system.spawn("a", actor)
        for number in range(5):
            ref.tell_nowait(number)
        assert await ref.wait_exited() == Stopped(CancelCause.DEADLINE)
    assert seen == [Started(), 0, 1]


async def test_receiving_under_a_timeout_loses_no_mail(autojump_clock) -> None:
    seen = []

    async def actor(ctx: Context) -> None:
        await ctx.mailbox.receive_batch()
        with trio.move_on_after(1):
            await ctx.mailbox.receive_batch()
        seen.append("waited")
        seen.extend(await ctx.mailbox.receive_batch())

    async with open_system() as system:
        ref = system.spawn("a", actor)
        await trio.sleep(2)
        ref.tell_nowait(1)
        await ref.wait_exited()
    assert seen == ["waited", 1]


async def test_a_second_reader_of_one_mailbox_is_told_so() -> None:
    async def read(ctx: Context) -> None:
        async for _ in ctx.mailbox:
            pass

    async def actor(ctx: Context) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, ctx)
            nursery.start_soon(read, ctx)

    async with open_system(report=lambda _: None) as system:
        reason = await system.spawn("a", actor).wait_exited()
    assert isinstance(reason, Failed)
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="another task reads")):
        raise reason.error
