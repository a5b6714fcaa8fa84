"""The engine in a program of asyncio: what crosses, and what a cancel does."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from kit.slots import came, failed

from greenroom import aio
from greenroom.actors.portal import AsyncStream, EngineClosedError, Portal
from greenroom.actors.portal._asyncio import awaited, open_async
from greenroom.actors.portal._streams import Reading
from greenroom.actors.portal._thread import WithdrawnError
from greenroom.engine import (
    Deny,
    MemoryStore,
    SessionNotFoundError,
    SlowWatcherError,
)
from greenroom.protocol import (
    StatusChanged,
    StorageError,
    StreamCompleted,
    StreamFailed,
    StreamUpdated,
)
from greenroom.testing import Call, Halt, Hang, RecordingTool, RehearsalProvider, Say


@asynccontextmanager
async def engine_of(*script: Any, **given: Any) -> AsyncGenerator[aio.Engine]:
    provider = RehearsalProvider(list(script))
    given = {"store": MemoryStore.create(), "builtin": False} | given
    async with aio.open_engine(provider=provider, **given) as engine:
        yield engine


async def session_of(engine: aio.Engine) -> aio.SessionHandle:
    return await engine.create_session(workspace=".", model="rehearsed")


async def until(events: aio.Follower, wanted: Callable[[Any], bool]) -> Any:
    async for event in events:
        if wanted(event):
            return event
    raise AssertionError("the events ended")


def is_text(event: object) -> bool:
    return isinstance(event, StreamUpdated) and event.kind == "text"


def test_a_turn_runs_and_is_followed():
    async def main() -> None:
        async with engine_of([Say("hello"), Halt()]) as engine:
            session = await session_of(engine)
            assert isinstance(session, aio.SessionHandle)
            async with session.follow() as events:
                assert events.snapshot is not None
                turn = await session.prompt("hi")
                end = await until(events, lambda e: isinstance(e, StreamCompleted))
            assert (turn.outcome, turn.text) == ("completed", "hello")
            again = await engine.open_session(session.id)
            assert [m.role for m in await again.messages()] == ["user", "assistant"]
            assert again.settings == session.settings is not None
            async with session.follow(after=end.seq) as events:
                assert events.snapshot is None

    asyncio.run(main())


def test_a_permission_is_answered_and_agents_are_there():
    mail = RecordingTool("mail", permission="send a mail")
    script = [Call("mail"), Halt("tool_use")], [Say("so be it"), Halt()]

    async def main() -> None:
        async with engine_of(*script, tools=[mail]) as engine:
            session = await session_of(engine)
            async with session.follow() as events, asyncio.TaskGroup() as tasks:
                turn = tasks.create_task(session.prompt("mail"))
                await until(events, lambda e: getattr(e, "kind", "") == "action")
                while not (asked := await session.interactions()):
                    await until(events, lambda _: True)
                await session.answer(asked[0].id, Deny("no"))
            assert turn.result().text == "so be it"
            async with engine.agents.changes() as changes:
                made = await engine.agents.create("mine")
                assert (await anext(changes)).agent_id == made
            assert made in [agent.id for agent in await engine.agents.list()]
            assert await engine.skills.packages() == {}

    asyncio.run(main())
    assert mail.calls == []


def test_a_task_that_is_cancelled_stops_its_turn():
    async def main() -> None:
        async with engine_of([Say("hel"), Hang()]) as engine:
            session = await session_of(engine)
            async with session.follow() as events:
                prompt = asyncio.create_task(session.prompt("hi"))
                await until(events, is_text)
                prompt.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await prompt
                end = await until(events, lambda e: isinstance(e, StreamFailed))
            assert end.message.metadata.run_outcome == "aborted"

    asyncio.run(main())


def test_errors_of_the_engine_arrive_as_themselves():
    async def main() -> None:
        async with engine_of() as engine:
            with pytest.raises(SessionNotFoundError, match="'none'") as caught:
                await engine.open_session("none")
        assert [entry.name for entry in caught.traceback][-1] == "open_session"

    asyncio.run(main())


def test_an_engine_that_can_t_be_opened_says_why(tmp_path: Path):
    (tmp_path / "state").write_text("a file")

    async def main() -> None:
        with pytest.raises((StorageError, OSError)):
            async with aio.open_engine(state=tmp_path / "state"):
                pass

    asyncio.run(main())


def test_what_the_block_raises_is_raised_alone():
    async def main() -> None:
        with pytest.raises(KeyError, match="mine"):
            async with engine_of():
                raise KeyError("mine")

    asyncio.run(main())


def test_leaving_settles_turns_and_ends_followers_and_refuses_more():
    async def follows(session: aio.SessionHandle, begun: asyncio.Event) -> list[Any]:
        async with session.follow() as events:
            begun.set()
            return [event async for event in events]

    async def main() -> None:
        begun = asyncio.Event()
        async with engine_of([Say("hel"), Hang()]) as engine:
            session = await session_of(engine)
            follower = asyncio.create_task(follows(session, begun))
            await begun.wait()
            async with session.follow() as events:
                prompt = asyncio.create_task(session.prompt("hi"))
                await until(events, is_text)
        seen = await follower
        assert isinstance(seen[-1], StatusChanged)
        with suppress(EngineClosedError):
            assert (await prompt).outcome == "aborted"
        with pytest.raises(EngineClosedError):
            await session.prompt("more")

    asyncio.run(main())


def test_a_slow_follower_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch):
    from greenroom.actors.sessions import _hub

    monkeypatch.setattr(_hub, "FEED_BYTES", 4_000)

    async def main() -> None:
        async with engine_of([Say("x" * 20_000, chunk=100), Halt()]) as engine:
            session = await session_of(engine)
            async with session.follow() as events:
                await session.prompt("hi")
                with pytest.raises(SlowWatcherError) as slow:
                    await until(events, lambda e: isinstance(e, StreamCompleted))
            async with session.follow(after=slow.value.seq) as events:
                await until(events, lambda e: isinstance(e, StreamCompleted))

    asyncio.run(main())


def test_several_engines_live_in_one_loop_and_one_folder(tmp_path: Path):
    async def main() -> None:
        script = [Say("a"), Halt()]
        async with (
            engine_of(script, store=None, state=tmp_path) as one,
            engine_of(script, store=None, state=tmp_path) as other,
        ):
            mine, theirs = await session_of(one), await session_of(other)
            turns = await asyncio.gather(mine.prompt("x"), theirs.prompt("x"))
            assert [turn.text for turn in turns] == ["a", "a"]
            assert {row.id for row in await one.sessions()} == {mine.id, theirs.id}

    asyncio.run(main())


#### The crossing itself


class Gated:
    """A call that can't end before it is let go, however often it is cancelled."""

    def __init__(self, *, fails: bool = False) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._may_end = trio.Event()
        self._fails = fails

    async def call(self) -> None:
        self._loop.call_soon_threadsafe(self.begun.set)
        try:
            await trio.sleep_forever()
        finally:
            self._loop.call_soon_threadsafe(self.cancelled.set)
            with trio.CancelScope(shield=True):
                await self._may_end.wait()
            if self._fails:
                raise OSError("while it cleaned up")

    async def let_go(self) -> None:
        self._may_end.set()


