"""What happened in a session, told from its tape. Pure: entries in, lines out.

Every entry is untrusted data: one that can't be read becomes a line that says so, and
what it quotes is harmless on a terminal. A message is many entries (each revision
is one); it is told once for each thing that is new in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, tzinfo
from itertools import groupby
from typing import Final, Literal, TypeVar, final

import attrs
import msgspec

from greenroom.protocol import (
    EXECUTION_PREFIX,
    ActionBlock,
    DispatchCommitted,
    ErrorBlock,
    FactKind,
    ItemId,
    JournalError,
    JournalRecord,
    MessageRecord,
    OperationId,
    PendingInput,
    Plan,
    RunId,
    RunStarted,
    RunTerminal,
    SessionSettings,
    TapeEntry,
    TextBlock,
    TextPart,
    ToolCallBlock,
    ToolOutcome,
    journal_record,
    record_run_id,
)

from ._harmless import one_line
from ._words import answer_words, asked, count_words, ending_words

Tone = Literal["plain", "good", "bad", "careful"]

_RECOVERED: Final[Mapping[str, str]] = {
    "not_dispatched": "no tool had started",
    "completed": "every tool that had started is known to have ended",
    "indeterminate": "it is not known whether a tool had its effect",
    "corruption": "its journal can't be trusted",
}


class StoryLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One thing that happened."""

    seq: int
    """The entry it was told from."""
    at: float
    """Seconds since the epoch."""
    run_id: RunId | None
    """The run it belongs to; ``None`` for what the session did by itself."""
    tone: Tone
    text: str
    """In plain words, on one line, harmless on a terminal."""


def story_lines(entries: Iterable[TapeEntry]) -> list[StoryLine]:
    """Return what *entries*, oldest first, tell; some tell nothing, some much."""
    teller = _Teller()
    return [line for entry in entries for line in teller.tell(entry)]


def run_story(lines: Sequence[StoryLine], run_id: RunId) -> list[StoryLine]:
    """Return the lines of one run."""
    return [line for line in lines if line.run_id == run_id]


def format_story(lines: Sequence[StoryLine], zone: tzinfo | None = None) -> list[str]:
    """Return *lines* as text, a heading before each run; times in *zone*."""
    text: list[str] = []
    for run_id, group in groupby(lines, key=lambda line: line.run_id):
        told = list(group)
        title = "session" if run_id is None else f"run {one_line(run_id, 64)}"
        text.append(f"{title}  {_moment(told[0].at, zone, '%Y-%m-%d')}")
        text += [
            f"  {_moment(line.at, zone, '%H:%M:%S')}  {line.text}" for line in told
        ]
    return text


def _moment(at: float, zone: tzinfo | None, form: str) -> str:
    try:
        return datetime.fromtimestamp(at, zone).strftime(form)
    except (OverflowError, OSError, ValueError):
        return "(no time)"


#### Telling


_Said = tuple[Tone, str]


class _Attempt(msgspec.Struct, rename="camel"):
    logical_round: int | None = None
    request_seq: int | None = None
    physical_attempt: int | None = None
    status: str = ""
    error_code: str | None = None
    retry_decision: str | None = None
    retry_delay_ms: float | None = None


class _View(msgspec.Struct, rename="camel"):
    request_seq: int | None = None


class _ToolResult(msgspec.Struct, rename="camel"):
    tool_call_id: str
    name: str
    response: str = ""
    is_error: bool = False


class _Recovered(msgspec.Struct, rename="camel"):
    run_id: RunId
    run_class: str
    reason: str | None = None


