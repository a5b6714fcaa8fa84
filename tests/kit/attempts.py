"""The attempts of one round between fakes that note every step in one log."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import attrs
import trio

from greenroom.actors.backend import RunPorts
from greenroom.actors.kernel import FixedClock, SeededIds
from greenroom.actors.runs._attempt import AttemptIdentity
from greenroom.actors.runs._attempts import Attempts
from greenroom.actors.runs._settlement import Progress
from greenroom.protocol import (
    Counters,
    MessageId,
    ModelRequest,
    RunId,
    SessionId,
    StreamEvent,
    TextPart,
    UserMessage,
)

REQUEST = ModelRequest(model="m", messages=(UserMessage((TextPart("hi"),)),))
IDENTITY = AttemptIdentity(
    RunId("run"), MessageId("message"), "p", "m", "chat", SessionId("session")
)

HANG = object()
"""In a stream: nothing more comes."""


def attempts_of(stage: Any) -> list[dict[str, Any]]:
    """Return the attempt facts of the stage's session, as they were written."""
    return [
        json.loads(entry.fact.payload)
        for entry in stage.tape()
        if entry.fact.name == "provider/attempt_completed"
    ]


@attrs.define(eq=False)
class Bench:
    """Attempts of one round: each stream is what one send brings."""

    streams: list[Sequence[Any]]
    """Events; an exception is raised; `HANG` waits for ever."""
    log: list[Any] = attrs.field(factory=list)
    delivered: list[StreamEvent] = attrs.field(factory=list)
    at_clear: Callable[[], None] = lambda: None
    """Called when the notice of the gate is cleared."""
    authority: Callable[[int], bool] = lambda seq: True
    progress: Progress = attrs.field(
        factory=lambda: Progress(0.0, Counters(1, 1)), init=False
    )
    attempts: Attempts = attrs.field(init=False)
    id: str = "bench"
    replayable: bool = True
    max_told_ms: int = 60_000

    def __attrs_post_init__(self) -> None:
        ports: Any = RunPorts(
            self,
            None,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            gate=self,  # type: ignore[arg-type]
            authority=self._authority,
        )
        ctx: Any = SimpleNamespace(clock=FixedClock(), ids=SeededIds(0))
        self.attempts = Attempts(
            ports, ctx, self.progress, IDENTITY, self._deliver, self._advance
        )

    @property
    def counted(self) -> tuple[int, int]:
        """Number of the request, and of its attempt."""
        return self.progress.counters.request_seq, self.progress.counters.attempt

    async def run(self) -> None:
        await self.attempts.run(REQUEST)

    async def enter(self, waiting: Callable[[float], None]) -> None:
        self.log.append("gate")
        waiting(5.0)
        await trio.lowlevel.checkpoint()

    def waiting(self, reason: str | None, until: float | None = None) -> None:
        self.log.append(f"wait for {reason}" if reason else "clear")
        if reason is None and self.log[-2:] == ["wait for rate_gate", "clear"]:
            self.at_clear()

    def append_soon(self, facts: Any) -> None:
        payload = json.loads(facts[0].payload)
        self.log.append(f"record {payload['retryDecision']}")

    @asynccontextmanager
    async def stream(
        self, request: Any, *, waiting: Any = None
    ) -> AsyncIterator[AsyncIterator[StreamEvent]]:
        self.log.append(f"stream {self.counted}")

        async def play() -> AsyncIterator[StreamEvent]:
            for event in self.streams.pop(0):
                await trio.lowlevel.checkpoint()
                if event is HANG:
                    await trio.sleep_forever()
                if isinstance(event, Exception):
                    raise event
                yield event

        playing: Any = play()
        try:
            yield playing
        finally:
            await playing.aclose()

    def _authority(self, seq: int) -> bool:
        self.log.append(f"authority {self.counted}")
        return self.authority(seq)

    def _deliver(self, event: StreamEvent) -> None:
        self.delivered.append(event)

    def _advance(self) -> None:
        self.progress.counters = self.progress.counters.advance_request()
