"""Sessions as lines of JSON: written out whole, and read back as far as they are.

A file holds, for each session, a line about it and a line for each entry of its tape.
Reading trusts nothing in it: bytes may be torn, padded, too many or made to harm. Every
whole line is taken, every other is reported by its number, and memory is bounded by
one line and one batch.

What is read becomes a *new* session: another id, another incarnation, the workspace
and the permissions of whoever reads it. Facts of the journal are written out and never
read back in: they are made by the journal alone (JRN-15), and what a run did elsewhere
is nothing to recover here. An answer that was not finished is an error that keeps its
output, so a question in a file can't be answered into an effect.

A session is listed once it is whole: its settings are its last fact. What an import
leaves that was killed is never listed, and `retention.sweep` removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final, final

import attrs
import msgspec

from greenroom.protocol import (
    Fact,
    JournalError,
    MessageRecord,
    SessionId,
    SessionSettings,
    StorageError,
    TapeEntry,
    interrupted,
    revisions,
)

from ._admission import check_fact
from ._errors import FencedError, RefusedFactError
from ._store import Reader, Store
from ._values import Appended, Grant, Member
from .doctor import readable_entries
from .names import (
    FORK_DISCARD,
    FORK_MERGE,
    FORK_START,
    RUN_ACKNOWLEDGED,
    SESSION_ARCHIVED,
    SESSION_CONFIGURED,
    SESSION_START,
    TAPE_LINKED,
    message_fact,
    settings_fact,
    start_fact,
)

MAX_LINE_BYTES: Final = 8 << 20
"""An entry whose payload and meta are as large as can be, escaped, is smaller."""

MAX_SESSIONS: Final = 1_000
"""Sessions of one file that are read."""

MAX_PROBLEMS: Final = 100
"""Problems that are told one by one; all are counted."""

_BATCH_FACTS: Final = 200
_BATCH_BYTES: Final = 4 << 20
_PADDING: Final = b"\xef\xbb\xbf\x00 \t\r\n"
_LEFT_OUT_PREFIXES: Final = ("execution/", "view/", "provider/")
_LEFT_OUT: Final = (
    SESSION_START,
    SESSION_ARCHIVED,
    RUN_ACKNOWLEDGED,
    # They would open other sessions of this store to the model.
    TAPE_LINKED,
    FORK_DISCARD,
    FORK_MERGE,
    FORK_START,
)


class ExportedSession(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The line before the entries of a session."""

    greenroom_session: SessionId
    title: str
    entries: int


_ENTRY: Final = msgspec.json.Decoder(TapeEntry)
_HEADER: Final = msgspec.json.Decoder(ExportedSession)
_SETTINGS: Final = msgspec.json.Decoder(SessionSettings)


@attrs.frozen
class LineProblem:
    """What of a file could not be read."""

    line: int
    """From 1."""
    text: str


@attrs.frozen
class ImportedSession:
    """A session that was made of one in a file."""

    id: SessionId
    source_id: SessionId
    title: str
    entries: int
    """Facts that were written, without those that every session begins with."""
    left_out: int
    """Facts of the journal and others that are not read back in."""


@attrs.frozen
class Imported:
    """What became of a file."""

    sessions: tuple[ImportedSession, ...]
    problems: tuple[LineProblem, ...]
    """The first `MAX_PROBLEMS`."""
    problem_count: int


def export_session(
    reader: Reader, scope: SessionId
) -> Iterator[ExportedSession | TapeEntry]:
    """Yield what the lines of *scope* hold: its header, then every readable entry.

    Its journal is among them. What is appended meanwhile is not.
    """
    row = reader.session(scope)
    head = next((head for _, head in reader.heads([scope])), 0)
    title = "" if row is None else row.settings.title
    yield ExportedSession(greenroom_session=scope, title=title, entries=head)
    for entry in readable_entries(reader, scope):
        if entry.seq > head:
            return
        yield entry


