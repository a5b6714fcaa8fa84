"""The disk that crashes does what it says, no more and no less."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

import apsw
import pytest

from greenroom.testing import crash_disk

ROWS = 30


def connect(path: Path, synchronous: str = "full") -> apsw.Connection:
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", synchronous)
    return db


def fill(path: Path, synchronous: str = "full") -> int:
    """Insert rows, each a transaction; return how many were committed."""
    done = 0
    with suppress(apsw.Error), closing(connect(path, synchronous)) as db:
        db.execute("CREATE TABLE IF NOT EXISTS t (a)")
        for number in range(ROWS):
            db.execute("INSERT INTO t VALUES (?)", (number,))
            done += 1
    return done


def rows(path: Path) -> int:
    with closing(apsw.Connection(str(path))) as db:
        assert db.pragma("integrity_check") == "ok"
        return db.execute("SELECT count(*) FROM t").get


def test_without_a_crash_it_only_counts(tmp_path):
    with crash_disk() as disk:
        assert fill(tmp_path / "db") == ROWS
    assert not disk.crashed
    assert disk.operations > 3 * ROWS
    disk.restore()
    assert rows(tmp_path / "db") == ROWS


@pytest.mark.parametrize("at", [30, 50, 71])
@pytest.mark.parametrize("kind", ["stop", "tear", "lose"])
def test_what_was_committed_with_a_sync_is_there(tmp_path, kind, at):
    with crash_disk(at, kind) as disk:
        done = fill(tmp_path / "db")
    disk.restore()
    assert disk.crashed
    assert 0 < done < ROWS
    # The one that was being written may have come so far.
    assert rows(tmp_path / "db") in (done, done + 1)


def test_what_was_never_synced_is_lost_with_the_machine_only(tmp_path):
    found = {}
    for kind in ("stop", "lose"):
        with crash_disk(kind=kind) as disk:
            fill(tmp_path / kind)
            with closing(connect(tmp_path / kind, "off")) as db:
                for number in range(ROWS):
                    db.execute("INSERT INTO t VALUES (?)", (number,))
                disk.crash()
                with suppress(apsw.Error):
                    db.close()
        disk.restore()
        found[kind] = rows(tmp_path / kind)
    assert found["stop"] == 2 * ROWS
    assert ROWS <= found["lose"] < 2 * ROWS


def test_equal_seeds_lose_the_same(tmp_path):
    images = []
    for seed in (1, 1, 2):
        path = tmp_path / f"{len(images)}"
        with crash_disk(70, "lose", seed=seed) as disk:
            fill(path, "off")
        disk.restore()
        log = path.with_name(f"{path.name}-wal").read_bytes()
        # Checksums differ each time; what is a hole and what is not does not.
        images.append([any(log[at : at + 512]) for at in range(0, len(log), 512)])
    assert images[0] == images[1] != images[2]
    assert False in images[0]


def test_a_torn_write_is_there_in_part(tmp_path):
    def size(kind) -> int:
        with crash_disk(40, kind, seed=3):
            fill(tmp_path / kind)
        return (tmp_path / f"{kind}-wal").stat().st_size

    assert 0 < size("tear") - size("stop") < 4096


def test_a_full_disk_works_again_when_there_is_room(tmp_path):
    with crash_disk(40, "full") as disk:
        done = fill(tmp_path / "db")
        assert done < ROWS
        with pytest.raises(apsw.FullError), closing(connect(tmp_path / "db")) as db:
            db.execute("INSERT INTO t VALUES (1)")
        disk.make_room()
        assert fill(tmp_path / "db") == ROWS
    assert rows(tmp_path / "db") == done + ROWS


def test_it_is_gone_after_the_block(tmp_path):
    before = apsw.vfs_names()
    with crash_disk(1):
        assert fill(tmp_path / "db") == 0
    assert apsw.vfs_names() == before
    assert fill(tmp_path / "db") == ROWS
