"""Restarts, strategies, intensity, escalation, set-up."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.kernel import (
    ActorError,
    ActorExitedError,
    Ask,
    CancelCause,
    ChildSpec,
    Context,
    Exited,
    Failed,
    Normal,
    Request,
    Restart,
    RestartLimitError,
    Started,
    Stop,
    Stopped,
    Strategy,
    Supervise,
    open_system,
)
from greenroom.protocol import InternalError

USER_STOP = CancelCause.USER_STOP


class Worker:
    """Does what it is told; each incarnation has its own state."""

    def __init__(self, name: str, log: list) -> None:
        self.name, self.log = name, log

    def handle(self, message: object, ctx: Context) -> None:
        match message:
            case Started():
                self.log.append(f"+{self.name}")
            case Stop():
                self.log.append(f"-{self.name}")
                ctx.exit()
            case Exception():
                raise message
            case "exit":
                ctx.exit()
            case _:
                pass


def worker(name: str, log: list, restart: Restart = Restart.PERMANENT) -> ChildSpec:
    return ChildSpec(name, lambda: Worker(name, log), restart)


def quiet(_: object) -> None:
    """Report nothing: the failures are meant."""


@pytest.mark.parametrize(
    ("restart", "message", "comes_back"),
    [
        (Restart.PERMANENT, ValueError("no"), True),
        (Restart.PERMANENT, "exit", True),
        (Restart.TRANSIENT, ValueError("no"), True),
        (Restart.TRANSIENT, "exit", False),
        (Restart.TEMPORARY, ValueError("no"), False),
        (Restart.TEMPORARY, "exit", False),
    ],
)
async def test_a_child_comes_back_as_its_spec_says(
    restart, message, comes_back
) -> None:
    log = []
    async with open_system(report=quiet) as system:
        old = system.start_child(worker("w", log, restart))
        old.tell_nowait(message)
        await wait_all_tasks_blocked()
        new = system.child("w")
        assert old.exited
        assert (new is not None) == comes_back
        assert log == ["+w"] * (1 + comes_back)
        if new is not None:
            assert new != old
            assert [info.restarts for info in system.tree()] == [1]
            new.tell_nowait("works")


@pytest.mark.parametrize("end", ["stop", "cancel"])
async def test_who_was_told_to_end_stays_ended(end) -> None:
    async with open_system() as system:
        ref = system.start_child(worker("w", []))
        await ref.wait_started()
        getattr(ref, end)(USER_STOP)
        assert await ref.wait_exited() == Stopped(USER_STOP)
        await wait_all_tasks_blocked()
        assert system.tree() == ()


async def test_a_failure_is_reported_with_what_becomes_of_it() -> None:
    reports = []
    async with open_system(report=reports.append) as system:
        failure = ValueError("no")
        system.start_child(worker("w", [])).tell_nowait(failure)
        await wait_all_tasks_blocked()
    assert [(one.path, one.reason, one.restarts) for one in reports] == [
        ("w", Failed(failure), True)
    ]


@pytest.mark.parametrize(
    ("strategy", "log"),
    [
        (Strategy.ONE_FOR_ONE, "+b"),
        (Strategy.ONE_FOR_ALL, "-d -c -a +a +b +c"),
        (Strategy.REST_FOR_ONE, "-d -c +b +c"),
    ],
)
async def test_a_strategy_takes_its_siblings_down_and_up(strategy, log) -> None:
    """The youngest goes first and comes last; a temporary one stays away."""
    events = []
    children = (
        *(worker(name, events) for name in "abc"),
        worker("d", events, Restart.TEMPORARY),
    )
    async with open_system(report=quiet) as system:
        top = system.supervisor("top", strategy, children=children)
        await wait_all_tasks_blocked()
        events.clear()
        child = top.child("b")
        assert child is not None
        child.tell_nowait(ValueError("no"))
        await wait_all_tasks_blocked()
        assert " ".join(events) == log


async def test_two_children_that_fail_together_come_back_once_each() -> None:
    events = []
    children = tuple(worker(name, events) for name in "ab")
    async with open_system(report=quiet) as system:
        top = system.supervisor("top", Strategy.ONE_FOR_ALL, children=children)
        await wait_all_tasks_blocked()
        for name in "ab":
            child = top.child(name)
            assert child is not None
            child.tell_nowait(ValueError(name))
        await wait_all_tasks_blocked()
        assert events == ["+a", "+b", "+a", "+b"]


async def test_too_many_restarts_escalate_with_the_causes() -> None:
    """The supervisor fails; its own supervisor starts it again, with its children."""
    reports, events = [], []
    children = (worker("w", events), worker("x", events))
    async with open_system(report=reports.append) as system:
        top = system.supervisor("top", children=children, max_restarts=2)
        await wait_all_tasks_blocked()
        old = top.ref
        failures = [ValueError(number) for number in range(3)]
        for failure in failures:
            child = top.child("w")
            assert child is not None
            child.tell_nowait(failure)
            await wait_all_tasks_blocked()
        reason = old.exit_reason
        assert isinstance(reason, Failed)
        assert isinstance(reason.error, RestartLimitError)
        assert reason.error.causes == tuple(failures)
        assert reason.error.__cause__ is failures[-1]
        assert top.ref != old
        assert {info.path for info in system.tree()} == {"top", "top/w", "top/x"}
    assert events[-4:] == ["+w", "+x", "-x", "-w"]


async def test_failures_long_ago_do_not_count(autojump_clock) -> None:
    async with open_system(report=quiet) as system:
        top = system.supervisor("top", children=(worker("w", []),), max_restarts=1)
        await wait_all_tasks_blocked()
        old = top.ref
        for _ in range(5):
            child = top.child("w")
            assert child is not None
            child.tell_nowait(ValueError("no"))
            await trio.sleep(6)
        assert top.ref == old


async def test_a_root_that_gives_up_ends_the_system_with_its_error() -> None:
    async def fails(ctx: Context) -> None:
        raise ValueError("no")

    with pytest.raises(RestartLimitError) as caught:  # noqa: PT012
        async with open_system(report=quiet) as system:
            system.start_child(ChildSpec("w", lambda: fails))
            await trio.sleep_forever()
    assert len(caught.value.causes) == 4


@pytest.mark.parametrize("grade", ["task", "hosted"])
async def test_a_bug_of_ours_ends_the_system_and_is_raised(grade) -> None:
    bug = InternalError("our bug")
    log = []

    async def task(ctx: Context) -> None:
        raise bug

    def hosted() -> Worker:
        return Worker("w", log)

    with pytest.raises(InternalError) as caught:  # noqa: PT012
        async with open_system(report=quiet) as system:
            top = system.supervisor("top")
            start = hosted if grade == "hosted" else lambda: task
            ref = top.start_child(ChildSpec("w", start))
            if grade == "hosted":
                ref.tell_nowait(bug)
            await trio.sleep_forever()
    assert caught.value is bug
    assert log in ([], ["+w"])


async def test_a_bug_in_a_group_ends_the_system_too() -> None:
    async def buggy() -> None:
        raise InternalError("our bug")

    async def actor(ctx: Context) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(buggy)

    with pytest.RaisesGroup(InternalError):
        async with open_system(report=quiet) as system:
            system.start_child(ChildSpec("w", lambda: actor))
            await trio.sleep_forever()


async def test_a_factory_that_fails_counts_as_failures_of_its_child() -> None:
    starts = []

    def start() -> Worker:
        starts.append(1)
        if len(starts) > 1:
            raise ValueError("the factory")
        return Worker("w", [])

    async with open_system(report=quiet) as system:
        top = system.supervisor("top", restart=Restart.TEMPORARY)
        ref = top.ref
        top.start_child(ChildSpec("w", start)).tell_nowait(KeyError("first"))
        reason = await ref.wait_exited()
    assert isinstance(reason, Failed)
    assert isinstance(reason.error, RestartLimitError)
    kinds = [type(cause) for cause in reason.error.causes]
    assert kinds == [KeyError, ValueError, ValueError, ValueError]


async def test_a_factory_that_fails_at_first_raises_to_who_started_it() -> None:
    def start() -> Worker:
        raise ValueError("the factory")

    async with open_system() as system:
        with pytest.raises(ValueError, match="the factory"):
            system.start_child(ChildSpec("w", start))
        assert system.tree() == ()


async def test_a_child_of_an_actor_comes_back_and_is_watched_again() -> None:
    """Its parent's nearest supervisor starts it again, for its parent."""
    heard, log = [], []

    class Parent:
        def handle(self, message: object, ctx: Context) -> None:
            match message:
                case Started():
                    ctx.start_child(worker("w", log), watch=True)
                case Exited():
                    heard.append(type(message.reason))
                case Stop():
                    ctx.exit()
                case _:
                    child = ctx.child("w")
                    assert child is not None
                    child.tell_nowait(message)

    async with open_system(report=quiet) as system:
        ref = system.spawn("p", Parent())
        for number in range(2):
            await wait_all_tasks_blocked()
            ref.tell_nowait(ValueError(number))
        await wait_all_tasks_blocked()
        assert {info.path: info.restarts for info in system.tree()} == {
            "p": 0,
            "p/w": 2,
        }
        ref.stop(USER_STOP)
        await ref.wait_exited()
        assert system.tree() == ()
    assert heard == [Failed, Failed]
    assert log == ["+w", "+w", "+w", "-w"]


