"""A conversation taken back to the end of one of its turns, and cleared.

A rewind retracts every message behind the place, in one transaction: the tape keeps
them all, transcript and view lose them. If it is asked to, it first puts back the files
that the tools of those turns changed, all or none. Files come first because doing that
again does the rest: a rewind that was cut off leaves the conversation as it was, and is
simply asked for again.

A session is rewound, or cleared, at rest: no turn, and nothing that waits for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

import attrs
import trio

from greenroom.actors.kernel import Ids, Request
from greenroom.actors.tools import (
    CHANGING_TOOLS,
    FileChange,
    FileRestore,
    ToolContext,
    ToolRefused,
    file_changes,
    plan_restore,
    restore_files,
)
from greenroom.protocol import (
    DispatchCommitted,
    Fact,
    GreenroomError,
    JournalError,
    MessageId,
    MessageRecord,
    OperationId,
    RunId,
    RunStarted,
    SessionId,
    ToolCallBlock,
    journal_record,
)
from greenroom.protocol.context import (
    RECONSTRUCTION_NAMES,
    SUMMARY_RESET,
    Boundary,
    Reconstruction,
    boundary_of,
    reconstruction_fact,
)
from greenroom.storage import (
    MAX_FACTS,
    Piece,
    Reader,
    Rewound as RewoundFact,
    Store,
    bootstrap_facts,
    retraction_fact,
    rewound_fact,
)

from ._session import Session

MAX_BOUNDARIES: Final = 100
"""Boundaries of one name that are looked at, the newest."""

T = TypeVar("T")


@attrs.frozen
class Rewound:
    """What a rewind did, or would do."""

    through: MessageId | None
    """The message that is the last one now; ``None``: there is none."""
    messages: tuple[MessageId, ...]
    """What is taken back, in order."""
    files: tuple[FileRestore, ...]
    """What is done with the files; empty when they are left alone."""
    commands: int
    """Calls that are taken back whose effects can't be: shell commands and others."""
    done: bool
    """``False``: it was only looked at."""


@attrs.frozen
class RewindSession(Request[Rewound]):
    """Take a conversation back to a message, which is the last one then."""

    through: str | None
    files: bool
    dry_run: bool


@attrs.frozen
class ClearSession(Request[None]):
    """Forget all that was said in a session, and begin it anew."""


class RewindRefusedError(GreenroomError):
    """The session was not rewound or cleared; no message was taken back.

    ``code`` is ``turn_active``, ``input_waits``, ``unknown_message``,
    ``not_a_boundary``, ``files_changed`` or ``files_not_restored``.
    """

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.code, self.hint = code, hint


async def rewind(session: Session, request: RewindSession, ids: Ids) -> Rewound:
    """Do what *request* asks, or say what it would do.

    Raises:
        RewindRefusedError: see its codes.
        StorageError: it could not be written; files may have been put back.
    """
    await _check_rest(session)
    await session.history.complete()
    records = session.history.records
    kept = _kept(records, request.through)
    gone = records[kept:]
    context = session.ports.context(session.settings, RunId(ids.uuid()))
    found: tuple[list[FileChange], list[FileRestore]] = ([], [])
    if request.files:
        found = await _changes(session, gone, context)
    done = Rewound(
        records[kept - 1].id if kept else None,
        tuple(record.id for record in gone),
        (*await _planned(found, context),),
        sum(_is_beyond(block.name) for _, block in _calls(gone)),
        done=not request.dry_run,
    )
    if request.dry_run or not gone:
        return done
    await _restore(done.files, found[0], context)
    await _retract(session, records[:kept], gone, done, ids)
    return done


async def clear(session: Session, ids: Ids) -> None:
    """Forget all of a session but its settings: a new incarnation (TAP-04).

    Raises:
        RewindRefusedError: a turn is not over, or input waits for one (PIN-13).
        StorageError: nothing was forgotten.
    """
    await _check_rest(session)
    facts = bootstrap_facts(ids.uuid(), session.settings)
    await session.ports.record.reset(facts)
    session.forget()


#### Where to


