"""Scenarios at work: the real engine between a scripted model and scripted tools.

Each scenario has an engine and a store in memory of its own, under a clock that stands
at 2026-01-01T00:00:00Z and with ids from a seed. Nothing is read but the workspace's
name, no file is written, no address is called (EVL-16). The provider says that its
requests may not be sent again, so no scenario meets the retry layer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final, final

import attrs
import msgspec
import trio

from greenroom.actors.kernel import SeededIds, StillClock
from greenroom.actors.providers import RehearsalProvider, Waiting, ignore_waiting
from greenroom.actors.sessions import SlowWatcherError
from greenroom.actors.tools import Operation, Tool, ToolResult
from greenroom.engine import Engine, SessionHandle, TurnResult, open_engine
from greenroom.protocol import (
    Answer,
    Deny,
    Event,
    Grant,
    GreenroomError,
    MessageRecord,
    MessagesChanged,
    ModelRequest,
    Other,
    Reply,
    SessionId,
    StatusChanged,
    StreamEvent,
    TapeEntry,
    Usage,
    journal_record,
    usage_of,
)
from greenroom.storage import MESSAGE_RECORDED, MemoryStore

from ._engine import EPOCH
from ._evals_report import (
    Observed,
    Report,
    ScenarioResult,
    judged,
    report_of,
)
from ._evals_scenario import Scenario, ScriptedTool, UserAnswer, check_scenarios
from ._recording import RecordingTool

MAX_SECONDS: Final = 600.0
"""Of the loop's clock that one scenario may take; a script can hang."""

_PAUSES: Final = ("permission", "question")
_ASSISTANT: Final = "assistant"


async def evaluate(
    scenarios: Sequence[Scenario],
    *,
    tools: Iterable[Tool] = (),
    workspace: Path | str = ".",
) -> Report:
    """Run *scenarios*, one after the other, and report on them.

    Args:
        scenarios: what to run; their ids differ.
        tools: your own, offered in every scenario beside its scripted ones.
        workspace: the folder that they may touch.

    Raises:
        ScenarioError: two scenarios, or two tools of one, have the same name.
        WorkspaceError: the folder does not exist.
    """
    check_scenarios(scenarios)
    own = tuple(tools)
    return report_of(
        [
            await evaluate_scenario(scenario, tools=own, workspace=workspace)
            for scenario in scenarios
        ]
    )


async def evaluate_scenario(
    scenario: Scenario,
    *,
    tools: Iterable[Tool] = (),
    workspace: Path | str = ".",
) -> ScenarioResult:
    """Run one scenario and return its result; see `evaluate`."""
    check_scenarios([scenario])
    started = perf_counter()
    store = MemoryStore.create()
    provider = _StoppedProvider.of(scenario)
    scripted = [_scripted(tool) for tool in scenario.tools]
    async with open_engine(
        store=store,
        provider=provider,
        tools=[*tools, *scripted],
        builtin=False,
        environment={},
        clock=StillClock(EPOCH),
        ids=SeededIds(0),
        idle_seconds=None,
        gc_thresholds=False,
    ) as engine:
        session = await engine.create_session(
            workspace=workspace,
            permission_mode=scenario.permission_mode,
            system_prompt=scenario.system_prompt,
            max_rounds=scenario.max_rounds,
        )
        if scenario.steer_waiting:
            _let_a_steer_wait(engine, session.id)
        play = _Play(session, provider.reached, list(scenario.answers))
        await play.perform(scenario.prompt)
        seen = _observed(play, store, session.id, provider.requests)
    elapsed = (perf_counter() - started) * 1_000
    return judged(scenario, attrs.evolve(seen, elapsed_ms=round(elapsed, 3)))


def _let_a_steer_wait(engine: Engine, session_id: SessionId) -> None:
    loaded = engine._sessions.loaded(session_id)  # pyright: ignore[reportPrivateUsage] - the user's part of the port
    assert loaded is not None
    loaded.session.ports = attrs.evolve(
        loaded.session.ports, steer_waiting=lambda: True
    )


#### The model and the tools


@final
@attrs.define(eq=False)
class _StoppedProvider:
    """Plays a script, up to the event before which the user stops the turn."""

    script: RehearsalProvider
    stop_before: int | None
    reached: trio.Event = attrs.field(factory=trio.Event)
    """Set where the user stops; from there on the model says nothing more."""
    _events: int = 0

    @classmethod
    def of(cls, scenario: Scenario) -> _StoppedProvider:
        script = RehearsalProvider(scenario.script, replayable=False)
        return cls(script, scenario.stop_before_event)

    @property
    def id(self) -> str:
        return self.script.id

    @property
    def replayable(self) -> bool:
        return self.script.replayable

    @property
    def max_told_ms(self) -> int:
        return self.script.max_told_ms

    @property
    def requests(self) -> tuple[ModelRequest, ...]:
        return tuple(self.script.requests)

    def stream(
        self, request: ModelRequest, *, waiting: Waiting = ignore_waiting
    ) -> AbstractAsyncContextManager[AsyncIterator[StreamEvent]]:
        """See `Provider.stream`."""
        return self._stream(request, waiting)

    @asynccontextmanager
    async def _stream(
        self, request: ModelRequest, waiting: Waiting
    ) -> AsyncGenerator[AsyncIterator[StreamEvent]]:
        async with self.script.stream(request, waiting=waiting) as events:
            shown = self._until_stopped(events)
            try:
                yield shown
            finally:
                await shown.aclose()

    async def _until_stopped(
        self, events: AsyncIterator[StreamEvent]
    ) -> AsyncGenerator[StreamEvent]:
        async for event in events:
            self._events += 1
            if self._events == self.stop_before:
                self.reached.set()
                await trio.sleep_forever()
            yield event


