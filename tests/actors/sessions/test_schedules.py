"""Random users: prompts, answers, cancels and closes in any order, on random replies.

Nobody waits for anything before the next thing is done, unless the schedule says so.
The laws are checked at the end of the stage. Besides: every call comes back, nobody
who watches misses or repeats anything, and the session works afterwards.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import trio
from hypothesis import given, settings, strategies as st
from kit.rehearsal import Probe, Stage, open_stage
from trio.testing import MockClock

from greenroom.actors.providers import (
    Call,
    End,
    Fail,
    Halt,
    Hang,
    Pause,
    RehearsalProvider,
    Say,
)
from greenroom.actors.sessions import SlowWatcherError
from greenroom.engine import (
    Deny,
    Grant,
    Other,
    Reply,
    SessionClosedError,
    TurnFailedError,
    TurnRefusedError,
)
from greenroom.protocol import InteractionError, MessagesChanged, StatusChanged

TYPED = (TurnRefusedError, TurnFailedError, SessionClosedError, InteractionError)
PATIENCE = 600

DEEDS = (
    *("prompt", "again", "answer", "answer", "cancel", "close", "configure", "watch"),
    *("leave", "wait", "wait", "step"),
)
ANSWERS = (Grant(), Deny(), Reply("x"), Other())

cues = st.lists(
    st.sampled_from(
        [
            Say("words"),
            Pause(0.3),
            Call("read", {"n": 1}),
            Call("asks", {"n": 2}),
            Call("slow", {"n": 3}),
            Call("nothing", {}),
        ]
    ),
    max_size=4,
)
ends = st.sampled_from(
    [
        Halt(),
        Halt("tool_use"),
        Halt("max_tokens"),
        Fail("busy", status=503),
        Fail("no", status=400),
        End(),
        Hang(),
    ]
)
rounds = st.builds(lambda some, end: [*some, end], cues, ends)
actions = st.lists(
    st.tuples(
        st.sampled_from(DEEDS),
        st.integers(0, 3),
    ),
    max_size=14,
)


@attrs.define(eq=False)
class User:
    """Does things to a session, each in a task of its own."""

    stage: Stage
    nursery: trio.Nursery
    calls: list[trio.CancelScope] = attrs.field(factory=list)
    """Calls that have not come back."""
    watchers: list[Watcher] = attrs.field(factory=list)
    prompts: int = 0

    def start(self, fn: Callable[..., Awaitable[object]], *args: Any) -> None:
        scope = trio.CancelScope()
        self.calls.append(scope)
        self.nursery.start_soon(self._call, scope, fn, args)

    async def _call(self, scope, fn, args):
        try:
            with scope:
                await fn(*args)
        except TYPED:
            pass
        finally:
            self.calls.remove(scope)

    async def do(self, what, number):
        match what:
            case "prompt":
                self.prompts += 1
                self.start(self.prompt, self.prompts)
            case "again":
                self.start(self.prompt, max(1, self.prompts - number))
            case "answer":
                self.start(self.answer, number)
            case "cancel":
                self.start(self.stage.session.cancel)
            case "close":
                self.start(self.stage.session.close)
            case "configure":
                mode = "full_access" if number % 2 else "default"
                self.start(self.configure, mode)
            case "watch":
                self.watchers.append(Watcher(self.stage))
                self.nursery.start_soon(self.watchers[-1].watch)
            case "leave":
                for scope in self.calls[number : number + 1]:
                    scope.cancel()
            case "wait":
                await trio.sleep(0.4 * number)
            case _:
                for _ in range(number):
                    await trio.lowlevel.checkpoint()

    async def prompt(self, number):
        command_id = f"command {number}"
        await self.stage.session.prompt(f"go {number}", command_id=command_id)

    async def answer(self, number):
        for question in (await self.stage.session.interactions())[:1]:
            await self.stage.session.answer(question.id, ANSWERS[number])

    async def configure(self, mode):
        await self.stage.session.configure(permission_mode=mode)

    async def come_to_rest(self):
        """Answer and cancel until nothing is left; every call must have come back."""
        for _ in range(PATIENCE):
            if not self.calls and not await self.stage.session.interactions():
                return
            self.start(self.stage.session.cancel)
            await trio.sleep(1)
        raise AssertionError(f"{len(self.calls)} calls never came back")


@attrs.define(eq=False)
class Watcher:
    """Follows the session, again and again when it is told to."""

    stage: Stage
    after: int = 0
    seqs: list[int] = attrs.field(factory=list)

    async def watch(self):
        while True:
            try:
                async with self.stage.session.follow(after=self.after) as feed:
                    await self.follow(feed)
            except SlowWatcherError as slow:
                self.after = slow.seq
            await trio.sleep(0.1)

    async def follow(self, feed):
        version = -1
        async for event in feed:
            match event:
                case StatusChanged():
                    assert event.version >= version
                    version = event.version
                case MessagesChanged():
                    self.seqs.append(event.seq)
                    self.after = event.seq
                case _:
                    pass

    def check(self):
        # Nothing missed, nothing told twice.
        recorded = [e.seq for e in self.stage.tape() if e.fact.kind == "message"]
        assert self.seqs == recorded


async def play(folder, script, schedule):
    probes = (
        Probe("read", read_only=True, parallel_safe=True),
        Probe("asks", permission="may it?"),
        Probe("slow", body=slow),
    )
    provider = RehearsalProvider(Script(script).reply)
    async with open_stage(folder, [], *probes, provider=provider) as stage:
        async with trio.open_nursery() as nursery:
            user = User(stage, nursery)
            for what, number in schedule:
                await user.do(what, number)
            await user.come_to_rest()
            provider.script = lambda request: [Say("fine"), Halt()]
            with trio.fail_after(PATIENCE):
                assert (await stage.session.prompt("last")).text == "fine"
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        for watcher in user.watchers:
            watcher.check()
        assert provider.active == 0


async def slow(arguments, operation):
    await operation.dispatch()
    await trio.sleep(1)
    raise RuntimeError("slow and wrong")


@attrs.define(eq=False)
class Script:
    """Replies in order, and an end after them."""

    rounds: list[Any]

    def reply(self, request):
        return self.rounds.pop(0) if self.rounds else [Say("over"), Halt()]


@settings(max_examples=25)
@given(script=st.lists(rounds, max_size=5), schedule=actions)
def test_any_schedule_of_users_leaves_a_session_that_works(script, schedule):
    with tempfile.TemporaryDirectory() as folder:
        clock = MockClock(autojump_threshold=0)
        trio.run(play, Path(folder), list(script), schedule, clock=clock)