@final
@attrs.define(eq=False)
class _Teller:
    _open_run: RunId | None = None
    """The run that started and has no terminal yet."""
    _tools: dict[OperationId, str] = attrs.field(factory=dict[OperationId, str])
    _callers: dict[str, RunId] = attrs.field(factory=dict[str, RunId])
    """The run that dispatched each call last, by the provider's id."""
    _told: dict[ItemId, str] = attrs.field(factory=dict[ItemId, str])
    """What was last told of each block and message, by id."""

    def tell(self, entry: TapeEntry) -> Iterator[StoryLine]:
        try:
            run_id, said = self._read(entry)
        except (msgspec.DecodeError, JournalError, RecursionError, UnicodeError):
            name = one_line(entry.fact.name, 80)
            run_id, said = self._open_run, [_bad(f"{name}: can't be read")]
        for tone, text in said:
            yield StoryLine(
                seq=entry.seq, at=entry.created_at, run_id=run_id, tone=tone, text=text
            )

    def _read(self, entry: TapeEntry) -> tuple[RunId | None, list[_Said]]:
        fact = entry.fact
        if fact.name.startswith(EXECUTION_PREFIX):
            record = journal_record(fact)
            return record_run_id(record), [self._journal(record)]
        match fact.name:
            case "message/recorded":
                return self._message(_decoded(entry, MessageRecord))
            case "recovery/run_acknowledged":
                recovered = _decoded(entry, _Recovered)
                return recovered.run_id, [_recovery_words(recovered)]
            case "session/start" | "session/configured":
                return None, list(_session_words(entry))
            case "input/recorded":
                return None, list(_input_words(_decoded(entry, PendingInput)))
            case _ if fact.kind is FactKind.TOOL_RESULT:
                result = _decoded(entry, _ToolResult)
                caller = self._callers.get(result.tool_call_id, self._open_run)
                return caller, [_result_words(result)]
            case _:
                return self._open_run, list(_other_words(entry))

    def _journal(self, record: JournalRecord) -> _Said:
        match record:
            case RunStarted():
                self._open_run = record.run_id
                deferred = record.run_kind == "deferred_tool"
                return "plain", f"run started{' for an answered call' * deferred}"
            case DispatchCommitted():
                call = record.operation.provider_tool_call_id
                self._callers[call] = record.operation.run_id
                tool = one_line(f"{record.tool_name} {call}")
                self._tools[record.operation] = tool
                return "plain", f"committed dispatch of {tool}"
            case ToolOutcome():
                call = one_line(record.operation.provider_tool_call_id)
                tool = self._tools.get(record.operation, call)
                ended = "error" if record.is_error else "ok"
                return (
                    "bad" if record.is_error else "good",
                    f"outcome of {tool}: {ended}",
                )
            case RunTerminal():
                self._open_run = None
                ended = f"{record.outcome}/{one_line(record.stop_reason)}"
                return _tone_of(record.outcome), f"run ended: {ended}"

    def _message(self, message: MessageRecord) -> tuple[RunId | None, list[_Said]]:
        if message.role == "user":
            return None, [
                ("plain", f"user: {one_line(block.text)}")
                for block in message.blocks
                if isinstance(block, TextBlock) and self._is_news(block.id, block.text)
            ]
        run_id = message.metadata.run_id or self._open_run
        return run_id, list(self._assistant(message))

    def _assistant(self, message: MessageRecord) -> Iterator[_Said]:
        is_final = message.status != "pending"
        for block in message.blocks:
            match block:
                case ToolCallBlock():
                    if self._is_news(block.id, "called"):
                        title = f": {one_line(block.title)}" if block.title else ""
                        call = one_line(f"{block.name} {block.call_id}")
                        yield "plain", f"the model called {call}{title}"
                case ActionBlock():
                    if self._is_news(block.id, block.status):
                        yield _action_words(block)
                case TextBlock():
                    if is_final and self._is_news(block.id, block.text):
                        yield "plain", f"model: {one_line(block.text)}"
                case ErrorBlock():
                    if self._is_news(block.id, block.code):
                        yield _bad(f"{one_line(block.code)}: {one_line(block.text)}")
                case _:
                    pass
        ending = f"{message.metadata.run_id} {message.status}"
        if is_final and self._is_news(ItemId(message.id), ending):
            yield "plain", f"turn: {one_line(ending_words(message.metadata))}"

    def _is_news(self, item_id: ItemId, state: str) -> bool:
        known = self._told.get(item_id)
        self._told[item_id] = state
        return known != state


