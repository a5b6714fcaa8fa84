"""Reads: functions that `SqliteReader` and `SqliteStore` bind as methods.

Each is one statement, or several inside one read transaction, and leaves no
statement open. Inside a group they see what the group has written so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Protocol, TypeVar

import apsw
import msgspec

from greenroom.protocol import (
    Fact,
    FactKind,
    ImagePart,
    PendingInput,
    PendingInputs,
    Plan,
    RunId,
    SessionId,
    SessionSettings,
    SourceType,
    TapeEntry,
    TextPart,
)

from .._errors import corrupt
from .._limits import MAX_ENTRIES, MAX_ROWS, clamp, within_page
from .._values import OpenRun, Owner, Page, SessionRow
from .._words import folded
from ..names import FOUND_BY_NAME, VIEW_ASSEMBLED, check_findable
from ._connection import Row, Value, each, mapped_errors, one, reading, rows
from ._folder import Proofs

T = TypeVar("T")

_SETTINGS = msgspec.json.Decoder(SessionSettings)
_PLAN = msgspec.json.Decoder(Plan)
_INPUT = msgspec.json.Decoder(PendingInput)
_PARTS = msgspec.json.Decoder(tuple[TextPart | ImagePart, ...])

FACT = (
    "f.seq, f.token, f.kind, f.name, f.source_type, f.source_id, f.source_seq,"
    " f.payload, f.meta, f.provenance_key, f.at"
)
_SESSION = (
    "i.name, i.settings, i.created_at, i.updated_at, s.head, i.messages,"
    " i.input_tokens, i.output_tokens, i.open, i.archived_at"
)
_FINDABLE = ", ".join(f"'{name}'" for name in FOUND_BY_NAME)
_STREAMS = {"tape": 0, "journal": 1}


class Connected(Protocol):
    """What a read needs."""

    @property
    def connection(self) -> apsw.Connection:
        """The connection to read from."""
        ...

    @property
    def proofs(self) -> Proofs:
        """The members' proofs of life."""
        ...


#### Tape


def page(
    self: Connected,
    scope: SessionId,
    after: int,
    limit: int = 256,
    stream: str | None = None,
) -> Page:
    """See `Reader.page`."""
    only = "" if stream is None else f" AND f.stream = {_STREAMS[stream]}"
    sql = (
        f"SELECT {FACT} FROM fact f WHERE f.session = ? AND f.seq > ?{only}"
        " ORDER BY f.seq LIMIT ?"
    )
    with reading(self.connection):
        found = one(
            self.connection, "SELECT id, head FROM session WHERE name = ?", scope
        )
        if found is None:
            return Page((), 0)
        session, head = found
        # Not read whole: a page may end by bytes before it ends by count.
        facts = each(self.connection, sql, session, after, clamp(limit, MAX_ENTRIES))
        with closing(facts):
            entries = within_page(entry_of(scope, row) for row in facts)
    return Page(entries, head)


def named(
    self: Connected,
    scope: SessionId,
    name: str,
    *,
    before: int | None = None,
    limit: int = 20,
) -> list[TapeEntry]:
    """See `Reader.named`."""
    check_findable(name)
    sql = (
        f"SELECT {FACT} FROM session s JOIN fact f INDEXED BY fact_mark"
        f" ON f.session = s.id AND f.name IN ({_FINDABLE})"
        " WHERE s.name = ?1 AND f.name = ?2"
        " AND f.seq < coalesce(?3, f.seq + 1) ORDER BY f.seq DESC LIMIT ?4"
    )
    with mapped_errors():
        found = rows(self.connection, sql, scope, name, before, clamp(limit, MAX_ROWS))
    return [entry_of(scope, row) for row in found]


def view_entry(self: Connected, view_id: str) -> TapeEntry | None:
    """See `Reader.view_entry`."""
    sql = (
        f"SELECT s.name, {FACT} FROM fact f JOIN session s ON s.id = f.session"
        f" WHERE f.name = '{VIEW_ASSEMBLED}' AND f.payload ->> '$.viewId' = ?"
        " ORDER BY f.at DESC, f.id DESC LIMIT 1"
    )
    with mapped_errors():
        row = one(self.connection, sql, view_id)
    return None if row is None else entry_of(SessionId(row[0]), row[1:])


