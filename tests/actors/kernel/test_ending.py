"""Stop is a message, cancel is the kill, cleanup is bounded, children go first."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.kernel import (
    Abandoned,
    ActorExitedError,
    CancelCause,
    Context,
    Exited,
    Failed,
    Normal,
    Ref,
    Started,
    Stop,
    Stopped,
    open_system,
)

USER_STOP, DEADLINE, PARENT = (
    CancelCause.USER_STOP,
    CancelCause.DEADLINE,
    CancelCause.PARENT,
)


async def obeys(ctx: Context) -> None:
    async for message in ctx.mailbox:
        if isinstance(message, Stop):
            return


async def sleeps(ctx: Context) -> None:
    await trio.sleep_forever()


class ObeysHosted:
    def handle(self, message: object, ctx: Context) -> None:
        if isinstance(message, Stop):
            ctx.exit()


class DeafHosted:
    def handle(self, message: object, ctx: Context) -> None:
        pass


async def stubborn(release: trio.Event, ctx: Context) -> None:
    """Swallow every cancellation until it is released."""
    with trio.CancelScope(shield=True):
        await release.wait()


def family(*children, shutdown=5.0):
    """Make a parent of *children*, each (name, behaviour), that obeys."""

    async def parent(ctx: Context) -> None:
        for name, behaviour in children:
            ctx.spawn(name, behaviour, shutdown=shutdown)
        await obeys(ctx)

    return parent


#### Cancel


async def test_the_cancelled_task_reads_the_cause_that_was_set_before() -> None:
    causes = []

    async def actor(ctx: Context) -> None:
        try:
            await trio.sleep_forever()
        finally:
            causes.append(ctx.cancel_cause)

    async with open_system() as system:
        ref = system.spawn("a", actor)
        await wait_all_tasks_blocked()
        assert causes == []
        ref.cancel(DEADLINE)
        ref.cancel(USER_STOP)
        assert await ref.wait_exited() == Stopped(DEADLINE)
    assert causes == [DEADLINE]


async def test_an_actor_cancelled_before_it_ran_exits_without_running() -> None:
    ran = []

    async def actor(ctx: Context) -> None:
        ran.append(ctx)

    async with open_system() as system:
        ref = system.spawn("a", actor)
        ref.cancel(USER_STOP)
        assert await ref.wait_exited() == Stopped(USER_STOP)
    assert ran == []


async def test_a_hosted_actor_handles_nothing_more_after_cancel() -> None:
    seen = []

    class Actor:
        def handle(self, message: object, ctx: Context) -> None:
            seen.append(message)
            if message == 1:
                ctx.ref.cancel(USER_STOP)

    async with open_system(report=lambda _: None) as system:
        ref = system.spawn("a", Actor())
        for number in range(4):
            ref.tell_nowait(number)
        assert await ref.wait_exited() == Stopped(USER_STOP)
    assert seen == [Started(), 0, 1]


async def test_a_failure_while_being_cancelled_is_the_exit_reason() -> None:
    failure = ValueError("while cleaning up")

    async def actor(ctx: Context) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise failure

    async with open_system(report=lambda _: None) as system:
        ref = system.spawn("a", actor)
        await wait_all_tasks_blocked()
        ref.cancel(USER_STOP)
        assert await ref.wait_exited() == Failed(failure)


async def test_a_group_of_cancellations_is_a_cancellation() -> None:
    async def actor(ctx: Context) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.sleep_forever)

    async with open_system() as system:
        ref = system.spawn("a", actor)
        await wait_all_tasks_blocked()
        ref.cancel(USER_STOP)
        assert await ref.wait_exited() == Stopped(USER_STOP)


async def test_stopped_actors_had_read_the_stop_and_others_ended_on_their_own() -> None:
    async def ends(ctx: Context) -> None:
        ctx.ref.stop(USER_STOP)

    async with open_system() as system:
        assert await system.spawn("a", ends).wait_exited() == Normal()


async def test_one_stop_waits_and_a_later_one_comes_after_it_was_read() -> None:
    stops = []

    async def actor(ctx: Context) -> None:
        async for message in ctx.mailbox:
            if isinstance(message, Stop):
                stops.append(message.cause)
            if stops == [USER_STOP, DEADLINE]:
                return

    async with open_system() as system:
        ref = system.spawn("a", actor)
        ref.stop(USER_STOP)
        ref.stop(PARENT)
        await wait_all_tasks_blocked()
        assert stops == [USER_STOP]
        ref.stop(DEADLINE)
        assert await ref.wait_exited() == Stopped(DEADLINE)


#### Cleanup


async def test_cleanup_is_shielded_and_ends_at_its_hard_bound(autojump_clock) -> None:
    ends = []

    async def actor(ctx: Context) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with ctx.cleanup(soft=1, hard=3) as cleanup:
                start = trio.current_time()
                ends.append(cleanup.soft_deadline - start)
                try:
                    await trio.sleep(10)
                finally:
                    ends.append(trio.current_time() - start)
            ends.append(cleanup.expired)

    async with open_system() as system:
        ref = system.spawn("a", actor)
        await wait_all_tasks_blocked()
        ref.cancel(USER_STOP)
        await ref.wait_exited()
    assert ends == [1, 3, True]


async def test_cleanup_that_is_in_time_did_not_expire(autojump_clock) -> None:
    expired = []

    async def actor(ctx: Context) -> None:
        with ctx.cleanup(hard=3) as cleanup:
            await trio.sleep(2)
        expired.append(cleanup.expired)

    async with open_system() as system:
        await system.spawn("a", actor).wait_exited()
    assert expired == [False]


@pytest.mark.parametrize(
    ("outer", "inner", "within", "lasts"),
    [(2, 5, 5, 2), (5, 2, 5, 2), (5, 5, 1, 1), (9, 9, 7, 7)],
)
async def test_budgets_nest(outer, inner, within, lasts, autojump_clock) -> None:
    """A cleanup never outlasts the one around it, nor the canceller's bound."""
    took = []

    async def actor(ctx: Context) -> None:
        try:
            await trio.sleep_forever()
        finally:
            start = trio.current_time()
            with ctx.cleanup(hard=outer), ctx.cleanup(hard=inner):
                await trio.sleep_forever()
            took.append(trio.current_time() - start)

    async with open_system() as system:
        ref = system.spawn("a", actor)
        await wait_all_tasks_blocked()
        ref.cancel(USER_STOP, within=within)
        await ref.wait_exited()
    assert took == [pytest.approx(lasts)]