_T = TypeVar("_T")


def _decoded(entry: TapeEntry, kind: type[_T]) -> _T:
    return msgspec.json.decode(entry.fact.payload, type=kind)


def _session_words(entry: TapeEntry) -> Iterator[_Said]:
    if entry.fact.name == "session/start":
        yield "plain", "session started"
        return
    settings = _decoded(entry, SessionSettings)
    model = f"{one_line(settings.model)} of {one_line(settings.provider)}"
    yield "plain", f"settings: {model}, {settings.permission_mode} permissions"


def _input_words(row: PendingInput) -> Iterator[_Said]:
    said = [one_line(p.text) for p in row.parts or () if isinstance(p, TextPart)]
    what = f": {' '.join(said)}" if said else ""
    match row.delivery:
        case "waiting":
            yield "plain", f"waits in the inbox{what}"
        case "held":
            yield "careful", f"held in the inbox{what}"
        case "returned":
            yield "careful", f"is back in the inbox{what}"
        case "blocked":
            why = one_line("; ".join(row.blocking))
            yield "careful", f"blocked in the inbox: {why}"
        case "deleted":
            yield "plain", "deleted from the inbox"
        case "in_flight" | "delivered":
            pass  # its message is told


def _other_words(entry: TapeEntry) -> Iterator[_Said]:
    fact = entry.fact
    match fact.name:
        case "provider/attempt_completed":
            yield _attempt_words(_decoded(entry, _Attempt))
        case "view/assembled":
            view = _decoded(entry, _View)
            yield "plain", f"assembled the view for request {view.request_seq or '?'}"
        case "plan/updated":
            yield _plan_words(_decoded(entry, Plan))
        case "message/retracted":
            yield "careful", "a message was retracted"
        case _ if fact.kind is FactKind.TOOL_CALL:
            return  # the message told it when the model said it
        case _:
            yield "plain", f"noted {one_line(fact.name, 80)}"


def _attempt_words(attempt: _Attempt) -> _Said:
    numbers = [
        f"{name} {number}"
        for name, number in (
            ("round", attempt.logical_round),
            ("request", attempt.request_seq),
            ("attempt", attempt.physical_attempt),
        )
        if number is not None
    ]
    text = f"asked the model ({', '.join(numbers) or 'no numbers'})"
    if attempt.status == "completed":
        return "plain", text
    why = one_line(attempt.error_code or attempt.status or "no status")
    if attempt.retry_delay_ms is not None:
        return "careful", f"{text}: {why}, again in {attempt.retry_delay_ms:.0f} ms"
    return _bad(f"{text}: {why}")


def _plan_words(plan: Plan) -> _Said:
    done = sum(entry.status == "completed" for entry in plan.entries)
    steps = count_words(len(plan.entries), "step")
    return "plain", f"plan revision {plan.revision}: {done} of {steps} done"


def _result_words(result: _ToolResult) -> _Said:
    call = one_line(f"{result.name} {result.tool_call_id}")
    tone: Tone = "bad" if result.is_error else "good"
    return tone, f"result of {call}: {one_line(result.response, 120) or '(empty)'}"


def _recovery_words(recovered: _Recovered) -> _Said:
    known = _RECOVERED.get(recovered.run_class, one_line(recovered.run_class))
    reason = f" ({one_line(recovered.reason)})" if recovered.reason else ""
    return "careful", f"recovered after an interruption: {known}{reason}"


def _action_words(block: ActionBlock) -> _Said:
    what = "a permission" if block.action == "tool_call_permission" else "an answer"
    if block.status == "pending":
        return "careful", f"paused for {what}: {one_line(asked(block))}"
    answer = f": {one_line(block.answer)}" if block.answer else ""
    return "plain", f"{answer_words(block)}{answer}"


def _tone_of(outcome: str) -> Tone:
    match outcome:
        case "completed":
            return "good"
        case "error":
            return "bad"
        case _:
            return "careful"


def _bad(text: str) -> _Said:
    return "bad", text
