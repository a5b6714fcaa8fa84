"""Operations: awaited and cancelled by a handle, and left behind when they stay."""

from __future__ import annotations

import threading

import outcome
import pytest
import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from greenroom.actors.kernel import (
    ABANDONED,
    CancelCause,
    Context,
    OperationAbandonedError,
    OperationCancelledError,
    Stopped,
    open_system,
)
from greenroom.protocol import InternalError

USER_STOP = CancelCause.USER_STOP


async def swallows(release: trio.Event) -> str:
    """Swallow every cancellation until it is released."""
    while not release.is_set():
        try:
            await release.wait()
        except trio.Cancelled:
            # One that spun would leave nobody else the loop.
            with trio.CancelScope(shield=True):
                await release.wait()
    return "late"


async def never_finishes(release: trio.Event) -> str:
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await release.wait()
    return "unreachable"


async def returns(value: object) -> object:
    await trio.lowlevel.checkpoint()
    return value


async def raises(error: Exception) -> None:
    raise error


async def test_wait_returns_what_the_operation_returned_or_raised() -> None:
    error = ValueError("no")
    async with open_system() as system:
        good = system.reaper.start(returns, 3, name="good")
        bad = system.reaper.start(raises, error, name="bad")
        assert not good.done
        with assert_checkpoints():
            assert await good.wait() == outcome.Value(3)
        assert await bad.wait() == outcome.Error(error)
        assert good.done
        with assert_checkpoints():
            assert await good.wait() == outcome.Value(3)


async def test_cancelling_the_waiter_leaves_the_operation_alone() -> None:
    release = trio.Event()

    async def work() -> int:
        await release.wait()
        return 1

    async with open_system() as system:
        operation = system.reaper.start(work, name="op")
        with trio.move_on_after(0):
            await operation.wait()
        assert not operation.done
        release.set()
        assert await operation.wait() == outcome.Value(1)


async def test_a_cancelled_operation_ends_with_the_first_cause() -> None:
    async with open_system() as system:
        operation = system.reaper.start(trio.sleep_forever, name="op")
        await wait_all_tasks_blocked()
        operation.cancel(USER_STOP)
        operation.cancel(CancelCause.DEADLINE)
        result = await operation.wait()
    assert isinstance(result, outcome.Error)
    assert isinstance(result.error, OperationCancelledError)
    assert (result.error.path, result.error.cause) == ("reaper/op", USER_STOP)


async def test_an_operation_cancelled_before_it_ran_never_runs() -> None:
    ran = []

    async def work() -> None:
        ran.append(1)

    async with open_system() as system:
        operation = system.reaper.start(work, name="op")
        operation.cancel(USER_STOP)
        result = await operation.wait()
    assert isinstance(result, outcome.Error)
    assert ran == []


async def test_an_outcome_that_beats_the_cancel_is_kept() -> None:
    async def work() -> str:
        try:
            await trio.sleep_forever()
        finally:
            return "done anyway"  # noqa: B012 - that is the case

    async with open_system() as system:
        operation = system.reaper.start(work, name="op")
        await wait_all_tasks_blocked()
        assert await operation.stop() == outcome.Value("done anyway")


@pytest.mark.parametrize("stays", [swallows, never_finishes])
async def test_what_stays_is_abandoned_and_the_parent_settles_on_time(
    stays, autojump_clock
) -> None:
    release, reports, settled = trio.Event(), [], []

    async def parent(ctx: Context) -> None:
        operation = ctx.reaper.start(stays, release, name="tool", parent=ctx.ref)
        try:
            await operation.wait()
        finally:
            with ctx.cleanup():
                settled.append(await operation.stop(hard=3))

    async with open_system(reaper_report=reports.append) as system:
        ref = system.spawn("run", parent)
        await wait_all_tasks_blocked()
        start = trio.current_time()
        ref.cancel(USER_STOP)
        assert await ref.wait_exited() == Stopped(USER_STOP)
        assert trio.current_time() - start == pytest.approx(3)
        assert settled == [ABANDONED]
        [report] = reports
        assert (report.path, report.seconds) == ("run/tool", pytest.approx(3))
        assert [(one.path, one.state) for one in system.tree()] == [
            ("run/tool", "abandoned")
        ]
        release.set()
        await wait_all_tasks_blocked()
        assert system.tree() == ()


async def test_an_operation_stuck_in_a_thread_is_abandoned(autojump_clock) -> None:
    release, reports = threading.Event(), []
    async with open_system(reaper_report=reports.append) as system:
        operation = system.reaper.start(
            trio.to_thread.run_sync, release.wait, name="thread"
        )
        try:
            await wait_all_tasks_blocked()
            assert await operation.stop(hard=1) is ABANDONED
            assert [report.path for report in reports] == ["reaper/thread"]
        finally:
            release.set()


