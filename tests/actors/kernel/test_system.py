"""Opening and leaving a system, its tree, timers, time and chance."""

from __future__ import annotations

import gc
import logging
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.kernel import (
    ActorInfo,
    CancelCause,
    ChildSpec,
    Context,
    DeadlineReached,
    Exited,
    FixedClock,
    SeededIds,
    Started,
    Stop,
    Stopped,
    SystemClock,
    SystemIds,
    open_system,
)

SHUTDOWN = CancelCause.SHUTDOWN


async def obeys(ctx: Context) -> None:
    async for message in ctx.mailbox:
        if isinstance(message, Stop):
            return


async def sleeps(ctx: Context) -> None:
    await trio.sleep_forever()


async def stubborn(release: trio.Event, ctx: Context) -> None:
    with trio.CancelScope(shield=True):
        await release.wait()


def logs_stop(log: list, name: str):
    async def actor(ctx: Context) -> None:
        async for message in ctx.mailbox:
            if isinstance(message, Stop):
                log.append((name, message.cause))
                return

    return actor


#### Opening and leaving


async def test_leaving_stops_the_children_one_by_one_in_reverse_order() -> None:
    log = []
    async with open_system() as system:
        for name in "abc":
            system.start_child(ChildSpec(name, partial(logs_stop, log, name)))
        await wait_all_tasks_blocked()
    assert log == [("c", SHUTDOWN), ("b", SHUTDOWN), ("a", SHUTDOWN)]


async def test_what_the_block_raises_comes_out_as_it_is_after_the_shutdown() -> None:
    log, error = [], ValueError("the block")
    with pytest.raises(ValueError, match="the block") as caught:  # noqa: PT012
        async with open_system() as system:
            system.spawn("a", logs_stop(log, "a"))
            await wait_all_tasks_blocked()
            raise error
    assert caught.value is error
    assert log == [("a", SHUTDOWN)]


async def test_a_cancelled_block_still_shuts_down_in_order(autojump_clock) -> None:
    log = []
    with trio.move_on_after(1) as scope:
        async with open_system() as system:
            system.spawn("a", logs_stop(log, "a"))
            system.spawn("deaf", sleeps, shutdown=2)
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(3)
    assert log == [("a", SHUTDOWN)]


async def test_shutdown_can_be_called_before_leaving_and_again() -> None:
    async with open_system() as system:
        ref = system.spawn("a", obeys)
        await system.shutdown()
        await system.shutdown()
        assert ref.exit_reason == Stopped(SHUTDOWN)
        assert system.tree() == ()


async def test_an_actor_that_never_ends_does_not_hold_the_caller(
    autojump_clock, caplog
) -> None:
    release = trio.Event()
    async with open_system() as system:
        top = system.supervisor("top")
        top.spawn("bad", partial(stubborn, release), shutdown=1)
        system.spawn("good", obeys)
        await wait_all_tasks_blocked()
        start = trio.current_time()
    assert trio.current_time() - start <= 20
    assert "'top/bad' did not end within its bounds" in caplog.text
    assert "left tasks behind" in caplog.text
    release.set()
    await wait_all_tasks_blocked()


async def test_nothing_runs_on_after_leaving() -> None:
    before = trio.lowlevel.current_statistics().tasks_living
    async with open_system() as system:
        for number in range(20):
            system.spawn(f"a{number}", obeys)
        system.reaper.start(trio.sleep_forever, name="op")
        await wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().tasks_living == before


def test_a_keyboard_interrupt_in_an_actor_comes_out_of_the_system() -> None:
    async def interrupted(ctx: Context) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        async with open_system(report=lambda _: None) as system:
            system.spawn("a", interrupted)
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)


async def test_failures_are_logged_with_their_traceback(caplog) -> None:
    async def crash(ctx: Context) -> None:
        raise ValueError("the reason")

    async with open_system() as system:
        await system.spawn("a", crash).wait_exited()
        ref = system.spawn("b", sleeps, shutdown=0)
        ref.tell_nowait("unread")
    records = [(one.name, one.levelno) for one in caplog.records]
    assert records == [
        ("greenroom.kernel", logging.ERROR),
        ("greenroom.kernel", logging.WARNING),
    ]
    assert "ValueError: the reason" in caplog.text
    assert "'b' exited (stopped (shutdown)) with 1 tells unread" in caplog.text


async def test_a_report_hook_that_fails_is_logged_and_stops_nothing(caplog) -> None:
    def fails(_: object) -> None:
        raise ValueError("the hook")

    async def crash(ctx: Context) -> None:
        raise KeyError("the actor")

    async with open_system(report=fails) as system:
        await system.spawn("a", crash).wait_exited()
    assert "the report hook failed for the exit of 'a'" in caplog.text


