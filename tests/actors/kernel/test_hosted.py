"""Hosted actors share one task; one can become a task of its own and come back."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.kernel import (
    ActorExitedError,
    CancelCause,
    Context,
    Failed,
    Normal,
    Started,
    Stop,
    Stopped,
    open_system,
)

USER_STOP = CancelCause.USER_STOP


class Session:
    """Hosted; works as a task from "work" on, until that reads "rest"."""

    def __init__(self) -> None:
        self.seen = []
        self.gate = trio.Event()

    def handle(self, message: object, ctx: Context) -> None:
        self.seen.append(("hosted", message))
        match message:
            case "work":
                ctx.become_task(self.work)
            case Stop() | "end":
                ctx.exit()
            case _:
                pass

    async def work(self, ctx: Context) -> None:
        await self.gate.wait()
        async for message in ctx.mailbox:
            self.seen.append(("task", message))
            match message:
                case "rest" | Stop():
                    return
                case "exit":
                    ctx.exit()
                    return
                case "crash":
                    raise ValueError("no")
                case _:
                    pass


async def test_a_session_works_and_rests_with_nothing_lost_or_reordered() -> None:
    session = Session()
    async with open_system() as system:
        ref = system.spawn("s", session)
        for message in (1, "work", 2, 3, "rest", 4, "work", 5, "rest", 6):
            ref.tell_nowait(message)
        await wait_all_tasks_blocked()
        assert [info.grade for info in system.tree()] == ["task"]
        ref.tell_nowait(7)
        session.gate.set()
        await wait_all_tasks_blocked()
        assert [info.grade for info in system.tree()] == ["hosted"]
        ref.tell_nowait(8)
        await wait_all_tasks_blocked()
    assert session.seen[:-1] == [
        ("hosted", Started()),
        *[("hosted", 1), ("hosted", "work"), ("task", 2), ("task", 3)],
        *[("task", "rest"), ("hosted", 4), ("hosted", "work"), ("task", 5)],
        *[("task", "rest"), ("hosted", 6), ("hosted", 7), ("hosted", 8)],
    ]


@pytest.mark.parametrize(("message", "kind"), [("exit", Normal), ("crash", Failed)])
async def test_a_working_session_can_end(message, kind) -> None:
    session = Session()
    session.gate.set()
    async with open_system(report=lambda _: None) as system:
        ref = system.spawn("s", session)
        ref.tell_nowait("work")
        ref.tell_nowait(message)
        assert isinstance(await ref.wait_exited(), kind)


async def test_a_working_session_that_reads_a_stop_and_returns_has_stopped() -> None:
    session = Session()
    session.gate.set()
    async with open_system() as system:
        ref = system.spawn("s", session)
        ref.tell_nowait("work")
        await wait_all_tasks_blocked()
        ref.stop(USER_STOP)
        assert await ref.wait_exited() == Stopped(USER_STOP)


@pytest.mark.parametrize("steps", range(4))
async def test_a_session_is_cancelled_wherever_it_is(steps) -> None:
    session = Session()
    async with open_system(report=lambda _: None) as system:
        ref = system.spawn("s", session)
        ref.tell_nowait("work")
        ref.tell_nowait("never read")
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        ref.cancel(USER_STOP)
        assert await ref.wait_exited() == Stopped(USER_STOP)
    assert ("task", "never read") not in session.seen


async def test_becoming_a_task_twice_or_as_a_task_is_refused() -> None:
    errors = []

    class Eager:
        def handle(self, message: object, ctx: Context) -> None:
            ctx.become_task(self.work)
            with pytest.raises(RuntimeError, match="becomes another task"):
                ctx.become_task(self.work)

        async def work(self, ctx: Context) -> None:
            with pytest.raises(RuntimeError, match="is a task already"):
                ctx.become_task(self.work)
            errors.append("both")
            ctx.exit()

    async def task(ctx: Context) -> None:
        with pytest.raises(RuntimeError, match="is a task already"):
            ctx.become_task(task)
        with pytest.raises(RuntimeError, match="ends by returning"):
            ctx.exit()

    async with open_system() as system:
        assert await system.spawn("a", Eager()).wait_exited() == Normal()
        assert await system.spawn("b", task).wait_exited() == Normal()
    assert errors == ["both"]


async def test_a_hosted_crash_leaves_the_other_actors_alone() -> None:
    class Crash:
        def handle(self, message: object, ctx: Context) -> None:
            raise ValueError("no")

    session = Session()
    async with open_system(report=lambda _: None) as system:
        ref = system.spawn("c", Crash())
        other = system.spawn("s", session)
        reason = await ref.wait_exited()
        assert isinstance(reason, Failed)
        assert reason.error.__traceback__ is not None
        with pytest.raises(ActorExitedError):
            ref.tell_nowait(1)
        other.tell_nowait(1)
        await wait_all_tasks_blocked()
        assert session.seen == [("hosted", Started()), ("hosted", 1)]


async def test_a_hosted_actor_that_never_rests_starves_nobody() -> None:
    """It tells itself for ever; others, hosted and not, still get their turns."""
    handled = []

    class Busy:
        def handle(self, message: object, ctx: Context) -> None:
            if isinstance(message, Stop):
                ctx.exit()
            else:
                ctx.ref.tell_nowait(message)

    class Other:
        def handle(self, message: object, ctx: Context) -> None:
            handled.append(message)
            if isinstance(message, Stop):
                ctx.exit()

    async with open_system(report=lambda _: None) as system:
        system.spawn("busy", Busy())
        other = system.spawn("other", Other())
        for number in range(3):
            other.tell_nowait(number)
            for _ in range(6):
                await trio.lowlevel.checkpoint()
            assert handled[-1] == number


async def test_a_thousand_hosted_actors_pass_a_message_round_in_few_steps() -> None:
    class Passes:
        def __init__(self, to) -> None:
            self.to = to

        def handle(self, message: object, ctx: Context) -> None:
            if isinstance(message, Stop):
                ctx.exit()
            elif isinstance(message, int):
                if self.to is None:
                    done.set()
                else:
                    self.to.tell_nowait(message + 1)

    done = trio.Event()
    async with open_system() as system:
        ref = None
        for number in range(1000):
            ref = system.host(f"h{number}", Passes(ref))
        assert ref is not None
        await ref.wait_started()
        ref.tell_nowait(0)
        await done.wait()
