"""Every tool has its clock, and a second one for its end."""

from __future__ import annotations

import logging

import pytest
import trio
from kit.rehearsal import Probe, calls_of, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.tools import DEFAULT_TOOL_SECONDS, Needs, ToolResult, tool
from greenroom.engine import Operation
from greenroom.protocol import DispatchCommitted, StatusChanged, ToolOutcome
from greenroom.testing import Call, Halt, Say

ASK = [Call("slow"), Halt("tool_use")]
DONE = [Say("done"), Halt()]


@tool(name="slow", timeout=3.0)
async def slow(operation: Operation) -> str:
    """Take for ever."""
    await operation.dispatch()
    await trio.sleep_forever()
    return "never"


@tool(name="slow", timeout=3.0)
async def slow_to_begin(operation: Operation) -> str:
    """Take for ever, before anything happens."""
    await trio.sleep_forever()
    return "never"


@tool(name="slow", timeout=3.0, cleanup=1.0)
async def stubborn(operation: Operation) -> str:
    """Take longer than it may, whoever stops it."""
    await operation.dispatch()
    with trio.CancelScope(shield=True):
        await trio.sleep(60)
    return "late"


@tool(name="slow", timeout=3.0, cleanup=2.0)
async def tidy(operation: Operation) -> str:
    """End in good order when it is stopped, and say what it did."""
    await operation.dispatch()
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
    return "never"


@pytest.mark.parametrize(
    ("make", "seconds", "told", "known"),
    [
        (slow, 3, "more than 3 s and was ended; what it did is not known", True),
        (slow_to_begin, 3, "more than 3 s and was ended; it did nothing", False),
        (tidy, 4, "more than 3 s and was ended; what it did is not known", True),
    ],
)
async def test_a_call_that_takes_too_long_has_failed_and_the_turn_goes_on(
    tmp_path, autojump_clock, make, seconds, told, known
):
    async with open_stage(tmp_path, replies(ASK, DONE), make) as stage:
        began = trio.current_time()
        turn = await stage.session.prompt("go")
        assert trio.current_time() - began == pytest.approx(seconds, abs=0.1)
        (call,) = calls_of(turn.message)
        assert (call.status, turn.text) == ("error", "done")
        assert told in (call.response or "")
        outcomes = [r for r in stage.journal() if isinstance(r, ToolOutcome)]
        assert [r.is_error for r in outcomes] == [True] * known
        assert not [info for info in stage.engine.tree() if "op-" in info.path]


async def test_a_call_that_does_not_end_is_left_behind_after_its_second_clock(
    tmp_path, autojump_clock, caplog
):
    with caplog.at_level(logging.CRITICAL, "greenroom.kernel"):
        async with open_stage(tmp_path, replies(ASK, DONE), stubborn) as stage:
            began = trio.current_time()
            turn = await stage.session.prompt("go")
            assert trio.current_time() - began == pytest.approx(4, abs=0.1)
            (call,) = calls_of(turn.message)
            assert "did not end when it was stopped" in (call.response or "")
            assert "late" not in repr(turn.message)
            (left,) = [i for i in stage.engine.tree() if "op-" in i.path]
            assert left.state == "abandoned"
            # What it says later is for nobody: its run has ended.
            await trio.sleep(70)
            kinds = [type(r) for r in stage.journal()]
            assert kinds.count(DispatchCommitted) == 1
            assert ToolOutcome not in kinds


async def test_the_wait_and_its_end_are_told(tmp_path, autojump_clock):
    async with (
        open_stage(tmp_path, replies(ASK, DONE), stubborn) as stage,
        stage.session.follow() as feed,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stage.session.prompt, "go")
        async for event in feed:
            if isinstance(event, StatusChanged) and event.waiting_for == "tool":
                assert event.remaining == pytest.approx(4.0, abs=0.1)
                break
        await trio.sleep(100)


async def test_calls_that_overlap_have_a_clock_each(tmp_path, autojump_clock):
    def waiting(name, seconds):
        async def body(operation: Operation) -> str:
            await operation.dispatch()
            await trio.sleep(5)
            return f"result of {name}"

        body.__doc__ = "Wait."
        made = tool(name=name, timeout=seconds, read_only=True)
        return made(body)

    two = [Call("quick"), Call("slow"), Halt("tool_use")]
    tools = [waiting("quick", 3.0), waiting("slow", 7.0)]
    async with open_stage(
        tmp_path, replies(two, DONE), *tools, permission_mode="full_access"
    ) as stage:
        began = trio.current_time()
        turn = await stage.session.prompt("go")
        assert trio.current_time() - began == pytest.approx(5, abs=0.1)
        quick, other = calls_of(turn.message)
        assert "more than 3 s" in (quick.response or "")
        assert other.response == "result of slow"


async def test_a_cancel_does_not_wait_for_the_tool_s_clock(tmp_path, autojump_clock):
    async with (
        open_stage(tmp_path, replies(ASK, DONE), slow) as stage,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stage.session.prompt, "go")
        await wait_all_tasks_blocked()
        began = trio.current_time()
        await stage.session.cancel()
        assert trio.current_time() - began < 0.1


async def test_a_precheck_that_hangs_refuses_its_call(tmp_path, autojump_clock):
    class Hanging:
        read_only = parallel_safe = False
        definition = Probe("slow").definition

        async def precheck(self, arguments, context):
            await trio.sleep_forever()

        async def run(self, arguments, operation):
            raise AssertionError

    async with open_stage(tmp_path, replies(ASK, DONE), Hanging()) as stage:
        turn = await stage.session.prompt("go")
        (call,) = calls_of(turn.message)
        assert "did not say within 60 s" in (call.response or "")
        assert turn.text == "done"


@pytest.mark.parametrize("times", [{"timeout": 0}, {"timeout": -1}, {"cleanup": -1}])
def test_a_time_that_is_none_is_refused(times):
    with pytest.raises(ValueError, match="needs a timeout above 0"):
        tool(name="x", **times)
    with pytest.raises(ValueError, match="needs a timeout above 0"):
        tool(name="x", timeout=float("nan"))


def test_a_tool_without_a_clock_of_its_own_has_the_default_one():
    assert Needs(None, "x", "other").timeout == DEFAULT_TOOL_SECONDS
    assert ToolResult("x").kept is None
