"""Each kind of damage is found, explained, and repaired only where that is safe."""

from __future__ import annotations

import os
from contextlib import closing

import apsw
import pytest
from kit.stores import RUN, S1, S2, SqliteWorld, event, message, write

from greenroom.protocol import CorruptStoreError, RunId, RunStarted, StoreLockedError
from greenroom.storage import (
    MEANING,
    NoStoreError,
    examine,
    message_fact,
    open_reader,
    open_store,
    repair,
    salvage,
)
from greenroom.storage.sqlite import back_up

ENTRIES = 40


@pytest.fixture
def state(tmp_path):
    """A folder with two sessions that hold some entries and a message each."""
    world = SqliteWorld(tmp_path / "state")
    peer = world.join()
    for scope in (S1, S2):
        tape = peer.tape(scope)
        facts = [event(n, f"{n:02}" + "x" * 3_000) for n in range(ENTRIES)]
        facts.append(message_fact(message("hello")))
        write(peer.store, tape.append_piece(facts, now=2.0))
    peer.store.leave(peer.member, now=3.0)
    world.close()
    return tmp_path / "state"


def sql(state, *statements):
    with closing(apsw.Connection(str(state / "greenroom.db"))) as db:
        for statement in statements:
            db.execute(statement)


def codes(state):
    return [finding.code for finding in examine(state).findings]


def content(state):
    with closing(apsw.Connection(str(state / "greenroom.db"))) as db:
        return list(db.execute("SELECT * FROM fact ORDER BY id"))


