"""The engine in a program without an event loop: from one thread, and from several."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from kit.slots import came

from greenroom import sync
from greenroom.actors.portal import BlockingStream, Portal
from greenroom.actors.portal._blocking import open_blocking, waited
from greenroom.actors.portal._streams import Reading
from greenroom.engine import Grant, MemoryStore, SessionNotFoundError
from greenroom.protocol import StatusChanged, StreamCompleted, ToolCallBlock
from greenroom.testing import Call, Halt, Hang, RehearsalProvider, Say


@contextmanager
def engine_of(*script: Any, **given: Any) -> Iterator[sync.Engine]:
    provider = RehearsalProvider(list(script))
    given = {"store": MemoryStore.create(), "builtin": False} | given
    with sync.open_engine(provider=provider, **given) as engine:
        yield engine


def test_a_turn_runs_and_is_followed():
    with engine_of([Say("hello"), Halt()]) as engine:
        session = engine.create_session(workspace=".", model="rehearsed")
        assert isinstance(session, sync.SessionHandle)
        with session.follow() as events:
            assert events.snapshot is not None
            turn = session.prompt("hi")
            assert any(isinstance(event, StreamCompleted) for event in events)
        assert (turn.outcome, turn.text) == ("completed", "hello")
        status = engine.status(session.id)
        assert status is not None
        assert status.state == "idle"
        with pytest.raises(SessionNotFoundError, match="'none'"):
            engine.open_session("none")


def test_a_plain_function_is_a_tool_with_its_operation():
    seen: list[str] = []

    @sync.tool(permission="ring the bell")
    def ring(operation: sync.Operation, times: int) -> str:
        """Ring a bell."""
        operation.dispatch()
        operation.progress("ding")
        operation.report(title="rang")
        seen.append(threading.current_thread().name)
        return f"rang {times}"

    script = [Call("ring", {"times": 2}), Halt("tool_use")], [Say("done"), Halt()]
    with engine_of(*script, tools=[ring]) as engine:
        session = engine.create_session(workspace=".", model="rehearsed")
        with ThreadPoolExecutor() as threads, session.follow() as events:
            turn = threads.submit(session.prompt, "go")
            for event in events:
                if getattr(event, "kind", "") == "action":
                    break
            while not (asked := session.interactions()):
                next(events)
            session.answer(asked[0].id, Grant())
            assert turn.result(10).text == "done"
        blocks = [b for message in session.messages() for b in message.blocks]
        (call,) = [each for each in blocks if isinstance(each, ToolCallBlock)]
        assert (call.title, call.response) == ("rang", "rang 2")
    assert seen != [threading.current_thread().name]


def test_many_threads_share_an_engine(tmp_path: Path):
    def turns(_: int) -> list[str]:
        session = engine.create_session(workspace=tmp_path, model="rehearsed")
        return [session.prompt(str(number)).text for number in range(3)]

    provider = RehearsalProvider(lambda _: [Say("yes"), Halt()])
    with (
        sync.open_engine(
            provider=provider, store=MemoryStore.create(), builtin=False
        ) as engine,
        ThreadPoolExecutor(8) as threads,
    ):
        assert list(threads.map(turns, range(8))) == [["yes"] * 3] * 8
        assert len(engine.sessions()) == 8


def test_a_prompt_in_one_thread_is_stopped_from_another():
    with engine_of([Say("hel"), Hang()]) as engine, ThreadPoolExecutor() as threads:
        session = engine.create_session(workspace=".", model="rehearsed")
        with session.follow() as events:
            turn = threads.submit(session.prompt, "hi")
            while getattr(next(events), "kind", "") != "text":
                pass
        session.cancel()
        assert turn.result(10).outcome == "aborted"


def test_a_follower_sees_the_end_of_its_engine():
    with ThreadPoolExecutor() as threads:
        with engine_of() as engine:
            session = engine.create_session(workspace=".", model="rehearsed")
            begun = threading.Event()

            def follow() -> list[Any]:
                with session.follow() as events:
                    begun.set()
                    return list(events)

            follower = threads.submit(follow)
            assert begun.wait(5)
        assert isinstance(follower.result(10)[-1], StatusChanged)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_told_instead_of_waiting_for_ever(portal: Portal[str]):
    async def answer() -> int:
        return 42

    child = os.fork()
    if child == 0:
        told = 1
        try:
            signal.alarm(10)
            with pytest.raises(RuntimeError, match="after a fork"):
                waited(portal, answer)
            portal.close_soon()
            portal.closed.wait()
            told = 0
        finally:
            os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert waited(portal, answer) == 42


def test_an_engine_that_can_t_be_opened_says_why():
    def opening() -> Any:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"), open_blocking(opening, id)():
        pass


#### Interrupted


def interrupt_main() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_ctrl_c_cancels_the_call_and_waits_for_its_end(portal: Portal[str]):
    cleaned = threading.Event()

    async def call() -> None:
        interrupt_main()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            cleaned.set()

    with pytest.raises(KeyboardInterrupt):
        waited(portal, call)

    assert cleaned.is_set()


def test_a_second_ctrl_c_waits_no_more(portal: Portal[str]):
    may_end = trio.Event()

    async def stubborn() -> None:
        interrupt_main()
        try:
            await trio.sleep_forever()
        finally:
            interrupt_main()
            with trio.CancelScope(shield=True):
                await may_end.wait()

    async def let_go() -> None:
        may_end.set()

    with pytest.raises(KeyboardInterrupt):
        waited(portal, stubborn)

    came(portal.submit(let_go).slot)


def test_ctrl_c_in_a_block_closes_the_engine():
    with pytest.raises(KeyboardInterrupt), engine_of() as engine:
        raise KeyboardInterrupt

    assert came(engine.remote.portal.closed) is None


def test_the_run_s_own_thread_is_refused_instead_of_waiting_for_ever(portal):
    async def call() -> None:
        waited(portal, trio.lowlevel.checkpoint)

    with pytest.raises(RuntimeError, match="its own thread"):
        came(portal.submit(call).slot)


def test_a_reader_that_is_interrupted_loses_nothing(portal: Portal[str]):
    taken: list[str] = []
    may_come = trio.Event()

    async def take() -> list[str]:
        if not may_come.is_set():
            interrupt_main()
        await may_come.wait()
        taken.append("it" if not taken else "the next one")
        return [taken[-1]]

    async def comes() -> None:
        may_come.set()

    stream = BlockingStream(Reading(portal, take))
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    waited(portal, comes)

    assert next(stream) == "it"
