"""Reading: a page of a long tape, and finding a word in it.

Baselines read the same file with the database alone: the rows of the page as tuples,
and a scan with LIKE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import apsw
from runner import Case, Figures, Ratio
from stopwatch import Stopwatch
from tapes import long_tape

from greenroom.storage import SqliteStore

PAGE: Final = 100
READS: Final = 50


def _cpu_us(act: Callable[[], object], times: int = READS) -> Figures:
    watch = Stopwatch()
    for _ in range(times):
        act()
    return watch.cpu_us_each(times)


def _page(facts: int) -> Figures:
    with long_tape(facts) as (store, tape, _):
        return _cpu_us(lambda: store.page(tape.scope, facts // 2, PAGE))


def _raw_page(facts: int) -> Figures:
    sql = "SELECT * FROM fact WHERE session = 1 AND seq > ? ORDER BY seq LIMIT ?"
    with long_tape(facts) as (_, _, path):
        db = apsw.Connection(str(path))
        try:
            return _cpu_us(lambda: db.execute(sql, (facts // 2, PAGE)).fetchall())
        finally:
            db.close()


def _index_all(store: SqliteStore) -> None:
    while store.index_pending(200):
        pass


def _search(facts: int) -> Figures:
    with long_tape(facts) as (store, _, _):
        watch = Stopwatch()
        _index_all(store)
        indexed = {"indexed_per_s": facts / watch.cpu()}
        word = f"word{facts // 2}"
        assert len(store.search(word)) == 1
        return _cpu_us(lambda: store.search(word)) | indexed


def _search_common(facts: int) -> Figures:
    with long_tape(facts) as (store, _, _):
        _index_all(store)
        return _cpu_us(lambda: store.search("common"), 5)


def _scan(facts: int) -> Figures:
    sql = "SELECT seq FROM fact WHERE payload LIKE ? LIMIT 20"
    with long_tape(facts) as (_, _, path):
        db = apsw.Connection(str(path))
        word = f"%word{facts // 2} %"
        try:
            return _cpu_us(lambda: db.execute(sql, (word,)).fetchall(), 5)
        finally:
            db.close()


PAGES: Final = Case(
    name="page",
    question="how dear is a page of 100 facts from the middle of a long tape?",
    clock="cpu",
    sides={"page": _page, "rows alone": _raw_page},
    claims=(Ratio("us_each", over="page", under="rows alone"),),
    size=10_000,
    smoke_size=20,
)

SEARCH: Final = Case(
    name="search",
    question="how dear is it to find a word in a long tape?",
    clock="cpu",
    sides={
        "search, one hit": _search,
        "search, every fact hits": _search_common,
        "scan with LIKE": _scan,
    },
    claims=(Ratio("us_each", over="scan with LIKE", under="search, one hit"),),
    size=10_000,
    smoke_size=20,
)

CASES: Final = (PAGES, SEARCH)
