"""The laws that hold for every session, checked on its tape and its requests.

`open_stage` checks them when a test leaves it, so every test of the engine is also a
test of these. A law that can't be seen from tape, requests and tree (that a wait has a
clock of its own, that a process is gone) has tests of its own.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
from kit.strict_wire import strings_of, wire_problems

from greenroom.protocol import (
    ActionBlock,
    AssistantMessage,
    DispatchCommitted,
    InteractionSettled,
    MessageRecord,
    MessagesChanged,
    ModelRequest,
    RunStarted,
    RunTerminal,
    SessionId,
    TapeEntry,
    ToolCallBlock,
    ToolMessage,
    ToolOutcome,
    events_of,
    journal_record,
    record_run_id,
)
from greenroom.protocol.providers import PROFILES, encode_request
from greenroom.storage import Reader, verify

STRICTEST: Final = PROFILES["openai"]


def check_laws(
    reader: Reader, session_id: SessionId, tape: Sequence[TapeEntry]
) -> None:
    """Assert every law that a tape and its projections show."""
    broken = [
        *(f"projection: {problem}" for problem in verify(reader)),
        *session_problems(reader, session_id, tape),
    ]
    assert not broken, "\n".join(broken)


def check_requests(requests: Iterable[ModelRequest]) -> None:
    """Assert that every request could be sent: paired, and safe to encode."""
    broken: list[str] = []
    for request in requests:
        broken += request_problems(request)
        body = encode_request(request, STRICTEST)
        broken += [f"law 13: {problem}" for problem in wire_problems(body, STRICTEST)]
    assert not broken, "\n".join(broken)


def session_problems(
    reader: Reader, session_id: SessionId, tape: Sequence[TapeEntry]
) -> Iterator[str]:
    """Say which laws a session breaks, its projections but for their rebuild."""
    yield from tape_problems(tape)
    yield from _projection_problems(reader, session_id, tape)


#### Laws of the tape


def tape_problems(tape: Sequence[TapeEntry]) -> Iterator[str]:
    """Say which laws the tape breaks."""
    yield from _sequence_problems(tape)
    yield from _run_problems(tape)
    yield from _operation_problems(tape)
    yield from _attempt_problems(tape)
    yield from _input_problems(tape)
    yield from _interaction_problems(tape)


def _sequence_problems(tape: Sequence[TapeEntry]) -> Iterator[str]:
    if [entry.seq for entry in tape] != list(range(1, len(tape) + 1)):
        yield "law 10: sequence numbers are not contiguous"
    if any(later.token < earlier.token for earlier, later in pairwise(tape)):
        yield "law 14: an older owner wrote after a newer one"


def _records(tape: Sequence[TapeEntry]) -> Iterator[tuple[int, Any]]:
    for entry in tape:
        if entry.fact.is_execution:
            yield entry.seq, journal_record(entry.fact)


def _run_problems(tape: Sequence[TapeEntry]) -> Iterator[str]:
    ended: set[str] = set()
    started: set[str] = set()
    for seq, record in _records(tape):
        run = record_run_id(record)
        if run in ended:
            yield f"law 2: entry {seq} is of run {run}, which has ended"
        if isinstance(record, RunStarted):
            started.add(run)
        elif run not in started:
            yield f"law 2: entry {seq} is of run {run}, which has not started"
        if isinstance(record, RunTerminal):
            ended.add(run)
    acknowledged = {
        json.loads(entry.fact.payload)["runId"]
        for entry in tape
        if entry.fact.name == "recovery/run_acknowledged"
    }
    for run in started - ended - acknowledged:
        yield f"law 2: run {run} has no terminal"


def _operation_problems(tape: Sequence[TapeEntry]) -> Iterator[str]:
    dispatched: set[Any] = set()
    settled: set[Any] = set()
    for seq, record in _records(tape):
        match record:
            case DispatchCommitted(operation=operation):
                if operation in dispatched:
                    yield f"law 3: entry {seq} dispatches an operation again"
                dispatched.add(operation)
            case ToolOutcome(operation=operation):
                if operation not in dispatched or operation in settled:
                    yield f"law 3: entry {seq} is an outcome without its dispatch"
                settled.add(operation)
            case _:
                pass


def _attempt_problems(tape: Sequence[TapeEntry]) -> Iterator[str]:
    attempts: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    last: dict[str, dict[str, Any]] = {}
    for entry in tape:
        if entry.fact.name != "provider/attempt_completed":
            continue
        attempt = json.loads(entry.fact.payload)
        if "physicalAttempt" not in attempt:
            continue
        attempts[entry.fact.source_id, attempt["requestSeq"]].append(attempt)
        last[entry.fact.source_id] = attempt
    for (run, seq), tries in attempts.items():
        numbers = [attempt["physicalAttempt"] for attempt in tries]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"law 4: request {seq} of run {run} has attempts {numbers}"
        for attempt in tries[:-1]:
            if attempt["retryDecision"] != "retry_scheduled":
                yield f"law 4: request {seq} of run {run} was sent again unasked"
    for _, record in _records(tape):
        if isinstance(record, RunTerminal) and record.stop_reason == "complete":
            attempt = last.get(record.run_id)
            if attempt is not None and attempt["status"] != "completed":
                yield f"law 5: run {record.run_id} is complete without a proper stop"


def _input_problems(tape: Sequence[TapeEntry]) -> Iterator[str]:
    orders: dict[int, str] = {}
    retracted = {
        json.loads(entry.fact.payload).get("messageId")
        for entry in tape
        if entry.fact.name == "message/retracted"
    }
    for entry in tape:
        if entry.fact.name != "message/recorded":
            continue
        message = msgspec.json.decode(entry.fact.payload, type=MessageRecord)
        if message.id in retracted:
            continue
        known = orders.setdefault(message.order_seq, message.id)
        if known != message.id:
            yield f"law 8: two messages have the place {message.order_seq}"


def _interaction_problems(tape: Sequence[TapeEntry]) -> Iterator[str]:
    waiting: dict[str, bool] = {}
    for entry in tape:
        for event in events_of(entry):
            match event:
                case MessagesChanged(message=message):
                    for block in message.blocks:
                        if isinstance(block, ActionBlock) and block.status == "pending":
                            waiting[block.id] = True
                case InteractionSettled(interaction_id=interaction_id):
                    if waiting.get(interaction_id) is False:
                        yield f"law 9: interaction {interaction_id} ends twice"
                    waiting[interaction_id] = False
                case _:
                    pass


#### Laws of what is derived


def _projection_problems(
    reader: Reader, session_id: SessionId, tape: Sequence[TapeEntry]
) -> Iterator[str]:
    stored = {message.id: message for message in _all_messages(reader, session_id)}
    known = followed(tape)
    for message_id, message in stored.items():
        if known.get(message_id) != message:
            yield f"law 10: followers see another {message_id} than the transcript"
        yield from _message_problems(message)
    row = reader.session(session_id)
    waits = any(_waits(message) for message in stored.values())
    if row is not None and row.has_open_interaction != waits:
        yield "law 9: the list does not say whether a question waits"


def _all_messages(reader: Reader, session_id: SessionId) -> list[MessageRecord]:
    found: list[MessageRecord] = []
    before = None
    while page := reader.messages(session_id, before, 100):
        found = page + found
        before = page[0].order_seq
    return found


def followed(tape: Sequence[TapeEntry]) -> dict[str, MessageRecord]:
    """Return what somebody knows who was told every event of *tape*."""
    known: dict[str, MessageRecord] = {}
    for entry in tape:
        for event in events_of(entry):
            if isinstance(event, MessagesChanged):
                old = known.get(event.message.id)
                known[event.message.id] = _merged(old, event.message)
    return known


def _merged(old: MessageRecord | None, new: MessageRecord) -> MessageRecord:
    blocks = {} if old is None else {block.id: block for block in old.blocks}
    blocks |= {block.id: block for block in new.blocks}
    return msgspec.structs.replace(new, blocks=tuple(blocks.values()))


def _waits(message: MessageRecord) -> bool:
    return message.status == "pending" and any(
        isinstance(block, ActionBlock) and block.status == "pending"
        for block in message.blocks
    )


def _message_problems(message: MessageRecord) -> Iterator[str]:
    if message.status == "pending":
        return
    for block in message.blocks:
        if block.status in ("pending", "loading"):
            yield f"law 2: block {block.id} of a finished message is {block.status}"
        if isinstance(block, ToolCallBlock) and block.response is None:
            yield f"law 1: call {block.id} has no result"


#### Laws of requests


def request_problems(request: ModelRequest) -> Iterator[str]:
    """Say why *request* could not be sent."""
    waiting: list[str] = []
    seen: set[str] = set()
    for message in request.messages:
        match message:
            case ToolMessage(call_id=call_id):
                if not waiting or waiting.pop(0) != call_id:
                    yield f"law 1: the result of {call_id} is not where it belongs"
            case _:
                if waiting:
                    yield f"law 1: {waiting} have no result"
                waiting = []
        if isinstance(message, AssistantMessage):
            waiting = [call.id for call in message.calls]
            if seen & set(waiting) or len(set(waiting)) < len(waiting):
                yield f"law 13: a call id is used twice: {waiting}"
            seen |= set(waiting)
            for call in message.calls:
                if not _is_object(call.arguments):
                    yield f"law 13: the arguments of {call.id} are no object"
            if not message.text and not message.calls:
                yield "law 13: an assistant message is empty"
    if waiting:
        yield f"law 1: {waiting} have no result"
    if any("\x00" in text for text in strings_of(msgspec.to_builtins(request))):
        yield "law 13: there is a NUL in it"


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except msgspec.DecodeError:
        return False