# What waits was said to the conversation as it is: it is not changed under it (PIN-13).
async def _check_rest(session: Session) -> None:
    rest = None if session.is_free and session.due is None else "active"
    rest = rest or await session.ports.record.unfinished()
    if rest == "active":
        raise _active()
    if rest is not None:
        raise RewindRefusedError(
            "input_waits",
            "input waits for its turn in this conversation",
            "let it have its turn, which the next prompt or a release brings, or"
            " delete it",
        )


def _active() -> RewindRefusedError:
    return RewindRefusedError(
        "turn_active",
        "the conversation is in the middle of a turn",
        "wait for its end, or cancel it",
    )


def _kept(records: Sequence[MessageRecord], through: str | None) -> int:
    # How many messages stay.
    if through is None:
        return 0
    for place, record in enumerate(records, start=1):
        if record.id == through:
            if place < len(records) and records[place].role == "assistant":
                raise RewindRefusedError(
                    "not_a_boundary",
                    f"message {through[:80]!r} is not the end of a turn",
                    f"take its answer, {records[place].id!r}, or the one before it",
                )
            return place
    raise RewindRefusedError(
        "unknown_message",
        f"there is no message {through[:80]!r} in this conversation",
        "read the session's messages to see their ids",
    )


#### Files


async def _changes(
    session: Session, gone: Sequence[MessageRecord], context: ToolContext
) -> tuple[list[FileChange], list[FileRestore]]:
    # What the tools of these messages changed; and of what nothing is kept.
    every = await trio.to_thread.run_sync(file_changes, context.scratch)
    runs = {change.operation.run_id for change in every}
    names = {record.id for record in gone}
    dispatched, deferred = await _read(
        session, lambda reader: _dispatched(reader, session.id, runs, names)
    )
    changes = [change for change in every if change.operation in dispatched]
    # A call that was allowed first is an operation of a run of its own, whose requests
    # are counted anew.
    known = Counter(
        (
            dispatched[of],
            of.provider_tool_call_id,
            None if of.run_id in deferred else of.request_seq,
        )
        for of in {change.operation for change in changes}
    )
    missing = [
        FileRestore(_named_in(block), "refused", "what it was is not kept any more")
        for message_id, block in _calls(gone)
        if block.name in CHANGING_TOOLS
        and block.status == "success"
        and not _is_known(known, message_id, block)
    ]
    return changes, missing


def _is_known(
    known: Counter[tuple[MessageId, str, int | None]],
    message_id: MessageId,
    block: ToolCallBlock,
) -> bool:
    # Each change stands for one call, even where a model uses an id twice.
    for request_seq in (block.request_seq, None):
        key = message_id, block.call_id, request_seq
        if known[key]:
            known[key] -= 1
            return True
    return False


def _dispatched(
    reader: Reader,
    scope: SessionId,
    runs: Iterable[RunId],
    message_ids: set[MessageId],
) -> tuple[dict[OperationId, MessageId], set[RunId]]:
    # The journal says which calls there were, and for which message; and which runs
    # are of one call that was allowed.
    found: dict[OperationId, MessageId] = {}
    deferred: set[RunId] = set()
    for run_id in runs:
        for entry in reader.run_entries(scope, run_id):
            try:
                record = journal_record(entry.fact)
            except JournalError:
                continue
            match record:
                case RunStarted(run_kind="deferred_tool"):
                    deferred.add(run_id)
                case DispatchCommitted() if record.tool_name in CHANGING_TOOLS:
                    found[record.operation] = record.message_id
                case _:
                    pass
    here = {of: message for of, message in found.items() if message in message_ids}
    return here, deferred


async def _planned(
    found: tuple[list[FileChange], list[FileRestore]], context: ToolContext
) -> list[FileRestore]:
    changes, missing = found
    planned = await trio.to_thread.run_sync(
        plan_restore, context.scratch, context.workspace, changes
    )
    return [*planned, *missing]


async def _restore(
    planned: Sequence[FileRestore], changes: list[FileChange], context: ToolContext
) -> None:
    if not planned:
        return
    _refuse(planned)
    put_back = partial(restore_files, context.scratch, context.workspace, changes)
    try:
        # Not left to itself by a cancel: it must be known what happened.
        done = await trio.to_thread.run_sync(put_back)
    except ToolRefused as exc:
        raise RewindRefusedError(
            "files_not_restored",
            f"not all files were put back: {exc}",
            "rewind again to do the rest, or rewind without the files",
        ) from exc
    _refuse(done)


