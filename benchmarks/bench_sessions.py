"""Many sessions: listing them, the first page of one, finding a message, a cold start.

Baselines are the same statements on the database alone, their rows read as tuples. The
state of a size is made once for all rounds, and removed at the end.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from runner import Case, Figures, Ratio
from stopwatch import Stopwatch
from tapes import SETTINGS, open_tapes

from greenroom.protocol import (
    ItemId,
    MessageId,
    MessageRecord,
    SessionId,
    TextBlock,
)
from greenroom.storage import (
    Grant,
    Piece,
    SqliteReader,
    SqliteStore,
    Tape,
    bootstrap_facts,
    message_fact,
    open_reader,
    open_store,
    recover,
)

READS: Final = 40
GROUP: Final = 500
LONG: Final = SessionId("long")
HITS: Final = 100
"""Sessions with the word that is searched for."""


def _message(number: int, text: str) -> MessageRecord:
    return MessageRecord(
        id=MessageId(f"m{number}"),
        order_seq=number,
        role="user" if number % 2 else "assistant",
        status="sent",
        blocks=(TextBlock(id=ItemId(f"m{number}-0"), text=text),),
        created_at=1.0,
        updated_at=float(number),
    )


def _state() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="greenroom-bench-"))
    atexit.register(shutil.rmtree, folder)
    return folder


@lru_cache
def state_of_sessions(count: int) -> Path:
    """State with *count* sessions of two messages, all findable."""
    folder = _state()
    with closing(open_store(folder)) as store:
        member = store.join("bench", "", 1e9, now=0.0)
        pieces: list[Piece] = []
        for number in range(count):
            grant = store.acquire(member, SessionId(f"s{number:06}"), now=0.0)
            assert isinstance(grant, Grant)
            word = "lighthouse" if number % max(count // HITS, 1) == 0 else "house"
            texts = (f"where is the {word} {number}", "filler " * 40)
            facts = [message_fact(_message(n, t)) for n, t in enumerate(texts, 1)]
            facts = [*bootstrap_facts(f"incarnation {number}", SETTINGS), *facts]
            pieces.append(Tape(grant).append_piece(facts, now=float(number)))
            if len(pieces) == GROUP:
                store.run_group(pieces)
                pieces.clear()
        store.run_group(pieces)
        while store.index_pending(1_000):
            pass
    return folder


@lru_cache
def _long(messages: int) -> Path:
    """State with one session of *messages*."""
    folder = _state()
    with closing(open_store(folder)) as store:
        member = store.join("bench", "", 1e9, now=0.0)
        grant = store.acquire(member, LONG, now=0.0)
        assert isinstance(grant, Grant)
        tape = Tape(grant)
        pieces = [tape.append_piece(bootstrap_facts("long", SETTINGS), now=0.0)]
        for start in range(1, messages + 1, GROUP):
            last = min(start + GROUP, messages + 1)
            records = [_message(n, "filler " * 40) for n in range(start, last)]
            facts = [message_fact(record) for record in records]
            pieces.append(tape.append_piece(facts, now=0.0))
        assert all(s.error is None for s in store.run_group(pieces))
    return folder


@contextmanager
def _reader(folder: Path) -> Iterator[SqliteReader]:
    with closing(open_reader(folder)) as reader:
        yield reader


def _store_side(
    state: Callable[[int], Path], act: Callable[[SqliteReader], object]
) -> Callable[[int], Figures]:
    def measure(size: int) -> Figures:
        with _reader(state(size)) as reader:
            act(reader)
            watch = Stopwatch()
            for _ in range(READS):
                act(reader)
            return watch.cpu_us_each(READS)

    return measure


def _bare_side(
    state: Callable[[int], Path], queries: list[tuple[str, tuple[Any, ...]]]
) -> Callable[[int], Figures]:
    def measure(size: int) -> Figures:
        with _reader(state(size)) as reader:
            db = reader.connection

            def read() -> None:
                for sql, values in queries:
                    db.execute(sql, values).fetchall()

            read()
            watch = Stopwatch()
            for _ in range(READS):
                read()
            return watch.cpu_us_each(READS)

    return measure


_LIST_SQL: Final = (
    "SELECT i.name, i.settings, i.created_at, i.updated_at, s.head, i.messages,"
    " i.input_tokens, i.output_tokens, i.open, i.archived_at"
    " FROM session_info i JOIN session s ON s.id = i.session"
    " WHERE i.settings IS NOT NULL ORDER BY i.updated_at DESC, i.name DESC LIMIT ?"
)
_NEWEST: Final = (
    "SELECT * FROM message WHERE session = (SELECT id FROM session WHERE name = ?)"
    " AND retracted = 0 ORDER BY order_seq DESC LIMIT 100"
)
_BLOCKS_SQL: Final = (
    f"SELECT b.message, b.body FROM ({_NEWEST}) m JOIN block b"
    " ON b.message = m.id ORDER BY b.message, b.position"
)
_PAGE_SQL: Final = (
    (f"SELECT * FROM ({_NEWEST}) m ORDER BY m.order_seq", (LONG,)),
    (_BLOCKS_SQL, (LONG,)),
)
_RANKED: Final = (
    "SELECT m.id FROM word_index w JOIN document d ON d.fact = w.rowid"
    " JOIN message m ON m.id = d.message JOIN session s ON s.id = m.session"
    " JOIN session_info i ON i.session = s.id WHERE m.retracted = 0"
    " AND i.settings IS NOT NULL AND word_index MATCH ?"
    " ORDER BY w.rank, m.updated_at DESC, m.id DESC LIMIT 12"
)
_FOUND: Final = (
    "SELECT m.*, b.body, i.settings FROM message m JOIN block b ON b.message = m.id"
    " JOIN session_info i ON i.session = m.session WHERE m.id IN (SELECT value FROM"
    " json_each('[1,3,5,7,9,11,13,15,17,19,21,23]'))"
)
_SEARCH_SQL: Final = ((_RANKED, ('"lighthouse"',)), (_FOUND, ()))

LIST: Final = Case(
    name="session-list",
    question="how dear is the first page of a list of many sessions?",
    clock="cpu",
    sides={
        "list": _store_side(state_of_sessions, lambda r: r.sessions(100)),
        "bare SQL": _bare_side(state_of_sessions, [(_LIST_SQL, (100,))]),
        "rare title": _store_side(
            state_of_sessions, lambda r: r.sessions(100, title="none")
        ),
    },
    claims=(
        Ratio("us_each", over="list", under="bare SQL", at_most=2.0),
        Ratio("us_each", over="rare title", under="list"),
    ),
    size=10_000,
    smoke_size=20,
)

FIRST_PAGE: Final = Case(
    name="first-page",
    question="how dear is it to open a session of very many messages?",
    clock="cpu",
    sides={
        "first page": _store_side(_long, lambda r: r.messages(LONG)),
        "bare SQL": _bare_side(_long, list(_PAGE_SQL)),
        "of a short session": _store_side(
            lambda size: _long(min(size, 100)), lambda r: r.messages(LONG)
        ),
    },
    claims=(
        Ratio("us_each", over="first page", under="bare SQL", at_most=2.0),
        Ratio("us_each", over="first page", under="of a short session", at_most=1.2),
    ),
    size=50_000,
    smoke_size=20,
)

SEARCH: Final = Case(
    name="history-search",
    question="how dear is it to find a word in many sessions?",
    clock="cpu",
    sides={
        "search": _store_side(
            state_of_sessions, lambda r: r.search_messages("lighthouse")
        ),
        "bare SQL": _bare_side(state_of_sessions, list(_SEARCH_SQL)),
    },
    claims=(Ratio("us_each", over="search", under="bare SQL", at_most=2.0),),
    size=10_000,
    smoke_size=20,
)


#### A cold start

OPEN: Final = 10
_FINISHED: Final = """
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?1)
INSERT INTO fact (session, seq, token, stream, kind, name, source_type, source_id,
    source_seq, digest, provenance_key, payload, meta, at)