def import_sessions(
    store: Store,
    member: Member,
    stream: BinaryIO,
    defaults: SessionSettings,
    *,
    new_id: Callable[[], str],
    now: float,
) -> Imported:
    """Make new sessions of what is whole in *stream*.

    Args:
        store: where to.
        member: who owns them while they are made.
        stream: lines of an export, or of what the doctor took out of damaged state.
        defaults: their workspace and permission mode are used for every session, the
            others where the file has none.
        new_id: makes ids that nobody has.
        now: the time of every new fact.

    Raises:
        StorageError: the store can't be written; what is not listed was not made.
    """
    reading = _Reading(store, member, defaults, new_id, now)
    for number, data in _lines(stream):
        if data is None:
            reading.report(number, f"has more than {MAX_LINE_BYTES} bytes")
        elif data:
            reading.take(number, data)
    reading.finish_session()
    return Imported(
        tuple(reading.sessions), tuple(reading.problems), reading.problem_count
    )


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    number = 0
    while data := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(data) <= MAX_LINE_BYTES or data.endswith(b"\n"):
            yield number, data.strip(_PADDING)
            continue
        while not data.endswith(b"\n") and (data := stream.readline(1 << 16)):
            pass
        yield number, None


#### Reading


@attrs.define(eq=False)
class _Session:
    """One that is being made."""

    source_id: SessionId
    grant: Grant
    incarnation: str
    head: int
    settings: SessionSettings | None = None
    last_seq: int = 0
    written: int = 0
    left_out: int = 0
    batch: list[tuple[int, Fact]] = attrs.field(factory=list[tuple[int, Fact]])
    """Facts that are to be written, with their lines."""
    batch_bytes: int = 0