async def test_the_collector_is_set_while_any_system_is_open() -> None:
    before = gc.get_threshold()
    async with open_system():
        assert gc.get_threshold() == (50_000, 20, 100)
        async with open_system():
            pass
        assert gc.get_threshold() == (50_000, 20, 100)
    assert gc.get_threshold() == before


async def test_an_embedder_can_decline_the_collectors_thresholds() -> None:
    before = gc.get_threshold()
    async with open_system(gc_thresholds=False):
        assert gc.get_threshold() == before
    assert gc.get_threshold() == before


async def test_actors_run_in_a_copy_of_the_context_of_who_started_them() -> None:
    from contextvars import ContextVar

    variable, seen = ContextVar("variable"), []

    async def actor(ctx: Context) -> None:
        seen.append(variable.get(None))

    async with open_system() as system:
        await system.reaper.start(trio.lowlevel.checkpoint, name="warm").wait()
        variable.set("mine")
        await system.spawn("a", actor).wait_exited()
    assert seen == ["mine"]


#### The tree


async def test_the_tree_shows_what_every_actor_does() -> None:
    gate = trio.Event()

    async def run(ctx: Context) -> None:
        ctx.set_state("waiting for permission", deadline=70.0)
        async for message in ctx.mailbox:
            if isinstance(message, str):
                await gate.wait()
            if isinstance(message, Stop):
                return

    class Session:
        def handle(self, message: object, ctx: Context) -> None:
            if isinstance(message, Started):
                ctx.spawn("run", run)
            if isinstance(message, Stop):
                ctx.exit()

    async with open_system() as system:
        top = system.supervisor("sessions")
        top.spawn("s1", Session())
        system.spawn("idle", obeys)
        await wait_all_tasks_blocked()
        before = {info.path: info for info in system.tree()}
        run_ref = next(
            one
            for one in gc.get_objects()
            if isinstance(one, Context) and one.path == "sessions/s1/run"
        ).ref
        for message in ("a", "b", 3):
            run_ref.tell_nowait(message)
        await wait_all_tasks_blocked()
        run_ref.tell_control("urgent", key=1)
        [busy] = [one for one in system.tree() if one.path == "sessions/s1/run"]
        gate.set()
    assert [(one.path, one.grade, one.state) for one in before.values()] == [
        ("sessions", "supervisor", "idle"),
        ("sessions/s1", "hosted", "idle"),
        ("sessions/s1/run", "task", "waiting for permission"),
        ("idle", "task", "idle"),
    ]
    assert before["sessions/s1/run"].deadline == 70.0
    assert (busy.work, busy.control, busy.current) == (2, 1, "str")


async def test_the_tree_shows_why_an_actor_is_being_cancelled(autojump_clock) -> None:
    gate = trio.Event()

    async def slow(ctx: Context) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with ctx.cleanup():
                await gate.wait()

    async def parent(ctx: Context) -> None:
        ctx.spawn("c", slow)

    async with open_system() as system:
        ref = system.spawn("a", slow)
        system.spawn("p", parent)
        await wait_all_tasks_blocked()
        ref.cancel(CancelCause.USER_STOP)
        await wait_all_tasks_blocked()
        infos = {info.path: info for info in system.tree()}
        gate.set()
    assert infos["a"].cancel_cause is CancelCause.USER_STOP
    assert infos["p"].state == "closing"
    assert isinstance(infos["a"], ActorInfo)


async def test_what_reaches_a_log_says_what_it_is() -> None:
    async def actor(ctx: Context) -> None:
        texts.extend((repr(ctx), repr(ctx.mailbox), repr(ctx.system)))
        await obeys(ctx)

    texts = []
    async with open_system() as system:
        ref = system.spawn("a", actor)
        top = system.supervisor("top")
        await wait_all_tasks_blocked()
        texts.append(repr(top))
    assert texts == [
        "<Context of <Ref 'a' new>>",
        "<Mailbox 'a' 0 work, 0 control>",
        "<System 2 children>",
        "<SupervisorHandle 'top'>",
    ]
    assert repr(ref) == "<Ref 'a' stopped (shutdown)>"


#### Timers


class Times:
    """Sets timers when told, and keeps what arrives and when."""

    def __init__(self) -> None:
        self.heard = []

    def handle(self, message: object, ctx: Context) -> None:
        match message:
            case ("set", seconds, key):
                ctx.deadline(seconds, key)
            case ("cancel", key):
                ctx.cancel_deadline(key)
            case DeadlineReached(key):
                self.heard.append((key, trio.current_time()))
            case Stop():
                ctx.exit()
            case _:
                pass


async def test_timers_arrive_in_time_whatever_the_order_they_were_set(
    autojump_clock,
) -> None:
    times = Times()
    async with open_system() as system:
        ref = system.spawn("t", times)
        for seconds in (5, 1, 3, 1.5):
            await ref.tell(("set", seconds, seconds))
            await wait_all_tasks_blocked()
        await trio.sleep(10)
    assert [(key, pytest.approx(at)) for key, at in times.heard] == [
        (1, 1),
        (1.5, 1.5),
        (3, 3),
        (5, 5),
    ]