def _scripted(tool: ScriptedTool) -> RecordingTool:
    error = tool.error

    async def fail(arguments: dict[str, Any], operation: Operation) -> ToolResult:
        await operation.dispatch()
        raise RuntimeError(error)

    return RecordingTool(
        tool.name,
        result=tool.result,
        permission=tool.permission,
        read_only=tool.read_only,
        parallel_safe=tool.read_only,
        body=None if error is None else fail,
    )


#### The user


@final
@attrs.define(eq=False)
class _Play:
    """One turn as its user sees it: sends, answers, stops."""

    session: SessionHandle
    stop_wanted: trio.Event
    answers: list[UserAnswer]
    """Those that are left."""
    result: TurnResult | None = None
    paused: bool = False
    header: MessageRecord | None = None
    """The newest revision of the assistant's message that a watcher was told."""
    problem: str | None = None
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def perform(self, prompt: str) -> None:
        """Return when the turn has ended, or waits for an answer that nobody gives."""
        with trio.move_on_after(MAX_SECONDS) as limit, self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                nursery.start_soon(self._stop)
                await self._prompt(prompt)
                nursery.cancel_scope.cancel()
        if limit.cancelled_caught:
            self.problem = f"the turn did not end within {MAX_SECONDS:g} s"

    async def _prompt(self, prompt: str) -> None:
        try:
            self.result = await self.session.prompt(prompt)
        except GreenroomError as exc:
            self.problem = f"{exc.code}: {exc}"

    async def _stop(self) -> None:
        await self.stop_wanted.wait()
        await self.session.cancel()

    async def _watch(self) -> None:
        while True:
            try:
                async with self.session.follow() as follower:
                    async for event in follower:
                        await self._see(event)
                return
            except SlowWatcherError:
                continue

    async def _see(self, event: Event) -> None:
        match event:
            case MessagesChanged(message=message) if message.role == _ASSISTANT:
                self.header = message
            case StatusChanged(waiting_for=reason) if reason in _PAUSES:
                # Told once for each pause, when the run before it has settled.
                await self._answer()
            case _:
                pass

    async def _answer(self) -> None:
        waiting = await self.session.interactions()
        if not waiting:
            return
        if not self.answers:
            self.paused = True
            self._scope.cancel()
            return
        try:
            await self.session.answer(waiting[0].id, _answer_of(self.answers.pop(0)))
        except GreenroomError as exc:
            self.problem = f"{exc.code}: {exc}"
            self._scope.cancel()


def _answer_of(given: UserAnswer) -> Answer:
    match given.answer:
        case "grant":
            return Grant()
        case "deny":
            return Deny(given.text)
        case "reply":
            return Reply(given.text)
        case "other":
            return Other()


#### What is there afterwards


def _observed(
    play: _Play,
    store: MemoryStore,
    session_id: SessionId,
    requests: tuple[ModelRequest, ...],
) -> Observed:
    tape = _tape(store, session_id)
    messages = store.messages(session_id)
    status, stop_reason, usage = _returned(play)
    return Observed(
        status=status,
        stop_reason=stop_reason,
        usage=usage,
        revisions=tuple(_revisions(tape)),
        message=messages[-1] if len(messages) > 1 else None,
        journal=tuple(journal_record(e.fact) for e in tape if e.fact.is_execution),
        requests=requests,
        problem=play.problem,
    )


def _returned(play: _Play) -> tuple[str, str | None, Usage | None]:
    if play.result is not None:
        return play.result.outcome, play.result.stop_reason, play.result.usage
    usage = None if play.header is None else usage_of(play.header.metadata)
    return ("paused" if play.paused else "unfinished"), None, usage


def _tape(store: MemoryStore, session_id: SessionId) -> list[TapeEntry]:
    entries: list[TapeEntry] = []
    while page := store.page(session_id, len(entries)).entries:
        entries += page
    return entries


def _revisions(tape: Iterable[TapeEntry]) -> Iterable[MessageRecord]:
    for entry in tape:
        if entry.fact.name == MESSAGE_RECORDED:
            message = msgspec.json.decode(entry.fact.payload, type=MessageRecord)
            if message.role == _ASSISTANT:
                yield message
