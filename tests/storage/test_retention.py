"""A sweep removes what may go, and nothing else."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from kit.stores import S1, S2, Peer, SqliteWorld, bootstrap, message, started, write

from greenroom.protocol import (
    AttemptTrace,
    MessageId,
    RunId,
    SessionId,
    StoreLockedError,
)
from greenroom.storage import (
    NoStoreError,
    Swept,
    archived_fact,
    message_fact,
    open_reader,
    sweep,
    verify,
)

DAY = 86_400.0
NOW = 100 * DAY
IMPORT = SessionId("import")


def trace(at: float, attempt: int) -> AttemptTrace:
    return AttemptTrace(
        run_id=RunId("r"),
        message_id=MessageId("m1"),
        logical_round=1,
        request_seq=1,
        physical_attempt=attempt,
        provider="p",
        model="m",
        payload="{}",
        created_at=at,
        truncated=False,
    )


def put_away(peer: Peer, scope: SessionId, at: float) -> None:
    tape = peer.tape(scope)
    facts = [
        message_fact(message(f"in {scope}")),
        archived_fact(archived=True, revision="1"),
    ]
    write(peer.store, tape.append_piece(facts, now=at))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    world = SqliteWorld(folder)
    peer = world.join()
    tape = peer.tape(S1)
    for n, at in enumerate((NOW - 31 * DAY, NOW - 29 * DAY), start=1):
        made = trace(at, n)
        write(peer.store, tape.trace_piece(lambda made=made: made))
    put_away(peer, S2, NOW - 40 * DAY)
    put_away(peer, SessionId("fresh"), NOW - DAY)
    put_away(peer, SessionId("busy"), NOW - 40 * DAY)
    busy = peer.tape(SessionId("busy"))
    write(peer.store, busy.commit_piece(started(), now=NOW - 40 * DAY))
    put_away(peer, SessionId("told"), NOW - 40 * DAY)
    peer.store.post(SessionId("told"), "c1", "{}", now=NOW)
    peer.store.append(peer.acquire(IMPORT), 0, bootstrap()[:1], now=1.0)
    peer.store.leave(peer.member, now=NOW)
    world.close()
    for name in (S1, S2, "nobody"):
        output = folder / "scratch" / name / "shell.txt"
        output.parent.mkdir(parents=True)
        output.write_text("x" * 1_000)
    return folder


def swept(state: Path, *, archived: bool = False, dry_run: bool = False) -> Swept:
    return sweep(
        state,
        older_than=30 * DAY,
        archived=archived,
        dry_run=dry_run,
        node="gc",
        now=NOW,
    )


def left(state: Path) -> tuple[list[str], list[str], int]:
    with closing(open_reader(state)) as reader:
        assert verify(reader) == []
        scopes = [str(scope) for scope in reader.scopes()]
        traces = len(reader.traces(S1))
    return scopes, sorted(os.listdir(state / "scratch")), traces


def test_a_sweep_removes_old_traces_strangers_files_and_unfinished_imports(
    state: Path,
) -> None:
    done = swept(state)
    assert (done.traces, done.archived, done.unfinished) == (1, (), (IMPORT,))
    assert [path.name for path in done.files] == ["nobody"]
    assert (done.file_bytes, done.problems, done.log_bytes) == (1_000, (), 0)
    assert left(state) == (["busy", "fresh", "s1", "s2", "told"], ["s1", "s2"], 1)
    again = swept(state)
    assert (again.traces, again.unfinished, again.files) == (0, (), ())


def test_archived_sessions_go_on_request_when_they_are_old_and_owe_nothing(
    state: Path,
) -> None:
    done = swept(state, archived=True)
    assert done.archived == (S2,)
    assert sorted(path.name for path in done.files) == ["nobody", "s2"]
    assert left(state) == (["busy", "fresh", "s1", "told"], ["s1"], 1)


def test_a_dry_sweep_tells_the_same_and_removes_nothing(state: Path) -> None:
    before = left(state)
    with closing(open_reader(state)):
        told = swept(state, archived=True, dry_run=True)
    assert left(state) == before
    done = swept(state, archived=True)
    assert (told.traces, told.archived, told.unfinished, told.files) == (
        done.traces,
        done.archived,
        done.unfinished,
        done.files,
    )


def test_a_folder_in_use_is_not_swept_and_its_user_named(state: Path) -> None:
    world = SqliteWorld(state)
    world.join("the window")
    with pytest.raises(StoreLockedError, match="the window uses"):
        swept(state)
    swept(state, dry_run=True)
    world.close()
    assert "nobody" in os.listdir(state / "scratch")


def test_a_link_is_removed_and_what_it_leads_to_is_not(
    state: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    (state / "scratch" / "link").symlink_to(precious)
    (state / "scratch" / "nobody" / "inner").symlink_to(precious)
    done = swept(state)
    assert sorted(path.name for path in done.files) == ["link", "nobody"]
    assert (precious / "file").read_text() == "kept"
    assert sorted(os.listdir(state / "scratch")) == ["s1", "s2"]


def test_a_scratch_that_is_a_link_is_left_alone(state: Path, tmp_path: Path) -> None:
    (state / "scratch").rename(tmp_path / "elsewhere")
    (state / "scratch").symlink_to(tmp_path / "elsewhere")
    assert swept(state).files == ()
    assert (tmp_path / "elsewhere" / "nobody").exists()


def test_what_cannot_be_removed_is_told_and_the_rest_goes(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (state / "scratch" / "stray").write_text("x")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("shutil.rmtree", refuse)
    done = swept(state)
    (problem,) = done.problems
    assert "nobody' can't be removed: Permission denied" in problem
    assert not (state / "scratch" / "stray").exists()
    assert done.unfinished == (IMPORT,)


def test_a_sweep_makes_no_state(tmp_path: Path) -> None:
    with pytest.raises(NoStoreError):
        swept(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_file_gets_smaller_when_much_of_it_is_empty(state: Path) -> None:
    world = SqliteWorld(state)
    peer = world.join(now=NOW)
    tape = peer.tape(SessionId("large"), now=NOW)
    for n in range(1, 40):
        record = message("x" * 50_000, name=f"m{n}", order=n)
        write(peer.store, tape.append_piece([message_fact(record)], now=NOW))
    fact = archived_fact(archived=True, revision="1")
    write(peer.store, tape.append_piece([fact], now=NOW - 40 * DAY))
    peer.store.leave(peer.member, now=NOW)
    world.close()
    before = (state / "greenroom.db").stat().st_size
    assert SessionId("large") in swept(state, archived=True).archived
    assert (state / "greenroom.db").stat().st_size < before / 4
    assert left(state)[0] == ["busy", "fresh", "s1", "told"]