async def cancelled_twice(portal: Portal[Any], gated: Gated) -> asyncio.Task[None]:
    task = asyncio.create_task(awaited(portal.submit(gated.call)))
    await gated.begun.wait()
    task.cancel()
    await gated.cancelled.wait()
    task.cancel()
    # The second one is delivered, and changes nothing.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    portal.submit(gated.let_go)
    return task


def test_a_cancelled_task_waits_for_the_end_of_its_call(portal):
    async def main() -> None:
        task = await cancelled_twice(portal, Gated())
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_an_error_of_the_clean_up_wins_over_the_cancel(portal):
    async def main() -> None:
        task = await cancelled_twice(portal, Gated(fails=True))
        with pytest.raises(OSError, match="while it cleaned up"):
            await task

    asyncio.run(main())


def test_a_time_limit_of_asyncio_is_one_of_the_call(portal):
    async def main() -> None:
        crossing = portal.submit(trio.sleep_forever)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await awaited(crossing)
        assert isinstance(failed(crossing.slot), WithdrawnError)

    asyncio.run(main())


def test_a_scope_of_anyio_does_not_cancel_a_task_again_and_again(portal):
    async def main() -> None:
        gated, scope = Gated(), anyio.CancelScope()

        async def in_scope() -> None:
            with scope:
                await awaited(portal.submit(gated.call))

        task = asyncio.create_task(in_scope())
        await gated.begun.wait()
        scope.cancel()
        await gated.cancelled.wait()
        before = task.cancelling()
        for _ in range(20):
            await asyncio.sleep(0)
        assert task.cancelling() == before
        assert not task.done()
        portal.submit(gated.let_go)
        await task

    asyncio.run(main())