async def test_a_budget_lowered_during_a_cleanup_cuts_it_short(autojump_clock) -> None:
    async def actor(ctx: Context) -> None:
        with ctx.cleanup(hard=60):
            await trio.sleep_forever()

    async with open_system() as system:
        ref = system.spawn("a", actor)
        await wait_all_tasks_blocked()
        start = trio.current_time()
        ref.cancel(USER_STOP, within=4)
        await ref.wait_exited()
        assert trio.current_time() - start == pytest.approx(4)


async def test_a_cleanup_needs_bounds_in_order() -> None:
    async def actor(ctx: Context) -> None:
        with ctx.cleanup(soft=3, hard=1):
            pass

    async with open_system(report=lambda _: None) as system:
        reason = await system.spawn("a", actor).wait_exited()
    assert isinstance(reason, Failed)
    assert isinstance(reason.error, ValueError)


#### Children


async def test_an_exit_is_published_after_the_children_have_exited() -> None:
    gate, events = trio.Event(), []

    async def child(ctx: Context) -> None:
        await obeys(ctx)
        await gate.wait()
        events.append("child")

    async with open_system() as system:
        ref = system.spawn("p", family(("c", child)))
        await wait_all_tasks_blocked()
        ref.stop(USER_STOP)
        await wait_all_tasks_blocked()
        assert not ref.exited
        with pytest.raises(ActorExitedError):
            ref.tell_nowait("the parent reads no more")
        gate.set()
        assert await ref.wait_exited() == Stopped(USER_STOP)
        assert events == ["child"]


