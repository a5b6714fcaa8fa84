"""What a run is given by others, when it lies, hangs or raises: the turn ends."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any, cast

import attrs
import pytest
import trio
from kit.rehearsal import Probe, calls_of, open_stage, replies
from kit.run_ports import FakeReviewer, change_run_ports
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, Say, Use
from greenroom.actors.tools import Needs, ToolResult
from greenroom.protocol import (
    MAX_SERVER_DELAY_MS,
    DispatchCommitted,
    Grant,
    Review,
    RunTerminal,
    Stop,
    TextDelta,
    Usage,
    UsageReported,
)

DONE = [Say("done"), Halt()]
ONE = [Call("probe", {"n": 1}), Halt("tool_use")]
FULL: dict[str, Any] = {"permission_mode": "full_access"}


#### The reviewer


@pytest.mark.contract("TOL-11")
@pytest.mark.parametrize(
    "junk",
    [None, "auto_allow", 7, Review(cast("Any", "everything")), object()],
    ids=str,
)
async def test_a_review_that_is_none_asks_the_user(tmp_path, junk):
    probe = Probe(permission="do it")
    async with (
        open_stage(
            tmp_path, replies(ONE, DONE), probe, permission_mode="auto_approve"
        ) as stage,
        trio.open_nursery() as nursery,
    ):
        change_run_ports(stage, reviewer=FakeReviewer(lambda call: junk))
        nursery.start_soon(stage.session.prompt, "go")
        await wait_all_tasks_blocked()
        assert len(await stage.session.interactions()) == 1
        assert probe.calls == []
        await stage.session.cancel()


class EndlessReviewer:
    async def review(self, call, conversation):
        with trio.CancelScope(shield=True):
            await trio.sleep(10_000)


async def test_a_reviewer_that_never_ends_holds_up_no_cancel(tmp_path, autojump_clock):
    probe = Probe(permission="do it")
    async with open_stage(
        tmp_path, replies(ONE, DONE), probe, permission_mode="auto_approve"
    ) as stage:
        change_run_ports(stage, reviewer=EndlessReviewer())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await trio.sleep(1)
            started = trio.current_time()
            await stage.session.cancel()
        assert trio.current_time() - started <= 5
        assert probe.calls == []


async def test_a_reviewer_that_is_late_leaves_it_to_the_user(tmp_path, autojump_clock):
    probe = Probe(permission="do it")
    async with open_stage(
        tmp_path, replies(ONE, DONE), probe, permission_mode="auto_approve"
    ) as stage:
        change_run_ports(stage, reviewer=EndlessReviewer())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await trio.sleep(40)
            (asked,) = await stage.session.interactions()
            await stage.session.answer(asked.id, Grant())
        assert len(probe.calls) == 1


@attrs.define(eq=False)
class Stubborn:
    """A tool whose first door does not open, whatever is cancelled."""

    name: str = "probe"
    seconds: float = 10_000

    read_only = parallel_safe = False

    @property
    def definition(self):
        return Probe(name=self.name).definition

    async def precheck(self, arguments, context):
        with trio.CancelScope(shield=True):
            await trio.sleep(self.seconds)
        return Needs(permission=None, title="it", kind="other")

    async def run(self, arguments, operation):
        return ToolResult("fine")


async def test_a_precheck_that_never_ends_holds_up_no_cancel(tmp_path, autojump_clock):
    async with open_stage(tmp_path, replies(ONE, DONE), Stubborn(), **FULL) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await trio.sleep(1)
            started = trio.current_time()
            await stage.session.cancel()
        assert trio.current_time() - started <= 5


async def test_a_precheck_that_never_ends_refuses_its_call(tmp_path, autojump_clock):
    async with open_stage(tmp_path, replies(ONE, DONE), Stubborn(), **FULL) as stage:
        with trio.fail_after(3_600):
            turn = await stage.session.prompt("go")
        assert turn.outcome == "completed"
        assert "did not say within" in (calls_of(turn.message)[0].response or "")


#### Operations that are left behind


def stubborn(dispatches: list[Any]):
    """A body that ends late, and dispatches after that."""

    async def body(arguments, operation):
        with trio.CancelScope(shield=True):
            await trio.sleep(10)
            try:
                await operation.dispatch()
            except Exception as exc:
                dispatches.append(exc)
                raise
            dispatches.append("dispatched")
        return ToolResult("late")

    return body


@attrs.define(eq=False)
class Timed:
    """A probe with times of its own."""

    probe: Probe
    timeout: float = 1.0
    cleanup: float = 1.0
    permission: str | None = None

    read_only = parallel_safe = True

    @property
    def definition(self):
        return self.probe.definition

    async def precheck(self, arguments, context):
        return Needs(
            permission=self.permission,
            title="it",
            kind="other",
            timeout=self.timeout,
            cleanup=self.cleanup,
        )

    async def run(self, arguments, operation):
        return await self.probe.run(arguments, operation)


async def test_an_operation_left_behind_can_not_dispatch_while_others_run(
    tmp_path, autojump_clock
):
    dispatches: list[Any] = []
    left = Timed(Probe(name="one", body=stubborn(dispatches)))
    gate = trio.Event()
    other = Timed(Probe(name="two", gate=gate), timeout=100)
    script = replies([Call("one"), Call("two"), Halt("tool_use")], DONE)
    async with open_stage(tmp_path, script, left, other, **FULL) as stage:
        turn: Any = None
        async with trio.open_nursery() as nursery:

            async def prompt():
                nonlocal turn
                turn = await stage.session.prompt("go")

            nursery.start_soon(prompt)
            await trio.sleep(50)
            gate.set()
        assert "it did nothing" in (calls_of(turn.message)[0].response or "")
        assert dispatches != ["dispatched"]
        assert (
            len([r for r in stage.journal() if isinstance(r, DispatchCommitted)]) == 1
        )


@pytest.mark.contract("TOL-25")
async def test_a_granted_call_left_behind_before_its_dispatch_has_failed_before_it(
    tmp_path, autojump_clock
):
    dispatches: list[Any] = []
    left = Timed(Probe(body=stubborn(dispatches)), permission="do it")
    async with open_stage(tmp_path, replies(ONE, DONE), left) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await trio.sleep(1)
            (asked,) = await stage.session.interactions()
            await stage.session.answer(asked.id, Grant())
        reasons = [r.stop_reason for r in stage.journal() if isinstance(r, RunTerminal)]
        assert reasons == ["interaction", "pre_dispatch_error", "complete"]


#### The provider


@attrs.define(eq=False)
class Streams:
    """A provider whose stream is the given function of the request."""

    play: Any
    id: str = "rehearsal"
    replayable: bool = True
    max_told_ms: int = MAX_SERVER_DELAY_MS
    requests: list[Any] = attrs.field(factory=list)

    @asynccontextmanager
    async def stream(self, request, *, waiting=None):
        self.requests.append(request)
        events = self.play()
        try:
            yield events
        finally:
            await events.aclose()


STOP = Stop(reason="complete", raw="stop")


async def chatters_on():
    yield TextDelta("said")
    yield STOP
    while True:
        await trio.sleep(1)
        yield TextDelta("more")


async def stops_and_hangs():
    yield TextDelta("said")
    yield STOP
    await trio.sleep_forever()


async def yields_junk():
    yield TextDelta("said")
    yield None
    yield 7
    yield STOP


async def reports_junk():
    yield TextDelta("said")
    yield UsageReported(usage=Usage(input=-5, output=-5, total=-10))
    yield STOP


@pytest.mark.parametrize(
    "play", [chatters_on, stops_and_hangs, yields_junk, reports_junk]
)
async def test_a_stream_without_an_end_is_left(tmp_path, autojump_clock, play):
    async with open_stage(tmp_path, [], provider=Streams(play), **FULL) as stage:
        with trio.move_on_after(3_600) as scope:
            turn = await stage.session.prompt("go")
        assert not scope.cancelled_caught
        assert (turn.outcome, turn.text) == ("completed", "said")
        # What can't be is not known.
        assert turn.message.metadata.total_tokens is None


#### The price


@pytest.mark.parametrize(
    "price", [float("nan"), float("inf"), -1.0, "much", ValueError("no")], ids=str
)
async def test_a_price_that_is_none_is_unknown(tmp_path, price):
    def cost(usage):
        if isinstance(price, Exception):
            raise price
        return price

    script = replies([Say("said"), Use(1, 2), Halt()])
    async with open_stage(tmp_path, script) as stage:
        change_run_ports(stage, cost=cost)
        turn = await stage.session.prompt("go")
        assert turn.outcome == "completed"
        assert turn.message.metadata.cost is None


async def test_what_a_review_used_counts_for_the_turn(tmp_path):
    asked = [Call("probe", {"n": 1}), Use(1, 2), Halt("tool_use")]
    review = [Say('{"decision": "auto_allow"}'), Use(100, 20), Halt()]
    done = [Say("done"), Use(1, 2), Halt()]
    async with open_stage(
        tmp_path,
        replies(asked, review, done),
        Probe(permission="do it"),
        permission_mode="auto_approve",
    ) as stage:
        change_run_ports(stage, cost=lambda usage: float(usage.total))
        turn = await stage.session.prompt("go")
        metadata = turn.message.metadata
        assert (metadata.total_tokens, metadata.cost) == (126, 126.0)