def spoil(state, part):
    """Overwrite the pages of *part* of the file, as a bad disk would."""
    path = state / "greenroom.db"
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for page in range(int(size * part[0]) // 4096, int(size * part[1]) // 4096):
            file.seek(page * 4096)
            file.write(b"\xee" * 4096)


def test_a_healthy_folder_has_no_findings(state):
    found = examine(state)
    assert (found.sessions, found.findings, found.is_damaged) == (2, (), False)
    with closing(open_reader(state)) as reader:
        assert found.entries == sum(head for _, head in reader.heads([S1, S2]))


DERIVED = [
    "UPDATE message SET status = 'error'",
    "DELETE FROM block",
    "UPDATE block SET body = '{'",
    "UPDATE session_info SET messages = 7",
    "UPDATE session_info SET settings = '[]'",
    "DELETE FROM session_info",
    "INSERT INTO open_run SELECT id, 'nobody', 1 FROM session",
]


@pytest.mark.parametrize("damage", DERIVED)
def test_what_is_derived_is_made_anew_after_a_backup(state, damage):
    facts = content(state)
    sql(state, damage)
    assert set(codes(state)) <= {"projection", "open_run"}
    assert "projection" in codes(state)

    done = repair(state, "before")

    assert done.before.findings
    assert done.after.findings == examine(state).findings == ()
    assert set(done.rebuilt) == {S1, S2}
    assert content(state) == facts
    assert done.backup == state / "backups" / "before.db"
    with closing(apsw.Connection(str(done.backup))) as backup:
        assert list(backup.execute("SELECT * FROM fact ORDER BY id")) == facts
    with closing(open_reader(state)) as reader:
        assert [m.blocks for m in reader.messages(S1)] == [message("hello").blocks]
        assert reader.search("hello") != []


def test_a_repair_touches_only_the_sessions_that_need_it(state):
    sql(state, "DELETE FROM block WHERE message = (SELECT min(message) FROM block)")
    assert len(repair(state, "before").rebuilt) == 1


def test_a_repair_without_need_changes_and_copies_nothing(state):
    done = repair(state, "before")
    assert (done.backup, done.rebuilt) == (None, ())
    assert not (state / "backups").exists()


def test_an_older_backup_is_never_replaced(state):
    sql(state, "DELETE FROM block")
    repair(state, "before")
    kept = (state / "backups" / "before.db").read_bytes()
    sql(state, "DELETE FROM block")
    with pytest.raises(Exception, match="is there already"):
        repair(state, "before")
    assert (state / "backups" / "before.db").read_bytes() == kept
    assert "projection" in codes(state)


def test_a_folder_in_use_is_not_repaired_and_the_holder_is_named(state):
    with closing(open_store(state)) as store:
        store.join("an editor (process 7)", "", 60.0, now=0.0)
        with pytest.raises(StoreLockedError, match="an editor"):
            repair(state, "before")
        assert examine(state).findings == ()


TAPE = [
    ("DELETE FROM fact WHERE session = 1 AND seq = 5", "entry 5 is missing"),
    ("UPDATE session SET head = head + 1 WHERE id = 1", "the head is"),
]


@pytest.mark.parametrize(("damage", "text"), TAPE)
def test_a_gap_in_a_tape_is_told_and_not_repaired(state, damage, text):
    sql(state, "DROP TRIGGER fact_is_not_deleted", damage)
    before = content(state)
    found = [f for f in examine(state).findings if f.code == "tape"]
    assert any(text in finding.text for finding in found)
    assert any(f.code == "tape" for f in repair(state, "before").after.findings)
    assert content(state) == before


def test_a_contradiction_in_a_journal_is_told(state):
    world = SqliteWorld(state)
    peer = world.join()
    record = RunStarted(run_id=RunId(RUN), message_id=message("x").id, run_kind="loop")
    write(peer.store, peer.tape().commit_piece(record, now=5.0))
    assert codes(state) == [], "its engine lives"
    world.close()
    assert codes(state) == ["open_run"]
    sql(
        state,
        "DROP TRIGGER fact_is_not_updated",
        "UPDATE fact SET payload = '{}' WHERE name = 'execution/run_started'",
    )
    assert "journal" in codes(state)


def test_scratch_files_of_nobody_are_told(state):
    for name in (S1, "gone"):
        (state / "scratch" / name).mkdir(parents=True)
    (finding,) = examine(state).findings
    assert finding.code == "scratch"
    assert "gone" in finding.text


@pytest.mark.parametrize("part", [(0.5, 0.6), (0.8, 0.9), (0.5, 0.95)])
def test_of_a_damaged_file_it_says_what_is_lost_and_writes_nothing(state, part):
    whole = len(content(state))
    spoil(state, part)
    before = (state / "greenroom.db").read_bytes()

    found = examine(state)
    assert found.is_damaged
    assert found.findings[0].code == "file"
    with pytest.raises(CorruptStoreError, match="nothing was changed"):
        repair(state, "before")
    try:
        taken = list(salvage(state))
    except CorruptStoreError:
        taken = []

    assert len(taken) == found.entries < whole
    assert (state / "greenroom.db").read_bytes() == before
    assert not (state / "backups").exists()


def test_what_lies_behind_a_damaged_page_is_found(state):
    before, path = len(content(state)), state / "greenroom.db"
    pages = path.read_bytes()
    page = pages.index(b'"20xxx') // 4096
    path.write_bytes(pages[: page * 4096] + b"\xee" * 4096 + pages[(page + 1) * 4096 :])
    found = examine(state)
    taken = [(entry.session_id, entry.seq) for entry in salvage(state)]
    assert found.is_damaged
    assert len(taken) == before - 1
    lost = {
        n for n in range(1, before // 2 + 1) for s in (S1, S2) if (s, n) not in taken
    }
    assert len(lost) == 1
    assert any(f"{before // 2 - 1} of its" in f.text for f in found.findings)


def test_a_file_whose_first_pages_are_gone_is_a_typed_error(state):
    spoil(state, (0.0, 0.2))
    for look in (examine, lambda state: repair(state, "before"), _salvaged):
        with pytest.raises(CorruptStoreError):
            look(state)
    assert not (state / "backups").exists()


def _salvaged(state):
    return list(salvage(state))


def test_what_is_salvaged_is_what_was_written(state):
    with closing(open_reader(state)) as reader:
        expected = [*reader.page(S1, 0).entries, *reader.page(S2, 0).entries]
    assert list(salvage(state)) == expected


@pytest.mark.parametrize("content", [b"", b"not a database" * 500])
def test_a_file_that_is_no_database_is_a_typed_error(tmp_path, content):
    (tmp_path / "greenroom.db").write_bytes(content)
    with pytest.raises(Exception, match=r"database|schema"):
        examine(tmp_path)
    with pytest.raises(NoStoreError):
        repair(tmp_path / "nowhere", "before")
    assert not (tmp_path / "nowhere").exists()


def test_a_backup_that_cannot_be_written_stops_the_repair(state):
    sql(state, "DELETE FROM block")
    (state / "backups").write_text("a file where a folder must be")
    with pytest.raises(Exception, match="backup"):
        repair(state, "before")
    assert "projection" in codes(state)


def test_a_backup_is_for_its_owner_alone(state):
    with closing(open_store(state)) as store:
        path = back_up(store.connection, state / "backups", "copy")
    assert path.stat().st_mode & 0o077 == 0


def test_every_kind_of_finding_is_explained():
    assert all(meaning.endswith(".") for meaning in MEANING.values())