async def test_waiters_of_an_abandoned_operation_learn_of_it(autojump_clock) -> None:
    release, results = trio.Event(), []
    async with open_system(reaper_report=lambda _: None) as system:
        operation = system.reaper.start(swallows, release, name="op")
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                results.append(await operation.wait())

            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            await operation.stop(hard=1)
        release.set()
    [result] = results
    assert isinstance(result.error, OperationAbandonedError)


async def test_a_stop_stays_within_the_cleanup_around_it(autojump_clock) -> None:
    release, took = trio.Event(), []

    async def actor(ctx: Context) -> None:
        operation = ctx.reaper.start(swallows, release, name="op")
        await wait_all_tasks_blocked()
        start = trio.current_time()
        with ctx.cleanup(soft=1, hard=2):
            assert await operation.stop(hard=60) is ABANDONED
        took.append(trio.current_time() - start)

    async with open_system(reaper_report=lambda _: None) as system:
        await system.spawn("a", actor).wait_exited()
        release.set()
    assert took == [pytest.approx(2)]


async def test_a_stop_stays_within_what_the_parent_has_left(autojump_clock) -> None:
    release, took = trio.Event(), []

    async def actor(ctx: Context) -> None:
        operation = ctx.reaper.start(swallows, release, name="op", parent=ctx.ref)
        try:
            await trio.sleep_forever()
        finally:
            start = trio.current_time()
            assert await operation.stop(hard=60) is ABANDONED
            took.append(trio.current_time() - start)

    async with open_system(reaper_report=lambda _: None) as system:
        ref = system.spawn("a", actor)
        await wait_all_tasks_blocked()
        ref.cancel(USER_STOP, within=4)
        await ref.wait_exited()
        release.set()
    assert took == [pytest.approx(4)]


async def test_an_operation_is_overdue_after_its_soft_bound(autojump_clock) -> None:
    release, states = trio.Event(), []
    async with open_system(reaper_report=lambda _: None) as system:
        operation = system.reaper.start(never_finishes, release, name="op")
        async with trio.open_nursery() as nursery:
            await wait_all_tasks_blocked()
            states.append(operation.state)
            nursery.start_soon(operation.stop, 1, 3)
            for _ in range(3):
                await trio.sleep(0.75)
                states.append(operation.state)
        states.append(operation.state)
        release.set()
    assert states == ["running", "stopping", "overdue", "overdue", "abandoned"]


async def test_leaving_the_system_waits_a_bounded_time_for_what_is_left(
    autojump_clock, caplog
) -> None:
    """One ends when it is cancelled, one stays."""
    release, reports = trio.Event(), []
    async with open_system(reaper_report=reports.append) as system:
        good = system.reaper.start(trio.sleep_forever, name="good")
        system.reaper.start(swallows, release, name="bad")
        await wait_all_tasks_blocked()
        start = trio.current_time()
    assert trio.current_time() - start <= 5
    assert [(one.path, one.cause) for one in reports] == [
        ("reaper/bad", CancelCause.SHUTDOWN)
    ]
    assert good.cancel_cause == CancelCause.SHUTDOWN
    assert "left tasks behind" in caplog.text
    with pytest.raises(RuntimeError, match="the system is ending"):
        system.reaper.start(trio.sleep_forever, name="late")
    release.set()
    await wait_all_tasks_blocked()
    assert "ended after it was abandoned" in caplog.text


async def test_a_report_hook_that_fails_is_logged(autojump_clock, caplog) -> None:
    def fails(_: object) -> None:
        raise ValueError("the hook")

    release = trio.Event()
    async with open_system(reaper_report=fails) as system:
        operation = system.reaper.start(swallows, release, name="op")
        await wait_all_tasks_blocked()
        assert await operation.stop(hard=1) is ABANDONED
        release.set()
    assert "the reaper's report hook failed for 'reaper/op'" in caplog.text


async def test_a_bug_of_ours_in_an_operation_ends_the_system() -> None:
    bug = InternalError("our bug")

    async def buggy() -> None:
        raise bug

    with pytest.raises(InternalError) as caught:  # noqa: PT012
        async with open_system() as system:
            system.reaper.start(buggy, name="op")
            await trio.sleep_forever()
    assert caught.value is bug


async def test_an_abandoned_operation_is_logged_by_default(
    autojump_clock, caplog
) -> None:
    release = trio.Event()
    async with open_system() as system:
        operation = system.reaper.start(swallows, release, name="op")
        await wait_all_tasks_blocked()
        await operation.stop(hard=1, cause=USER_STOP)
        assert repr(operation) == "<Operation 'reaper/op' abandoned>"
        release.set()
    assert "'reaper/op' did not end within 1.0 s of its cancel (user_stop)" in (
        caplog.text
    )