async def test_a_timer_set_again_replaces_and_a_cancelled_one_is_silent(
    autojump_clock,
) -> None:
    times = Times()
    async with open_system() as system:
        ref = system.spawn("t", times)
        for message in (
            *[("set", 1, "a"), ("set", 2, "a")],
            *[("set", 1, "b"), ("cancel", "b"), ("cancel", "nothing")],
        ):
            await ref.tell(message)
        await trio.sleep(5)
    assert times.heard == [("a", pytest.approx(2))]


@pytest.mark.parametrize("then", ["cancel", "set"])
async def test_a_deadline_that_was_not_read_yet_is_taken_back(
    then, autojump_clock
) -> None:
    """And one that is set again arrives, though its key was queued before."""
    seen = []

    async def actor(ctx: Context) -> None:
        ctx.deadline(1, "a")
        await trio.sleep(2)
        if then == "cancel":
            ctx.cancel_deadline("a")
        else:
            ctx.deadline(1, "a")
        async for message in ctx.mailbox:
            seen.append((message, trio.current_time()))
            if isinstance(message, Stop):
                return

    async with open_system() as system:
        ref = system.spawn("t", actor)
        await trio.sleep(5)
        ref.stop(SHUTDOWN)
        await ref.wait_exited()
    heard = [at for message, at in seen if isinstance(message, DeadlineReached)]
    assert heard == ([] if then == "cancel" else [pytest.approx(3)])


async def test_the_timers_of_an_exited_actor_are_forgotten(autojump_clock) -> None:
    async def actor(ctx: Context) -> None:
        for number in range(200):
            ctx.deadline(1000, number)

    async with open_system() as system:
        await system.spawn("t", actor).wait_exited()
        timers = [one for one in gc.get_objects() if isinstance(one, DeadlineReached)]
        assert len(timers) <= 64


async def test_a_deadline_is_a_number_of_seconds() -> None:
    async def actor(ctx: Context) -> None:
        for bad in (-1.0, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="0 seconds or more"):
                ctx.deadline(bad, "a")
        ctx.deadline(0, "now")
        async for message in ctx.mailbox:
            if message == DeadlineReached("now"):
                return

    async with open_system() as system:
        reason = await system.spawn("t", actor).wait_exited()
    assert str(reason) == "normal"


#### Time and chance


async def test_actors_get_the_time_and_the_ids_that_the_system_was_given() -> None:
    got = []

    async def actor(ctx: Context) -> None:
        got.extend((ctx.clock.now(), ctx.clock.monotonic(), ctx.ids.uuid()))

    async with open_system(clock=FixedClock(1000.0), ids=SeededIds(7)) as system:
        await system.spawn("a", actor).wait_exited()
        assert (system.clock, system.ids) == (FixedClock(1000.0), system.ids)
    assert got == [
        pytest.approx(1000.0 + got[1]),
        pytest.approx(trio.current_time(), abs=10),
        SeededIds(7).uuid(),
    ]


def test_seeded_ids_repeat_and_system_ids_do_not() -> None:
    def draw(ids) -> tuple:
        return ids.uuid(), ids.token(9), ids.random()

    assert draw(SeededIds(1)) == draw(SeededIds(1))
    assert draw(SeededIds(1)) != draw(SeededIds(2))
    assert draw(SystemIds()) != draw(SystemIds())
    for ids in (SeededIds(1), SystemIds()):
        uuid, token, number = draw(ids)
        assert (len(uuid), uuid[14], len(token)) == (36, "4", 12)
        assert 0 <= number < 1


def test_the_system_clock_is_the_wall_and_the_loop() -> None:
    async def main() -> None:
        clock = SystemClock()
        assert clock.now() > 1_700_000_000
        before = clock.monotonic()
        await trio.sleep(3)
        assert clock.monotonic() - before == pytest.approx(3)

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_exits_reach_watchers_of_every_grade() -> None:
    exits = []

    async def task(ctx: Context) -> None:
        async for message in ctx.mailbox:
            match message:
                case Exited():
                    exits.append(("task", message.ref.path))
                case Stop():
                    return
                case _:
                    pass

    class Hosted:
        def handle(self, message: object, ctx: Context) -> None:
            match message:
                case Exited():
                    exits.append(("hosted", message.ref.path))
                case Stop():
                    ctx.exit()
                case _:
                    pass

    async with open_system() as system:
        watchers = system.spawn("t", task), system.spawn("h", Hosted())
        for path in "ab":
            ref = system.spawn(path, obeys)
            for watcher in watchers:
                ref.watch(watcher)
            ref.stop(SHUTDOWN)
        await wait_all_tasks_blocked()
    assert sorted(exits) == [(g, p) for g in ("hosted", "task") for p in "ab"]
