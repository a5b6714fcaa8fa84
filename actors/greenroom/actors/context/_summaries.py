"""The strategy that asks a model for a summary, bounded on every side (CTX-27, CTX-29).

The request has no tools and no more than a share of the model's window; a longer
conversation is asked about chunk by chunk, each with the summary so far. A chunk that
was too large, or whose summary was cut, is made smaller: the first as often as there
are sizes, the second once. All of it ends within one deadline. A cancellation ends it
at once; each request that ended by then is on record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Literal, final

import attrs
import trio

from greenroom.actors.providers import (
    ContextOverflowError,
    ProviderError,
    ask_once,
    may_replay,
)
from greenroom.protocol import (
    ModelRequest,
    ProviderFailure,
    Stop,
    TextDelta,
    ToolCallChunk,
    ToolCallEnd,
    ToolCallStart,
    Usage,
    UsageReported,
    classify_failure,
    is_counted,
)
from greenroom.protocol.context import (
    LEAST_STRICT_CHUNK,
    MAX_CHUNKS,
    Chunk,
    accepted_text,
    chunk_tokens,
    chunks_of,
    conversation_tokens,
    fits_summariser,
    summary_output,
    summary_request,
)
from greenroom.protocol.providers import make_failure

from ._strategy import Condensed, CondenseJob, ModelCall, SummaryModel

_LOG: Final = logging.getLogger("greenroom.context")

SUMMARY_SECONDS: Final = 120.0
"""By then there is a summary, or there is none."""

MAX_SIZES: Final = 3
"""Sizes of chunks that are tried, each smaller than the one before."""

MAX_REPLY_CHARS: Final = 64_000
"""Of one answer; whoever sends more is not summarising."""

Problem = Literal["cut", "overflow", "rejected", "unavailable"]


@final
@attrs.frozen
class Summaries:
    """See `Strategy`. Time is the loop's, chance is *random*'s."""

    now: Callable[[], float]
    """Seconds since the epoch."""
    random: Callable[[], float]
    """A number from 0 to 1, for the backoff of a retry."""
    seconds: float = SUMMARY_SECONDS

    async def condense(self, job: CondenseJob) -> Condensed:
        """Return the summary of *job*, by the first model that it fits, or the last."""
        if not job.models:
            return Condensed(fault="unavailable", why="there is no model to be asked")
        with trio.move_on_after(self.seconds):
            return await _Summary(self, job, _chosen(job)).make()
        return Condensed(
            fault="unavailable", why=f"it took longer than {self.seconds:g} s"
        )


def _chosen(job: CondenseJob) -> SummaryModel:
    tokens = conversation_tokens(job.records)
    fitting = (m for m in job.models if fits_summariser(tokens, m.window))
    return next(fitting, job.models[-1])


@attrs.frozen
class _Answer:
    text: str = ""
    problem: Problem | None = None
    why: str = ""


@final
@attrs.frozen
class _Summary:
    """One conversation, one model."""

    bounds: Summaries
    job: CondenseJob
    model: SummaryModel

    async def make(self) -> Condensed:
        was_cut = strict = False
        answer, chunks = _Answer(), tuple[Chunk, ...]()
        for number in range(MAX_SIZES):
            chunks = self._chunks(number, chunks, strict=strict)
            if len(chunks) > MAX_CHUNKS:
                why = f"it would take more than {MAX_CHUNKS} requests"
                return Condensed(fault="unavailable", why=why)
            answer = await self._roll(chunks)
            if answer.problem is None:
                return Condensed(answer.text)
            if answer.problem == "overflow":
                strict = True
            elif answer.problem == "cut" and not was_cut:
                was_cut = True
            else:
                break
        fault = "rejected" if answer.problem == "rejected" else "unavailable"
        return Condensed(fault=fault, why=answer.why)

    def _chunks(
        self, number: int, before: Sequence[Chunk], *, strict: bool
    ) -> tuple[Chunk, ...]:
        size = chunk_tokens(self.model.window, number, strict=strict)
        # What fits a smaller size as well would only be asked the same again.
        largest = max((chunk.tokens for chunk in before), default=size)
        smaller = largest if not before else max(LEAST_STRICT_CHUNK, largest * 3 // 4)
        return chunks_of(self.job.records, min(size, smaller))

    async def _roll(self, chunks: Sequence[Chunk]) -> _Answer:
        answer = _Answer(self.job.prior)
        for chunk in chunks:
            request = summary_request(
                self.model.model,
                chunk,
                prior=answer.text,
                focus=self.job.focus,
                max_output_tokens=summary_output(self.model.window),
            )
            answer = await self._ask(request)
            if answer.problem is not None:
                break
        return answer

    async def _ask(self, request: ModelRequest) -> _Answer:
        provider = self.model.provider
        try:
            reply = await ask_once(
                "text",
                lambda: self._send(request),
                now=self.bounds.now,
                random=self.bounds.random,
                replayable=may_replay(provider),
                max_told_ms=provider.max_told_ms,
            )
        except ContextOverflowError as exc:
            return _Answer(problem="overflow", why=str(exc))
        except ProviderError as exc:
            return _Answer(problem="unavailable", why=str(exc))
        return reply.judged()

    async def _send(self, request: ModelRequest) -> _Reply | ProviderFailure:
        if self.model.gate is not None:
            await self.model.gate.enter(lambda until: None)
        reply = _Reply()
        self.job.begins(self.model.provider.id, self.model.model)
        try:
            async with self.model.provider.stream(request) as events:
                async for event in events:
                    reply.take(event)
                    if reply.ended:
                        break
        except Exception as exc:
            _LOG.warning("a summariser failed: %s", exc)
            reply.failure = make_failure(str(exc), type(exc).__name__)
        except BaseException:
            self._note(reply, aborted=True)
            raise
        self._note(reply)
        return reply.failure or reply

    def _note(self, reply: _Reply, *, aborted: bool = False) -> None:
        status = "aborted" if aborted else "failed" if reply.failure else "completed"
        self.job.note(
            ModelCall(
                provider=self.model.provider.id,
                model=self.model.model,
                status=status,
                usage=reply.usage,
                stop_reason=reply.stop.reason if reply.stop else None,
                error=None if aborted else _code_of(reply.failure),
            )
        )


def _code_of(failure: ProviderFailure | None) -> str | None:
    return failure and (failure.code or classify_failure(failure))


@final
@attrs.define(eq=False)
class _Reply:
    """What one request brought."""

    parts: list[str] = attrs.field(factory=list[str])
    size: int = 0
    stop: Stop | None = None
    usage: Usage | None = None
    called: bool = False
    failure: ProviderFailure | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing that may still come can matter."""
        return self.failure is not None or self.size > MAX_REPLY_CHARS

    def take(self, event: object) -> None:
        match event:
            case TextDelta(text=text):
                self.parts.append(text)
                self.size += len(text)
            case ToolCallStart() | ToolCallChunk() | ToolCallEnd():
                self.called = True
            case UsageReported(usage=usage) if is_counted(usage):
                self.usage = usage
            case Stop():
                self.stop = event
            case ProviderFailure():
                self.failure = event
            case _:
                pass

    def judged(self) -> _Answer:
        """Return the summary in it, or why there is none."""
        if self.size > MAX_REPLY_CHARS:
            return _Answer(problem="rejected", why="the answer did not end")
        if self.stop is None:
            why = "the answer ended before it was whole"
            return _Answer(problem="unavailable", why=why)
        if self.called or self.stop.reason == "tool_use":
            return _Answer(problem="rejected", why="the model called a tool")
        if self.stop.reason == "max_tokens":
            return _Answer(problem="cut", why="the summary was cut at its limit")
        text = accepted_text("".join(self.parts))
        if text is None:
            return _Answer(problem="rejected", why="the answer is no summary")
        return _Answer(text)
