"""What must be so at the end of any history.

The laws of every session (`kit.laws`), and what only the simulation can know: what its
tools did, what its clients and the engine were told, and where the process died. What
must be so of input that waits is in `delivery`, of requests in `requests`, of whole
sessions in `estate`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest

import attrs
import msgspec
from kit.aftermath import undispatched, unended_runs
from kit.laws import session_problems
from sim.cast import World
from sim.delivery import delivery_problems
from sim.estate import estate_problems
from sim.evidence import Evidence, evidence_of
from sim.lane import Told
from sim.notes import Notes, Watch
from sim.requests import sending_problems

from greenroom.engine import Deny, Grant
from greenroom.protocol import (
    ActionBlock,
    Answer,
    DispatchCommitted,
    MessageRecord,
    RunTerminal,
    ToolCallBlock,
    ToolOutcome,
    events_of,
    journal_record,
)
from greenroom.storage import RUN_ACKNOWLEDGED, SqliteReader, verify


@attrs.frozen
class Case:
    """All that is known in the end."""

    sessions: dict[str, Evidence]
    world: World
    told: Told
    notes: Notes
    died: bool
    """A life ended before its time."""

    def is_whole(self, scope: str) -> bool:
        """Whether all that a session was ever told of must be on its tape."""
        return scope in self.sessions and scope not in self.notes.cleared


def judge(
    reader: SqliteReader, world: World, told: Told, notes: Notes, *, died: bool
) -> list[str]:
    """Return everything that is wrong; *died*: a life ended before its time."""
    sessions = {str(scope): evidence_of(reader, scope) for scope in reader.scopes()}
    case = Case(sessions, world, told, notes, died)
    problems = [f"projection: {problem}" for problem in verify(reader)]
    for session in sessions.values():
        problems += session_problems(reader, session.id, session.tape)
        problems += _tape_problems(session, died=died)
        problems += _call_problems(session, world)
        problems += delivery_problems(session, notes)
    problems += sending_problems(list(sessions.values()), world)
    problems += estate_problems(reader, sessions, notes)
    problems += _effect_problems(case)
    problems += _told_problems(case)
    problems += _client_problems(case)
    return problems


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


def _effect_problems(case: Case) -> Iterator[str]:
    entries = [e for session in case.sessions.values() for e in session.tape]
    # Of a session that was deleted or cleared nobody knows any more.
    known = [k for k, whose in case.world.effects.items() if case.is_whole(whose)]
    for key in undispatched(known, entries):
        yield f"law 3: the effect {key} has no dispatch fact"


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


def _told_problems(case: Case) -> Iterator[str]:
    kept = {
        (str(session.id), entry.fact.key): entry.fact.payload
        for session in case.sessions.values()
        for entry in session.tape
    }
    for scope in case.told.listed - case.sessions.keys() - case.notes.doomed:
        yield f"law 8: session {scope} is gone"
    # What was told before a clearing is forgotten with it; a death between the two
    # leaves open which it was.
    unsure = case.notes.cleared if case.died else set[str]()
    for (scope, key), payload in case.told.facts.items():
        if scope not in case.sessions or scope in unsure:
            continue
        if kept.get((scope, key)) != payload:
            yield f"law 8: the fact {key} of {scope} was told to be durable, and is not"
    for scope, command in case.told.commands:
        if scope in case.sessions and scope not in unsure:
            yield from _fate_problems(case.sessions[scope], command)


def _fate_problems(session: Evidence, command: str) -> Iterator[str]:
    begun = session.begun(command)
    gone = command in session.withdrawn
    if command in session.waiting:
        yield f"PIN-08: {command!r} still waits"
    elif begun == gone:
        what = "two things" if begun else "nothing"
        yield f"law 8: {command!r} was taken in and {what} came of it"


def _client_problems(case: Case) -> Iterator[str]:
    for scope, command, turn in case.notes.turns:
        if not case.is_whole(scope):
            continue
        session = case.sessions[scope]
        if session.message(turn.message.id) != turn.message:
            yield f"law 8: the turn of {command!r} is not what its client was told"
        if not session.begun(command):
            yield f"law 8: {command!r} had a turn, and is not in the transcript"
    yield from _answer_problems(case)
    for watch in case.notes.watched:
        if case.is_whole(watch.session_id):
            yield from _watch_problems(case.sessions[watch.session_id], watch)


def _answer_problems(case: Case) -> Iterator[str]:
    winners = Counter(interaction for _, interaction, _ in case.notes.answers)
    for interaction, times in winners.items():
        if times > 1:
            yield f"law 9: {interaction} was answered {times} times"
    blocks: dict[str, ActionBlock] = {
        block.id: block
        for session in case.sessions.values()
        for message in session.ever.values()
        for block in message.blocks
        if isinstance(block, ActionBlock)
    }
    for scope, interaction, answer in case.notes.answers:
        if not case.is_whole(scope):
            continue
        block = blocks.get(interaction)
        if block is None or block.status != _wanted(block, answer):
            yield f"law 9: the answer to {interaction} was taken, and is not there"


def _wanted(block: ActionBlock, answer: Answer) -> str:
    if isinstance(answer, Grant):
        return "granted"
    # To say no to a budget is to choose its end.
    is_denial = isinstance(answer, Deny) and block.origin != "budget"
    return "denied" if is_denial else "success"


def _watch_problems(session: Evidence, watch: Watch) -> Iterator[str]:
    expected = [event for entry in session.tape for event in events_of(entry)]
    expected = [event for event in expected if getattr(event, "seq", 0) > watch.after]
    for told, is_there in zip_longest(watch.events, expected):
        if told is not None and told != is_there:
            yield (
                f"law 10: a watcher after {watch.after} was told {told}, which is not"
                f" on the tape; there is {is_there}"
            )
            return
