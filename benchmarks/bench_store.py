"""What durability costs: layouts, group commit, the writer thread, reads, search.

    python benchmarks/bench_store.py [--rounds N] [--smoke]

Prints one JSON object. Every figure is the best of the rounds, which are interleaved;
compare ratios to the baseline beside them, not figures of different machines.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import trio

from greenroom.actors.writer import Writer, open_writer
from greenroom.protocol import (
    DispatchCommitted,
    Fact,
    FactKind,
    MessageId,
    OperationId,
    RunId,
    RunStarted,
    SessionId,
    SessionSettings,
    SourceType,
    ToolTarget,
)
from greenroom.storage import (
    Grant,
    Piece,
    SqliteStore,
    Tape,
    bootstrap_facts,
    open_store,
)

SETTINGS = SessionSettings(
    agent_id="default", title="Bench", workspace="/w", provider="p", model="m"
)
Figures = dict[str, float]


@contextmanager
def scratch() -> Generator[Path]:
    """A folder on the disk that state would be on, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="bench-store-"))
    try:
        yield folder / "state"
    finally:
        shutil.rmtree(folder)


#### Layouts of the fact table


PAYLOAD = '{"argumentsHash":"' + "0" * 64 + '","messageId":"m1","toolName":"x"}'
COLUMNS = "session INTEGER, seq INTEGER, kind TEXT, name TEXT, key, payload TEXT"
LAYOUTS = {
    "rowid, unique digest": (
        f"CREATE TABLE fact (id INTEGER PRIMARY KEY, {COLUMNS},"
        " UNIQUE (session, seq), UNIQUE (session, key))"
    ),
    "rowid, unique key text": (
        f"CREATE TABLE fact (id INTEGER PRIMARY KEY, {COLUMNS},"
        " UNIQUE (session, seq), UNIQUE (session, key))"
    ),
    "clustered by session": (
        f"CREATE TABLE fact ({COLUMNS}, PRIMARY KEY (session, seq),"
        " UNIQUE (session, key)) WITHOUT ROWID"
    ),
}


def bench_layout(name: str, groups: int) -> Figures:
    """Groups of one fact for each of 100 sessions, then pages of 100 facts."""
    with scratch() as folder:
        folder.mkdir()
        db = apsw.Connection(str(folder / "x.db"))
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "full")
        db.wal_autocheckpoint(20_000)
        db.execute(LAYOUTS[name])
        began = time.process_time()
        for seq in range(groups):
            db.execute("BEGIN IMMEDIATE")
            for session in range(100):
                digest = hashlib.sha256(f"{session}:{seq}".encode())
                key = (
                    f"execution:v1:operation:{digest.hexdigest()}:dispatch"
                    if "text" in name
                    else digest.digest()[:16]
                )
                db.execute(
                    "INSERT INTO fact (session, seq, kind, name, key, payload)"
                    " VALUES (?, ?, 'event', 'execution/dispatch_committed', ?, ?)",
                    (session, seq, key, PAYLOAD),
                )
            db.execute("COMMIT")
        written = time.process_time() - began
        began = time.process_time()
        sql = "SELECT * FROM fact WHERE session = ? ORDER BY seq LIMIT 100"
        for session in range(100):
            db.execute(sql, (session,)).fetchall()
        read = time.process_time() - began
        db.close()
    return {"facts_per_cpu_s": groups * 100 / written, "pages_per_cpu_s": 100 / read}


#### Strict facts of many sessions


def open_tapes(store: SqliteStore, count: int) -> list[Tape]:
    """Begin *count* sessions with an open run each."""
    member = store.join("bench", "", 1e9, now=0.0)
    tapes: list[Tape] = []
    for number in range(count):
        grant = store.acquire(member, SessionId(f"s{number}"), now=0.0)
        assert isinstance(grant, Grant)
        tape = Tape(grant)
        facts = bootstrap_facts(f"incarnation {number}", SETTINGS)
        start = RunStarted(
            run_id=run_id(number), message_id=MessageId("m1"), run_kind="loop"
        )
        pieces = [tape.append_piece(facts, now=0.0), tape.commit_piece(start, now=0.0)]
        assert all(s.error is None for s in store.run_group(pieces))
        tapes.append(tape)
    return tapes


def run_id(number: int) -> RunId:
    """Return the run of a session."""
    return RunId(f"00000000-0000-4000-8000-{number:012}")


def strict_piece(tape: Tape, session: int, call: int) -> Piece:
    """Return the piece that commits one dispatch."""
    record = DispatchCommitted(
        operation=OperationId(run_id(session), 1, f"call-{call}"),
        message_id=MessageId("m1"),
        tool_name="write_file",
        tool_source="agent",
        arguments_hash="a" * 64,
        target=ToolTarget("server"),
    )
    return tape.commit_piece(record, now=1.0)


Submit = Callable[[Piece], Awaitable[object]]


async def submit_inline(store: SqliteStore, piece: Piece) -> None:
    """Commit *piece* alone, on the loop."""
    await trio.lowlevel.checkpoint()
    (settled,) = store.run_group([piece])
    assert settled.error is None


async def submit_by_thread(
    store: SqliteStore, limiter: trio.CapacityLimiter, piece: Piece
) -> None:
    """Commit *piece* alone, with a hop into a worker thread."""
    (settled,) = await trio.to_thread.run_sync(
        store.run_group, [piece], limiter=limiter
    )
    assert settled.error is None