def test_a_coroutine_that_is_thrown_away_cancels_its_call(portal):
    loop = asyncio.new_event_loop()
    crossing = portal.submit(trio.sleep_forever)
    waiting = awaited(crossing)
    task = loop.create_task(waiting)
    loop.run_until_complete(asyncio.sleep(0))
    loop.set_exception_handler(lambda *_: None)
    loop.close()
    waiting.close()
    del task

    assert isinstance(failed(crossing.slot), WithdrawnError)
    gc.collect()


def test_a_loop_that_is_closed_harms_nobody_else(portal):
    may_end = trio.Event()

    async def call() -> str:
        await may_end.wait()
        return "done"

    async def ends() -> None:
        may_end.set()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    crossing = portal.submit(call)
    task = loop.create_task(awaited(crossing))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    portal.submit(ends)
    assert came(crossing.slot) == "done"
    assert came(portal.submit(ends).slot) is None
    del task
    gc.collect()


def test_opening_that_is_cancelled_leaves_nothing_open():
    ended: list[str] = []

    async def main() -> None:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        @asynccontextmanager
        async def slow() -> AsyncGenerator[None]:
            loop.call_soon_threadsafe(begun.set)
            try:
                await trio.sleep_forever()
            finally:
                ended.append("in the run")
            yield

        async def opens() -> None:
            async with open_async(slow, lambda remote: remote)():
                raise AssertionError("it can't be open")

        task = asyncio.create_task(opens())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["in the run"]

    asyncio.run(main())


#### Streams


def test_a_reader_takes_more_only_when_it_has_handed_out_what_it_took(portal):
    taken: list[int] = []

    async def take() -> list[int]:
        taken.append(len(taken))
        return [] if len(taken) == 3 else [len(taken)] * 2

    async def main() -> None:
        stream = AsyncStream(Reading(portal, take))
        assert [await anext(stream), await anext(stream)] == [1, 1]
        assert len(taken) == 1
        assert [each async for each in stream] == [2, 2]
        assert len(taken) == 3

    asyncio.run(main())


def test_a_reader_that_is_cancelled_loses_nothing(portal):
    taken: list[str] = []
    may_come = trio.Event()

    async def take() -> list[str]:
        await may_come.wait()
        taken.append("it" if not taken else "the next one")
        return [taken[-1]]

    async def comes() -> None:
        may_come.set()

    async def main() -> None:
        stream = AsyncStream(Reading(portal, take))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(stream)
        await awaited(portal.submit(comes))
        assert await anext(stream) == "it"

    asyncio.run(main())


def test_calls_come_from_any_loop_of_the_process():
    async def elsewhere(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await asyncio.to_thread(lambda: asyncio.run(call()))

    async def main() -> None:
        async with engine_of() as engine:
            session = await session_of(engine)

            async def call() -> Any:
                return await engine.sessions()

            (row,) = await elsewhere(call)
            assert row.id == session.id
            assert engine.session(session.id).id == session.id

    asyncio.run(main())