@final
@attrs.define(eq=False)
class _Reading:
    _store: Store
    _member: Member
    _defaults: SessionSettings
    _new_id: Callable[[], str]
    _now: float
    sessions: list[ImportedSession] = attrs.field(factory=list[ImportedSession])
    problems: list[LineProblem] = attrs.field(factory=list[LineProblem])
    problem_count: int = 0
    _header: ExportedSession | None = None
    """Of the entries that follow."""
    _current: _Session | None = None
    _line: int = 0

    def report(self, line: int, text: str) -> None:
        """Note that something of a line was not read."""
        self.problem_count += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(LineProblem(line, text))

    def take(self, line: int, data: bytes) -> None:
        """Read one line."""
        self._line = line
        try:
            entry = _ENTRY.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
            if (header := _header(data)) is None:
                self.report(line, f"is no whole entry: {exc}")
            else:
                self.finish_session()
                self._header = header
            return
        session = self._session_of(entry)
        if session is not None and self._is_next(session, entry):
            self._take_fact(session, entry.fact)

    def finish_session(self) -> None:
        """Write what is left of the current session, and list it."""
        session, header = self._current, self._header
        self._current = self._header = None
        last_seq = 0 if session is None else session.last_seq
        if header is not None and last_seq < header.entries:
            missing = f"{last_seq + 1} to {header.entries}"
            self.report(self._line, f"is the last; entries {missing} are missing")
        if session is None:
            return
        with _undone(self._store, session):
            self._flush(session)
            self._end_messages(session)
            title = self._list(session)
        self._store.release(session.grant, now=self._now)
        self.sessions.append(
            ImportedSession(
                session.grant.scope,
                session.source_id,
                title,
                session.written,
                session.left_out,
            )
        )

    def _session_of(self, entry: TapeEntry) -> _Session | None:
        current = self._current
        if current is not None and current.source_id == entry.session_id:
            return current
        if current is not None:
            self.finish_session()
        if len(self.sessions) >= MAX_SESSIONS:
            self.report(self._line, f"is of one session more than {MAX_SESSIONS}")
            return None
        if any(done.source_id == entry.session_id for done in self.sessions):
            self.report(self._line, "is of a session that had ended before")
            return None
        self._current = self._begin(entry.session_id)
        return self._current

    def _begin(self, source_id: SessionId) -> _Session:
        scope, incarnation = SessionId(self._new_id()), self._new_id()
        grant = self._store.acquire(self._member, scope, now=self._now)
        if not isinstance(grant, Grant):
            raise FencedError(scope, 0)
        session = _Session(source_id, grant, incarnation, grant.head)
        self._append(session, [start_fact(incarnation)])
        return session

    def _is_next(self, session: _Session, entry: TapeEntry) -> bool:
        expected = session.last_seq + 1
        if entry.seq < expected:
            self.report(self._line, f"repeats entry {entry.seq}")
            return False
        if entry.seq > expected:
            self.report(
                self._line,
                f"is entry {entry.seq}; {expected} to {entry.seq - 1} are missing",
            )
        session.last_seq = entry.seq
        return True

    def _take_fact(self, session: _Session, fact: Fact) -> None:
        if fact.name in _LEFT_OUT or fact.name.startswith(_LEFT_OUT_PREFIXES):
            session.left_out += 1
            return
        try:
            check_fact(fact)
        except RefusedFactError as exc:
            self.report(self._line, f"can't be kept: {exc}")
            return
        if fact.name == SESSION_CONFIGURED:
            session.settings = _SETTINGS.decode(fact.payload)
            return
        session.batch.append((self._line, fact))
        session.batch_bytes += len(fact.payload) + len(fact.meta)
        if len(session.batch) >= _BATCH_FACTS or session.batch_bytes >= _BATCH_BYTES:
            with _undone(self._store, session):
                self._flush(session)

    def _flush(self, session: _Session) -> None:
        batch, session.batch, session.batch_bytes = session.batch, [], 0
        try:
            self._append(session, [fact for _, fact in batch])
            session.written += len(batch)
        except (RefusedFactError, JournalError):
            for line, fact in batch:
                self._append_one(session, line, fact)

    def _append_one(self, session: _Session, line: int, fact: Fact) -> None:
        try:
            self._append(session, [fact])
            session.written += 1
        except (RefusedFactError, JournalError) as exc:
            self.report(line, f"can't be kept: {exc}")

    def _append(self, session: _Session, facts: list[Fact]) -> None:
        done = self._store.append(session.grant, session.head, facts, now=self._now)
        if not isinstance(done, Appended):
            raise FencedError(session.grant.scope, session.grant.token)
        session.head = done.head

    def _end_messages(self, session: _Session) -> None:
        for record in self._store.pending_messages(session.grant.scope):
            for part in ended_revisions(record, self._now):
                self._append(session, [message_fact(part)])

    def _list(self, session: _Session) -> str:
        found = session.settings or self._defaults
        # An agent of another folder need not be one here (DEL-09).
        is_known = self._store.agent(found.agent_id) is not None
        settings = msgspec.structs.replace(
            found,
            agent_id=found.agent_id if is_known else self._defaults.agent_id,
            workspace=self._defaults.workspace,
            permission_mode=self._defaults.permission_mode,
        )
        self._append(session, [settings_fact(settings, revision=session.incarnation)])
        return settings.title


@contextmanager
def _undone(store: Store, session: _Session) -> Generator[None]:
    try:
        yield
    except BaseException:
        # If this fails too, the session stays unlisted, for the next sweep.
        with suppress(StorageError):
            store.delete(session.grant, session.head)
        raise


def _header(data: bytes) -> ExportedSession | None:
    try:
        return _HEADER.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def ended_revisions(record: MessageRecord, now: float) -> list[MessageRecord]:
    """Return the revisions that end *record*, which nobody will go on with."""
    if record.role == "user":
        return [
            msgspec.structs.replace(record, status="sent", blocks=(), updated_at=now)
        ]
    ended = interrupted(record, record.blocks, (), now)
    known = {block.id: block for block in record.blocks}
    changed = [block for block in ended.blocks if known.get(block.id) != block]
    return revisions(ended, changed)
