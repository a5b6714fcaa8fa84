"""What only the store on SQLite has: a file, locks, faults of a disk."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from kit.stores import (
    S1,
    Peer,
    SqliteWorld,
    bootstrap,
    event,
    message,
    open_files,
    run_pieces,
    started,
    write,
)

from greenroom.protocol import (
    CorruptStoreError,
    DiskFullError,
    JournalError,
    NewerSchemaError,
    Plan,
    StorageError,
    StoreLockedError,
)
from greenroom.storage import (
    Grant,
    Held,
    MemoryStore,
    NoStoreError,
    Piece,
    Settled,
    Store,
    Tape,
    message_fact,
    open_reader,
    open_store,
    plan_fact,
    verify,
    verify_session,
)
from greenroom.storage.sqlite._migrations import MIGRATIONS, SCHEMA_VERSION


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def world(folder: Path) -> Iterator[SqliteWorld]:
    opened = SqliteWorld(folder)
    yield opened
    opened.close()


@pytest.fixture
def peer(world: SqliteWorld) -> Peer:
    return world.join("window one")


def connection(peer: Peer) -> apsw.Connection:
    return peer.store.connection  # type: ignore[attr-defined]


#### Opening


def test_the_writer_syncs_each_commit_to_a_write_ahead_log(peer: Peer) -> None:
    db = connection(peer)
    assert db.pragma("journal_mode") == "wal"
    assert db.pragma("synchronous") == 2
    assert db.pragma("recursive_triggers") == 1
    assert db.pragma("trusted_schema") == 0


def test_the_folder_is_the_user_s_alone(folder: Path, peer: Peer) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_was_written_is_there_when_opened_again(folder: Path) -> None:
    store = open_store(folder)
    peer = Peer(store, store.join("node", "", 60.0, now=0.0))
    peer.tape()
    store.close()
    again = open_store(folder)
    assert [e.fact for e in again.page(S1, 0).entries] == [*bootstrap()]
    again.close()


def test_opening_and_closing_leaves_no_file_open(folder: Path) -> None:
    open_store(folder).close()
    gc.collect()
    before = open_files()
    for _ in range(20):
        store, reader = open_store(folder), open_reader(folder)
        store.join("node", "", 60.0, now=0.0)
        store.close()
        reader.close()
        with pytest.raises(NoStoreError):
            open_reader(folder / "elsewhere")
    assert open_files() == before


@pytest.mark.slow
def test_windows_that_open_a_new_folder_at_once_all_get_in(folder: Path) -> None:
    stores: list[Any] = []
    gate = threading.Barrier(4)

    def work() -> None:
        gate.wait()
        stores.append(open_store(folder))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores) == 4
    for store in stores:
        assert store.scopes() == []
        store.close()


def test_a_folder_without_state_reads_as_a_clear_error(folder: Path) -> None:
    with pytest.raises(NoStoreError, match="no state in") as caught:
        open_reader(folder)
    assert caught.value.code == "no_store"
    assert caught.value.hint
    assert not folder.exists()


def test_state_of_a_newer_greenroom_is_refused(folder: Path) -> None:
    store = open_store(folder)
    store.connection.execute("INSERT INTO migration VALUES (99, 'm099_future')")
    store.close()
    for opening in (open_store, open_reader):
        with pytest.raises(NewerSchemaError) as caught:
            opening(folder)
        assert (caught.value.found, caught.value.known) == (99, SCHEMA_VERSION)
    # Nothing is left locked.
    db = apsw.Connection(str(folder / "greenroom.db"))
    db.execute("DELETE FROM migration WHERE version = 99")
    db.close()
    open_store(folder, exclusive=True).close()


def test_state_of_an_older_greenroom_is_not_read_before_its_migration(
    folder: Path,
) -> None:
    store = open_store(folder)
    store.connection.execute("DELETE FROM migration")
    store.close()
    with pytest.raises(StorageError, match=f"version 0, {SCHEMA_VERSION} is"):
        open_reader(folder)


@pytest.mark.parametrize("content", ["garbage", "foreign"])
def test_a_file_that_is_not_ours_is_refused_untouched(
    folder: Path, content: str
) -> None:
    folder.mkdir()
    path = folder / "greenroom.db"
    if content == "garbage":
        path.write_bytes(b"not a database at all" * 100)
    else:
        db = apsw.Connection(str(path))
        db.execute("CREATE TABLE theirs (x)")
        db.close()
    before = path.read_bytes()
    for opening in (open_reader, open_store):
        with pytest.raises(CorruptStoreError) as caught:
            opening(folder)
        assert caught.value.hint
    if content == "garbage":
        assert path.read_bytes() == before


def test_a_folder_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    with pytest.raises(StorageError, match="can't be used"):
        open_store(blocker / "state")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "greenroom.db").mkdir()
    with pytest.raises(StorageError, match="can't be opened"):
        open_store(tmp_path / "state")


#### Alone and together


def test_maintenance_has_the_folder_alone_and_names_who_is_in_it(
    folder: Path, world: SqliteWorld
) -> None:
    peer = world.join("host 7, pid 4711")
    with pytest.raises(StoreLockedError, match="host 7, pid 4711"):
        open_store(folder, exclusive=True)
    world.kill(peer)
    open_store(folder, exclusive=True).close()


def test_a_holder_that_did_not_join_is_named_by_its_process(folder: Path) -> None:
    store = open_store(folder)
    with pytest.raises(StoreLockedError, match=f"process {os.getpid()}"):
        open_store(folder, exclusive=True)
    store.close()


def test_nobody_gets_in_while_maintenance_works(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("greenroom.storage.sqlite._open.pause", pauses.append)
    alone = open_store(folder, exclusive=True)
    with pytest.raises(StoreLockedError, match=f"process {os.getpid()}"):
        open_store(folder)
    assert 1.0 <= sum(pauses) <= 10.0
    alone.close()
    open_store(folder).close()


def test_a_migration_waits_for_others_to_leave_and_names_them(
    folder: Path, world: SqliteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.join("old window")
    db = apsw.Connection(str(folder / "greenroom.db"))
    db.execute("DELETE FROM migration")
    db.close()
    pauses: list[float] = []
    monkeypatch.setattr("greenroom.storage.sqlite._open.pause", pauses.append)
    with pytest.raises(StoreLockedError, match="migrate the state: old window uses"):
        open_store(folder)
    assert sum(pauses) >= 1.0


def test_a_migration_that_fails_leaves_nothing_locked(folder: Path) -> None:
    store = open_store(folder)
    store.connection.execute("DELETE FROM migration")
    store.close()
    for _ in range(2):
        with pytest.raises(StorageError, match="already exists"):
            open_store(folder)
    store = apsw.Connection(str(folder / "greenroom.db"))
    store.executemany(
        "INSERT INTO migration VALUES (?, ?)",
        [(n, name) for n, (name, _) in enumerate(MIGRATIONS, start=1)],
    )
    store.close()
    open_store(folder, exclusive=True).close()


def test_another_process_may_end_a_member(world: SqliteWorld) -> None:
    one, two = world.join("one"), world.join("two")
    one.acquire()
    two.store.leave(one.member, now=1.0)
    two.acquire()


def test_the_holder_is_named_even_without_a_database(folder: Path) -> None:
    store = open_store(folder)
    (folder / "greenroom.db").rename(folder / "moved.db")
    with pytest.raises(StoreLockedError, match=f"process {os.getpid()}"):
        open_store(folder, exclusive=True)
    (folder / "greenroom.db").write_bytes(b"damaged" * 1_000)
    with pytest.raises(StoreLockedError, match=f"process {os.getpid()}"):
        open_store(folder, exclusive=True)
    (folder / "moved.db").rename(folder / "greenroom.db")
    store.close()


def test_a_dead_member_that_owns_nothing_is_forgotten(
    folder: Path, world: SqliteWorld
) -> None:
    idle, owner = world.join("idle"), world.join("owner")
    owner.acquire()
    world.kill(idle)
    world.kill(owner)
    (folder / "members" / f"{idle.member.id}.lock").touch()
    peer = world.join("after")
    rows = connection(peer).execute("SELECT id FROM member ORDER BY id").fetchall()
    assert [str(row[0]) for row in rows] == [owner.member.id, peer.member.id]
    assert not (folder / "members" / f"{idle.member.id}.lock").exists()


def test_a_join_that_is_undone_leaves_no_proof_of_life(
    folder: Path, peer: Peer
) -> None:
    def joins(store: Store) -> None:
        store.join("ghost", "", 60.0, now=0.0)
        raise LookupError

    run_pieces(peer.store, Piece(joins))
    fails(peer)
    run_pieces(peer.store, Piece(lambda store: store.join("ghost", "", 9.0, now=0.0)))
    with pytest.raises(StorageError):
        peer.store.join("ghost", "", 60.0, now=0.0)
    works(peer)
    assert os.listdir(folder / "members") == [f"{peer.member.id}.lock"]
    assert peer.store.join("real", "", 60.0, now=0.0).id != peer.member.id


#### Readers


def test_a_reader_reads_beside_a_writer_and_cannot_write(
    folder: Path, world: SqliteWorld, peer: Peer
) -> None:
    reader = open_reader(folder)
    assert reader.session(S1) is None
    tape = peer.tape()
    row = reader.session(S1)
    assert row is not None
    assert row.head == 2
    assert reader.locate(S1) == peer.store.locate(S1)
    assert reader.owed_by_dead() == []
    world.kill(peer)
    assert reader.owed_by_dead() == [S1]
    with pytest.raises(apsw.ReadOnlyError):
        reader.connection.execute("DELETE FROM message")
    assert tape.head == 2
    reader.close()


def test_no_read_outlives_its_page(folder: Path, peer: Peer) -> None:
    tape, reader = peer.tape(), open_reader(folder)
    write(peer.store, tape.append_piece([event(n) for n in range(50)], now=1.0))
    assert peer.store.log_bytes() > 0
    reader.page(S1, 0, 10)
    reader.messages(S1)
    reader.sessions()
    reader.search("50")
    peer.store.checkpoint()
    assert peer.store.log_bytes() == 0
    reader.close()


def test_a_checkpoint_does_not_wait_for_a_long_reader(folder: Path, peer: Peer) -> None:
    tape, reader = peer.tape(), open_reader(folder)
    reader.connection.execute("BEGIN")
    reader.connection.execute("SELECT count(*) FROM fact").fetchall()
    write(peer.store, tape.append_piece([event(1)], now=1.0))
    assert not peer.store.checkpoint()
    assert peer.store.log_bytes() > 0
    assert reader.page(S1, 0).head == 2
    reader.connection.execute("COMMIT")
    reader.close()
    assert peer.store.checkpoint()
    assert peer.store.log_bytes() == 0


#### Faults


def fails(peer: Peer) -> None:
    """Make every commit of *peer* fail."""
    connection(peer).set_commit_hook(lambda: True)


def works(peer: Peer) -> None:
    connection(peer).set_commit_hook(None)


def test_a_commit_that_fails_undoes_every_piece_last_first(peer: Peer) -> None:
    tape = peer.tape()
    undone: list[str] = []

    def noted(name: str) -> Piece:
        return Piece(lambda store: name, lambda: undone.append(name))

    def raises(store: Store) -> None:
        raise LookupError

    pieces = [
        noted("a"),
        Piece(raises, lambda: undone.append("never ran")),
        tape.append_piece([event(1)], now=1.0),
        tape.commit_piece(started(), now=1.0),
        noted("b"),
    ]
    fails(peer)
    settled = run_pieces(peer.store, *pieces)
    works(peer)
    assert undone == ["b", "a"]
    assert tape.head == 2
    assert all(isinstance(one.error, StorageError) for one in settled)
    journal = settled[3].error
    assert isinstance(journal, JournalError)
    assert journal.code == "persistence_failed"
    # Raised in different tasks, so each has an error of its own.
    assert len({id(one.error) for one in settled}) == len(settled)
    assert peer.store.page(S1, 0).head == 2
    write(peer.store, tape.append_piece([event(1)], now=1.0))
    assert verify(peer.store) == []


def test_a_single_write_that_fails_is_undone(peer: Peer) -> None:
    grant = peer.tape().grant
    fails(peer)
    with pytest.raises(StorageError):
        peer.store.append(grant, 2, [event(1)], now=1.0)
    with pytest.raises(JournalError):
        peer.store.commit(grant, 2, started(), now=1.0)
    works(peer)
    assert peer.store.page(S1, 0).head == 2


def test_a_full_disk_is_said_and_nothing_is_half_written(peer: Peer) -> None:
    tape = peer.tape()
    db = connection(peer)
    db.pragma("max_page_count", db.pragma("page_count") + 20)
    big = [event(n, "x" * 100_000) for n in range(5)]
    settled = run_pieces(
        peer.store,
        tape.append_piece([event(100)], now=1.0),
        tape.append_piece(big, now=1.0),
        tape.append_piece([event(101)], now=1.0),
    )
    assert isinstance(settled[1].error, DiskFullError)
    assert settled[1].error.code == "disk_full"
    assert settled[1].error.hint
    kept = peer.store.page(S1, 2).entries
    assert len(kept) == sum(one.error is None for one in settled)
    assert tape.head == 2 + len(kept)
    db.pragma("max_page_count", 1_000_000)
    write(peer.store, tape.append_piece(big, now=1.0))
    assert verify(peer.store) == []


def test_a_full_disk_is_a_failed_persistence_of_a_strict_fact(peer: Peer) -> None:
    tape = peer.tape()
    db = connection(peer)
    write(peer.store, tape.append_piece([event(1)], now=1.0))
    db.pragma("max_page_count", db.pragma("page_count"))
    filler = [event(n, "x" * 3_000) for n in range(2, 40)]
    run_pieces(peer.store, *(tape.append_piece([f], now=1.0) for f in filler))
    long = started(message="x" * 1_000)  # type: ignore[arg-type]
    codes: set[str] = set()
    for n in range(40):
        run = f"{n:08}-0000-4000-8000-000000000000"
        record = started(run, long.message_id)  # type: ignore[arg-type]
        (one,) = run_pieces(peer.store, tape.commit_piece(record, now=1.0))
        if one.error is not None:
            assert isinstance(one.error, JournalError)
            codes.add(one.error.code)
    assert codes == {"persistence_failed"}
    db.pragma("max_page_count", 1_000_000)
    assert verify(peer.store) == []


def gives_up(peer: Peer) -> Piece:
    """Return a piece in which SQLite gives the whole transaction up."""

    def run(store: Store) -> None:
        connection(peer).execute("ROLLBACK")
        raise LookupError("as after an error of the disk")

    return Piece(run)


@pytest.mark.parametrize("strict", [True, False])
def test_when_the_transaction_is_gone_all_its_pieces_are(
    peer: Peer, strict: bool
) -> None:
    tape = peer.tape()
    first = tape.append_piece([event(1)], now=1.0)
    last = tape.append_piece([event(2)], now=1.0)
    if strict:
        first = tape.commit_piece(started(), now=1.0)
    settled = run_pieces(peer.store, first, gives_up(peer), last)
    assert all(isinstance(one.error, StorageError) for one in settled)
    assert isinstance(settled[0].error, JournalError) is strict
    assert "gave the transaction up" in str(settled[1].error)
    assert tape.head == 2
    assert peer.store.page(S1, 0).head == 2
    write(peer.store, tape.append_piece([event(1)], now=1.0))


def test_another_process_s_lock_is_waited_for_and_then_said(
    folder: Path, peer: Peer
) -> None:
    tape = peer.tape()
    connection(peer).set_busy_timeout(1)
    other = apsw.Connection(str(folder / "greenroom.db"))
    other.execute("BEGIN IMMEDIATE")
    settled = run_pieces(
        peer.store,
        tape.append_piece([event(1)], now=1.0),
        tape.commit_piece(started(), now=1.0),
    )
    assert isinstance(settled[0].error, StoreLockedError)
    assert isinstance(settled[1].error, JournalError)
    assert settled[1].error.code == "persistence_failed"
    with pytest.raises(StoreLockedError):
        peer.store.post(S1, "c", "{}", now=1.0)
    other.execute("ROLLBACK")
    other.close()
    assert tape.head == 2
    write(peer.store, tape.append_piece([event(1)], now=1.0))


def test_a_damaged_page_is_said(folder: Path) -> None:
    world = SqliteWorld(folder)
    peer = world.join()
    tape = peer.tape()
    write(peer.store, tape.append_piece([event(n) for n in range(200)], now=1.0))
    world.kill(peer)
    path = folder / "greenroom.db"
    data = bytearray(path.read_bytes())
    data[8_192:] = b"\x5a" * (len(data) - 8_192)
    path.write_bytes(bytes(data))

    def read() -> None:
        with closing(open_store(folder)) as store:
            store.page(S1, 0)

    with pytest.raises(CorruptStoreError) as caught:
        read()
    assert "restore a copy" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (apsw.BusyError("x"), StoreLockedError),
        (apsw.LockedError("x"), StoreLockedError),
        (apsw.FullError("x"), DiskFullError),
        (apsw.CorruptError("x"), CorruptStoreError),
        (apsw.NotADBError("x"), CorruptStoreError),
        (apsw.ReadOnlyError("x"), StorageError),
        (apsw.CantOpenError("x"), StorageError),
        (apsw.IOError("x"), StorageError),
    ],
)
def test_every_fault_of_sqlite_is_one_of_ours(
    peer: Peer, raised: apsw.Error, kind: type[StorageError]
) -> None:
    def raises(store: Store) -> None:
        raise raised

    (settled,) = run_pieces(peer.store, Piece(raises))
    assert type(settled.error) is kind
    assert settled == Settled(error=settled.error)


#### Verification


REPEATED = """UPDATE fact SET provenance_key =
    (SELECT provenance_key FROM fact WHERE seq = 4) WHERE seq = 5"""
TAMPERED = [
    ("UPDATE message SET status = 'error'", "projection", "transcript differs"),
    ("UPDATE message SET updated_at = 99", "projection", "transcript differs"),
    ("UPDATE block SET body = replace(body, 'hello', 'bye')", "projection", "differs"),
    ("DELETE FROM block", "projection", "rows of message m1 are missing"),
    ("UPDATE session_info SET archived_at = 7", "projection", "row differs"),
    ("DELETE FROM message", "projection", "1 messages are missing"),
    ("UPDATE session_info SET messages = 7", "projection", "number of messages"),
    ("UPDATE session_info SET input_tokens = 7", "projection", "usage differs"),
    ("UPDATE session_info SET updated_at = 7", "projection", "row differs"),
    ("UPDATE session_info SET settings = NULL", "projection", "not in the list"),
    ("UPDATE session_info SET plan = NULL", "projection", "plan differs"),
    ("DELETE FROM open_run", "projection", "open runs differs"),
    ("UPDATE message SET metadata = 'x'", "unreadable", "can't be read back"),
    ("UPDATE session SET head = 9", "tape", "the head is 9, the last entry 5"),
    ("DELETE FROM fact WHERE seq = 4", "tape", "entry 4 is missing"),
    ("UPDATE fact SET payload = '{' WHERE seq = 4", "tape", "not JSON"),
    ("UPDATE fact SET name = 'note/x' WHERE seq = 1", "tape", "entry 1 is note/x"),
    ("UPDATE fact SET payload = '{}' WHERE seq = 3", "journal", "malformed_fact"),
    (REPEATED, "tape", "repeats a provenance key"),
]


@pytest.mark.parametrize(("sql", "code", "text"), TAMPERED)
def test_what_was_tampered_with_is_found_and_projections_are_rebuilt(
    peer: Peer, sql: str, code: str, text: str
) -> None:
    tape = peer.tape()
    write(peer.store, tape.commit_piece(started(), now=1.0))
    facts = [message_fact(message(input_tokens=3)), plan_fact(Plan(1, ()))]
    write(peer.store, tape.append_piece(facts, now=1.0))
    assert verify(peer.store) == []
    db = connection(peer)
    db.execute("DROP TRIGGER fact_is_not_updated; DROP TRIGGER fact_is_not_deleted")
    db.execute(sql)
    problems = verify(peer.store)
    assert code in {problem.code for problem in problems}
    assert any(text in problem.text for problem in problems), problems
    if code in ("projection", "unreadable"):
        peer.store.rebuild(S1)
        assert verify(peer.store) == []


def test_a_session_that_is_not_there_has_no_problems(peer: Peer) -> None:
    assert verify_session(peer.store, S1) == []


def test_a_rebuild_of_nothing_is_nothing(peer: Peer) -> None:
    peer.store.rebuild(S1)
    assert peer.store.scopes() == []


def test_the_search_index_goes_on_past_a_hole(peer: Peer) -> None:
    tape = peer.tape()
    write(peer.store, tape.append_piece([event(1, "word")], now=1.0))
    connection(peer).execute("UPDATE session SET head = 9, indexed = 5")
    assert peer.store.index_pending() == 0
    assert peer.store.index_pending() == 0
    peer.store.rebuild(S1)
    peer.store.index_pending()
    assert peer.store.search("word") == [(S1, 3)]


def test_a_tape_starts_at_the_head_of_its_grant(peer: Peer) -> None:
    assert Tape(peer.tape().grant, 7).head == 7


def test_what_reaches_a_log_is_short(folder: Path, peer: Peer) -> None:
    tape, reader = peer.tape(), open_reader(folder)
    assert repr(peer.store) == f"<SqliteStore {str(folder)!r}>"
    assert repr(reader) == f"<SqliteReader {str(folder / 'greenroom.db')!r}>"
    assert repr(tape) == "<Tape 's1' token 1 head 2>"
    assert repr(MemoryStore.create()) == "<MemoryStore 0 sessions>"
    reader.close()


def test_a_member_is_restored_whose_store_was_closed_and_that_others_swept(
    tmp_path: Path,
) -> None:
    first = open_store(tmp_path)
    member = first.join("mine", "", 60.0, now=0.0)
    assert first.others(member) == []
    first.close()
    with closing(open_store(tmp_path)) as other:
        # Whoever joins removes members that are dead and own nothing.
        stranger = other.join("another", "", 60.0, now=1.0)
        with closing(open_store(tmp_path)) as again:
            again.restore(member, now=1.0)
            assert again.others(member) == ["another"]
            assert other.others(stranger) == ["mine"]
            grant = again.acquire(member, S1, now=2.0)
            assert isinstance(grant, Grant)
            assert isinstance(other.acquire(stranger, S1, now=2.0), Held)