def scopes(
    self: Connected, after: SessionId | None = None, limit: int = 256
) -> list[SessionId]:
    """See `Reader.scopes`."""
    sql = "SELECT name FROM session WHERE head > 0 AND name > ? ORDER BY name LIMIT ?"
    with mapped_errors():
        found = rows(self.connection, sql, after or "", clamp(limit, MAX_ENTRIES))
    return [SessionId(name) for (name,) in found]


def heads(self: Connected, scopes: Sequence[SessionId]) -> list[tuple[SessionId, int]]:
    """See `Reader.heads`."""
    sql = "SELECT head FROM session WHERE name = ? AND head > 0"
    with reading(self.connection):
        found = [(scope, one(self.connection, sql, scope)) for scope in scopes]
    return [(scope, row[0]) for scope, row in found if row is not None]


#### Sessions


def sessions(
    self: Connected,
    limit: int = 100,
    before: tuple[float, SessionId] | None = None,
    *,
    agent: str | None = None,
    archived: bool | None = None,
    title: str = "",
) -> list[SessionRow]:
    """See `Reader.sessions`."""
    filters: list[tuple[str, tuple[Value, ...]]] = []
    if before is not None:
        filters.append(("(i.updated_at, i.name) < (?, ?)", before))
    if agent is not None:
        filters.append(("i.agent = ?", (agent,)))
    if archived is not None:
        filters.append((f"i.archived_at IS {'NOT ' * archived}NULL", ()))
    if title:
        filters.append(("instr(i.title, ?) > 0", (folded(title),)))
    where = "".join(f" AND {condition}" for condition, _ in filters)
    values = [value for _, given in filters for value in given]
    sql = (
        f"SELECT {_SESSION} FROM session_info i JOIN session s ON s.id = i.session"
        f" WHERE i.settings IS NOT NULL{where}"
        " ORDER BY i.updated_at DESC, i.name DESC LIMIT ?"
    )
    with mapped_errors():
        found = rows(self.connection, sql, *values, clamp(limit, MAX_ROWS))
    return _session_rows(found)


def session(self: Connected, scope: SessionId) -> SessionRow | None:
    """See `Reader.session`."""
    sql = (
        f"SELECT {_SESSION} FROM session s JOIN session_info i ON i.session = s.id"
        " WHERE s.name = ? AND i.settings IS NOT NULL"
    )
    with mapped_errors():
        row = one(self.connection, sql, scope)
    return None if row is None else _session_rows([row])[0]


def plan(self: Connected, scope: SessionId) -> Plan | None:
    """See `Reader.plan`."""
    sql = (
        "SELECT i.plan FROM session s JOIN session_info i ON i.session = s.id"
        " WHERE s.name = ? AND i.plan IS NOT NULL"
    )
    with mapped_errors():
        row = one(self.connection, sql, scope)
    return None if row is None else decoded(_PLAN, row[0], "plan of", scope)


def pending_inputs(self: Connected, scope: SessionId) -> PendingInputs:
    """See `Reader.pending_inputs`."""
    sql = (
        "SELECT p.body, p.parts FROM session s"
        " JOIN pending_input p ON p.session = s.id WHERE s.name = ? ORDER BY p.id"
    )
    with mapped_errors():
        found = rows(self.connection, sql, scope)
    what = "pending input of"
    return PendingInputs.of(
        msgspec.structs.replace(
            decoded(_INPUT, body, what, scope),
            parts=decoded(_PARTS, parts, what, scope),
        )
        for body, parts in found
    )


#### Owners and runs


def locate(self: Connected, scope: SessionId) -> Owner | None:
    """See `Reader.locate`."""
    sql = (
        "SELECT m.id, m.node, m.addr FROM session s JOIN member m ON m.id = s.owner"
        " WHERE s.name = ?"
    )
    with mapped_errors():
        row = one(self.connection, sql, scope)
    return None if row is None else Owner(str(row[0]), row[1], row[2])


def owed_by_dead(self: Connected) -> list[SessionId]:
    """See `Reader.owed_by_dead`."""
    owned = (
        "SELECT s.name, s.owner, m.dead FROM session s"
        " LEFT JOIN member m ON m.id = s.owner WHERE s.owner IS NOT NULL"
    )
    unowned = (
        "SELECT s.name FROM session s WHERE s.owner IS NULL AND s.id IN"
        " (SELECT session FROM command WHERE settled = 0"
        " UNION SELECT session FROM open_run)"
    )
    with reading(self.connection):
        held = rows(self.connection, owned)
        free = rows(self.connection, unowned)
    living = {
        owner: not dead and self.proofs.lives(owner)
        for owner, dead in {(owner, dead) for _, owner, dead in held}
    }
    names = [name for name, owner, _ in held if not living[owner]]
    return sorted(SessionId(name) for name in [*names, *(name for (name,) in free)])