async def test_a_function_can_be_started_again_and_an_object_not() -> None:
    starts = []

    async def fails_once(ctx: Context) -> None:
        starts.append(ctx.ref)
        if len(starts) == 1:
            raise ValueError("no")
        async for message in ctx.mailbox:
            if isinstance(message, Stop):
                return

    async with open_system(report=quiet) as system:
        system.spawn("f", fails_once, restart=Restart.TRANSIENT)
        await wait_all_tasks_blocked()
        assert len(set(starts)) == 2
        with pytest.raises(TypeError, match="ChildSpec with a factory"):
            system.spawn("o", Worker("o", []), restart=Restart.TRANSIENT)


async def test_stop_child_ends_it_for_good_within_its_bounds(autojump_clock) -> None:
    async def deaf(ctx: Context) -> None:
        await trio.sleep_forever()

    async with open_system() as system:
        top = system.supervisor("top", children=(worker("a", []),))
        top.start_child(ChildSpec("deaf", lambda: deaf, shutdown=2))
        await wait_all_tasks_blocked()
        assert await top.stop_child("a", USER_STOP) == Stopped(USER_STOP)
        start = trio.current_time()
        reason = await top.stop_child("deaf")
        assert reason == Stopped(CancelCause.PARENT)
        assert trio.current_time() - start == pytest.approx(2)
        assert await top.stop_child("nobody") is None
        assert await system.stop_child("top") == Stopped(CancelCause.PARENT)
        assert system.tree() == ()