async def drive(submit: Submit, tapes: list[Tape], facts: int) -> Figures:
    """Let every session commit *facts* strict facts, each awaited."""
    lags: list[float] = []
    waits: list[float] = []

    async def session(number: int, tape: Tape) -> None:
        for call in range(facts):
            piece = strict_piece(tape, number, call)
            began = time.perf_counter()
            await submit(piece)
            waits.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with trio.open_nursery() as outer:
        outer.start_soon(watch_lag, lags)
        async with trio.open_nursery() as inner:
            for number, tape in enumerate(tapes):
                inner.start_soon(session, number, tape)
        elapsed = time.perf_counter() - began
        outer.cancel_scope.cancel()
    return {
        "facts_per_s": len(tapes) * facts / elapsed,
        "wait_p50_ms": percentile(waits, 0.50) * 1e3,
        "wait_p99_ms": percentile(waits, 0.99) * 1e3,
        "loop_lag_p99_ms": percentile(lags, 0.99) * 1e3,
    }


async def watch_lag(lags: list[float]) -> None:
    """Note how much later than asked the loop comes back."""
    while True:
        began = time.perf_counter()
        await trio.sleep(0.001)
        lags.append(time.perf_counter() - began - 0.001)


def percentile(values: list[float], part: float) -> float:
    """Return the value below which *part* of *values* lie."""
    ordered = sorted(values) or [0.0]
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


async def bench_strict(how: str, sessions: int, facts: int) -> Figures:
    """Strict facts, ``synchronous=FULL``, each session awaiting each of its own."""
    with scratch() as folder:
        store = open_store(folder)
        tapes = open_tapes(store, sessions)
        if how == "writer":
            async with open_writer(store) as writer:
                figures = await drive(writer.submit, tapes, facts)
                return figures | group_figures(writer)
        submit = (
            partial(submit_inline, store)
            if how == "one commit each, inline"
            else partial(submit_by_thread, store, trio.CapacityLimiter(1))
        )
        try:
            return await drive(submit, tapes, facts)
        finally:
            store.close()


def group_figures(writer: Writer) -> Figures:
    """Return how large groups were."""
    statistics = writer.statistics()
    return {"pieces_per_group": statistics.pieces / max(statistics.groups, 1)}


#### Reads and search on a long tape


def bench_reads(facts: int) -> Figures:
    """Pages, search and its index over one session of *facts* events."""
    with scratch() as folder:
        store = open_store(folder)
        (tape,) = open_tapes(store, 1)
        for start in range(0, facts, 500):
            batch = [note(n) for n in range(start, min(start + 500, facts))]
            store.run_group([tape.append_piece(batch, now=float(start))])
        indexed = timed(lambda: index_all(store))
        page = timed(lambda: store.page(tape.scope, facts // 2, 100))
        rare = timed(lambda: store.search(f"word{facts // 2}"))
        common = timed(lambda: store.search("common"))
        store.close()
    return {
        "indexed_per_s": facts / indexed,
        "page_of_100_ms": page * 1e3,
        "search_one_hit_ms": rare * 1e3,
        "search_every_fact_hits_ms": common * 1e3,
    }


def index_all(store: SqliteStore) -> None:
    """Bring the search index up to date."""
    while store.index_pending(200):
        pass


def note(number: int) -> Fact:
    """Return an event of about 300 bytes."""
    return Fact(
        kind=FactKind.EVENT,
        name="note/taken",
        source_type=SourceType.RUNTIME_EVENT,
        source_id="note",
        source_seq=number,
        payload=f'{{"text":"common word{number} {"filler " * 35}"}}',
    )


def timed(act: Callable[[], object]) -> float:
    """Return how many seconds *act* takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


#### All of it


def best(found: list[Figures]) -> Figures:
    """Return the best of each figure: most per second, else the least."""
    return {
        name: (max if "_per_" in name else min)(one[name] for one in found)
        for name in found[0]
    }


def measure(rounds: int, *, smoke: bool) -> dict[str, Any]:
    """Run everything *rounds* times, in turn."""
    groups, sessions, facts = (2, 5, 2) if smoke else (100, 100, 30)
    ways = ("one commit each, inline", "one thread hop each", "writer")
    layouts: dict[str, list[Figures]] = {name: [] for name in LAYOUTS}
    strict: dict[str, list[Figures]] = {way: [] for way in ways}
    reads: list[Figures] = []
    for _ in range(rounds):
        for name in LAYOUTS:
            layouts[name].append(bench_layout(name, groups))
        for way in ways:
            few = facts if way != "one thread hop each" else max(2, facts // 5)
            strict[way].append(trio.run(bench_strict, way, sessions, few))
        reads.append(bench_reads(200 if smoke else 20_000))
    return {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "sqlite": apsw.sqlite_lib_version(),
        "rounds": rounds,
        "layouts": {name: best(found) for name, found in layouts.items()},
        "strict": {way: best(found) for way, found in strict.items()},
        "ratios": ratios(strict),
        "reads": best(reads),
    }


def ratios(strict: dict[str, list[Figures]]) -> Figures:
    """Return the writer's throughput against each baseline, by the best rounds."""
    writer = best(strict["writer"])["facts_per_s"]
    return {
        f"writer to {way}": writer / best(found)["facts_per_s"]
        for way, found in strict.items()
        if way != "writer"
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, one round")
    options = parser.parse_args()
    rounds = 1 if options.smoke else options.rounds
    print(json.dumps(measure(rounds, smoke=options.smoke), indent=2))


if __name__ == "__main__":
    main()
