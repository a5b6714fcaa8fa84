"""The strict journal: exact facts, in order, each durable before it is reported."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from kit.stores import (
    OTHER_RUN,
    RUN,
    S1,
    S2,
    Peer,
    SqliteWorld,
    bootstrap,
    dispatch,
    event,
    outcome,
    run_pieces,
    started,
    terminal,
    write,
)

from greenroom.protocol import (
    JournalError,
    JournalRecord,
    MessageId,
    RunId,
    SourceType,
    ToolTarget,
    journal_fact,
    journal_key,
    journal_record,
    sha256_hex,
)
from greenroom.storage import Piece, Receipt, Store, Tape, open_reader, open_store
from greenroom.storage.sqlite._reads import OPEN_RUNS, RUN_ENTRIES

ALL: list[JournalRecord] = [started(), dispatch(), outcome(), terminal()]

RUN_HASH = "bd7662a5eeb41614e720d477abfcb2272e19a8a70a93b7e3bc8560d44ad326e9"
CALL_HASH = "363ce35b84750c6e9781923e81d70fbfcc8a55ac0e728283a3f3044f208c0837"
OPERATION = f'{{"providerToolCallId":"call","requestSeq":1,"runId":"{RUN}"}}'
GOLDEN: list[tuple[JournalRecord, str, str, str, int]] = [
    (
        started(),
        "execution/run_started",
        f'{{"messageId":"m1","protocolVersion":1,"runId":"{RUN}","runKind":"loop"}}',
        f"execution:v1:run:{RUN_HASH}:started",
        0,
    ),
    (
        dispatch(target=ToolTarget("s", "o", "p"), tool_source="mcp"),
        "execution/dispatch_committed",
        (
            f'{{"argumentsHash":"{"a" * 64}","messageId":"m1","operation":{OPERATION},'
            '"target":{"originalName":"o","ownerPluginId":"p","serverName":"s"},'
            '"toolName":"write_file","toolSource":"mcp"}'
        ),
        f"execution:v1:operation:{CALL_HASH}:dispatch",
        1,
    ),
    (
        outcome(),
        "execution/tool_outcome",
        f'{{"isError":false,"operation":{OPERATION},"responseHash":"{"b" * 64}"}}',
        f"execution:v1:operation:{CALL_HASH}:outcome",
        1,
    ),
    (
        terminal(),
        "execution/run_terminal",
        f'{{"outcome":"completed","runId":"{RUN}","stopReason":"end_turn"}}',
        f"execution:v1:run:{RUN_HASH}:terminal",
        0,
    ),
    (
        terminal(outcome="error", error_hash="c" * 64),
        "execution/run_terminal",
        (
            f'{{"errorHash":"{"c" * 64}","outcome":"error","runId":"{RUN}",'
            '"stopReason":"end_turn"}'
        ),
        f"execution:v1:run:{RUN_HASH}:terminal",
        0,
    ),
]


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(JournalError) as caught:
        call()
    return caught.value.code


def commit(peer: Peer, tape: Tape, *records: JournalRecord) -> Receipt:
    return write(
        peer.store, *(tape.commit_piece(record, now=1.0) for record in records)
    )


#### The facts themselves


@pytest.mark.contract("JRN-01", "JRN-02")
@pytest.mark.parametrize(("record", "name", "payload", "key", "seq"), GOLDEN)
def test_facts_are_golden(
    record: JournalRecord, name: str, payload: str, key: str, seq: int
) -> None:
    fact = journal_fact(record)
    assert (fact.name, fact.payload, fact.key) == (name, payload, key)
    assert (fact.source_type, fact.source_id) == (SourceType.RUNTIME_EVENT, RUN)
    assert fact.source_seq == seq
    assert fact.meta == '{"family":"execution_journal"}'
    assert journal_record(fact) == record


@pytest.mark.contract("JRN-01")
@pytest.mark.parametrize("record", ALL)
def test_a_missing_or_extra_key_is_an_invalid_fact(record: JournalRecord) -> None:
    fact = journal_fact(record)
    members = msgspec.json.decode(fact.payload)
    for change in [{"extra": 1}, *({name: ...} for name in members)]:
        changed = {k: v for k, v in {**members, **change}.items() if v is not ...}
        payload = msgspec.json.encode(changed, order="sorted").decode()
        bad = msgspec.structs.replace(fact, payload=payload)
        assert code_of(lambda bad=bad: journal_record(bad)) == "invalid_fact", change


@pytest.mark.contract("JRN-01")
def test_a_wrong_version_kind_source_or_outcome_is_an_invalid_fact() -> None:
    fields: list[tuple[JournalRecord, dict[str, Any]]] = [
        (started(), {"protocol_version": 2}),
        (started(), {"run_kind": "batch"}),
        (dispatch(), {"tool_source": "builtin"}),
        (terminal(), {"outcome": "cancelled"}),
    ]
    for record, change in fields:
        bad = msgspec.structs.replace(record, **change)
        assert code_of(lambda bad=bad: journal_fact(bad)) == "invalid_fact"


@pytest.mark.contract("JRN-02")
def test_one_call_id_in_two_requests_is_two_operations(peer: Peer) -> None:
    tape = peer.tape()
    calls = [dispatch("same", seq=1), dispatch("same", seq=2)]
    assert commit(peer, tape, started(), *calls) == Receipt(5, 5, created=True)
    keys = {journal_key(record) for record in (started(), *calls)}
    assert len(keys) == 3
    entries = peer.store.run_entries(S1, RUN)
    assert [entry.fact.source_seq for entry in entries] == [0, 1, 2]


def at_limits() -> list[tuple[Callable[[int], JournalRecord], int]]:
    def target(**fields: str) -> JournalRecord:
        return dispatch(target=ToolTarget(**({"server_name": "s"} | fields)))

    return [
        (lambda n: started(message=MessageId("x" * n)), 1_024),
        (lambda n: dispatch(message_id=MessageId("x" * n)), 1_024),
        (lambda n: dispatch("x" * n), 1_024),
        (lambda n: outcome("x" * n), 1_024),
        (lambda n: target(server_name="x" * n), 1_024),
        (lambda n: target(original_name="x" * n), 1_024),
        (lambda n: target(owner_plugin_id="x" * n), 1_024),
        (lambda n: dispatch(tool_name="x" * n), 512),
        (lambda n: terminal(stop_reason="x" * n), 1_024),
    ]


@pytest.mark.contract("JRN-03")
@pytest.mark.parametrize(("make", "limit"), at_limits())
def test_identities_have_their_bounds(
    make: Callable[[int], JournalRecord], limit: int
) -> None:
    assert journal_record(journal_fact(make(limit))) == make(limit)
    assert code_of(lambda: journal_fact(make(limit + 1))) == "invalid_fact"
    assert code_of(lambda: journal_fact(make(0))) == "invalid_fact"


@pytest.mark.contract("JRN-03")
def test_run_ids_are_uuids_and_hashes_are_sha256(peer: Peer) -> None:
    tape = peer.tape()
    bad_ids = ("", "run-1", RUN.upper().replace("1", "A"), RUN.replace("-", ""))
    bad_hashes = ("", "a" * 63, "a" * 65, "A" * 64, "g" * 64)
    records: list[JournalRecord] = [started(RunId(bad)) for bad in bad_ids]
    records += [terminal(RunId(bad)) for bad in bad_ids]
    records += [dispatch(run=RunId(bad)) for bad in bad_ids]
    records += [dispatch(arguments_hash=bad) for bad in bad_hashes]
    records += [terminal(error_hash=bad) for bad in bad_hashes]
    records += [dispatch(seq=0)]
    for record in records:
        assert code_of(lambda r=record: commit(peer, tape, r)) == "invalid_fact"
    assert peer.store.page(S1, 0).head == 2


@pytest.mark.contract("JRN-04")
def test_arguments_and_responses_leave_only_their_hashes(tmp_path: Path) -> None:
    world = SqliteWorld(tmp_path / "state")
    peer = world.join()
    arguments, response = "argument " * 110_000, "response " * 110_000
    records = [
        started(),
        dispatch(arguments_hash=sha256_hex(arguments)),
        msgspec.structs.replace(outcome(), response_hash=sha256_hex(response)),
    ]
    commit(peer, peer.tape(), *records)
    db = apsw.Connection(str(tmp_path / "state" / "greenroom.db"))
    rows = db.execute("SELECT * FROM fact WHERE stream = 1").fetchall()
    db.close()
    world.close()
    assert len(rows) == 3
    for row in rows:
        text = " ".join(map(str, row))
        assert len(text) < 4_096
        assert "argument " not in text
        assert "response " not in text


#### A transaction of its own


@pytest.mark.contract("JRN-05")
def test_a_commit_inside_a_transaction_of_its_host_is_refused(
    tmp_path: Path,
) -> None:
    world = SqliteWorld(tmp_path / "state")
    peer = world.join()
    tape = peer.tape()
    db = peer.store.connection  # type: ignore[attr-defined]
    db.execute("BEGIN")
    refused = code_of(
        lambda: peer.store.commit(tape.grant, tape.head, started(), now=1.0)
    )
    assert refused == "persistence_failed"
    with pytest.raises(RuntimeError, match="somebody else"):
        peer.store.append(tape.grant, tape.head, [event(1)], now=1.0)
    db.execute("ROLLBACK")
    assert peer.store.page(S1, 0).head == 2
    world.close()


@pytest.mark.contract("JRN-05")
@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize("swallow", [True, False])
def test_a_strict_fact_is_a_piece_of_its_own(
    peer: Peer, journal: bool, swallow: bool
) -> None:
    tape, undone = peer.tape(), []

    def both(store: Store) -> None:
        acts = (
            lambda: store.append(tape.grant, 2, [event(1)], now=1.0),
            lambda: store.commit(tape.grant, 2, started(), now=1.0),
            lambda: store.commit(tape.grant, 3, dispatch(), now=1.0),
        )
        for act in acts[0 if not journal else 1 :]:
            try:
                act()
            except JournalError:
                if not swallow:
                    raise

    piece = Piece(both, lambda: undone.append(1), journal=journal)
    (settled,) = run_pieces(peer.store, piece)
    if swallow and not journal:
        # The append was allowed, and is what is left.
        assert settled.error is None
        assert [e.fact for e in peer.store.page(S1, 2).entries] == [event(1)]
        return
    assert isinstance(settled.error, JournalError)
    assert settled.error.code == "persistence_failed"
    assert undone == ([1] if swallow else [])
    assert peer.store.page(S1, 0).head == 2


@pytest.mark.contract("JRN-05")
def test_a_journal_piece_does_nothing_but_its_commit(peer: Peer) -> None:
    tape = peer.tape()
    acts: list[Callable[[Store], object]] = [
        lambda store: store.append(tape.grant, 2, [event(1)], now=1.0),
        lambda store: store.post(S1, "c", "{}", now=1.0),
        lambda store: store.cache_blocks(tape.grant, "m", "[]", now=1.0),
        lambda store: store.reset(tape.grant, 2, bootstrap(), now=1.0),
        lambda store: None,
    ]
    for settled in run_pieces(peer.store, *(Piece(a, journal=True) for a in acts)):
        assert isinstance(settled.error, JournalError)
        assert settled.error.code == "persistence_failed"
    assert peer.store.page(S1, 0).head == 2
    assert peer.store.owed_by_dead() == []


KILLED = """
import os, signal, sys
from pathlib import Path
from kit.stores import S1, dispatch, started, terminal
from greenroom.storage import Tape, bootstrap_facts, open_store
from kit.stores import bootstrap, outcome
how, folder = sys.argv[1], Path(sys.argv[2])
store = open_store(folder)
tape = Tape(store.acquire(store.join("child", "", 60.0, now=1.0), S1, now=1.0))
pieces = [tape.append_piece(bootstrap(), now=1.0)]
pieces += [tape.commit_piece(r, now=1.0) for r in (started(), dispatch())]
if how == "alone":
    store.append(tape.grant, 0, bootstrap(), now=1.0)
    store.commit(tape.grant, 2, started(), now=1.0)
    store.commit(tape.grant, 3, dispatch(), now=1.0)
