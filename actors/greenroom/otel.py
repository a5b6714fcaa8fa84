"""OpenTelemetry for an engine: spans and metrics by the conventions for generative AI.

    from greenroom.otel import OpenTelemetry

    async with open_engine(provider=..., telemetry=OpenTelemetry()) as engine:
        ...

It needs the extra ``otel`` (opentelemetry-api); where spans and metrics go is for the
program's SDK to say. Everything is made of what an engine tells its observers: nothing
here is called by a run, and nothing is made when it is not used. Exporting must not
block the loop: use the SDK's batch processor and its periodic reader.

Spans: ``invoke_agent`` for a run, and below it ``chat`` for each attempt at a request,
for each request of a compaction or a reviewer that serves the run, and ``execute_tool``
for each call. A turn that paused is several runs, each the root of a trace of its own,
with the same message id and a link to the run before it. What was said is only
recorded when *content* is asked for, cut at 4,000 characters and without what looks
like a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import attrs
import msgspec
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider, get_meter_provider
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TracerProvider,
    get_tracer_provider,
    set_span_in_context,
)

from greenroom.actors.instruments import Instruments
from greenroom.actors.kernel import Clock
from greenroom.protocol import (
    AttemptEnd,
    AttemptStart,
    FirstChunk,
    ItemId,
    MessageId,
    Notice,
    PostToolUse,
    PostToolUseFailure,
    PreToolUse,
    RunEnd,
    SessionId,
    SessionLoaded,
    SessionStart,
    SessionUnloaded,
    SideRequestEnd,
    SideRequestStart,
    TurnEnd,
    Usage,
    UserPromptSubmit,
    redacted,
)

SCOPE: Final = "greenroom"

KEPT_RUNS: Final = 1_000
"""Sessions whose last run is kept for the link of the next one; the oldest make way."""

UNSETTLED: Final = "unsettled"
"""``error.type`` of what never told its end: a call that was left behind, a run whose
end could not be stored."""

Attributes = dict[str, str | int | float | tuple[str, ...]]


@final
@attrs.frozen
class OpenTelemetry:
    """Telemetry for `open_engine`; may be given to several."""

    content: bool = False
    """Whether prompts, arguments and results of tools are recorded."""
    tracer_provider: TracerProvider | None = None
    """``None``: the global one."""
    meter_provider: MeterProvider | None = None

    def observe(self, clock: Clock) -> SpanObserver:
        """See `Telemetry.observe`."""
        tracers = self.tracer_provider or get_tracer_provider()
        meters = self.meter_provider or get_meter_provider()
        instruments = Instruments.of(meters.get_meter(SCOPE))
        return SpanObserver(clock, tracers.get_tracer(SCOPE), instruments, self.content)


@attrs.frozen(eq=False)
class _Open:
    """A span that has not ended."""

    span: Span
    since: float
    measured: Attributes
    """What its duration is told by."""


@attrs.define(eq=False)
class _Run:
    of: SessionStart
    open: _Open
    attempt: _Open | None = None
    tools: dict[ItemId, _Open] = attrs.field(factory=dict[ItemId, _Open])


@attrs.frozen(eq=False)
class _Side:
    of: SideRequestStart
    open: _Open


@final
@attrs.define(eq=False)
class SpanObserver:
    """Makes spans and metrics of one engine; from `OpenTelemetry`."""

    _clock: Clock
    _tracer: Tracer
    _instruments: Instruments
    _content: bool
    _runs: dict[SessionId, _Run] = attrs.field(
        factory=dict[SessionId, _Run], init=False
    )
    """A session has one run at a time; one that never told its end gives way."""
    _sides: dict[str, _Side] = attrs.field(factory=dict[str, _Side], init=False)
    """Side requests, by their id."""
    _before: dict[SessionId, tuple[MessageId, SpanContext]] = attrs.field(
        factory=dict[SessionId, tuple[MessageId, SpanContext]], init=False
    )
    """The last run of each session, and what turn it was of."""
    _sessions: set[SessionId] = attrs.field(factory=set[SessionId], init=False)
    _prompts: dict[SessionId, str] = attrs.field(
        factory=dict[SessionId, str], init=False
    )

    def told(self, notice: Notice) -> None:
        """See `Observer.told`."""
        match notice:
            case SessionLoaded(session_id=session_id):
                self._sessions.add(session_id)
                self._instruments.sessions.add(1)
            case SessionUnloaded(session_id=session_id):
                self._unload(session_id)
            case UserPromptSubmit() if self._content:
                self._prompts[notice.session_id] = notice.text
            case SessionStart():
                self._begin_run(notice)
            case TurnEnd(outcome=outcome):
                self._instruments.turns.add(1, {"greenroom.outcome": outcome})
            case RunEnd():
                self._end_run(notice)
            case AttemptStart():
                self._begin_attempt(notice)
            case FirstChunk():
                self._note_first_chunk(notice)
            case AttemptEnd():
                self._end_attempt(notice)
            case SideRequestStart():
                self._begin_side(notice)
            case SideRequestEnd():
                self._end_side(notice)
            case PreToolUse():
                self._begin_tool(notice)
            case PostToolUse() | PostToolUseFailure():
                self._end_tool(notice)
            case _:
                pass

    def close(self) -> None:
        """See `Observer.close`."""
        sides = {side.of.session_id for side in self._sides.values()}
        for session_id in self._sessions | self._runs.keys() | sides:
            self._unload(session_id)

    def _unload(self, session_id: SessionId) -> None:
        self._prompts.pop(session_id, None)
        self._give_up(session_id)
        if session_id in self._sessions:
            self._sessions.remove(session_id)
            self._instruments.sessions.add(-1)

    #### Runs

    def _begin_run(self, begun: SessionStart) -> None:
        self._give_up(begun.session_id)
        whose = self._whose(begun)
        attributes = whose | _model_of(begun, "invoke_agent")
        attributes["gen_ai.agent.id"] = begun.agent_id
        prompt = self._prompts.pop(begun.session_id, None)
        if prompt is not None:
            attributes["gen_ai.input.messages"] = _said_by_user(prompt)
        name = f"invoke_agent {begun.agent_id}"
        measured = _model_of(begun, "invoke_agent")
        opened = self._open(
            name, SpanKind.INTERNAL, attributes, measured, links=self._links(begun)
        )
        self._runs[begun.session_id] = _Run(begun, opened)

    def _links(self, begun: SessionStart) -> list[Link]:
        message_id, before = self._before.pop(begun.session_id, (None, None))
        if before is None or message_id != begun.message_id:
            return []
        return [Link(before)]

    def _keep(self, run: _Run) -> None:
        of = run.of
        self._before[of.session_id] = of.message_id, run.open.span.get_span_context()
        if len(self._before) > KEPT_RUNS:
            del self._before[next(iter(self._before))]

    def _end_run(self, ended: RunEnd) -> None:
        run = self._runs.pop(ended.session_id, None)
        if run is None:
            return
        self._keep(run)
        # A call that was cut off by a cancel has not failed by itself.
        error = None if ended.outcome == "aborted" else UNSETTLED
        self._close_below(run, error)
        attributes = _tokens(ended.usage) | {
            "greenroom.outcome": ended.outcome,
            "greenroom.stop_reason": ended.reason,
        }
        failed = ended.reason if ended.outcome == "error" else None
        self._close(run.open, attributes, failed)

    def _give_up(self, session_id: SessionId) -> None:
        run = self._runs.pop(session_id, None)
        if run is not None:
            self._close_below(run, UNSETTLED)
            self._close(run.open, {}, UNSETTLED)
        self._close_sides(session_id, UNSETTLED)

    def _close_below(self, run: _Run, error: str | None) -> None:
        below = [*run.tools.values(), *([run.attempt] if run.attempt else [])]
        for opened in below:
            self._close(opened, {}, error)
        self._close_sides(run.of.session_id, error)

    def _close_sides(self, session_id: SessionId, error: str | None) -> None:
        sides = self._sides
        for key in [k for k, s in sides.items() if s.of.session_id == session_id]:
            self._close(sides.pop(key).open, {}, error)

    #### Attempts

    def _begin_attempt(self, begun: AttemptStart) -> None:
        run = self._runs.get(begun.session_id)
        if run is None:
            return
        measured = _model_of(begun, "chat")
        attributes = self._whose(begun) | measured
        attributes["greenroom.request.seq"] = begun.request_seq
        attributes["greenroom.attempt"] = begun.attempt
        name = f"chat {begun.model}"
        run.attempt = self._open(name, SpanKind.CLIENT, attributes, measured, run)

    def _end_attempt(self, ended: AttemptEnd) -> None:
        run = self._runs.get(ended.session_id)
        if ended.retries:
            self._instruments.retries.add(1)
        if run is None or run.attempt is None:
            return
        opened, run.attempt = run.attempt, None
        self._count_tokens(ended.usage, opened.measured)
        attributes = _tokens(ended.usage) | {"greenroom.status": ended.status}
        if ended.stop_reason is not None:
            attributes["gen_ai.response.finish_reasons"] = (ended.stop_reason,)
        self._close(opened, attributes, ended.error)

    def _note_first_chunk(self, came: FirstChunk) -> None:
        run = self._runs.get(came.session_id)
        if run is None or run.attempt is None:
            return
        seconds = self._clock.monotonic() - run.attempt.since
        run.attempt.span.set_attribute("gen_ai.response.time_to_first_chunk", seconds)
        self._instruments.first_chunk.record(seconds, run.attempt.measured)

    #### Side requests

    def _begin_side(self, begun: SideRequestStart) -> None:
        measured = _model_of(begun, "chat")
        attributes = measured | {
            "gen_ai.conversation.id": begun.session_id,
            "greenroom.purpose": begun.purpose,
        }
        run = self._runs.get(begun.session_id)
        if run is not None and run.of.run_id == begun.run_id:
            attributes |= self._whose(run.of)
        else:
            run = None
        name = f"chat {begun.model}"
        opened = self._open(name, SpanKind.CLIENT, attributes, measured, run)
        self._sides[begun.request_id] = _Side(begun, opened)

    def _end_side(self, ended: SideRequestEnd) -> None:
        side = self._sides.pop(ended.request_id, None)
        if side is None:
            return
        self._count_tokens(ended.usage, side.open.measured)
        attributes = _tokens(ended.usage) | {"greenroom.status": ended.status}
        if ended.stop_reason is not None:
            attributes["gen_ai.response.finish_reasons"] = (ended.stop_reason,)
        self._close(side.open, attributes, ended.error)

    def _count_tokens(self, usage: Usage | None, measured: Attributes) -> None:
        if usage is None:
            return
        for kind, count in (("input", usage.input), ("output", usage.output)):
            whose = measured | {"gen_ai.token.type": kind}
            self._instruments.tokens.record(count, whose)

    #### Calls

    def _begin_tool(self, begun: PreToolUse) -> None:
        run = self._runs.get(begun.session_id)
        if run is None:
            return
        measured: Attributes = {"gen_ai.operation.name": "execute_tool"}
        attributes = self._whose(begun) | measured
        attributes["gen_ai.tool.name"] = begun.tool
        attributes["gen_ai.tool.call.id"] = begun.call_id
        attributes["gen_ai.tool.type"] = "function"
        if self._content:
            attributes["gen_ai.tool.call.arguments"] = redacted(begun.arguments)
        name = f"execute_tool {begun.tool}"
        opened = self._open(name, SpanKind.INTERNAL, attributes, measured, run)
        run.tools[begun.item_id] = opened

    def _end_tool(self, ended: PostToolUse | PostToolUseFailure) -> None:
        run = self._runs.get(ended.session_id)
        opened = None if run is None else run.tools.pop(ended.item_id, None)
        if opened is None:
            return
        attributes: Attributes = {}
        if self._content:
            attributes["gen_ai.tool.call.result"] = redacted(ended.response)
        failed = isinstance(ended, PostToolUseFailure)
        self._close(opened, attributes, "tool_error" if failed else None)

    #### Spans

    def _whose(self, begun: SessionStart | AttemptStart | PreToolUse) -> Attributes:
        return {
            "gen_ai.conversation.id": begun.session_id,
            "greenroom.message.id": begun.message_id,
            "greenroom.run.id": begun.run_id,
        }

    def _open(
        self,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        measured: Attributes,
        run: _Run | None = None,
        links: Sequence[Link] = (),
    ) -> _Open:
        # An empty context: whoever happens to run this task is nobody's parent.
        around = Context()
        if run is not None:
            around = set_span_in_context(run.open.span, around)
        at = _nanoseconds(self._clock.now())
        span = self._tracer.start_span(
            name, around, kind, attributes, links, start_time=at
        )
        return _Open(span, self._clock.monotonic(), measured)

    def _close(self, opened: _Open, attributes: Attributes, error: str | None) -> None:
        measured = opened.measured
        opened.span.set_attributes(attributes)
        if error is not None:
            opened.span.set_attribute("error.type", error)
            opened.span.set_status(Status(StatusCode.ERROR))
            measured = measured | {"error.type": error}
        opened.span.end(_nanoseconds(self._clock.now()))
        seconds = self._clock.monotonic() - opened.since
        self._instruments.seconds.record(seconds, measured)


def _model_of(
    begun: SessionStart | AttemptStart | SideRequestStart, operation: str
) -> Attributes:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": begun.provider,
        "gen_ai.request.model": begun.model,
    }


def _tokens(usage: Usage | None) -> Attributes:
    # What is not known is absent: unknown is not zero.
    if usage is None:
        return {}
    counts = {
        "gen_ai.usage.input_tokens": usage.input,
        "gen_ai.usage.output_tokens": usage.output,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write,
    }
    return {name: count for name, count in counts.items() if count is not None}


def _said_by_user(text: str) -> str:
    parts = [{"type": "text", "content": redacted(text)}]
    return msgspec.json.encode([{"role": "user", "parts": parts}]).decode()


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000_000)