def run_session(self: Connected, run_id: RunId) -> SessionId | None:
    """See `Reader.run_session`."""
    sql = (
        "SELECT s.name FROM fact f JOIN session s ON s.id = f.session"
        " WHERE f.name = 'execution/run_started' AND f.source_id = ?"
        " ORDER BY f.at LIMIT 1"
    )
    with mapped_errors():
        row = one(self.connection, sql, run_id)
    return None if row is None else SessionId(row[0])


def open_runs(self: Connected, scope: SessionId) -> list[OpenRun]:
    """See `Reader.open_runs`."""
    with reading(self.connection):
        found = rows(self.connection, OPEN_RUNS, scope)
        return [
            OpenRun(scope, RunId(run_id), _entries(self, scope, run_id, first))
            for run_id, first in found
        ]


def run_entries(
    self: Connected, scope: SessionId, run_id: RunId
) -> tuple[TapeEntry, ...]:
    """See `Reader.run_entries`."""
    sql = (
        "SELECT f.seq FROM fact f JOIN session s ON s.id = f.session"
        " WHERE f.name = 'execution/run_started' AND f.source_id = ? AND s.name = ?"
    )
    with reading(self.connection):
        start = one(self.connection, sql, run_id, scope)
        return _entries(self, scope, run_id, 1 if start is None else start[0])


def is_elsewhere(self: Connected, scope: SessionId, run_id: RunId) -> bool:
    """See `Reader.is_elsewhere`."""
    sql = (
        "SELECT 1 FROM fact f JOIN session s ON s.id = f.session"
        " WHERE f.name = 'execution/run_started' AND f.source_id = ? AND s.name <> ?"
    )
    with mapped_errors():
        return one(self.connection, sql, run_id, scope) is not None


def _entries(
    self: Connected, scope: SessionId, run_id: str, first: int
) -> tuple[TapeEntry, ...]:
    found = rows(self.connection, RUN_ENTRIES, scope, first, run_id)
    return tuple(entry_of(scope, row) for row in found)


OPEN_RUNS = (
    "SELECT o.run_id, o.first FROM session s JOIN open_run o ON o.session = s.id"
    " WHERE s.name = ?"
)
"""Bounded by unresolved runs: `open_run` holds no other (JRN-18)."""

RUN_ENTRIES = (
    f"SELECT {FACT} FROM fact f WHERE f.session ="
    " (SELECT id FROM session WHERE name = ?) AND f.seq >= ?"
    " AND f.stream = 1 AND f.source_id = ? ORDER BY f.seq"
)
"""From the run's first fact on, which is near the end of its tape."""


#### Rows to values


def entry_of(scope: SessionId, row: Row) -> TapeEntry:
    """Return the entry in a row of the columns of a fact."""
    return TapeEntry(
        session_id=scope,
        seq=row[0],
        token=row[1],
        fact=Fact(
            kind=FactKind(row[2]),
            name=row[3],
            source_type=SourceType(row[4]),
            source_id=row[5],
            source_seq=row[6],
            payload=row[7],
            meta=row[8],
            provenance_key=row[9],
        ),
        created_at=row[10],
    )


def _session_rows(found: list[Row]) -> list[SessionRow]:
    decode = _SETTINGS.decode
    try:
        # By place, in the order of `_SESSION`: lists are long, and read often.
        return [
            SessionRow(
                r[0], decode(r[1]), r[2], r[3], r[4], r[5], r[6], r[7], r[8] > 0, r[9]
            )
            for r in found
        ]
    except (msgspec.DecodeError, RecursionError):
        for name, settings, *_ in found:
            decoded(_SETTINGS, settings, "settings of", name)
        raise


def decoded(decoder: msgspec.json.Decoder[T], text: str, what: str, name: str) -> T:
    """Return the value in *text*, which was stored as the *what* of *name*."""
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise corrupt(f"{what} {name!r}", exc) from exc
