"""What must be so at the end of any history.

The laws of every session (`kit.laws`), and what only the simulation can know: what its
tools did, what its clients and the engine were told, and where the process died.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import msgspec
from kit.aftermath import repeated, undispatched, unended_runs
from kit.laws import check_laws, request_problems
from kit.views import manifests_of
from sim.cast import World
from sim.clients import Notes, Watch
from sim.lane import Told

from greenroom.engine import Deny, Grant
from greenroom.protocol import (
    ActionBlock,
    DispatchCommitted,
    MessageRecord,
    PendingInput,
    RunTerminal,
    TapeEntry,
    ToolCallBlock,
    ToolOutcome,
    command_of,
    events_of,
    journal_record,
)
from greenroom.storage import RUN_ACKNOWLEDGED, Reader


@attrs.frozen
class Evidence:
    """A session as its disk has it in the end."""

    id: str
    tape: Sequence[TapeEntry]
    messages: Sequence[MessageRecord]

    def message(self, message_id: str) -> MessageRecord | None:
        return next((m for m in self.messages if m.id == message_id), None)

    def said(self, command: str) -> MessageRecord | None:
        users = (m for m in self.messages if m.role == "user")
        return next((m for m in users if command_of(m) == command), None)


def judge(
    reader: Reader, world: World, told: Told, notes: Notes, *, died: bool
) -> list[str]:
    """Return everything that is wrong; *died*: a life ended before its time."""
    sessions = [_evidence(reader, scope) for scope in reader.scopes()]
    problems = [p for request in world.requests for p in request_problems(request)]
    for session in sessions:
        try:
            check_laws(reader, session.id, session.tape)  # type: ignore[arg-type]
        except AssertionError as exc:
            problems.append(str(exc))
        problems += _tape_problems(session, died=died)
        problems += _call_problems(session, world)
    problems += _effect_problems(sessions, world)
    problems += _reply_problems(sessions, world)
    problems += _told_problems({s.id: s for s in sessions}, told)
    problems += _client_problems({s.id: s for s in sessions}, notes)
    return problems


def _evidence(reader: Reader, scope: Any) -> Evidence:
    tape: list[TapeEntry] = []
    while page := reader.page(scope, len(tape)).entries:
        tape += page
    messages: list[MessageRecord] = []
    before = None
    while more := reader.messages(scope, before, 100):
        messages, before = more + messages, more[0].order_seq
    return Evidence(scope, tape, messages)


#### What the tape tells


def _tape_problems(session: Evidence, *, died: bool) -> Iterator[str]:
    for run in unended_runs(list(session.tape)):
        yield f"law 2: run {run} has neither a terminal nor an acknowledgement"
    for message in session.messages:
        if message.status == "pending":
            yield f"law 2: message {message.id} never ended"
    yield from _order_problems(session)
    if not died:
        yield from _outcome_problems(session)
        if any(entry.fact.name == RUN_ACKNOWLEDGED for entry in session.tape):
            yield "law 2: a run had to be recovered, and nothing had crashed"


# A message is finished after its run's terminal, or by a recovery (RUN-23).
def _order_problems(session: Evidence) -> Iterator[str]:
    closed: set[str] = set()
    for entry in session.tape:
        if entry.fact.is_execution:
            record = journal_record(entry.fact)
            if isinstance(record, RunTerminal):
                closed.add(record.run_id)
        elif entry.fact.name == RUN_ACKNOWLEDGED:
            closed.add(entry.fact.source_id)
        elif entry.fact.name == "message/recorded":
            message = msgspec.json.decode(entry.fact.payload, type=MessageRecord)
            run = message.metadata.run_id
            if message.status != "pending" and run is not None and run not in closed:
                yield f"law 2: {message.id} was finished before its run {run} was"


# A run that came to its own end knows what every call of it did (JRN-10).
def _outcome_problems(session: Evidence) -> Iterator[str]:
    records = [journal_record(e.fact) for e in session.tape if e.fact.is_execution]
    known = {r.operation for r in records if isinstance(r, ToolOutcome)}
    ended = {
        r.run_id
        for r in records
        if isinstance(r, RunTerminal) and r.outcome in ("completed", "paused")
    }
    for record in records:
        if not isinstance(record, DispatchCommitted):
            continue
        operation = record.operation
        if operation not in known and operation.run_id in ended:
            yield f"law 3: {operation} ended without an outcome"


#### What the tools did


def _effect_problems(sessions: Sequence[Evidence], world: World) -> Iterator[str]:
    for key in repeated(world.effects):
        yield f"law 3: the effect {key} happened more than once"
    every = [entry for session in sessions for entry in session.tape]
    for key in undispatched(world.effects, every):
        yield f"law 3: the effect {key} has no dispatch fact"


# What was asked is answered once: nothing is asked again after output. What is asked
# anew, for an input that was returned, has a manifest of its own.
def _reply_problems(sessions: Sequence[Evidence], world: World) -> Iterator[str]:
    asked = Counter(
        stored.manifest.hashes.prompt_hash
        for session in sessions
        for stored in manifests_of(session.tape)
    )
    for hashed, times in asked.items():
        if world.replies[hashed] > times:
            yield f"law 4: {hashed[:12]} was sent again after output"


def _call_problems(session: Evidence, world: World) -> Iterator[str]:
    done = {f"did {key[-12:]}" for key in world.effects}
    shown: Counter[str] = Counter()
    for message in session.messages:
        for block in message.blocks:
            if isinstance(block, ToolCallBlock) and block.response is not None:
                text = block.response[:16]
                if text.startswith("did "):
                    shown[text] += 1
                    if text not in done:
                        yield f"law 3: call {block.id} says that it {text}; it did not"
    for text, times in shown.items():
        if times > 1:
            yield f"law 2: the result {text!r} was given to {times} calls"


#### What was told


def _told_problems(sessions: dict[str, Evidence], told: Told) -> Iterator[str]:
    kept = {
        (session.id, entry.fact.key): entry.fact.payload
        for session in sessions.values()
        for entry in session.tape
    }
    for (scope, key), payload in told.facts.items():
        if kept.get((scope, key)) != payload:
            yield f"law 8: the fact {key} of {scope} was told to be durable, and is not"
    for scope, command in told.commands:
        begun = sessions[scope].said(command) is not None
        withdrawn = any(_withdraws(entry, command) for entry in sessions[scope].tape)
        if begun == withdrawn:
            what = "two things" if begun else "nothing"
            yield f"law 8: {command!r} was taken in and {what} came of it"


def _withdraws(entry: TapeEntry, command: str) -> bool:
    if entry.fact.source_id != command:
        return False
    if entry.fact.name == "input/recorded":
        row = msgspec.json.decode(entry.fact.payload, type=PendingInput)
        return row.end == "deleted"
    return entry.fact.name == "input/withdrawn"


def _client_problems(sessions: dict[str, Evidence], notes: Notes) -> Iterator[str]:
    for scope, command, turn in notes.turns:
        if sessions[scope].message(turn.message.id) != turn.message:
            yield f"law 8: the turn of {command!r} is not what its client was told"
        if sessions[scope].said(command) is None:
            yield f"law 8: {command!r} had a turn, and is not in the transcript"
    yield from _answer_problems(sessions, notes)
    for watch in notes.watched:
        yield from _watch_problems(sessions[watch.session_id], watch)


def _answer_problems(sessions: dict[str, Evidence], notes: Notes) -> Iterator[str]:
    winners = Counter(interaction for _, interaction, _ in notes.answers)
    for interaction, times in winners.items():
        if times > 1:
            yield f"law 9: {interaction} was answered {times} times"
    blocks = {
        block.id: block
        for session in sessions.values()
        for message in session.messages
        for block in message.blocks
        if isinstance(block, ActionBlock)
    }
    for _, interaction, answer in notes.answers:
        block = blocks.get(interaction)  # type: ignore[call-overload]
        wanted = {Grant: ("granted",), Deny: ("denied",)}.get(
            type(answer), ("success",)
        )
        if block is None or block.status not in wanted:
            yield f"law 9: the answer to {interaction} was taken, and is not there"


def _watch_problems(session: Evidence, watch: Watch) -> Iterator[str]:
    expected = [event for entry in session.tape for event in events_of(entry)]
    expected = [event for event in expected if getattr(event, "seq", 0) > watch.after]
    if list(watch.events) != expected[: len(watch.events)]:
        yield f"law 10: a watcher after {watch.after} was told what is not on the tape"
