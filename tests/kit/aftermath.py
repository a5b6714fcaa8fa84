"""What must be so after a crash: the checks that sweeps and kill tests share.

A `Witness` stands between a session and its record and notes what it was told is
durable, at the moment it is told. The others look at what a later engine finds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import trio

from greenroom.engine import Engine, Grant, SessionHandle, TurnResult
from greenroom.protocol import (
    DispatchCommitted,
    JournalRecord,
    MessageRecord,
    RunStarted,
    RunTerminal,
    SessionId,
    TapeEntry,
    journal_fact,
    journal_record,
)
from greenroom.storage import RUN_ACKNOWLEDGED, open_reader, verify

from .rehearsal import calls_of, journal_of, read_tape


@attrs.define(eq=False)
class Told:
    """What was said to be durable."""

    session: str | None = None
    command: str | None = None
    """A prompt that was accepted."""
    facts: dict[str, str] = attrs.field(factory=dict)
    """Payloads by provenance key."""
    before_commit: Callable[[JournalRecord], None] = lambda record: None
    """Called with each strict fact before it is written."""


@attrs.define(eq=False)
class Witness:
    """A session's record, and what it told."""

    inner: Any
    told: Told

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def post(self, command_id: str, body: str) -> Any:
        posted = await self.inner.post(command_id, body)
        self.told.command = command_id
        return posted

    async def append(self, facts: Any, settles: Any = ()) -> None:
        await self.inner.append(facts, settles)
        self.told.facts |= {fact.key: fact.payload for fact in facts}

    async def commit(self, record: Any) -> bool:
        self.told.before_commit(record)
        created = await self.inner.commit(record)
        fact = journal_fact(record)
        self.told.facts[fact.key] = fact.payload
        return created


def watch(session: SessionHandle, told: Told) -> None:
    """Note in *told* what the loaded *session* is told from now on."""
    loaded = session._sessions.loaded(session.id)
    assert loaded is not None
    told.session = session.id
    behaviour = loaded.session
    witness = Witness(behaviour.ports.record, told)
    behaviour.ports = attrs.evolve(behaviour.ports, record=witness)


def problems(state: Path) -> list[str]:
    """Return what is wrong with the store."""
    with closing(open_reader(state)) as reader:
        return [f"{p.code}: {p.text}" for p in verify(reader)]


def tapes(state: Path) -> dict[str, list[TapeEntry]]:
    """Return every entry of every session."""
    with closing(open_reader(state)) as reader:
        scopes = reader.scopes()
    return {scope: read_tape(state, scope) for scope in scopes}


def lost(told: Told, tape: list[TapeEntry]) -> list[str]:
    """Return the keys of facts that were told to be durable and are not there."""
    found = {entry.fact.key: entry.fact.payload for entry in tape}
    return [key for key, payload in told.facts.items() if found.get(key) != payload]


def undispatched(effects: list[str], tape: list[TapeEntry]) -> set[str]:
    """Return the effects that no dispatch fact announced."""
    announced = {
        record.operation.idempotency_key
        for record in journal_of(tape)
        if isinstance(record, DispatchCommitted)
    }
    return set(effects) - announced


def repeated(effects: list[str]) -> list[str]:
    """Return the effects that happened more than once."""
    return [key for key, times in Counter(effects).items() if times > 1]


def unended_runs(tape: list[TapeEntry]) -> set[str]:
    """Return the runs that have neither a terminal nor an acknowledgement."""
    records = [journal_record(e.fact) for e in tape if e.fact.is_execution]
    started = {r.run_id for r in records if isinstance(r, RunStarted)}
    ended = {r.run_id for r in records if isinstance(r, RunTerminal)}
    known = {e.fact.source_id for e in tape if e.fact.name == RUN_ACKNOWLEDGED}
    return {str(run) for run in started - ended - known}


async def go_on(engine: Engine, session_id: str, text: str = "again") -> TurnResult:
    """Answer what waits, take the next prompt, and allow whatever it asks."""
    session = await engine.open_session(SessionId(session_id))
    for block in await session.interactions():
        await session.answer(block.id, Grant())
    return await granted_turn(session, text)


async def granted_turn(session: SessionHandle, text: str) -> TurnResult:
    """Return the turn of *text*; every permission it asks for is granted.

    When an answer can't be given the turn is left, with the error of the answer.
    """
    failures: list[Exception] = []
    turns: list[TurnResult] = []
    async with trio.open_nursery() as nursery:

        async def grant_all() -> None:
            async with session.follow() as events:
                async for _ in events:
                    for block in await session.interactions():
                        await session.answer(block.id, Grant())

        async def take_turn() -> None:
            try:
                turns.append(await session.prompt(text))
            except Exception as exc:
                failures.append(exc)
            nursery.cancel_scope.cancel()

        async def grant_or_leave() -> None:
            try:
                await grant_all()
            except Exception as exc:
                failures.append(exc)
                nursery.cancel_scope.cancel()

        nursery.start_soon(take_turn)
        nursery.start_soon(grant_or_leave)
    if failures:
        raise failures[0]
    return turns[0]


def false_successes(messages: list[MessageRecord], truth: str) -> list[str]:
    """Return calls that are shown as a success, and never came to *truth*."""
    return [
        f"{call.id}: {call.response!r}"
        for message in messages
        for call in calls_of(message)
        if message.status != "pending"
        and call.status == "success"
        and call.response != truth
    ]
