"""Conversations of the older system become sessions, once, by the normal writer.

Each is a tape of its own: what was said as facts of messages, at the times at which it
was said, so that lists keep their order. Nothing of the journal is made: no run of ours
did it (JRN-15). Its id is made of its id there, so that an import that is repeated, of
the file or of a copy, finds what is here already; settings are its last fact, so that
one that was killed half-way is not listed and is made anew (PER-10, TAP-08).

Status is kept. A message that was in progress is written so, and then ended as any
restart ends one: as an error that keeps its output. The file is trusted with nothing
else: the workspace and the permissions are those of whoever reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

import attrs
import msgspec

from greenroom.protocol import (
    Fact,
    FactKind,
    MessageId,
    MessageRecord,
    SessionId,
    SessionSettings,
    SourceType,
    StorageError,
    TapeEntry,
    ToolCallBlock,
    canonical_json,
    revisions,
)
from greenroom.protocol.context import Reconstruction, reconstruction_fact

from .._errors import FencedError
from .._store import Reader, Store
from .._values import Appended, Grant, Held, Member
from ..exchange import ExportedSession, ended_revisions, export_session
from ..memory import MemoryStore
from ..names import (
    indicator_fact,
    message_fact,
    settings_fact,
    start_fact,
    tool_facts,
)
from ..sessions import MAX_TITLE
from ..tape import Tape
from ._blocks import blocks_of
from ._file import LegacyError
from ._threads import OldMessage, OldThreads, Thread, open_threads

MAX_PROBLEMS: Final = 100
"""Problems that are told one by one; all are counted."""

_BATCH_FACTS: Final = 200
_BATCH_BYTES: Final = 4 << 20
_MAX_SUMMARY: Final = 100_000

Done = Callable[[int, int], None]
"""Is told how many conversations have been looked at, and of how many."""


@attrs.frozen
class LegacyThread:
    """What became of one conversation."""

    id: SessionId
    """The session that it is here, or would be."""
    source_id: str
    title: str
    messages: int
    outcome: Literal["imported", "would be imported", "already here", "left out"]
    reason: str = ""
    """Why it was left out."""


@attrs.frozen
class LegacyImport:
    """What became of a file."""

    threads: tuple[LegacyThread, ...]
    problems: tuple[str, ...]
    """The first `MAX_PROBLEMS`."""
    problem_count: int


def import_threads(
    store: Store,
    member: Member,
    path: Path,
    defaults: SessionSettings,
    *,
    new_id: Callable[[], str],
    now: float,
    done: Done = lambda _done, _of: None,
    only: Sequence[int] | None = None,
) -> LegacyImport:
    """Make sessions of the conversations in *path* that are not here yet.

    Args:
        store: where to.
        member: who owns them while they are made.
        path: a database of the older system; it is only read.
        defaults: their settings, but for title, system prompt and agent.
        new_id: makes ids that nobody has.
        now: the time of what has none of its own; nothing is later.
        done: told after each conversation.
        only: some of them, by their `conversation_numbers`; all when not given.

    Raises:
        LegacyError: the file is no such database.
        StorageError: the store can't be written; what was told of is here.
    """
    report = _Report()
    with open_threads(path) as threads:
        numbers = threads.numbers() if only is None else only
        for count, number in enumerate(numbers, 1):
            with report.about(number):
                thread = threads.thread(number)
                making = _Making(store, member, threads, defaults, new_id, now, report)
                report.threads.append(making.take_over(thread))
            done(count, len(numbers))
    return report.whole()


def conversation_numbers(path: Path) -> list[int]:
    """Return the numbers of the conversations in *path*, for `import_threads`.

    Raises:
        LegacyError: the file is no such database.
    """
    with open_threads(path) as threads:
        return threads.numbers()


def survey_threads(
    reader: Reader | None, path: Path, *, done: Done = lambda _done, _of: None
) -> LegacyImport:
    """Return what `import_threads` would do; *reader* is of the state, if there is one.

    Raises:
        LegacyError: the file is no such database.
    """
    report = _Report()
    with open_threads(path) as threads:
        numbers = threads.numbers()
        for count, number in enumerate(numbers, 1):
            with report.about(number):
                thread = threads.thread(number)
                scope, messages = _scope_of(thread), threads.count(thread)
                told = _known(thread, scope, messages, reader)
                report.threads.append(
                    told or _told(thread, scope, messages, "would be imported")
                )
            done(count, len(numbers))
    return report.whole()


def export_thread(
    path: Path, source_id: str, defaults: SessionSettings, *, now: float
) -> Iterator[ExportedSession | TapeEntry]:
    """Yield the lines of one conversation of *path*, as those of a session.

    It need not have been imported: the old tables are read.

    Raises:
        LegacyError: there is no such conversation, or it can't be read.
    """
    store = MemoryStore.create()
    member = store.join("export", "", 60.0, now=now)
    report = _Report()
    with open_threads(path) as threads:
        for number in threads.numbers():
            thread = threads.thread(number)
            if thread.source_id != source_id:
                continue
            whole = attrs.evolve(thread, left_out="")
            making = _Making(
                store, member, threads, defaults, lambda: "export", now, report
            )
            yield from export_session(store, making.take_over(whole).id)
            return
    raise LegacyError(f"it holds no conversation {source_id[:80]!r}")


#### One conversation


@attrs.define(eq=False)
class _Report:
    threads: list[LegacyThread] = attrs.field(factory=list[LegacyThread])
    problems: list[str] = attrs.field(factory=list[str])
    problem_count: int = 0

    def add(self, text: str) -> None:
        """Note that something was not read."""
        self.problem_count += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)

    @contextmanager
    def about(self, number: int) -> Generator[None]:
        """Note a conversation that can't be read, and go on."""
        try:
            yield
        except LegacyError as exc:
            self.add(f"conversation {number}: {exc}")

    def whole(self) -> LegacyImport:
        """Return what was noted."""
        return LegacyImport(
            tuple(self.threads), tuple(self.problems), self.problem_count
        )


