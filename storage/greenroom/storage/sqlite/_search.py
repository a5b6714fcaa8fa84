"""The search index: a projection in batches of its own, never in a commit's way.

A *document* is the words of what can be found, cut in Python and joined by spaces, and
triggers keep the index of them. Of a message there is one, at its newest revision,
with all that was said in it; of another fact, its own. The cursor is a sequence number
in each session's row (`indexed`): what was appended after it is found once the next
batch is done.

Messages are searched by rank in the index; if that can't be read, with LIKE in the
documents; if these can't be read either, in the messages themselves. The words are the
same on all three ways, and so is what is found.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Final

import apsw
import msgspec

from greenroom.protocol import (
    CorruptStoreError,
    Fact,
    FactKind,
    MessageId,
    SessionId,
    SourceType,
)

from .._limits import MAX_HITS, MAX_MESSAGE_HITS, clamp
from .._values import MessageHit
from .._words import holds, index_words, query_words, said, searchable_text, snippet_of
from ..names import MESSAGE_RECORDED, MESSAGE_RETRACTED
from ._connection import Row, Value, each, mapped_errors, one, reading, rows, run
from ._reads import Connected, decoded
from ._transcript import COLUMNS, message_of


class _Titled(msgspec.Struct):
    """Of a session's settings, what a hit shows."""

    title: str


_TITLED: Final = msgspec.json.Decoder(_Titled)

_UNINDEXED = (
    "SELECT id, indexed FROM session INDEXED BY session_unindexed"
    " WHERE indexed < head LIMIT 1"
)
_ENTRIES = (
    "SELECT id, seq, kind, name, source_type, source_id, payload FROM fact"
    " WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?"
)


#### Indexing


def index_batch(db: apsw.Connection, limit: int) -> int:
    """Index up to *limit* entries; return how many were looked at."""
    done = 0
    while done < limit and (session := one(db, _UNINDEXED)) is not None:
        number, indexed = session
        found = rows(db, _ENTRIES, number, indexed, limit - done)
        if not found:
            # Holes in a damaged tape must not keep the index from going on.
            run(db, "UPDATE session SET indexed = head WHERE id = ?", number)
            continue
        for row in found:
            _index(db, number, row)
        run(db, "UPDATE session SET indexed = ? WHERE id = ?", found[-1][1], number)
        done += len(found)
    return done


def forget_words(db: apsw.Connection, session: int) -> None:
    """Make nothing of *session* findable any more."""
    run(
        db,
        "DELETE FROM document WHERE fact IN (SELECT id FROM fact WHERE session = ?)",
        session,
    )


def _index(db: apsw.Connection, session: int, row: Row) -> None:
    number, _, kind, name, source_type, source_id, payload = row
    if name in (MESSAGE_RECORDED, MESSAGE_RETRACTED):
        _index_message(db, session, source_id, number)
        return
    fact = Fact(
        kind=FactKind(kind),
        name=name,
        source_type=SourceType(source_type),
        source_id=source_id,
        payload=payload,
    )
    _add(db, number, None, index_words(searchable_text(fact)))


def _index_message(db: apsw.Connection, session: int, name: str, fact: int) -> None:
    # A revision holds only some of the blocks, so the message as it is now is what
    # counts; older revisions are not found any more.
    sql = "SELECT id, retracted FROM message WHERE session = ? AND name = ?"
    row = one(db, sql, session, name)
    if row is None:
        return
    message, retracted = row
    run(db, "DELETE FROM document WHERE message = ?", message)
    if not retracted:
        _add(db, fact, message, index_words(_said_in(db, message)))


def _said_in(db: apsw.Connection, message: int) -> str:
    sql = f"SELECT {COLUMNS} FROM message m WHERE m.id = ?"
    return "".join(_said(db, row) for row in rows(db, sql, message))


def _said(db: apsw.Connection, row: Row) -> str:
    # What can't be read back is not found; it must not keep the rest from being so.
    try:
        return said(message_of(db, row))
    except CorruptStoreError:
        return ""


def _add(db: apsw.Connection, fact: int, message: int | None, words: str) -> None:
    if words:
        run(db, "INSERT INTO document VALUES (?, ?, ?)", fact, message, words)


#### Searching the tape


def search(
    self: Connected, query: str, *, scope_prefix: str = "", limit: int = 20
) -> list[tuple[SessionId, int]]:
    """See `Reader.search`."""
    words = query_words(query)
    if not words:
        return []
    sql = (
        "SELECT s.name, f.seq FROM word_index JOIN fact f ON f.id = word_index.rowid"
        " JOIN session s ON s.id = f.session WHERE word_index MATCH ?"
        " AND substr(s.name, 1, ?) = ?"
        " ORDER BY f.at DESC, s.name, f.seq DESC LIMIT ?"
    )
    values = (_match(words), len(scope_prefix), scope_prefix, clamp(limit, MAX_HITS))
    with mapped_errors():
        return [(SessionId(n), seq) for n, seq in rows(self.connection, sql, *values)]


_IN_TAPE: Final = (
    " JOIN session s ON s.id = f.session"
    " WHERE s.name = ?1 AND f.seq <= coalesce(?2, f.seq)"
)


