"""Every wait of a turn: it says why and how long, hears a cancel, and ends by itself.

Time stands still unless a test moves it, so what happens at once happens in no time.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx2
import pytest
import trio
from kit.rehearsal import Probe, Stage, calls_of, open_stage, replies
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.providers import (
    Call,
    ChatCompletionsProvider,
    Clocks,
    Fail,
    Halt,
    Hang,
    RateLimit,
    RehearsalProvider,
    Say,
)
from greenroom.actors.tools import Question, ToolResult
from greenroom.protocol import StatusChanged

FOREVER = math.inf
TEXT = b'data: {"choices":[{"delta":{"content":"text"}}]}\n\n'
DONE = [Say("done"), Halt()]
CALL = [Call("probe", {"n": 1}), Halt("tool_use")]
CLOCKS = Clocks(connect=3, first_byte=20, idle=30, content_idle=40)


@attrs.define(eq=False)
class Peer(httpx2.AsyncBaseTransport):
    """A server that is silent where it is told to be."""

    connect: float = 0.0
    head: float = 0.0
    body: tuple[bytes | float, ...] = ()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await trio.sleep(self.connect)
        await request.extensions["trace"]("http11.send_request_headers.started", {})
        await trio.sleep(self.head)
        return httpx2.Response(200, stream=_Body(self.body))


@attrs.define(eq=False)
class _Body(httpx2.AsyncByteStream):
    cues: tuple[bytes | float, ...]

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        for cue in self.cues:
            if isinstance(cue, bytes):
                yield cue
            else:
                await trio.sleep(cue)


def at(peer: Peer) -> ChatCompletionsProvider:
    return ChatCompletionsProvider("http://x", transport=peer, clocks=CLOCKS)


@attrs.frozen(kw_only=True)
class Wait:
    """One thing that a turn can wait for."""

    reason: str
    seconds: float | None
    """How long it lasts; ``None``: until somebody ends it."""
    provider: Callable[[], Any] = lambda: RehearsalProvider(replies(CALL, DONE))
    probe: Callable[[], Probe] = Probe
    rate: RateLimit | None = None
    settings: dict[str, Any] = attrs.field(factory=dict)
    before: Callable[[Stage], Awaitable[object]] | None = None
    jumps: tuple[float, ...] = ()
    """Time that passes until the wait has begun."""


def busy() -> RehearsalProvider:
    told = {"retry-after": "25"}
    return RehearsalProvider(replies([Fail("busy", status=503, headers=told)], DONE))


def held() -> Probe:
    return Probe(gate=trio.Event())


def asking() -> Probe:
    return Probe(permission="do it")


def unsure() -> Probe:
    return Probe(question=Question(header="which", text="which one?", options=()))


WAITS = {
    "connect": Wait(
        reason="connect", seconds=3, provider=lambda: at(Peer(connect=FOREVER))
    ),
    "first byte": Wait(
        reason="first_byte", seconds=20, provider=lambda: at(Peer(head=FOREVER))
    ),
    "idle": Wait(
        reason="stream", seconds=30, provider=lambda: at(Peer(body=(TEXT, FOREVER)))
    ),
    "content idle": Wait(
        reason="stream",
        # Of 40 s 25 are over when the heartbeat has come.
        seconds=15,
        provider=lambda: at(Peer(body=(TEXT, 25.0, b": ping\n\n", FOREVER))),
        jumps=(25,),
    ),
    "backoff": Wait(reason="backoff", seconds=25, provider=busy),
    "rate gate": Wait(
        reason="rate_gate",
        seconds=10,
        provider=lambda: RehearsalProvider(replies(DONE, DONE)),
        rate=RateLimit(0.1),
        before=lambda stage: stage.session.prompt("first"),
    ),
    "review": Wait(
        reason="review",
        seconds=30,
        provider=lambda: RehearsalProvider(replies(CALL, [Hang()], DONE)),
        probe=asking,
        settings={"permission_mode": "auto_approve"},
    ),
    "tool": Wait(reason="tool", seconds=None, probe=held),
    "permission": Wait(reason="permission", seconds=None, probe=asking),
    "permission with a clock": Wait(
        reason="permission",
        seconds=60,
        probe=asking,
        settings={"permission_seconds": 60.0},
    ),
    "question": Wait(reason="question", seconds=None, probe=unsure),
    "question with a clock": Wait(
        reason="question",
        seconds=70,
        probe=unsure,
        settings={"question_seconds": 70.0},
    ),
}
BY_THEMSELVES = [name for name, wait in WAITS.items() if wait.seconds is not None]


@attrs.define(eq=False)
class Watched:
    """A turn that waits, and everything its watchers were told of its state."""

    stage: Stage
    statuses: list[StatusChanged] = attrs.field(factory=list)
    result: Any = None

    @property
    def waiting_for(self) -> str | None:
        return self.statuses[-1].waiting_for

    @property
    def ended(self) -> bool:
        return self.result is not None

    async def prompt(self) -> None:
        self.result = await self.stage.session.prompt("go")

    async def watch(self) -> None:
        async with self.stage.session.follow() as events:
            async for event in events:
                if isinstance(event, StatusChanged):
                    self.statuses.append(event)


@asynccontextmanager
async def waiting(
    wait: Wait, folder: Any, clock: MockClock
) -> AsyncGenerator[Watched, None]:
    """Give the turn when it waits for what *wait* says."""
    async with (
        open_stage(
            folder, [], wait.probe(), provider=wait.provider(), rate_limit=wait.rate
        ) as stage,
        trio.open_nursery() as nursery,
    ):
        if wait.settings:
            await stage.session.configure(**wait.settings)
        if wait.before is not None:
            await wait.before(stage)
        turn = Watched(stage)
        nursery.start_soon(turn.watch)
        await wait_all_tasks_blocked()
        nursery.start_soon(turn.prompt)
        await wait_all_tasks_blocked()
        for seconds in wait.jumps:
            clock.jump(seconds)
            await wait_all_tasks_blocked()
        yield turn
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("name", WAITS)
async def test_a_wait_says_why_and_how_long(tmp_path, mock_clock, name):
    wait = WAITS[name]
    async with waiting(wait, tmp_path, mock_clock) as turn:
        if not wait.jumps:
            told = turn.statuses[-1]
            assert (told.state, told.waiting_for) == ("generating", wait.reason)
            if wait.reason != "tool":
                assert told.remaining == pytest.approx(wait.seconds)
        # Who comes later is told what is left of it.
        late = Watched(turn.stage)
        async with trio.open_nursery() as nursery:
            mock_clock.jump(1)
            nursery.start_soon(late.watch)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert late.waiting_for == wait.reason
        if wait.seconds is not None:
            assert late.statuses[-1].remaining == pytest.approx(wait.seconds - 1)
        await turn.stage.session.cancel()


@pytest.mark.parametrize("name", WAITS)
async def test_a_wait_hears_a_cancel_at_once(tmp_path, mock_clock, name):
    wait = WAITS[name]
    async with waiting(wait, tmp_path, mock_clock) as turn:
        before = trio.current_time()
        await turn.stage.session.cancel()
        await wait_all_tasks_blocked()
        assert trio.current_time() == before
        result = turn.result
        assert (result.outcome, result.stop_reason) == ("aborted", "user_stop")
        assert (turn.statuses[-1].state, turn.waiting_for) == ("idle", None)


@pytest.mark.parametrize("name", BY_THEMSELVES)
async def test_a_wait_ends_on_its_own_clock_and_not_before(tmp_path, mock_clock, name):
    wait = WAITS[name]
    assert wait.seconds is not None
    async with waiting(wait, tmp_path, mock_clock) as turn:
        mock_clock.jump(wait.seconds - 0.5)
        await wait_all_tasks_blocked()
        assert turn.waiting_for == wait.reason
        told = len(turn.statuses)
        mock_clock.jump(1)
        await wait_all_tasks_blocked()
        # It went on: to the next attempt, to the model, or to the end.
        assert len(turn.statuses) > told
        await turn.stage.session.cancel()


async def test_a_tool_that_does_not_end_is_cleaned_up_within_its_bound(
    tmp_path, mock_clock
):
    let_go = trio.Event()

    async def deaf(arguments: Any, operation: Any) -> ToolResult:
        await operation.dispatch()
        with trio.CancelScope(shield=True):
            await let_go.wait()
        return ToolResult("late")

    wait = Wait(reason="tool", seconds=None, probe=lambda: Probe(body=deaf))
    async with (
        waiting(wait, tmp_path, mock_clock) as turn,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(turn.stage.session.cancel)
        await wait_all_tasks_blocked()
        told = turn.statuses[-1]
        assert told.waiting_for == "cleanup"
        assert told.remaining is not None
        assert 0 < told.remaining <= 5
        assert not turn.ended
        mock_clock.jump(told.remaining)
        await wait_all_tasks_blocked()
        assert turn.ended
        assert turn.result.stop_reason == "user_stop"
        let_go.set()


async def test_a_tool_ends_on_its_own_clock(tmp_path, mock_clock):
    provider = RehearsalProvider(replies(CALL, DONE))
    wait = Wait(reason="tool", seconds=None, provider=lambda: provider, probe=held)
    async with waiting(wait, tmp_path, mock_clock) as turn:
        remaining = turn.statuses[-1].remaining
        assert remaining is not None
        mock_clock.jump(remaining)
        await wait_all_tasks_blocked()
        assert turn.result.outcome == "completed"
        (call,) = calls_of(turn.result.message)
        assert call.status == "error"
        assert "took more than" in (call.response or "")