async def test_cancelling_who_stops_a_child_kills_the_child(autojump_clock) -> None:
    async def deaf(ctx: Context) -> None:
        await trio.sleep_forever()

    async with open_system() as system:
        ref = system.start_child(ChildSpec("deaf", lambda: deaf, shutdown=1000))
        await wait_all_tasks_blocked()
        start = trio.current_time()
        with trio.move_on_after(1):
            await system.stop_child("deaf", USER_STOP)
        assert await ref.wait_exited() == Stopped(USER_STOP)
        assert trio.current_time() - start == pytest.approx(1)


async def test_stopping_a_child_that_waits_to_come_back_leaves_it_ended() -> None:
    gate = trio.Event()

    async def slow(ctx: Context) -> None:
        async for message in ctx.mailbox:
            if isinstance(message, Stop):
                await gate.wait()
                return

    children = (ChildSpec("slow", lambda: slow), worker("w", []))
    async with open_system(report=quiet) as system:
        top = system.supervisor("top", Strategy.ONE_FOR_ALL, children=children)
        await wait_all_tasks_blocked()
        child = top.child("w")
        assert child is not None
        child.tell_nowait(ValueError("no"))
        await wait_all_tasks_blocked()
        states = {info.path: info.state for info in system.tree()}
        assert states["top/w"] == "restarting"
        await top.stop_child("w")
        gate.set()
        await wait_all_tasks_blocked()
        assert {info.path for info in system.tree()} == {"top", "top/slow"}