@pytest.mark.parametrize("grade", ["task", "hosted"])
async def test_children_get_their_stop_the_youngest_first(grade) -> None:
    order = []

    def child(name):
        class Child:
            def handle(self, message: object, ctx: Context) -> None:
                if isinstance(message, Stop):
                    order.append((name, message.cause))
                    ctx.exit()

        return Child()

    class HostedParent:
        def handle(self, message: object, ctx: Context) -> None:
            match message:
                case Started():
                    for name in "abc":
                        ctx.spawn(name, child(name))
                case Stop():
                    ctx.exit()
                case _:
                    pass

    task_parent = family(*((name, child(name)) for name in "abc"))
    async with open_system() as system:
        ref = system.spawn("p", task_parent if grade == "task" else HostedParent())
        await wait_all_tasks_blocked()
        ref.stop(USER_STOP)
        assert await ref.wait_exited() == Stopped(USER_STOP)
    assert order == [("c", PARENT), ("b", PARENT), ("a", PARENT)]


@pytest.mark.parametrize("deaf", [sleeps, DeafHosted()], ids=["task", "hosted"])
async def test_a_child_that_is_deaf_is_cancelled_after_its_time(
    deaf, autojump_clock
) -> None:
    async with open_system() as system:
        ref = system.spawn("p", family(("c", deaf), shutdown=3))
        await wait_all_tasks_blocked()
        start = trio.current_time()
        ref.stop(USER_STOP)
        await ref.wait_exited()
        assert trio.current_time() - start == pytest.approx(3)


async def test_children_end_for_their_parent_or_for_the_shutdown() -> None:
    causes = []

    async def child(ctx: Context) -> None:
        async for message in ctx.mailbox:
            if isinstance(message, Stop):
                causes.append(message.cause)
                return

    async with open_system() as system:
        ref = system.spawn("p", family(("c", child)))
        await wait_all_tasks_blocked()
        ref.cancel(DEADLINE)
        await ref.wait_exited()
        system.spawn("q", family(("c", child)))
        await wait_all_tasks_blocked()
    assert causes == [PARENT, CancelCause.SHUTDOWN]


async def test_a_crash_ends_the_children_too() -> None:
    async def crash(ctx: Context) -> None:
        refs.append(ctx.spawn("c", obeys))
        raise ValueError("no")

    refs = []
    async with open_system(report=lambda _: None) as system:
        ref = system.spawn("p", crash)
        await ref.wait_exited()
        assert refs[0].exit_reason == Stopped(PARENT)


async def test_the_children_of_a_killed_actor_stay_within_its_bound(
    autojump_clock,
) -> None:
    """However long each of them would take, and theirs."""

    async def slow(ctx: Context) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with ctx.cleanup(hard=100):
                await trio.sleep_forever()

    middle = family(("c", slow), shutdown=100)
    async with open_system() as system:
        ref = system.spawn("p", family(("m", middle), ("d", slow), shutdown=100))
        await wait_all_tasks_blocked()
        start = trio.current_time()
        ref.cancel(USER_STOP)
        assert await ref.wait_exited() == Stopped(USER_STOP)
        assert trio.current_time() - start <= 5.0
        assert all(info.path == "" for info in system.tree())


async def test_a_bound_set_while_children_are_stopped_holds(autojump_clock) -> None:
    async with open_system() as system:
        ref = system.spawn("p", family(("c", sleeps), shutdown=100))
        await wait_all_tasks_blocked()
        start = trio.current_time()
        ref.stop(USER_STOP)
        await trio.sleep(10)
        ref.cancel(DEADLINE)
        assert await ref.wait_exited() == Stopped(USER_STOP)
        assert trio.current_time() - start <= 15