elif how == "group":
    assert all(s.error is None for s in store.run_group(pieces))
else:
    # Killed in the group's last piece: nothing of it was ever reported.
    from greenroom.storage import Piece
    die = Piece(lambda store: os.kill(os.getpid(), signal.SIGKILL))
    store.run_group([*pieces, die])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.contract("JRN-05")
@pytest.mark.slow
@pytest.mark.parametrize(("how", "kept"), [("alone", 4), ("group", 4), ("within", 0)])
def test_what_was_reported_is_there_after_a_kill(
    tmp_path: Path, how: str, kept: int
) -> None:
    tests = Path(__file__).parent.parent
    child = subprocess.run(
        [sys.executable, "-c", KILLED, how, str(tmp_path)],
        env={"PYTHONPATH": str(tests)},
        capture_output=True,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    store = open_store(tmp_path)
    assert [entry.seq for entry in store.page(S1, 0).entries] == list(
        range(1, kept + 1)
    )
    member = store.join("after", "", 60.0, now=1.0)
    # The child is known to be dead at once, although its beat is good for a minute.
    assert store.acquire(member, S1, now=1.0).head == kept  # type: ignore[union-attr]
    store.close()


#### Prerequisites


@pytest.mark.contract("JRN-06")
def test_a_tape_must_have_begun(peer: Peer) -> None:
    grant = peer.acquire()
    for record in ALL:
        call = lambda r=record: peer.store.commit(grant, 0, r, now=1.0)  # noqa: E731
        assert code_of(call) == "conflicting_fact"
    assert peer.store.page(S1, 0).head == 0


@pytest.mark.contract("JRN-06")
@pytest.mark.parametrize(
    ("before", "record", "problem"),
    [
        ([], dispatch(), "did not start"),
        ([], terminal(), "did not start"),
        ([], outcome(), "was not dispatched"),
        ([started()], outcome(), "was not dispatched"),
        ([started(), dispatch("other")], outcome(), "was not dispatched"),
        ([started(OTHER_RUN)], dispatch(), "did not start"),
        ([started(OTHER_RUN)], terminal(), "did not start"),
        ([started(message=MessageId("m2"))], dispatch(), "message is not the run's"),
        ([started(), terminal()], dispatch(), "the run has ended"),
        ([started(), dispatch(), terminal()], outcome(), "the run has ended"),
        ([started(), dispatch(), terminal()], dispatch("b"), "the run has ended"),
    ],
)
def test_a_fact_without_its_prerequisite_is_refused(
    peer: Peer, before: list[JournalRecord], record: JournalRecord, problem: str
) -> None:
    tape = peer.tape()
    if before:
        commit(peer, tape, *before)
    head = tape.head
    with pytest.raises(JournalError, match=problem) as caught:
        commit(peer, tape, record)
    assert caught.value.code == "conflicting_fact"
    assert peer.store.page(S1, 0).head == head == tape.head


def test_a_damaged_start_counts_as_none(tmp_path: Path) -> None:
    world = SqliteWorld(tmp_path / "state")
    peer = world.join()
    tape = peer.tape()
    commit(peer, tape, started())
    db = peer.store.connection  # type: ignore[attr-defined]
    db.execute("DROP TRIGGER fact_is_not_updated")
    db.execute("UPDATE fact SET payload = '{}' WHERE seq = 3")
    with pytest.raises(JournalError, match="start is damaged") as caught:
        commit(peer, tape, dispatch())
    assert caught.value.code == "conflicting_fact"
    world.close()


@pytest.mark.contract("JRN-06")
def test_prerequisites_of_another_session_do_not_count(peer: Peer) -> None:
    commit(peer, peer.tape(S1), started(), dispatch())
    other = peer.tape(S2)
    for record in (dispatch("b"), outcome(), terminal()):
        assert code_of(lambda r=record: commit(peer, other, r)) == "conflicting_fact"
    assert peer.store.page(S2, 0).head == 2


#### Repeats


@pytest.mark.contract("JRN-07")
def test_an_equal_fact_again_is_not_created(peer: Peer) -> None:
    tape = peer.tape()
    commit(peer, tape, *ALL)
    for place, record in enumerate(ALL, start=3):
        for _ in range(3):
            receipt = peer.store.commit(tape.grant, 6, record, now=2.0)
            assert receipt == Receipt(place, 6, created=False)
    assert peer.store.page(S1, 0).head == 6


@pytest.mark.contract("JRN-07")
def test_another_payload_under_a_key_is_a_conflict(peer: Peer) -> None:
    tape = peer.tape()
    commit(peer, tape, *ALL)
    others: list[JournalRecord] = [
        started(message=MessageId("m2")),
        dispatch(tool_name="other"),
        outcome(is_error=True),
        terminal(stop_reason="other"),
    ]
    for record in others:
        assert code_of(lambda r=record: commit(peer, tape, r)) == "conflicting_fact"
    assert [e.fact for e in peer.store.run_entries(S1, RUN)] == [
        journal_fact(record) for record in ALL
    ]


@pytest.mark.contract("JRN-07")
def test_a_start_or_dispatch_that_is_there_stops_its_caller(peer: Peer) -> None:
    tape = peer.tape()
    commit(peer, tape, started(), dispatch())
    effects: list[str] = []

    def tool() -> None:
        commit(peer, tape, dispatch())
        effects.append("ran")

    assert code_of(tool) == "duplicate_dispatch"
    assert code_of(lambda: commit(peer, tape, started())) == "conflicting_fact"
    assert effects == []
    commit(peer, tape, outcome())
    assert commit(peer, tape, outcome()).created is False
    commit(peer, tape, terminal())
    assert commit(peer, tape, terminal()).created is False


@pytest.mark.contract("JRN-07")
def test_a_fault_of_the_disk_is_a_failed_persistence(tmp_path: Path) -> None:
    world = SqliteWorld(tmp_path / "state")
    peer = world.join()
    tape = peer.tape()
    db = peer.store.connection  # type: ignore[attr-defined]
    db.execute("PRAGMA query_only = 1")
    assert code_of(lambda: commit(peer, tape, started())) == "persistence_failed"
    refused = code_of(lambda: peer.store.commit(tape.grant, 2, started(), now=1.0))
    assert refused == "persistence_failed"
    db.execute("PRAGMA query_only = 0")
    assert commit(peer, tape, started()).seq == 3
    world.close()


@pytest.mark.contract("JRN-07")
def test_an_index_of_runs_that_cannot_be_kept_is_a_failed_projection(
    tmp_path: Path,
) -> None:
    world = SqliteWorld(tmp_path / "state")
    peer = world.join()
    tape = peer.tape()
    peer.store.connection.execute("DROP TABLE open_run")  # type: ignore[attr-defined]
    assert code_of(lambda: commit(peer, tape, started())) == "projection_failed"
    assert peer.store.page(S1, 0).head == 2 == tape.head
    world.close()


@pytest.mark.contract("JRN-05")
def test_a_commit_that_failed_is_undone_even_if_its_piece_swallows_it(
    tmp_path: Path,
) -> None:
    world = SqliteWorld(tmp_path / "state")
    peer = world.join()
    tape = peer.tape()
    db = peer.store.connection  # type: ignore[attr-defined]
    db.execute("DROP TABLE open_run")

    def swallows(store: Store) -> None:
        with pytest.raises(JournalError):
            store.commit(tape.grant, 2, started(), now=1.0)

    (settled,) = run_pieces(peer.store, Piece(swallows, journal=True))
    assert isinstance(settled.error, JournalError)
    assert db.execute("SELECT count(*) FROM fact").fetchall() == [(2,)]
    world.close()


@pytest.mark.contract("JRN-15")
def test_no_other_way_writes_execution_facts(peer: Peer) -> None:
    tape = peer.tape()
    facts = [journal_fact(record) for record in ALL]
    facts += [
        msgspec.structs.replace(event(1), name="execution/anything"),
        msgspec.structs.replace(facts[0], source_type=SourceType.MIGRATION),
        msgspec.structs.replace(facts[0], source_type=SourceType.FORK),
    ]
    for fact in facts:
        appends = [
            tape.append_piece([event(1), fact], now=1.0),
            tape.reset_piece([*bootstrap("again"), fact], now=1.0),
        ]
        for settled in run_pieces(peer.store, *appends):
            assert isinstance(settled.error, JournalError)
            assert settled.error.code == "invalid_fact"
    assert peer.store.page(S1, 0, stream="journal").entries == ()
    assert peer.store.page(S1, 0).head == 2


#### Unresolved runs


@pytest.mark.contract("JRN-18")
@pytest.mark.slow
def test_the_scan_for_open_runs_is_bounded_by_open_runs(tmp_path: Path) -> None:
    world = SqliteWorld(tmp_path / "state")
    peer = world.join()
    tape = peer.tape()
    commit(peer, tape, started(), dispatch())
    before = steps(open_reader(tmp_path / "state"))
    db = peer.store.connection  # type: ignore[attr-defined]
    with db:
        for end in ("run_started", "run_terminal"):
            db.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
                " WHERE i < 100000) INSERT INTO fact SELECT NULL, 1,"
                " -2 * i - ?, 1, 1, 'event', 'execution/' || ?,"
                " 'runtime_event', printf('run-%d', i), 0, randomblob(16), '', '{}',"
                " '{}', 1.0 FROM n",
                (end == "run_terminal", end),
            )
    reader = open_reader(tmp_path / "state")
    assert [run.run_id for run in reader.open_runs(S1)] == [RUN]
    plan = [
        row[-1]
        for row in reader.connection.execute(f"EXPLAIN QUERY PLAN {OPEN_RUNS}", (S1,))
    ]
    assert plan == [
        "SEARCH s USING COVERING INDEX sqlite_autoindex_session_1 (name=?)",
        "SEARCH o USING PRIMARY KEY (session=?)",
    ]
    entries = reader.connection.execute(
        f"EXPLAIN QUERY PLAN {RUN_ENTRIES}", (S1, 3, RUN)
    )
    assert "(session=? AND seq>?)" in next(entries)[-1]
    entries.close(True)
    assert steps(reader) <= before + 2
    world.close()


def steps(reader: Any) -> int:
    """Return how many steps of 10 machine instructions the scan takes."""
    counted = [0]

    def count() -> bool:
        counted[0] += 1
        return False

    reader.connection.set_progress_handler(count, 10)
    assert len(reader.open_runs(S1)) == 1
    reader.close()
    return counted[0]