async def test_fixed_children_stop_one_by_one_and_the_others_together() -> None:
    log, gate = [], trio.Event()

    def waits(name: str):
        async def actor(ctx: Context) -> None:
            async for message in ctx.mailbox:
                if isinstance(message, Stop):
                    log.append(name)
                    await gate.wait()
                    return

        return ChildSpec(name, lambda: actor)

    async with open_system() as system:
        top = system.supervisor("top", children=(waits("a"), waits("b")))
        top.start_child(waits("c"))
        top.start_child(waits("d"))
        await wait_all_tasks_blocked()
        top.ref.stop(USER_STOP)
        await wait_all_tasks_blocked()
        assert sorted(log) == ["c", "d"]
        gate.set()
    assert log[2:] == ["b", "a"]


async def test_killing_a_supervisor_kills_all_below_with_a_cause() -> None:
    causes = {}

    def task(name: str):
        async def actor(ctx: Context) -> None:
            try:
                await trio.sleep_forever()
            finally:
                causes[name] = ctx.cancel_cause

        return actor

    async def parent(ctx: Context) -> None:
        ctx.spawn("c", task("grandchild"))
        await task("parent")(ctx)

    async with open_system() as system:
        inner = ChildSpec("inner", lambda: Supervise((worker("w", []),)))
        top = system.supervisor("top", children=(inner,))
        top.spawn("t", task("child"))
        top.spawn("p", parent)
        await wait_all_tasks_blocked()
        top.ref.cancel(USER_STOP)
        assert await top.ref.wait_exited() == Stopped(USER_STOP)
        assert system.tree() == ()
    assert causes == dict.fromkeys(
        ("child", "parent", "grandchild"), CancelCause.PARENT
    )


@pytest.mark.parametrize("grade", ["task", "hosted"])
async def test_what_is_started_below_a_killed_supervisor_never_runs(grade) -> None:
    log, late = [], []

    async def ran(ctx: Context) -> None:
        log.append("+w")

    async def parent(ctx: Context) -> None:
        try:
            await trio.sleep_forever()
        finally:
            made = ran if grade == "task" else Worker("w", log)
            late.append(ctx.spawn("late", made))

    async with open_system() as system:
        top = system.supervisor("top")
        top.spawn("p", parent)
        await wait_all_tasks_blocked()
        top.ref.cancel(USER_STOP)
        await wait_all_tasks_blocked()
        assert late[0].exit_reason == Stopped(CancelCause.PARENT)
        assert system.tree() == ()
    assert log == []


async def test_a_supervisor_answers_no_requests() -> None:
    async with open_system() as system:
        top = system.supervisor("top")
        top.ref.tell_nowait("ignored")
        with pytest.raises(ActorError, match="answers no requests"):
            await top.ref.ask(Request[None]())


#### Asynchronous set-up


class Server:
    """Its set-up waits for `ready`, and fails if it is told so."""

    def __init__(self) -> None:
        self.ready, self.log = trio.Event(), []
        self.error: Exception | None = None

    @asynccontextmanager
    async def open(self, ctx: Context) -> AsyncGenerator[None]:
        await self.ready.wait()
        if self.error is not None:
            raise self.error
        self.log.append("open")
        yield
        self.log.append("closed")

    async def __call__(self, ctx: Context) -> None:
        async for message in ctx.mailbox:
            self.log.append(message)
            if isinstance(message, Stop):
                return


def server_spec(server: Server, restart: Restart = Restart.TEMPORARY) -> ChildSpec:
    return ChildSpec("s", lambda: server, restart, async_setup=Server.open)


async def test_an_actor_with_a_set_up_is_published_when_that_is_done() -> None:
    server = Server()
    async with open_system() as system:
        ref = system.start_child(server_spec(server))
        ref.tell_nowait("early")
        await wait_all_tasks_blocked()
        assert system.child("s") is None
        assert [info.state for info in system.tree()] == ["starting"]
        server.ready.set()
        await ref.wait_started()
        assert system.child("s") == ref
        ref.stop(USER_STOP)
        await ref.wait_exited()
    assert server.log == ["open", Started(), Stop(USER_STOP), "closed"]