def search_tape(
    self: Connected,
    scope: SessionId,
    query: str,
    *,
    until: int | None = None,
    limit: int = 20,
) -> list[int]:
    """See `Reader.search_tape`."""
    words, most = query_words(query), clamp(limit, MAX_HITS)
    if not words:
        return []
    by_index = (
        "SELECT f.seq FROM word_index w JOIN fact f ON f.id = w.rowid"
        f"{_IN_TAPE} AND word_index MATCH ?4 ORDER BY f.seq DESC LIMIT ?3"
    )
    by_like = (
        f"SELECT f.seq FROM fact f JOIN document d ON d.fact = f.id{_IN_TAPE}"
        f"{_like(words, 4)} ORDER BY f.seq DESC LIMIT ?3"
    )
    db = self.connection
    with reading(db):
        return _first_way(
            lambda: _numbers(db, by_index, scope, until, most, _match(words)),
            lambda: _numbers(db, by_like, scope, until, most, *map(_padded, words)),
        )


#### Searching messages

_FOUND: Final = (
    " JOIN session_info i ON i.session = m.session"
    " WHERE m.retracted = 0 AND i.settings IS NOT NULL"
    " AND (?1 IS NULL OR i.name = ?1)"
)
_BY_RANK: Final = (
    "SELECT m.id FROM word_index w JOIN document d ON d.fact = w.rowid"
    f" JOIN message m ON m.id = d.message{_FOUND} AND word_index MATCH ?3"
    " ORDER BY w.rank, m.updated_at DESC, m.id DESC LIMIT ?2"
)
_NEWEST: Final = " ORDER BY m.updated_at DESC, m.id DESC"


def search_messages(
    self: Connected, query: str, scope: SessionId | None = None, limit: int = 12
) -> list[MessageHit]:
    """See `Reader.search_messages`."""
    words = query_words(query)
    if not words:
        return []
    most = clamp(limit, MAX_MESSAGE_HITS)
    with reading(self.connection):
        found = _first_way(
            lambda: _by_rank(self.connection, words, scope, most),
            lambda: _by_like(self.connection, words, scope, most),
            lambda: _by_scan(self.connection, words, scope, most),
        )
        return _hits(self.connection, found, words)


def _first_way(*ways: Callable[[], list[int]]) -> list[int]:
    for way in ways[:-1]:
        try:
            return way()
        except (apsw.BusyError, apsw.InterruptError, apsw.NoMemError):
            raise
        except apsw.Error:
            continue
    return ways[-1]()


def _by_rank(
    db: apsw.Connection, words: list[str], scope: SessionId | None, most: int
) -> list[int]:
    return _numbers(db, _BY_RANK, scope, most, _match(words))


def _by_like(
    db: apsw.Connection, words: list[str], scope: SessionId | None, most: int
) -> list[int]:
    sql = (
        f"SELECT m.id FROM document d JOIN message m ON m.id = d.message{_FOUND}"
        f"{_like(words, 3)}{_NEWEST} LIMIT ?2"
    )
    return _numbers(db, sql, scope, most, *map(_padded, words))


def _by_scan(
    db: apsw.Connection, words: list[str], scope: SessionId | None, most: int
) -> list[int]:
    sql = f"SELECT m.id FROM message m{_FOUND} AND m.status <> 'pending'{_NEWEST}"
    with closing(_matching(db, each(db, sql, scope), words)) as matching:
        return [number for number, _ in zip(matching, range(most), strict=False)]


def _matching(
    db: apsw.Connection, found: Iterator[Row], words: list[str]
) -> Generator[int]:
    for (number,) in found:
        if holds(_said_in(db, number), words):
            yield number


def _hits(db: apsw.Connection, found: list[int], words: list[str]) -> list[MessageHit]:
    sql = (
        f"SELECT {COLUMNS}, i.name, i.settings FROM message m"
        " JOIN session_info i ON i.session = m.session"
        " WHERE m.id IN (SELECT value FROM json_each(?))"
    )
    kept = rows(db, sql, f"[{','.join(map(str, found))}]")
    hits = {row[0]: _hit(db, row, words) for row in kept}
    return [hits[number] for number in found]


def _hit(db: apsw.Connection, row: Row, words: list[str]) -> MessageHit:
    message, order_seq, role, updated_at = row[1], row[2], row[3], row[7]
    session, settings = row[-2:]
    return MessageHit(
        session_id=SessionId(session),
        message_id=MessageId(message),
        order_seq=order_seq,
        role=role,
        title=decoded(_TITLED, settings, "settings of", session).title,
        snippet=snippet_of(_said(db, row), words),
        updated_at=updated_at,
    )


def _numbers(db: apsw.Connection, sql: str, *values: Value) -> list[int]:
    return [number for (number,) in rows(db, sql, *values)]


def _like(words: list[str], first: int) -> str:
    # Words hold letters, marks and digits only, so there is nothing to escape.
    return "".join(
        f" AND ' ' || d.words || ' ' LIKE ?{n}"
        for n, _ in enumerate(words, start=first)
    )


def _padded(word: str) -> str:
    return f"% {word} %"


def _match(words: list[str]) -> str:
    return " AND ".join(f'"{word}"' for word in words)
