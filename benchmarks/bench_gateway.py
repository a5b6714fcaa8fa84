"""The gateway: many clients of many sessions, idle ones, and some that do not read.

Baseline: trio-websocket's `send_message` to each client, of JSON that was encoded once
for all of them. The clients are a process of their own; what is measured is this one.
Deltas come from the sessions' hubs, as the engine publishes them: joined for 20 ms,
encoded once, and written by the gateway.
"""

from __future__ import annotations

import gc
import json
import os
import re
import resource
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import trio
import trio.lowlevel
from runner import Case, Figures, Limit, Ratio
from stopwatch import Stopwatch
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket

from greenroom.actors.endpoints.gateway import _frames
from greenroom.actors.providers import Halt, Say
from greenroom.gateway import Gateway, open_gateway
from greenroom.protocol import Change, ItemId, MessageId, RunId, SessionId
from greenroom.testing import RehearsalProvider, open_test_engine

SESSIONS: Final = 100
DELTAS_PER_S: Final = 20
JOIN_SECONDS: Final = 0.020
TEXT: Final = "some forty characters of a model's text "
BIG: Final = "x" * (30 << 10)
EVENTS_OF_A_TURN: Final = 100
STALLED: Final = 5
SAMPLED: Final = 50
"""Connections of which the writes are timed: spread over all sessions, and cheap."""

STAMP: Final = re.compile(rb"@(\d+)@")