@attrs.frozen
class _Making:
    store: Store
    member: Member
    threads: OldThreads
    defaults: SessionSettings
    new_id: Callable[[], str]
    now: float
    report: _Report

    def take_over(self, thread: Thread) -> LegacyThread:
        """Make the session of *thread*, unless it is here, and tell of it."""
        scope = _scope_of(thread)
        known = _known(thread, scope, 0, self.store)
        if known is not None:
            return known
        grant = self.store.acquire(self.member, scope, now=self.now)
        if isinstance(grant, Held):
            return _told(thread, scope, 0, "left out", f"held by {grant.owner.node}")
        if not isinstance(grant, Grant):
            raise StorageError("this import was declared dead; run it again")
        tape = Tape(grant)
        with self._undone(tape):
            self._begin(tape, thread)
            messages = self._write_messages(tape, thread)
            self._write(tape, thread, self._last_facts(thread, messages))
        self.store.release(tape.grant, now=self.now)
        return _told(thread, scope, len(messages), "imported")

    @contextmanager
    def _undone(self, tape: Tape) -> Generator[None]:
        try:
            yield
        except BaseException:
            # If this fails too, the session stays unlisted, and is made anew.
            with suppress(StorageError):
                self.store.delete(tape.grant, tape.head)
            raise

    def _begin(self, tape: Tape, thread: Thread) -> None:
        # Whatever one that was killed half-way has left is forgotten.
        start, at = start_fact(self.new_id()), self._time(thread.created_at)
        begun = self.store.reset(tape.grant, tape.head, [start], now=at)
        if not isinstance(begun, Appended):
            raise FencedError(tape.scope, tape.grant.token)
        tape.head = begun.head

    def _write_messages(self, tape: Tape, thread: Thread) -> list[int]:
        # Returns the order that each had there.
        orders: list[int] = []
        batch: list[Fact] = []
        size = 0
        for number, old in enumerate(self.threads.messages(thread), 1):
            if old.metadata.message_type == "compaction":
                batch.append(_indicator(thread, number, len(orders) + 1))
                continue
            orders.append(old.order)
            if old.problem:
                self.report.add(
                    f"{thread.source_id[:80]!r}, message {len(orders)}: {old.problem}"
                )
            facts = self._message_facts(tape.scope, len(orders), old)
            batch += facts
            size += sum(len(fact.payload) for fact in facts)
            if len(batch) >= _BATCH_FACTS or size >= _BATCH_BYTES:
                self._write(tape, thread, batch)
                batch, size = [], 0
        self._write(tape, thread, batch)
        return orders

    def _message_facts(
        self, scope: SessionId, order: int, old: OldMessage
    ) -> list[Fact]:
        name = MessageId(f"{scope}.{order}")
        record = MessageRecord(
            id=name,
            order_seq=order,
            role=old.role,
            status=old.status,
            blocks=blocks_of(old.blocks, name, in_progress=old.status == "pending"),
            metadata=old.metadata,
            created_at=self._time(old.created_at),
            updated_at=self._time(old.updated_at),
        )
        parts = revisions(record, record.blocks)
        if record.status == "pending":
            parts += ended_revisions(record, record.updated_at)
        called = {
            block.id: block
            for part in parts
            for block in part.blocks
            if isinstance(block, ToolCallBlock) and block.status in ("success", "error")
        }
        facts = [message_fact(part) for part in parts]
        for block in called.values():
            facts += tool_facts(name, block)
        return facts

    def _last_facts(self, thread: Thread, orders: list[int]) -> list[Fact]:
        facts: list[Fact] = []
        cursor = sum(order < thread.summary_cursor for order in orders) + 1
        if thread.summary and cursor > 1:
            facts.append(_summary_fact(thread, cursor))
        told = {"sourceId": thread.source_id, "messages": len(orders)}
        facts.append(
            Fact(
                kind=FactKind.EVENT,
                name="migration/backfill",
                source_type=SourceType.MIGRATION,
                source_id=thread.identity,
                payload=canonical_json(told),
            )
        )
        facts.append(settings_fact(self._settings(thread), revision=thread.identity))
        return facts

    def _settings(self, thread: Thread) -> SessionSettings:
        agent = self.store.agent(thread.agent_id) if thread.agent_id else None
        return msgspec.structs.replace(
            self.defaults,
            title=thread.title[:MAX_TITLE] or self.defaults.title,
            agent_id=self.defaults.agent_id if agent is None else agent.id,
            system_prompt=thread.system_prompt[:_MAX_SUMMARY],
        )

    def _write(self, tape: Tape, thread: Thread, facts: list[Fact]) -> None:
        at = self._time(thread.updated_at)
        for start in range(0, len(facts), _BATCH_FACTS):
            piece = tape.append_piece(facts[start : start + _BATCH_FACTS], now=at)
            piece.run(self.store)

    def _time(self, at: float) -> float:
        return min(at or self.now, self.now)


def _indicator(thread: Thread, number: int, before: int) -> Fact:
    revision = f"{thread.identity}.{number}"
    return indicator_fact(before, revision=revision, source=SourceType.MIGRATION)


def _summary_fact(thread: Thread, cursor: int) -> Fact:
    summary = thread.summary[:_MAX_SUMMARY]
    state = Reconstruction(cursor_order_seq=cursor, summary=summary)
    return reconstruction_fact(
        "compaction/migrated_summary", state, revision=thread.identity
    )


def _scope_of(thread: Thread) -> SessionId:
    return SessionId(f"legacy-{thread.identity}")


def _known(
    thread: Thread, scope: SessionId, messages: int, reader: Reader | None
) -> LegacyThread | None:
    if thread.left_out:
        return _told(thread, scope, messages, "left out", thread.left_out)
    row = None if reader is None else reader.session(scope)
    if row is not None:
        return _told(thread, scope, row.message_count, "already here")
    return None


def _told(
    thread: Thread,
    scope: SessionId,
    messages: int,
    outcome: Literal["imported", "would be imported", "already here", "left out"],
    reason: str = "",
) -> LegacyThread:
    return LegacyThread(
        scope, thread.source_id, thread.title, messages, outcome, reason
    )
