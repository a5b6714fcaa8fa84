"""Why the fact table is laid out as it is: groups written, pages read, by layout.

Each group holds one fact for each of a hundred sessions, as group commit makes them.
A table clustered by session reads its pages faster and writes a leaf per session.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Final

import apsw
from runner import Case, Figures, Ratio
from stopwatch import Stopwatch
from tapes import scratch

SESSIONS: Final = 100
PAYLOAD: Final = '{"argumentsHash":"' + "0" * 64 + '","messageId":"m1","toolName":"x"}'
COLUMNS: Final = "session INTEGER, seq INTEGER, kind TEXT, name TEXT, key, payload TEXT"
BY_ROWID: Final = (
    f"CREATE TABLE fact (id INTEGER PRIMARY KEY, {COLUMNS},"
    " UNIQUE (session, seq), UNIQUE (session, key))"
)
CLUSTERED: Final = (
    f"CREATE TABLE fact ({COLUMNS}, PRIMARY KEY (session, seq),"
    " UNIQUE (session, key)) WITHOUT ROWID"
)


def _digest_key(session: int, seq: int) -> bytes:
    return hashlib.sha256(f"{session}:{seq}".encode()).digest()[:16]


def _text_key(session: int, seq: int) -> str:
    digest = hashlib.sha256(f"{session}:{seq}".encode()).hexdigest()
    return f"execution:v1:operation:{digest}:dispatch"


def _write_and_read(schema: str, is_text: bool, groups: int) -> Figures:
    with scratch() as folder:
        folder.mkdir()
        db = apsw.Connection(str(folder / "x.db"))
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "full")
        db.wal_autocheckpoint(20_000)
        db.execute(schema)
        watch = Stopwatch()
        for seq in range(groups):
            _write_group(db, seq, is_text=is_text)
        written = watch.cpu()
        watch = Stopwatch()
        sql = "SELECT * FROM fact WHERE session = ? ORDER BY seq LIMIT 100"
        for session in range(SESSIONS):
            db.execute(sql, (session,)).fetchall()
        read = watch.cpu()
        db.close()
    return {
        "us_per_fact": written / groups / SESSIONS * 1e6,
        "us_per_page": read / SESSIONS * 1e6,
    }


def _write_group(db: apsw.Connection, seq: int, *, is_text: bool) -> None:
    make_key = _text_key if is_text else _digest_key
    db.execute("BEGIN IMMEDIATE")
    for session in range(SESSIONS):
        db.execute(
            "INSERT INTO fact (session, seq, kind, name, key, payload)"
            " VALUES (?, ?, 'event', 'execution/dispatch_committed', ?, ?)",
            (session, seq, make_key(session, seq), PAYLOAD),
        )
    db.execute("COMMIT")


LAYOUT: Final = Case(
    name="layout",
    question="which layout of the fact table is cheap to write and to read?",
    clock="cpu",
    sides={
        "rowid, unique digest": partial(_write_and_read, BY_ROWID, False),
        "rowid, unique key text": partial(_write_and_read, BY_ROWID, True),
        "clustered by session": partial(_write_and_read, CLUSTERED, False),
    },
    claims=(
        Ratio("us_per_fact", over="clustered by session", under="rowid, unique digest"),
        Ratio(
            "us_per_fact", over="rowid, unique key text", under="rowid, unique digest"
        ),
        Ratio("us_per_page", over="rowid, unique digest", under="clustered by session"),
    ),
    size=100,
    smoke_size=2,
)

CASES: Final = (LAYOUT,)
