"""Whether a store says what its tapes say.

Tapes are read from the first entry, projections are derived from them once more, in
plain Python, and compared with what the store returns. Reads only; a problem is a value
with a sentence, the caller decides (`greenroom doctor`). What is wrong with projections
is mended by `Store.rebuild`; what is wrong with a tape is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import attrs

from greenroom.protocol import (
    PendingInputs,
    RunId,
    SessionId,
    StorageError,
    TapeEntry,
    classify_run,
)

from ._admission import check_fact
from ._errors import RefusedFactError
from ._store import Reader
from .memory import Replica, Undo
from .names import SESSION_START

ProblemCode = Literal["tape", "journal", "projection", "unreadable"]

_MANY: Final = 500


@attrs.frozen
class Problem:
    """One thing that is not as it must be."""

    session_id: SessionId
    code: ProblemCode
    text: str


@attrs.define(eq=False)
class _Fold:
    # What reading one tape from its beginning comes to.
    replica: Replica = attrs.field(factory=Replica)
    head: int = 0
    runs: dict[str, list[TapeEntry]] = attrs.field(factory=dict[str, list[TapeEntry]])
    keys: set[str] = attrs.field(factory=set[str])


def verify(reader: Reader) -> list[Problem]:
    """Return what is wrong in any session; empty when all is well."""
    problems: list[Problem] = []
    after: SessionId | None = None
    while scopes := reader.scopes(after):
        for scope in scopes:
            problems += verify_session(reader, scope)
        after = scopes[-1]
    return problems


def verify_session(reader: Reader, scope: SessionId) -> list[Problem]:
    """Return what is wrong in one session."""
    fold = _Fold()
    try:
        problems = list(_read_tape(reader, scope, fold))
        problems += _check_journal(reader, scope, fold)
        problems += _check_projections(reader, scope, fold)
    except StorageError as exc:
        return [Problem(scope, "unreadable", str(exc))]
    return problems


#### Tape


def _read_tape(reader: Reader, scope: SessionId, fold: _Fold) -> Iterator[Problem]:
    while (page := reader.page(scope, fold.head)).entries:
        for entry in page.entries:
            yield from _read_entry(scope, entry, fold)
    ((_, head),) = reader.heads([scope]) or [(scope, 0)]
    if head != fold.head:
        text = f"the head is {head}, the last entry {fold.head}"
        yield Problem(scope, "tape", text)


def _read_entry(scope: SessionId, entry: TapeEntry, fold: _Fold) -> Iterator[Problem]:
    fact, expected = entry.fact, fold.head + 1
    if entry.seq != expected:
        yield Problem(scope, "tape", f"entry {expected} is missing")
    if (entry.seq == 1) != (fact.name == SESSION_START):
        yield Problem(scope, "tape", f"entry {entry.seq} is {fact.name}")
    if fact.key in fold.keys:
        yield Problem(scope, "tape", f"entry {entry.seq} repeats a provenance key")
    fold.head = entry.seq
    fold.keys.add(fact.key)
    if fact.is_execution:
        fold.runs.setdefault(fact.source_id, []).append(entry)
    try:
        check_fact(fact)
        fold.replica.apply(entry, Undo())
    except (RefusedFactError, KeyError) as exc:
        yield Problem(scope, "tape", f"entry {entry.seq}: {exc}")


#### Journal


def _check_journal(reader: Reader, scope: SessionId, fold: _Fold) -> Iterator[Problem]:
    for run_id, entries in fold.runs.items():
        elsewhere = reader.is_elsewhere(scope, RunId(run_id))
        verdict = classify_run(scope, RunId(run_id), entries, elsewhere=elsewhere)
        if verdict.reason is not None:
            yield Problem(scope, "journal", f"run {run_id}: {verdict.reason}")
    found = {run.run_id for run in reader.open_runs(scope)}
    if found != set(fold.replica.open_runs):
        yield Problem(scope, "projection", "the index of open runs differs")


#### Projections


def _check_projections(
    reader: Reader, scope: SessionId, fold: _Fold
) -> Iterator[Problem]:
    yield from _check_session(reader, scope, fold)
    expected = fold.replica.messages()
    before: int | None = None
    while page := reader.messages(scope, before, _MANY):
        if page != expected[-len(page) :]:
            yield Problem(scope, "projection", "the transcript differs")
            return
        del expected[-len(page) :]
        before = page[0].order_seq
    if expected:
        yield Problem(scope, "projection", f"{len(expected)} messages are missing")
    if reader.retracted_messages(scope) != fold.replica.retracted():
        yield Problem(scope, "projection", "what was taken back differs")
    for message_id in reader.broken_messages(scope):
        yield Problem(scope, "projection", f"rows of message {message_id} are missing")


def _check_session(reader: Reader, scope: SessionId, fold: _Fold) -> Iterator[Problem]:
    info = fold.replica.info
    if info is None:
        return
    if reader.plan(scope) != info.plan:
        yield Problem(scope, "projection", "the plan differs")
    if reader.pending_inputs(scope) != PendingInputs.of(fold.replica.inputs.values()):
        yield Problem(scope, "projection", "the pending inputs differ")
    if reader.message_count(scope) != info.totals.messages:
        yield Problem(scope, "projection", "the number of messages differs")
    row = reader.session(scope)
    if row is None:
        if info.settings is not None:
            yield Problem(scope, "projection", "the session is not in the list")
        return
    found = (
        row.settings,
        row.created_at,
        row.updated_at,
        row.has_open_interaction,
        row.archived_at,
    )
    derived = (
        info.settings,
        info.created_at,
        info.updated_at,
        info.totals.open > 0,
        info.archived_at,
    )
    usage = (row.input_tokens, row.output_tokens)
    if found != derived:
        yield Problem(scope, "projection", "the session's row differs")
    if usage != (info.totals.input_tokens, info.totals.output_tokens):
        yield Problem(scope, "projection", "the usage differs")