SELECT 1000, 1 + 2 * i + (f.name <> 'execution/run_started'), f.token,
    f.stream, f.kind, f.name, f.source_type, 'finished-' || i, f.source_seq,
    randomblob(16), '', f.payload, f.meta, f.at
FROM n JOIN fact f ON f.session = 1 AND f.stream = 1
"""


def _killed(finished: int) -> Path:
    """State that a killed engine left: *finished* runs, and some that are open."""
    folder = _state()
    with closing(open_store(folder)) as store:
        open_tapes(store, OPEN)
        store.connection.execute(
            "INSERT INTO session (id, name, head) VALUES (1000, 'history', ?)",
            (2 * finished,),
        )
        # Copies of what the first session has: a start, and what follows it.
        store.connection.execute(_FINISHED, (finished,))
    return folder


def _recovery(finished: int) -> Figures:
    with closing(open_store(_killed(finished))) as store:
        assert isinstance(store, SqliteStore)
        member = store.join("next", "", 1e9, now=1.0)
        watch = Stopwatch()
        report = recover(store, member, 1.0)
        figures = watch.cpu_us_each(OPEN)
    assert report.runs == OPEN
    return figures


COLD_START: Final = Case(
    name="cold-start",
    question="does a start after a crash cost more when more has been done before?",
    clock="cpu",
    sides={
        "after many runs": _recovery,
        "after few": lambda size: _recovery(min(size, 10)),
    },
    claims=(Ratio("us_each", over="after many runs", under="after few", at_most=1.2),),
    size=100_000,
    smoke_size=20,
)

CASES: Final = (LIST, FIRST_PAGE, SEARCH, COLD_START)
