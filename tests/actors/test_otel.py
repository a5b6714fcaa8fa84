"""Spans and metrics of runs, requests and calls, by the SDK's own exporters."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from kit.rehearsal import Probe, open_stage, replies, spy_on

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from greenroom import otel
from greenroom.actors.tools import Operation, ToolResult
from greenroom.engine import Grant
from greenroom.otel import OpenTelemetry
from greenroom.protocol import (
    AttemptEnd,
    AttemptStart,
    DiskFullError,
    FirstChunk,
    MessageId,
    Notice,
    RunEnd,
    RunId,
    SessionId,
    SessionStart,
    SideRequestEnd,
    SideRequestStart,
    StorageError,
    Usage,
)
from greenroom.testing import Call, Fail, Halt, Hang, Raise, Say, Use

ASK = [Say("I look."), Call("probe", {"n": 1}), Use(300, 20), Halt("tool_use")]
DONE = [Say("done"), Use(400, 4), Halt()]
BUSY = [Fail("overloaded", code="overloaded", status=503)]
SECRET = "sk-live-abcdefghijklmnopqrstuvwxyz"


@attrs.define(eq=False)
class Collector:
    """What was exported."""

    spans_out: InMemorySpanExporter = attrs.field(factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = attrs.field(factory=InMemoryMetricReader)
    content: bool = False
    telemetry: OpenTelemetry = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(self.spans_out))
        meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.telemetry = OpenTelemetry(
            content=self.content, tracer_provider=tracers, meter_provider=meters
        )

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.spans_out.get_finished_spans()

    def metrics(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        return {
            metric.name: list(metric.data.data_points)
            for each in (() if data is None else data.resource_metrics)
            for scope in each.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def collector() -> Collector:
    return Collector()


def named(spans: Sequence[ReadableSpan], start: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name.startswith(start)]


def of(span: ReadableSpan, *names: str) -> tuple[Any, ...]:
    return tuple((span.attributes or {}).get(name) for name in names)


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def span_id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


#### A run


async def test_a_run_its_requests_and_its_call_are_spans_below_each_other(
    tmp_path: Path, collector: Collector, autojump_clock: trio.testing.MockClock
) -> None:
    rounds = replies(BUSY, ASK, DONE)
    async with open_stage(
        tmp_path, rounds, Probe(), telemetry=collector.telemetry
    ) as stage:
        turn = await stage.session.prompt("go")
    (run,) = named(collector.spans, "invoke_agent")
    chats = named(collector.spans, "chat")
    (tool,) = named(collector.spans, "execute_tool")
    assert len(collector.spans) == 5
    assert parent(run) is None
    assert {parent(span) for span in (*chats, tool)} == {span_id(run)}
    assert (run.kind, tool.kind) == (SpanKind.INTERNAL, SpanKind.INTERNAL)
    assert {chat.kind for chat in chats} == {SpanKind.CLIENT}
    # All have the ids of session, message and run.
    ids = ("gen_ai.conversation.id", "greenroom.message.id", "greenroom.run.id")
    whose = (stage.session.id, turn.message.id, turn.message.metadata.run_id)
    assert {of(span, *ids) for span in collector.spans} == {whose}
    which = ("greenroom.request.seq", "greenroom.attempt", "greenroom.status")
    assert [of(chat, *which) for chat in chats] == [
        (1, 1, "error"),
        (1, 2, "completed"),
        (2, 1, "completed"),
    ]


async def test_each_span_says_what_the_conventions_ask_for(
    tmp_path: Path, collector: Collector
) -> None:
    async with open_stage(
        tmp_path, replies(ASK, DONE), Probe(), telemetry=collector.telemetry
    ) as stage:
        await stage.session.prompt("go")
        (dispatched,) = [r for r in stage.journal() if hasattr(r, "tool_name")]
    call, chat, _, run = (
        collector.spans[1],
        *collector.spans[0::2],
        *collector.spans[3:],
    )
    (run,) = named(collector.spans, "invoke_agent default")
    (chat, _) = named(collector.spans, "chat default")
    (call,) = named(collector.spans, "execute_tool probe")
    usage = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
    model = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")
    assert of(chat, *model) == ("chat", "rehearsal", "default")
    assert of(chat, *usage) == (300, 20)
    assert of(chat, "gen_ai.response.finish_reasons") == (("tool_use",),)
    assert of(run, *model) == ("invoke_agent", "rehearsal", "default")
    assert of(run, *usage, "gen_ai.agent.id") == (700, 24, "default")
    assert of(run, "greenroom.outcome", "error.type") == ("completed", None)
    assert of(call, "gen_ai.operation.name", "gen_ai.tool.name") == (
        "execute_tool",
        "probe",
    )
    expected = dispatched.operation.provider_tool_call_id
    assert of(call, "gen_ai.tool.call.id", "gen_ai.tool.type") == (expected, "function")
    assert {span.status.status_code for span in collector.spans} == {StatusCode.UNSET}


async def test_what_failed_is_an_error_with_its_type_and_without_its_words(
    tmp_path: Path, collector: Collector
) -> None:
    async def fails(arguments: object, operation: Operation) -> ToolResult:
        await operation.dispatch()
        raise ValueError("my secret words")

    bad = [Fail("my secret words", code="bad_key", status=401)]
    async with open_stage(
        tmp_path, replies(ASK, bad), Probe(body=fails), telemetry=collector.telemetry
    ) as stage:
        await stage.session.prompt("my secret words")
    run, tool = named(collector.spans, "invoke")[0], named(collector.spans, "exec")[0]
    first, second = named(collector.spans, "chat")
    failed = {"provider_error": run, "bad_key": second, "tool_error": tool}
    for error, span in failed.items():
        assert of(span, "error.type") == (error,)
        assert span.status.status_code is StatusCode.ERROR
    assert first.status.status_code is StatusCode.UNSET
    assert "secret words" not in "".join(span.to_json() for span in collector.spans)


async def test_a_stop_of_the_user_ends_every_span_and_is_no_error(
    tmp_path: Path, collector: Collector
) -> None:
    probe = Probe(gate=trio.Event())
    script = replies(ASK, [Hang()])
    async with open_stage(
        tmp_path, script, probe, telemetry=collector.telemetry
    ) as stage:
        for _ in range(2):  # in a call, then in a request
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stage.session.prompt, "go")
                await trio.testing.wait_all_tasks_blocked()
                await stage.session.cancel()
    runs, chats = named(collector.spans, "invoke"), named(collector.spans, "chat")
    (tool,) = named(collector.spans, "execute_tool")
    outcomes = [of(run, "greenroom.outcome", "greenroom.stop_reason") for run in runs]
    assert outcomes == [("aborted", "user_stop")] * 2
    assert of(chats[1], "greenroom.status") == ("aborted",)
    assert parent(tool) == span_id(runs[0])
    assert {span.status.status_code for span in collector.spans} == {StatusCode.UNSET}


async def test_a_turn_that_pauses_is_a_trace_for_each_run_and_one_turn(
    tmp_path: Path, collector: Collector
) -> None:
    asks = Probe(permission="write it")
    async with (
        open_stage(
            tmp_path, replies(ASK, DONE), asks, telemetry=collector.telemetry
        ) as stage,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stage.session.prompt, "go")
        await trio.testing.wait_all_tasks_blocked()
        (waits,) = await stage.session.interactions()
        await stage.session.answer(waits.id, Grant())
    runs = named(collector.spans, "invoke_agent")
    assert [of(run, "greenroom.outcome")[0] for run in runs] == [
        "paused",
        "completed",
        "completed",
    ]
    assert len({run.context.trace_id for run in runs if run.context}) == 3
    # Each is linked to the one before it, and the first to none.
    linked = [[link.context.span_id for link in run.links] for run in runs]
    assert linked == [[], [span_id(runs[0])], [span_id(runs[1])]]
    assert len({of(run, "greenroom.message.id") for run in runs}) == 1
    (turns,) = collector.metrics()["greenroom.turns"]
    assert (turns.value, dict(turns.attributes)) == (
        1,
        {"greenroom.outcome": "completed"},
    )


async def test_another_turn_is_linked_to_none(
    tmp_path: Path, collector: Collector
) -> None:
    async with open_stage(
        tmp_path, replies(DONE, DONE), telemetry=collector.telemetry
    ) as stage:
        for text in ("one", "two"):
            await stage.session.prompt(text)
    assert [list(run.links) for run in named(collector.spans, "invoke")] == [[], []]


def test_the_last_runs_of_so_many_sessions_are_kept_for_a_link(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otel, "KEPT_RUNS", 1)
    observer = collector.telemetry.observe(HandClock(1_000.0))

    def begin(session: str, run: str) -> dict[str, Any]:
        ids: dict[str, Any] = {"session_id": session, "run_id": run, "message_id": "m"}
        observer.told(SessionStart(**ids, agent_id="a", provider="p", model="m"))
        return ids

    paused: dict[str, Any] = {"outcome": "paused", "reason": "x", "user_stop": False}
    for session in ("old", "new"):
        observer.told(RunEnd(**begin(session, "1"), **paused))
    for session in ("old", "new"):
        begin(session, "2")
    observer.close()
    ids = ("gen_ai.conversation.id", "greenroom.run.id")
    linked = {of(span, *ids): len(span.links) for span in collector.spans}
    assert linked == {
        ("old", "1"): 0,
        ("new", "1"): 0,
        ("old", "2"): 0,
        ("new", "2"): 1,
    }


#### Side requests


async def test_a_review_is_a_request_below_the_run_that_it_serves(
    tmp_path: Path, collector: Collector
) -> None:
    allows = [Say('{"decision": "auto_allow"}'), Use(50, 5), Halt()]
    async with open_stage(
        tmp_path,
        replies(ASK, allows, DONE),
        Probe(permission="write it"),
        telemetry=collector.telemetry,
        permission_mode="auto_approve",
    ) as stage:
        await stage.session.prompt("go")
    (run,) = named(collector.spans, "invoke_agent")
    reviews = [s for s in collector.spans if of(s, "greenroom.purpose")[0] == "review"]
    (review,) = reviews
    assert parent(review) == span_id(run)
    names = ("gen_ai.operation.name", "gen_ai.usage.input_tokens", "greenroom.run.id")
    assert of(review, *names) == ("chat", 50, of(run, "greenroom.run.id")[0])
    assert of(review, "greenroom.status", "error.type") == ("completed", None)
    tokens = collector.metrics()["gen_ai.client.token.usage"]
    assert sum(point.sum for point in tokens) == 300 + 20 + 50 + 5 + 400 + 4


async def test_a_review_that_is_stopped_or_fails_ends_its_span(
    tmp_path: Path, collector: Collector
) -> None:
    fails = [Fail("no", code="bad_key", status=401)]
    raises = [Raise("its own")]
    script = replies(ASK, fails, ASK, raises, ASK, [Hang()])
    async with open_stage(
        tmp_path,
        script,
        Probe(permission="write it"),
        telemetry=collector.telemetry,
        permission_mode="auto_approve",
    ) as stage:
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stage.session.prompt, "go")
                await trio.testing.wait_all_tasks_blocked()
                await stage.session.cancel()
    reviews = [s for s in collector.spans if of(s, "greenroom.purpose")[0] == "review"]
    told = [of(review, "greenroom.status", "error.type") for review in reviews]
    assert told[0] == ("error", "bad_key")
    assert told[1] == ("error", "provider_raised")
    assert told[2] == ("aborted", None)


async def test_a_compaction_of_the_user_s_is_requests_of_its_own(
    tmp_path: Path, collector: Collector
) -> None:
    summary = [Say("## Goal\nA summary of what was said."), Use(900, 30), Halt()]
    async with open_stage(
        tmp_path, replies(*[DONE] * 3, summary), telemetry=collector.telemetry
    ) as stage:
        for text in ("one", "two", "three"):
            await stage.session.prompt(f"{text} " * 400)
        done = await stage.session.compact()
        assert done.outcome == "summarized"
    (span,) = [s for s in collector.spans if of(s, "greenroom.purpose")[0]]
    assert span.name == "chat default"
    assert parent(span) is None
    assert of(span, "greenroom.purpose", "gen_ai.conversation.id") == (
        "compaction",
        stage.session.id,
    )
    assert of(span, "gen_ai.usage.input_tokens", "greenroom.status") == (
        900,
        "completed",
    )


async def test_a_summary_that_fails_ends_its_span_with_what_went_wrong(
    tmp_path: Path, collector: Collector
) -> None:
    fails = [Fail("no", code="bad_key", status=401)]
    async with open_stage(
        tmp_path, replies(*[DONE] * 3, fails), telemetry=collector.telemetry
    ) as stage:
        for text in ("one", "two", "three"):
            await stage.session.prompt(f"{text} " * 400)
        assert (await stage.session.compact()).outcome != "summarized"
    (span,) = [s for s in collector.spans if of(s, "greenroom.purpose")[0]]
    assert of(span, "greenroom.status", "error.type") == ("error", "bad_key")
    assert span.status.status_code is StatusCode.ERROR


def test_a_side_request_is_below_its_run_alone_and_ends_with_it(
    collector: Collector,
) -> None:
    observer = collector.telemetry.observe(HandClock(1_000.0))
    of_all: dict[str, Any] = {
        "session_id": SessionId("s"),
        "run_id": RunId("r"),
        "message_id": MessageId("m"),
    }
    side: dict[str, Any] = {"purpose": "compaction", "provider": "p", "model": "m"}
    observer.told(SessionStart(**of_all, agent_id="a", provider="p", model="m"))
    observer.told(SideRequestStart(**of_all, request_id="1", **side))
    stranger = of_all | {"run_id": RunId("another")}
    observer.told(SideRequestStart(**stranger, request_id="2", **side))
    end: dict[str, Any] = {"outcome": "error", "reason": "x", "user_stop": False}
    observer.told(RunEnd(**of_all, **end))
    observer.told(
        SideRequestEnd(session_id=SessionId("s"), request_id="1", status="completed")
    )
    observer.told(SideRequestStart(session_id=SessionId("t"), request_id="3", **side))
    observer.close()
    (run,) = named(collector.spans, "invoke_agent")
    chats = named(collector.spans, "chat")
    assert [parent(chat) for chat in chats] == [span_id(run), None, None]
    assert {of(chat, "error.type") for chat in chats} == {("unsettled",)}


#### Metrics


async def test_tokens_durations_retries_turns_and_sessions_are_measured(
    tmp_path: Path, collector: Collector, autojump_clock: trio.testing.MockClock
) -> None:
    rounds = replies(BUSY, ASK, DONE)
    async with open_stage(
        tmp_path, rounds, Probe(), telemetry=collector.telemetry
    ) as stage:
        await stage.session.prompt("go")
        other = await stage.engine.create_session(workspace=tmp_path)
        (sessions,) = collector.metrics()["greenroom.sessions.open"]
        assert sessions.value == 2
        await other.close()
        told = collector.metrics()
        assert [point.value for point in told["greenroom.sessions.open"]] == [1]
    tokens = {
        point.attributes["gen_ai.token.type"]: (point.count, point.sum)
        for point in told["gen_ai.client.token.usage"]
    }
    assert tokens == {"input": (2, 700), "output": (2, 24)}
    durations = {
        (
            point.attributes["gen_ai.operation.name"],
            point.attributes.get("error.type"),
        ): point.count
        for point in told["gen_ai.client.operation.duration"]
    }
    assert durations == {
        ("chat", "overloaded"): 1,
        ("chat", None): 2,
        ("execute_tool", None): 1,
        ("invoke_agent", None): 1,
    }
    # What failed before its first piece has none.
    (first,) = told["gen_ai.client.operation.time_to_first_chunk"]
    assert first.count == 2
    assert [point.value for point in told["greenroom.retries"]] == [1]
    assert [point.value for point in told["greenroom.turns"]] == [1]
    # What was open when the engine ended is not open any more.
    assert [p.value for p in collector.metrics()["greenroom.sessions.open"]] == [0]


def test_metrics_have_the_units_and_buckets_of_the_conventions(
    collector: Collector,
) -> None:
    observer = collector.telemetry.observe(HandClock(1_000.0))
    of_all: dict[str, Any] = {
        "session_id": SessionId("s"),
        "run_id": RunId("r"),
        "message_id": MessageId("m"),
    }
    model: dict[str, Any] = {"provider": "p", "model": "m"}
    request: dict[str, Any] = {"request_seq": 1, "attempt": 1}
    observer.told(SessionStart(**of_all, agent_id="a", **model))
    observer.told(AttemptStart(**of_all, **request, **model))
    observer.told(FirstChunk(session_id=SessionId("s"), run_id=RunId("r")))
    side: dict[str, Any] = {"request_id": "1", "purpose": "review"}
    observer.told(SideRequestStart(**of_all, **side, **model))
    usage = Usage(input=1, output=2, total=3)
    observer.told(
        SideRequestEnd(
            session_id=SessionId("s"), request_id="1", status="completed", usage=usage
        )
    )
    observer.close()
    data = collector.reader.get_metrics_data()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    units = {metric.name: metric.unit for metric in scope.metrics}
    points = collector.metrics()
    known = {
        "gen_ai.client.token.usage": ("{token}", 1, 4, 67_108_864),
        "gen_ai.client.operation.duration": ("s", 0.01, 0.02, 81.92),
        "gen_ai.client.operation.time_to_first_chunk": ("s", 0.01, 0.02, 81.92),
    }
    for name, (unit, *bounds) in known.items():
        found = points[name][0].explicit_bounds
        assert units[name] == unit
        assert [*found[:2], found[-1]] == pytest.approx(bounds)


#### Content


async def test_content_is_recorded_only_when_it_is_asked_for_and_without_keys(
    tmp_path: Path,
) -> None:
    spans: list[str] = []
    for content in (False, True):
        folder = tmp_path / str(content)
        folder.mkdir()
        collector = Collector(content=content)
        ask = [Call("probe", {"key": SECRET}), Halt("tool_use")]
        async with open_stage(
            folder, replies(ask, DONE), Probe(), telemetry=collector.telemetry
        ) as stage:
            await stage.session.prompt(f"look for {SECRET}")
        spans.append("".join(span.to_json() for span in collector.spans))
    without, wanted = spans
    assert "look for" not in without
    assert "result of probe" not in without
    assert "look for [redacted]" in wanted
    assert "result of probe" in wanted
    assert SECRET not in wanted
    (run,) = named(collector.spans, "invoke_agent")
    (said,) = json.loads(of(run, "gen_ai.input.messages")[0])
    assert said["role"] == "user"


#### What goes wrong


async def test_a_run_that_never_tells_its_end_is_ended_as_unsettled(
    tmp_path: Path, collector: Collector
) -> None:
    def fail(what: str) -> StorageError | None:
        return DiskFullError("full") if what == "RunTerminal" else None

    async with open_stage(
        tmp_path, replies(DONE), telemetry=collector.telemetry
    ) as stage:
        spy_on(stage).fail = fail
        with pytest.raises(Exception, match="full"):
            await stage.session.prompt("go")
        (run,) = named(collector.spans, "invoke_agent")
        assert of(run, "error.type") == ("unsettled",)


@attrs.define(eq=False)
class Broken:
    """An observer that always raises."""

    closed: bool = False

    def observe(self, clock: object) -> Broken:
        return self

    def told(self, notice: Notice) -> None:
        raise RuntimeError("no")

    def close(self) -> None:
        self.closed = True
        raise RuntimeError("no")


async def test_an_observer_that_raises_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "greenroom.hooks")
    outcomes: list[Any] = []
    broken = Broken()
    for telemetry in (None, broken):
        folder = tmp_path / type(telemetry).__name__
        folder.mkdir()
        async with open_stage(
            folder, replies(ASK, DONE), Probe(), telemetry=telemetry
        ) as stage:
            turn = await stage.session.prompt("go")
            outcomes.append((turn.outcome, turn.text, stage.names()))
    assert outcomes[0] == outcomes[1]
    assert broken.closed


#### Times


@attrs.define(eq=False)
class HandClock:
    """Moved by the test."""

    time: float

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time - 500.0


def test_spans_and_durations_have_the_engine_s_time(collector: Collector) -> None:
    clock = HandClock(1_000.0)
    observer = collector.telemetry.observe(clock)
    of_all: dict[str, Any] = {
        "session_id": SessionId("s"),
        "run_id": RunId("r"),
        "message_id": MessageId("m"),
    }
    model: dict[str, Any] = {"provider": "p", "model": "m"}
    request: dict[str, Any] = {"request_seq": 1, "attempt": 1}
    observer.told(SessionStart(**of_all, agent_id="a", **model))
    clock.time = 1_001.0
    observer.told(AttemptStart(**of_all, **request, **model))
    clock.time = 1_001.5
    observer.told(FirstChunk(session_id=SessionId("s"), run_id=RunId("r")))
    clock.time = 1_003.5
    usage = Usage(input=1, output=2, total=3, cache_read=1)
    observer.told(
        AttemptEnd(
            **of_all,
            **request,
            status="completed",
            stop_reason=None,
            error=None,
            retries=False,
            usage=usage,
        )
    )
    end: dict[str, Any] = {"outcome": "completed", "reason": "x", "user_stop": False}
    observer.told(RunEnd(**of_all, **end))
    observer.told(RunEnd(**of_all, **end))  # of nothing
    chat, run = collector.spans
    assert (chat.start_time, chat.end_time) == (1_001_000_000_000, 1_003_500_000_000)
    assert (run.start_time, run.end_time) == (1_000_000_000_000, 1_003_500_000_000)
    assert of(chat, "gen_ai.usage.cache_read.input_tokens") == (1,)
    assert of(chat, "gen_ai.response.time_to_first_chunk") == (0.5,)
    told = collector.metrics()
    (first,) = told["gen_ai.client.operation.time_to_first_chunk"]
    assert (first.sum, first.attributes["gen_ai.request.model"]) == (0.5, "m")
    points = told["gen_ai.client.operation.duration"]
    assert sorted(point.sum for point in points) == [2.5, 3.5]
