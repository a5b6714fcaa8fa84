"""What takes long before a model is asked is told, and goes on."""

from __future__ import annotations

import logging
from typing import Any, Final

import attrs
import pytest
import trio
from kit.rehearsal import Stage, open_stage, replies
from kit.run_ports import change_run_ports
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.testing import Halt, Hang, Say

DONE: Final = [Say("done"), Halt()]


@attrs.define(eq=False)
class Slow:
    """Prepares runs slowly, and notes that nothing has cancelled it."""

    seconds: float
    ended: float | None = None

    async def __call__(self, plan: Any, tools: Any) -> Any:
        await trio.sleep(self.seconds)
        self.ended = trio.current_time()
        raise RuntimeError("nothing to prepare")


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage().split(" is ", 1)[1])
        for record in caplog.records
        if "before its model is asked" in record.getMessage()
    ]


def watched(stage: Stage) -> Any:
    return stage.session._sessions.watchdog


@pytest.mark.contract("SES-20")
async def test_a_slow_step_is_told_three_times_and_goes_on(
    tmp_path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture, nursery
):
    caplog.set_level(logging.INFO, "greenroom.sessions")
    slow = Slow(100.0)
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        change_run_ports(stage, prepare=slow)
        caller = trio.CancelScope()

        async def prompt() -> None:
            with caller, pytest.raises(Exception, match="nothing to prepare"):
                await stage.session.prompt("go")

        nursery.start_soon(prompt)
        await wait_all_tasks_blocked()
        steps = []
        for until in (0.4, 0.6, 4.9, 5.1, 29.9, 30.1, 99.0):
            mock_clock.jump(until - trio.current_time())
            await wait_all_tasks_blocked()
            steps.append(len(told(caplog)))
        assert steps == [0, 1, 1, 2, 2, 3, 3]
        end = "before its model is asked: resources takes more than"
        assert told(caplog) == [
            ("INFO", f"slow {end} 0.5 s"),
            ("WARNING", f"very slow {end} 5 s"),
            ("ERROR", f"stuck {end} 30 s"),
        ]
        whose = {getattr(r, "session_id", None) for r in caplog.records}
        assert whose - {None} == {stage.session.id}
        assert slow.ended is None
        mock_clock.jump(2.0)
        await wait_all_tasks_blocked()
        assert slow.ended == pytest.approx(101.0)
        assert watched(stage)._steps == {}
        mock_clock.autojump_threshold = 0


@pytest.mark.contract("SES-20")
async def test_who_waits_for_a_first_turn_gives_up_and_the_turn_goes_on(
    tmp_path, autojump_clock, nursery
):
    slow = Slow(100.0)
    async with open_stage(tmp_path, replies(DONE)) as stage:
        watchdog = watched(stage)
        assert await watchdog.until_over(stage.session.id)
        change_run_ports(stage, prepare=slow)
        await stage.session.queue("go")
        since = trio.current_time()
        assert not await watchdog.until_over(stage.session.id)
        assert trio.current_time() - since == pytest.approx(30.0)
        assert slow.ended is None
        await trio.sleep(71)
        assert slow.ended is not None
        assert await watchdog.until_over(stage.session.id)


@pytest.mark.contract("SES-20")
async def test_each_step_has_its_own_time_and_a_stream_none(
    tmp_path, autojump_clock, caplog: pytest.LogCaptureFixture, nursery
):
    caplog.set_level(logging.INFO, "greenroom.sessions")
    async with open_stage(tmp_path, replies([Say("x"), Hang()])) as stage:

        async def contribute(plan: Any) -> None:
            await trio.sleep(0.4)

        async def numbers(message_id: Any) -> int:
            await trio.sleep(0.4)
            return 0

        change_run_ports(stage, contribute=contribute, last_request=numbers)
        nursery.start_soon(stage.session.prompt, "go")
        await trio.sleep(0.7)
        # The stream may take as long as it likes.
        await trio.sleep(40)
        assert told(caplog) == []
        await stage.session.cancel()


async def test_what_is_at_rest_is_not_looked_at(tmp_path, autojump_clock):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        paths = sorted(info.path for info in stage.engine.tree())
        await stage.session.prompt("go")
        await trio.sleep(2)
        watchdog = watched(stage)
        assert (watchdog._steps, watchdog._looks_at) == ({}, None)
        assert sorted(info.path for info in stage.engine.tree()) == paths
        tasks = [i for i in stage.engine.tree() if "watchdog" in i.path]
        assert [info.deadline for info in tasks] == [None]


async def test_it_ends_when_it_is_asked_to(tmp_path, autojump_clock):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.prompt("go")
        began = trio.current_time()

    assert trio.current_time() == began
