"""The search index: a projection in batches of its own, never in a commit's way.

Its cursor is a sequence number in each session's row (`indexed`): what was appended
after it is found once the next batch is done.
"""

from __future__ import annotations

import apsw

from greenroom.protocol import Fact, FactKind, SourceType

from .._words import index_words, searchable_text
from ._connection import Row, one, rows, run

_UNINDEXED = (
    "SELECT id, indexed FROM session INDEXED BY session_unindexed"
    " WHERE indexed < head LIMIT 1"
)
_ENTRIES = (
    "SELECT id, seq, kind, name, source_type, source_id, payload FROM fact"
    " WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?"
)


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
            _index(db, row)
        run(db, "UPDATE session SET indexed = ? WHERE id = ?", found[-1][1], number)
        done += len(found)
    return done


def _index(db: apsw.Connection, row: Row) -> None:
    number, _, kind, name, source_type, source_id, payload = row
    fact = Fact(
        kind=FactKind(kind),
        name=name,
        source_type=SourceType(source_type),
        source_id=source_id,
        payload=payload,
    )
    words = index_words(searchable_text(fact))
    if words:
        run(db, "INSERT INTO word_index(rowid, words) VALUES (?, ?)", number, words)
