"""Stores on disk with sessions to write to and long tapes to read, for the cases."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from greenroom.protocol import (
    DispatchCommitted,
    Fact,
    FactKind,
    MessageId,
    OperationId,
    RunId,
    RunStarted,
    SessionId,
    SessionSettings,
    SourceType,
    ToolTarget,
)
from greenroom.storage import (
    Grant,
    Piece,
    SqliteStore,
    Tape,
    bootstrap_facts,
    open_store,
)

SETTINGS: Final = SessionSettings(
    agent_id="default", title="Bench", workspace="/w", provider="p", model="m"
)
APPEND: Final = 500
"""Facts in one append of a long tape."""


@contextmanager
def scratch() -> Generator[Path]:
    """A folder on the disk that state would be on, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="greenroom-bench-"))
    try:
        yield folder / "state"
    finally:
        shutil.rmtree(folder)


def open_tapes(store: SqliteStore, count: int) -> list[Tape]:
    """Begin *count* sessions with an open run each."""
    member = store.join("bench", "", 1e9, now=0.0)
    tapes: list[Tape] = []
    pieces: list[Piece] = []
    for number in range(count):
        grant = store.acquire(member, SessionId(f"s{number}"), now=0.0)
        assert isinstance(grant, Grant)
        tape = Tape(grant)
        facts = bootstrap_facts(f"incarnation {number}", SETTINGS)
        start = RunStarted(
            run_id=run_id(number), message_id=MessageId("m1"), run_kind="loop"
        )
        pieces.append(tape.append_piece(facts, now=0.0))
        pieces.append(tape.commit_piece(start, now=0.0))
        tapes.append(tape)
    assert all(settled.error is None for settled in store.run_group(pieces))
    return tapes


def run_id(number: int) -> RunId:
    """The run of a session."""
    return RunId(f"00000000-0000-4000-8000-{number:012}")


def strict_piece(tape: Tape, session: int, call: int) -> Piece:
    """The piece that commits one dispatch."""
    record = DispatchCommitted(
        operation=OperationId(run_id(session), 1, f"call-{call}"),
        message_id=MessageId("m1"),
        tool_name="write_file",
        tool_source="agent",
        arguments_hash="a" * 64,
        target=ToolTarget("server"),
    )
    return tape.commit_piece(record, now=1.0)


@contextmanager
def long_tape(facts: int) -> Generator[tuple[SqliteStore, Tape, Path]]:
    """A store with one session of *facts* events of about 300 bytes."""
    with scratch() as folder:
        store = open_store(folder)
        try:
            (tape,) = open_tapes(store, 1)
            for start in range(0, facts, APPEND):
                notes = [note(n) for n in range(start, min(start + APPEND, facts))]
                store.run_group([tape.append_piece(notes, now=float(start))])
            yield store, tape, folder / "greenroom.db"
        finally:
            store.close()


def note(number: int) -> Fact:
    """An event with a word of its own and one that all have."""
    return Fact(
        kind=FactKind.EVENT,
        name="note/taken",
        source_type=SourceType.RUNTIME_EVENT,
        source_id="note",
        source_seq=number,
        payload=f'{{"text":"common word{number} {"filler " * 35}"}}',
    )