async def test_a_child_that_never_ends_is_abandoned_and_the_parent_is_on_time(
    autojump_clock, caplog
) -> None:
    release, heard, children = trio.Event(), [], []

    async def parent(ctx: Context) -> None:
        children.append(ctx.spawn("c", partial(stubborn, release), shutdown=1))
        await obeys(ctx)

    class Watcher:
        def handle(self, message: object, ctx: Context) -> None:
            match message:
                case Exited():
                    heard.append(message.reason)
                case Stop():
                    ctx.exit()
                case _:
                    pass

    async with open_system() as system:
        watcher = system.spawn("w", Watcher())
        ref = system.spawn("p", parent)
        await wait_all_tasks_blocked()
        child = children[0]
        child.watch(watcher)
        start = trio.current_time()
        ref.stop(USER_STOP)
        assert await ref.wait_exited() == Stopped(USER_STOP)
        assert trio.current_time() - start == pytest.approx(6)
        assert child.exit_reason == Abandoned()
        release.set()
        await wait_all_tasks_blocked()
        assert heard == [Abandoned()]
        assert child.exit_reason == Abandoned()
    assert "'p/c' did not end" in caplog.text


async def test_an_exit_reason_never_changes_whatever_ends_at_the_same_moment(
    autojump_clock,
) -> None:
    """Nobody has time left: whoever is abandoned stays so when it ends after all."""
    release, exits, refs = trio.Event(), {}, {}

    class Watcher:
        def handle(self, message: object, ctx: Context) -> None:
            match message:
                case Exited():
                    exits.setdefault(message.ref, []).append(message.reason)
                case Stop():
                    ctx.exit()
                case _:
                    pass

    def above(name: str, behaviour):
        async def parent(ctx: Context) -> None:
            refs[name] = ctx.spawn(name, behaviour, shutdown=0)
            await obeys(ctx)

        return parent

    stuck = partial(stubborn, release)
    async with open_system(report=lambda _: None) as system:
        watcher = system.spawn("w", Watcher(), capacity=1)
        for number in range(8):
            name = f"p{number}"
            top = above(f"m{number}", above(f"c{number}", stuck))
            refs[name] = system.spawn(name, top)
        await wait_all_tasks_blocked()
        for ref in refs.values():
            ref.watch(watcher)
        for number in range(8):
            refs[f"p{number}"].cancel(USER_STOP, within=0)
        await trio.sleep(5)
        release.set()
        await wait_all_tasks_blocked()
    assert exits == {ref: [ref.exit_reason] for ref in refs.values()}


async def test_an_ending_actor_starts_no_children() -> None:
    gate, errors = trio.Event(), []

    async def child(ctx: Context) -> None:
        await obeys(ctx)
        try:
            contexts[0].spawn("d", obeys)
        except ActorExitedError as error:
            errors.append(error)

    async def parent(ctx: Context) -> None:
        contexts.append(ctx)
        ctx.spawn("c", child)
        await gate.wait()

    contexts = []
    async with open_system() as system:
        ref = system.spawn("p", parent)
        await wait_all_tasks_blocked()
        gate.set()
        await ref.wait_exited()
        with pytest.raises(ActorExitedError):
            contexts[0].spawn("e", obeys)
    assert [error.reason for error in errors] == [Normal()]


async def test_names_are_unique_among_the_living_and_checked() -> None:
    async with open_system() as system:
        ref = system.spawn("a", obeys)
        with pytest.raises(ValueError, match="has a child named 'a' already"):
            system.spawn("a", obeys)
        for bad in ("", "a/b", "x" * 256):
            with pytest.raises(ValueError, match="without a slash"):
                system.spawn(bad, obeys)
        ref.stop(USER_STOP)
        await ref.wait_exited()
        assert system.spawn("a", obeys).path == "a"