class Clients:
    """The process with the clients."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._out = b""

    async def line(self) -> str:
        """Return the next line that it prints."""
        assert self._process.stdout is not None
        while b"\n" not in self._out:
            part = await self._process.stdout.receive_some(4_096)
            assert part, "the clients have ended"
            self._out += part
        line, _, self._out = self._out.partition(b"\n")
        return line.decode()

    async def end(self) -> dict[str, float]:
        """Stop reading, and return what was read."""
        assert self._process.stdin is not None
        await self._process.stdin.send_all(b"\n")
        return json.loads(await self.line())


@asynccontextmanager
async def _clients(
    port: int, count: int, sessions: Sequence[str], stalled: int = 0
) -> AsyncGenerator[Clients]:
    script = Path(__file__).parent / "gateway_clients.py"
    command = [sys.executable, str(script), str(port), str(count), str(stalled)]
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(_run, command)
        assert process.stdin is not None
        await process.stdin.send_all(json.dumps(list(sessions)).encode() + b"\n")
        clients = Clients(process)
        assert await clients.line() == "ready"
        yield clients
        process.kill()


async def _run(command: list[str], task_status: trio.TaskStatus[trio.Process]) -> None:
    await trio.run_process(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        check=False,
        task_status=task_status,
    )


def _more_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@asynccontextmanager
async def _gateway(sessions: int) -> AsyncGenerator[tuple[Gateway, list[Any]]]:
    # With the hub of each session, which an engine would publish to.
    async with (
        open_test_engine(None, RehearsalProvider([])) as engine,
        open_gateway(engine, port=0) as gateway,
    ):
        made = [await engine.create_session(workspace="/") for _ in range(sessions)]
        yield gateway, [each._sessions.hub(each.id) for each in made]


def _change(hub: Any, offset: int, text: str) -> None:  # noqa: ANN401 - a hub
    change = Change(ItemId("item"), "text", offset, text)
    hub.change(RunId("run"), MessageId("message"), change)


#### Fan-out


async def _fan_out(clients: int) -> Figures:
    # As fast as it goes: a round is a delta in each session.
    async with (
        _gateway(SESSIONS) as (gateway, hubs),
        _clients(gateway.port, clients, [hub.session_id for hub in hubs]) as reading,
    ):
        rounds = 20 if clients >= 500 else 2
        sent = gateway._flusher.sent
        before, frames = sent.frames, rounds * clients
        for hub in hubs:
            # We flush; the session's actor need not wake up to see that.
            hub.on_delta = None
        watch = Stopwatch()
        for number in range(rounds):
            for hub in hubs:
                _change(hub, number, TEXT)
                hub.flush()
                await trio.lowlevel.checkpoint()
        while sent.frames < before + frames:  # noqa: ASYNC110 - only a counter tells it
            await trio.sleep(0.001)
        figures = watch.cpu_us_each(frames)
        assert sent.frames == before + frames
        await reading.end()
        return figures


async def _stream(hub: Any, seconds: float) -> None:  # noqa: ANN401 - a hub
    # A session whose provider streams; the actor would flush by a timer of its own.
    end, offset = trio.current_time() + seconds, 0
    while trio.current_time() < end:
        text = f"@{time.monotonic_ns()}@{TEXT}"
        _change(hub, offset, text)
        offset += len(text)
        await trio.sleep(JOIN_SECONDS)
        hub.flush()
        await trio.sleep(1 / DELTAS_PER_S - JOIN_SECONDS)


async def _streaming(clients: int) -> Figures:
    # At the pace of models.
    async with (
        _gateway(SESSIONS) as (gateway, hubs),
        _clients(gateway.port, clients, [hub.session_id for hub in hubs]) as reading,
    ):
        seconds = 3.0 if clients >= 500 else 0.2
        outboxes = [each.stream.outbox for each in gateway._connections.values()]
        before, watch = gateway._flusher.sent.frames, Stopwatch()
        with _timed(outboxes[:: clients // SAMPLED | 1]) as ages:
            async with trio.open_nursery() as nursery:
                for hub in hubs:
                    nursery.start_soon(_stream, hub, seconds)
                    await trio.sleep(1 / DELTAS_PER_S / len(hubs))
        frames = gateway._flusher.sent.frames - before
        figures = watch.cpu_us_each(frames)
        told = await reading.end()
        ages.sort()
        return figures | {
            "p99_ms": ages[int(len(ages) * 0.99)],
            "read_p99_ms": told["p99_ms"],
        }


@contextmanager
def _timed(outboxes: Sequence[Any]) -> Generator[list[float]]:
    # How old the deltas are, in ms, when the frame of one of these is written.
    ages: list[float] = []
    watched = {outbox._socket.fileno() for outbox in outboxes}

    def note(descriptor: int, data: bytes) -> None:
        if descriptor in watched:
            now = time.monotonic_ns()
            ages.extend((now - int(at)) / 1e6 for at in STAMP.findall(data))

    def write(descriptor: int, data: bytes) -> int:
        sent = os.write(descriptor, data)
        note(descriptor, data)
        return sent

    def writev(descriptor: int, frames: Sequence[bytes]) -> int:
        sent = os.writev(descriptor, frames)
        note(descriptor, b"".join(frames))
        return sent

    _frames.os = SimpleNamespace(write=write, writev=writev)
    try:
        yield ages
    finally:
        _frames.os = os


async def _bare_fan_out(clients: int) -> Figures:
    async with _bare() as (port, websockets), _clients(port, clients, []) as reading:
        rounds = 10 if clients >= 500 else 2
        watch = Stopwatch()
        for number in range(rounds):
            text = json.dumps(_event(number))
            for websocket in websockets:
                await websocket.send_message(text)
        figures = watch.cpu_us_each(rounds * len(websockets))
        await reading.end()
        return figures


def _event(number: int) -> dict[str, Any]:
    event = {
        "type": "stream/updated",
        "sessionId": "0" * 36,
        "runId": "run",
        "messageId": "message",
        "itemId": "item",
        "kind": "text",
        "offset": number,
        "text": f"@{time.monotonic_ns()}@{TEXT}",
    }
    return {"jsonrpc": "2.0", "method": "_greenroom/event", "params": {"event": event}}


@asynccontextmanager
async def _bare() -> AsyncGenerator[tuple[int, list[Any]]]:
    websockets: list[Any] = []

    async def handle(request: WebSocketRequest) -> None:
        websocket = await request.accept()
        websockets.append(websocket)
        try:
            while True:
                await websocket.get_message()
                answer = '{"jsonrpc":"2.0","id":1,"result":{}}'
                await websocket.send_message(answer)
        except ConnectionClosed:
            pass

    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve_websocket, handle, "127.0.0.1", 0, None)
        yield server.port, websockets
        nursery.cancel_scope.cancel()


#### Idle


async def _idle(clients: int) -> Figures:
    async with _gateway(1) as (gateway, _):
        return await _memory_of(gateway.port, clients)


async def _bare_idle(clients: int) -> Figures:
    async with _bare() as (port, _):
        return await _memory_of(port, clients)


async def _memory_of(port: int, clients: int) -> Figures:
    # One before, so that nothing counts that is made for the first.
    async with _clients(port, 1, []):
        before = _traced()
        async with _clients(port, clients, []):
            await trio.sleep(0.2)
            return {"bytes_each": (_traced() - before) / clients}


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _traced_run(measure: Any, clients: int) -> Figures:  # noqa: ANN401 - an async function
    tracemalloc.start()
    try:
        return trio.run(measure, clients)
    finally:
        tracemalloc.stop()


#### Clients that do not read


async def _big_run(events: int, stalled: int) -> Figures:
    # Through the engine, in turns that are no longer than what it keeps of an answer.
    each = min(events, EVENTS_OF_A_TURN)
    script = [[Say(BIG * each, chunk=len(BIG)), Halt()]] * (events // each)
    async with (
        open_test_engine(None, RehearsalProvider(script)) as engine,
        open_gateway(engine, port=0) as gateway,
    ):
        session = await engine.create_session(workspace="/")
        ids: list[SessionId] = [session.id]
        async with _clients(gateway.port, stalled + 1, ids, stalled) as reading:
            peak, watch = 0.0, Stopwatch()
            for _ in script:
                await session.prompt("go")
                peak = max(peak, gateway._counted()["gateway_unsent_bytes"])
            figures = {"wall_s": watch.wall(), "cpu_s": watch.cpu()}
            await reading.end()
            return figures | {"unsent_mib": peak / (1 << 20)}


def _with_files(measure: Any, *arguments: int) -> Figures:  # noqa: ANN401 - an async function
    _more_files()
    return trio.run(measure, *arguments)


CASES: Final[tuple[Case, ...]] = (
    Case(
        name="gateway-fan-out",
        question="what does one frame to one of many clients cost?",
        clock="cpu",
        sides={
            "gateway": lambda size: _with_files(_fan_out, size),
            "streaming": lambda size: _with_files(_streaming, size),
            "trio-websocket": lambda size: _with_files(_bare_fan_out, size),
        },
        claims=(
            Ratio("us_each", "trio-websocket", "gateway", at_least=5),
            Ratio("us_each", "trio-websocket", "streaming"),
            Limit("p99_ms", "streaming", at_most=50),
            Limit("read_p99_ms", "streaming"),
        ),
        size=1_000,
        smoke_size=5,
    ),
    Case(
        name="gateway-idle",
        question="what does a connection keep that does nothing?",
        clock="bytes",
        sides={
            "gateway": lambda size: _traced_run(_idle, size),
            "trio-websocket": lambda size: _traced_run(_bare_idle, size),
        },
        claims=(Ratio("bytes_each", "gateway", "trio-websocket", at_most=1.3),),
        size=300,
        smoke_size=5,
    ),
    Case(
        name="gateway-stalled",
        question="what do five clients cost a run that do not read?",
        clock="wall",
        sides={
            "stalled": lambda size: _with_files(_big_run, size, STALLED),
            "alone": lambda size: _with_files(_big_run, size, 0),
        },
        claims=(
            Ratio("wall_s", "stalled", "alone", at_most=1.1),
            Ratio("cpu_s", "stalled", "alone"),
            Limit("unsent_mib", "stalled", at_most=8 * (STALLED + 1)),
        ),
        size=2_000,
        smoke_size=20,
    ),
)
