"""A run in a thread of its own: what it opens, what crosses, how it ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from threading import Event, get_ident

import pytest
import trio
from kit.slots import came, failed

from greenroom.actors.portal import EngineClosedError, Portal
from greenroom.actors.portal._thread import WithdrawnError, single_cause


async def thread_of_the_run() -> int:
    return get_ident()


def test_a_call_is_made_in_the_thread_of_the_run(portal):
    there = came(portal.submit(thread_of_the_run).slot)

    assert there != get_ident()
    assert not portal.is_own_thread


def test_many_calls_are_under_way_at_once(portal):
    both = trio.Event()

    async def first() -> str:
        await both.wait()
        return "first"

    async def second() -> str:
        both.set()
        return "second"

    waiting = portal.submit(first)
    assert came(portal.submit(second).slot) == "second"
    assert came(waiting.slot) == "first"


def test_an_error_crosses_as_itself_with_its_traceback(portal):
    async def fails() -> None:
        raise LookupError("here")

    with pytest.raises(LookupError, match="here") as caught:
        came(portal.submit(fails).slot)

    assert caught.traceback[-1].name == "fails"


def test_a_group_of_one_crosses_as_what_it_is_about(portal):
    async def fails() -> None:
        async with trio.open_nursery(), trio.open_nursery():
            raise LookupError("deep")

    with pytest.raises(LookupError, match="deep"):
        came(portal.submit(fails).slot)


def test_a_group_of_two_stays_one():
    both = ExceptionGroup("both", [KeyError("a"), ExceptionGroup("b", [OSError()])])

    assert single_cause(both) is both
    assert single_cause(ExceptionGroup("one", [both])) is both


def test_an_error_of_any_kind_ends_its_own_call_and_no_other(portal):
    async def leaves() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        came(portal.submit(leaves).slot)

    assert came(portal.submit(thread_of_the_run).slot)


def test_a_cancelled_call_ends_after_its_clean_up(portal):
    cleaned, begun = Event(), Event()

    async def call() -> None:
        try:
            begun.set()
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            cleaned.set()

    crossing = portal.submit(call)
    assert begun.wait(5)
    crossing.cancel()

    assert isinstance(failed(crossing.slot), WithdrawnError)
    assert cleaned.is_set()


def test_cancelling_a_call_that_has_ended_does_nothing(portal):
    crossing = portal.submit(thread_of_the_run)
    there = came(crossing.slot)

    crossing.cancel()

    assert came(portal.submit(thread_of_the_run).slot) == there


def test_calls_that_are_left_when_it_is_closed_are_cut_off_and_new_ones_refused(portal):
    begun = Event()

    async def waits() -> None:
        begun.set()
        await trio.sleep_forever()

    left = portal.submit(waits)
    assert begun.wait(5)
    portal.close_soon()
    late = portal.submit(waits)

    for crossing in (left, late):
        with pytest.raises(EngineClosedError):
            came(crossing.slot)
    came(portal.ended)
    with pytest.raises(EngineClosedError):
        came(portal.submit(waits).slot)
    left.cancel()
    portal.close_soon()


def test_calls_go_on_while_it_closes():
    may_end, begun = trio.Event(), Event()

    @asynccontextmanager
    async def slow_to_close() -> AsyncGenerator[None]:
        yield
        may_end.set()
        await done.wait()

    async def call() -> str:
        begun.set()
        await may_end.wait()
        done.set()
        return "settled by the one that closes"

    done = trio.Event()
    portal = Portal(slow_to_close)
    portal.start()
    came(portal.opened)
    crossing = portal.submit(call)
    assert begun.wait(5)
    portal.close_soon()

    assert came(crossing.slot) == "settled by the one that closes"
    came(portal.ended)


def test_what_can_t_be_opened_says_why_without_a_group():
    @asynccontextmanager
    async def broken() -> AsyncGenerator[None]:
        async with trio.open_nursery():
            raise OSError("no disk")
        yield

    portal = Portal(broken)
    portal.start()

    with pytest.raises(OSError, match="no disk"):
        came(portal.opened)
    came(portal.closed)
    came(portal.ended)


def test_closing_cancels_what_is_still_being_opened():
    begun = Event()

    @asynccontextmanager
    async def slow() -> AsyncGenerator[None]:
        begun.set()
        await trio.sleep_forever()
        yield

    portal = Portal(slow)
    portal.start()
    assert begun.wait(5)
    portal.close_soon()

    assert isinstance(failed(portal.opened), WithdrawnError)
    came(portal.ended)


def test_what_breaks_while_it_is_open_cuts_calls_off_and_is_told_at_the_end():
    breaks, begun = trio.Event(), Event()

    @asynccontextmanager
    async def breaking() -> AsyncGenerator[None]:
        async def bomb() -> None:
            await breaks.wait()
            raise OSError("the disk is gone")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(bomb)
            yield

    async def waits() -> None:
        begun.set()
        await trio.sleep_forever()

    async def light() -> None:
        breaks.set()

    portal = Portal(breaking)
    portal.start()
    came(portal.opened)
    left = portal.submit(waits)
    assert begun.wait(5)
    portal.submit(light)

    with pytest.raises(OSError, match="the disk is gone"):
        came(portal.closed)
    with pytest.raises(EngineClosedError):
        came(left.slot)
    came(portal.ended)


def test_a_run_that_breaks_down_settles_every_call(portal):
    async def waits() -> None:
        begun.set()
        await trio.sleep_forever()

    async def breaks_trio() -> None:
        async def bomb() -> None:
            raise ValueError("in a system task")

        trio.lowlevel.spawn_system_task(bomb)

    begun = Event()
    left = portal.submit(waits)
    assert begun.wait(5)
    portal.submit(breaks_trio)

    with pytest.raises(EngineClosedError):
        came(left.slot)
    came(portal.ended)