@pytest.mark.parametrize("bad", [None, 3, ObeysHosted, "name"])
async def test_a_behaviour_that_could_not_run_is_refused(bad) -> None:
    async with open_system() as system:
        with pytest.raises(TypeError, match="the behaviour of actor 'a' is"):
            system.spawn("a", bad)
        with pytest.raises(ValueError, match="at least 1 message"):
            system.spawn("a", obeys, capacity=0)
        with pytest.raises(ValueError, match="0 seconds or more"):
            system.spawn("a", obeys, shutdown=float("nan"))
        assert system.tree() == ()


async def test_watch_true_tells_the_parent_once() -> None:
    exits = []

    async def parent(ctx: Context) -> None:
        child = ctx.spawn("c", obeys, watch=True)
        child.watch(ctx.ref)
        child.stop(USER_STOP)
        async for message in ctx.mailbox:
            if isinstance(message, Exited):
                exits.append(message)
                ctx.ref.stop(USER_STOP)
            if isinstance(message, Stop):
                return

    async with open_system() as system:
        await system.spawn("p", parent).wait_exited()
    assert [(one.ref.path, one.reason) for one in exits] == [
        ("p/c", Stopped(USER_STOP))
    ]


async def test_watching_the_dead_tells_at_once_and_unwatch_undoes() -> None:
    heard = []

    class Watcher:
        def handle(self, message: object, ctx: Context) -> None:
            match message:
                case Exited():
                    heard.append(message.ref.path)
                case Stop():
                    ctx.exit()
                case _:
                    pass

    async with open_system() as system:
        watcher = system.spawn("w", Watcher())
        dead, other = system.spawn("a", obeys), system.spawn("b", obeys)
        dead.stop(USER_STOP)
        await dead.wait_exited()
        dead.watch(watcher)
        other.watch(watcher)
        other.unwatch(watcher)
        other.stop(USER_STOP)
        await wait_all_tasks_blocked()
        assert heard == ["a"]


async def test_watchers_that_exited_are_not_kept() -> None:
    async with open_system() as system:
        ref = system.spawn("a", obeys)
        for number in range(200):
            watcher = system.spawn(f"w{number}", ObeysHosted())
            ref.watch(watcher)
            watcher.stop(USER_STOP)
            await watcher.wait_exited()
            del watcher
        gc.collect()
        refs = [one for one in gc.get_objects() if isinstance(one, Ref)]
        assert len([one for one in refs if one.path.startswith("w")]) <= 128


async def test_waiting_for_an_exit_can_be_cancelled() -> None:
    async with open_system() as system:
        ref = system.spawn("a", obeys)
        with trio.move_on_after(0):
            await ref.wait_exited()
        with trio.CancelScope() as scope:
            scope.cancel()
            await ref.wait_started()
        ref.stop(USER_STOP)
        assert await ref.wait_exited() == Stopped(USER_STOP)
        with pytest.raises(ActorExitedError):
            await ref.wait_started()


async def test_exited_actors_leave_nothing_to_the_collector() -> None:
    async with open_system() as system:
        await wait_all_tasks_blocked()
        gc.collect()
        gc.disable()
        try:
            before = sum(isinstance(one, Context) for one in gc.get_objects())
            for number in range(20):
                made = ObeysHosted() if number % 2 else obeys
                ref = system.spawn(f"a{number}", made)
                ref.stop(USER_STOP)
                await ref.wait_exited()
            del ref
            await wait_all_tasks_blocked()
            after = sum(isinstance(one, Context) for one in gc.get_objects())
        finally:
            gc.enable()
    assert after == before


async def test_an_exited_actor_is_freed_while_a_reference_to_it_is_kept() -> None:
    class State(ObeysHosted):
        pass

    async with open_system() as system:
        state = State()
        freed = weakref.ref(state)
        ref = system.spawn("a", state)
        del state
        ref.stop(USER_STOP)
        await ref.wait_exited()
        await wait_all_tasks_blocked()
        assert freed() is None
        assert ref.path == "a"