async def test_a_set_up_that_fails_is_told_to_who_waits_for_the_start() -> None:
    server = Server()
    server.error = OSError("no such program")
    server.ready.set()
    async with open_system(report=quiet) as system:
        ref = system.start_child(server_spec(server))
        with pytest.raises(ActorExitedError) as caught:
            await ref.wait_started()
        assert caught.value.__cause__ is server.error
        assert system.child("s") is None


async def test_a_set_up_can_be_cancelled() -> None:
    server = Server()
    async with open_system() as system:
        ref = system.start_child(server_spec(server))
        await wait_all_tasks_blocked()
        ref.cancel(USER_STOP)
        assert await ref.wait_exited() == Stopped(USER_STOP)
    assert server.log == []


async def test_a_set_up_needs_a_function() -> None:
    async with open_system() as system:
        spec = ChildSpec("s", lambda: Worker("s", []), async_setup=Server.open)
        with pytest.raises(TypeError, match="asynchronous set-up"):
            system.start_child(spec)


async def test_an_actor_is_published_when_it_has_handled_started() -> None:
    seen = []

    class Looks:
        def handle(self, message: object, ctx: Context) -> None:
            seen.append(ctx.system.child("a"))
            if isinstance(message, Stop):
                ctx.exit()

    async with open_system() as system:
        ref = system.spawn("a", Looks())
        assert system.child("a") is None
        await ref.wait_started()
        assert system.child("a") == ref
        ref.tell_nowait(1)
    assert seen == [None, ref, ref]


async def test_a_task_is_published_when_it_asks_for_more_mail() -> None:
    gate = trio.Event()

    async def actor(ctx: Context) -> None:
        async for message in ctx.mailbox:
            if isinstance(message, Stop):
                return
            await gate.wait()

    async with open_system() as system:
        ref = system.spawn("a", actor)
        await wait_all_tasks_blocked()
        assert system.child("a") is None
        gate.set()
        await wait_all_tasks_blocked()
        assert system.child("a") == ref


async def test_a_normal_end_within_a_limit_names_the_exit_as_a_cause() -> None:
    async def ends(ctx: Context) -> None:
        pass

    async with open_system(report=quiet) as system:
        top = system.supervisor("top", restart=Restart.TEMPORARY)
        ref = top.ref
        top.start_child(ChildSpec("w", lambda: ends))
        reason = await ref.wait_exited()
    assert isinstance(reason, Failed)
    assert isinstance(reason.error, RestartLimitError)
    exits = [getattr(cause, "reason", None) for cause in reason.error.causes]
    assert exits == [Normal()] * 4


async def test_asks_to_a_child_that_fails_are_settled_before_it_comes_back() -> None:
    class Dies:
        def handle(self, message: object, ctx: Context) -> None:
            match message:
                case Ask():
                    raise ValueError("no")
                case Stop():
                    ctx.exit()
                case _:
                    pass

    async with open_system(report=quiet) as system:
        ref = system.start_child(ChildSpec("w", Dies))
        with pytest.raises(ActorExitedError) as caught:
            await ref.ask(Request[None]())
        assert isinstance(caught.value.__cause__, ValueError)


async def test_a_supervisor_killed_before_it_ran_ends_what_was_started_early() -> None:
    log = []
    async with open_system() as system:
        top = system.supervisor("top", children=(worker("a", log),))
        early = [
            top.start_child(worker("b", log)),
            top.spawn("c", trio_sleeper),
        ]
        top.ref.cancel(USER_STOP)
        await wait_all_tasks_blocked()
        assert [ref.exit_reason for ref in early] == [Stopped(CancelCause.PARENT)] * 2
        assert system.tree() == ()
    assert log == []


async def test_an_early_child_that_takes_the_name_of_a_fixed_one_is_refused() -> None:
    async with open_system(report=quiet) as system:
        top = system.supervisor(
            "top", children=(worker("a", []),), restart=Restart.TEMPORARY
        )
        ref, early = top.ref, top.start_child(worker("a", []))
        reason = await ref.wait_exited()
        assert isinstance(reason, Failed)
        assert isinstance(reason.error, ValueError)
        assert early.exited


async def trio_sleeper(ctx: Context) -> None:
    await trio.sleep_forever()
