"""An actor of either grade: told, asked, watched, stopped, cancelled."""

from __future__ import annotations

import attrs
import pytest

from greenroom.actors.kernel import (
    ActorExitedError,
    Ask,
    CancelCause,
    Context,
    Exited,
    Failed,
    Normal,
    Request,
    Started,
    Stop,
    Stopped,
    open_system,
)


@attrs.frozen
class Total(Request[int]):
    pass


async def task_counter(ctx: Context[int]) -> None:
    total = 0
    async for message in ctx.mailbox:
        match message:
            case Stop():
                return
            case Ask(request=Total(), reply=reply):
                reply.set_value(total)
            case int():
                total += message
            case _:
                assert isinstance(message, Started)


class HostedCounter:
    def __init__(self) -> None:
        self.total = 0

    def handle(self, message: object, ctx: Context[int]) -> None:
        match message:
            case Stop():
                ctx.exit()
            case Ask(request=Total(), reply=reply):
                reply.set_value(self.total)
            case int():
                self.total += message
            case _:
                assert isinstance(message, Started)


GRADES = [lambda: task_counter, HostedCounter]


@pytest.mark.parametrize("make", GRADES, ids=["task", "hosted"])
async def test_what_is_told_is_handled_in_order_before_what_is_asked(make) -> None:
    async with open_system() as system:
        ref = system.spawn("counter", make())
        ref.tell_nowait(3)
        await ref.tell(4)
        assert await ref.ask(Total()) == 7


@pytest.mark.parametrize("make", GRADES, ids=["task", "hosted"])
async def test_a_stopped_actor_exits_with_the_cause(make) -> None:
    async with open_system() as system:
        ref = system.spawn("counter", make())
        ref.stop(CancelCause.USER_STOP)
        ref.stop(CancelCause.DEADLINE)
        assert await ref.wait_exited() == Stopped(CancelCause.USER_STOP)
        assert ref.exited
        with pytest.raises(ActorExitedError):
            ref.tell_nowait(1)


@pytest.mark.parametrize("make", GRADES, ids=["task", "hosted"])
async def test_a_cancelled_actor_exits_with_the_first_cause(make) -> None:
    async with open_system() as system:
        ref = system.spawn("counter", make())
        await ref.wait_started()
        ref.cancel(CancelCause.DEADLINE)
        ref.cancel(CancelCause.USER_STOP)
        assert await ref.wait_exited() == Stopped(CancelCause.DEADLINE)


async def test_an_actor_that_returns_exits_normally() -> None:
    async def nothing(ctx: Context[None]) -> None:
        pass

    async with open_system() as system:
        assert await system.spawn("a", nothing).wait_exited() == Normal()


async def test_a_crash_is_the_exit_reason_with_its_traceback() -> None:
    async def crash(ctx: Context[None]) -> None:
        raise ValueError("no")

    reports = []
    async with open_system(report=reports.append) as system:
        reason = await system.spawn("a", crash).wait_exited()
    assert isinstance(reason, Failed)
    assert isinstance(reason.error, ValueError)
    assert reason.error.__traceback__ is not None
    assert [report.path for report in reports] == ["a"]


async def test_a_watcher_gets_exactly_one_exit() -> None:
    seen = []

    class Watcher:
        def handle(self, message: object, ctx: Context[None]) -> None:
            if isinstance(message, Exited):
                seen.append(message)
            if isinstance(message, Stop):
                ctx.exit()

    async with open_system() as system:
        watcher = system.spawn("watcher", Watcher())
        ref = system.spawn("counter", task_counter)
        ref.watch(watcher)
        ref.watch(watcher)
        ref.stop(CancelCause.USER_STOP)
        await ref.wait_exited()
    assert seen == [Exited(ref, Stopped(CancelCause.USER_STOP))]