def _refuse(planned: Sequence[FileRestore]) -> None:
    refused = [f"{each.path!r} ({each.reason})" for each in planned if each.reason]
    if refused:
        more = f" and {len(refused) - 5} more" if len(refused) > 5 else ""
        raise RewindRefusedError(
            "files_changed",
            f"can't put back {', '.join(refused[:5])}{more}; nothing was changed",
            "rewind without the files, or bring them back to what the tools wrote",
        )


def _calls(records: Iterable[MessageRecord]) -> list[tuple[MessageId, ToolCallBlock]]:
    return [
        (record.id, block)
        for record in records
        for block in record.blocks
        if isinstance(block, ToolCallBlock)
    ]


def _is_beyond(name: str) -> bool:
    return name not in (*CHANGING_TOOLS, *_READING)


_READING: Final = (
    "read",
    "list",
    "find",
    "grep",
    "ask_user",
    "update_plan",
    "tape_search",
    "tape_context",
)


def _named_in(block: ToolCallBlock) -> str:
    return block.locations[0].path if block.locations else block.title or block.name


#### The conversation


async def _retract(
    session: Session,
    kept: Sequence[MessageRecord],
    gone: Sequence[MessageRecord],
    done: Rewound,
    ids: Ids,
) -> None:
    last = kept[-1].order_seq if kept else 0
    boundary = await _boundary(session, last)
    restored = [f.path for f in done.files if f.action in ("restore", "remove")]
    rewound = RewoundFact(
        through=done.through, messages=len(done.messages), files=tuple(restored)
    )
    facts = [
        *map(retraction_fact, done.messages),
        *([] if boundary is None else [_anchor(boundary, last, ids)]),
        rewound_fact(rewound, revision=ids.uuid()),
    ]
    head = await session.ports.record.append_all(_batches(facts))
    session.history.retract(gone)
    if boundary is not None:
        entry = head - 1
        moved = attrs.evolve(boundary, entry=entry, state=_state(boundary, last))
        session.history.move_boundary(moved)


async def _boundary(session: Session, last: int) -> Boundary | None:
    # The checkpoint must tell of nothing that is taken back: then the newest one that
    # does not is in force again. None: the one in force may stay.
    now = session.history.boundary
    if now is None or (now.cursor <= last + 1 and now.state.through_order_seq <= last):
        return None
    earlier = await _read(session, lambda reader: _boundaries(reader, session.id))
    for boundary in earlier:
        if boundary.cursor <= last + 1:
            return boundary
    return Boundary(SUMMARY_RESET, 0, Reconstruction())


def _boundaries(reader: Reader, scope: SessionId) -> list[Boundary]:
    entries = [
        entry
        for name in sorted(RECONSTRUCTION_NAMES)
        for entry in reader.named(scope, name, limit=MAX_BOUNDARIES)
    ]
    entries.sort(key=lambda entry: entry.seq, reverse=True)
    return [b for b in map(boundary_of, entries) if b is not None]


def _anchor(boundary: Boundary, last: int, ids: Ids) -> Fact:
    state = _state(boundary, last)
    return reconstruction_fact(boundary.name, state, revision=ids.uuid())


def _state(boundary: Boundary, last: int) -> Reconstruction:
    state = boundary.state
    through = min(state.through_order_seq, last)
    return Reconstruction(
        cursor_order_seq=state.cursor_order_seq,
        summary=state.summary,
        reason=state.reason,
        gaps=state.gaps,
        summary_updated_at=state.summary_updated_at,
        through_order_seq=through,
        restores=boundary.entry,
    )


def _batches(facts: Sequence[Fact]) -> list[Sequence[Fact]]:
    return [
        facts[start : start + MAX_FACTS] for start in range(0, len(facts), MAX_FACTS)
    ]


async def _read(session: Session, fn: Callable[[Store], T]) -> T:
    return await session.ports.record.writer.submit(Piece(fn))
