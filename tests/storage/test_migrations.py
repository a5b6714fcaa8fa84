"""State of an older greenroom is brought to the newest schema, and nothing is lost."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import pytest
from kit.stores import S1, SETTINGS, SqliteWorld, event, message, write

from greenroom.protocol import Fact, FactKind, SourceType
from greenroom.storage import message_fact, open_store, settings_fact, verify
from greenroom.storage.sqlite._migrations import MIGRATIONS


def called() -> Fact:
    """What a compaction asked a model, which no older schema counted."""
    return Fact(
        kind=FactKind.EVENT,
        name="compaction/model_call_completed",
        source_type=SourceType.RUNTIME_EVENT,
        source_id="call",
        payload='{"usage":{"input":30,"output":4,"total":34}}',
    )


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A session with two messages, as the first schema had it."""
    world = SqliteWorld(tmp_path / "new")
    peer = world.join()
    tape = peer.tape()
    titled = msgspec.structs.replace(SETTINGS, title="STRASSE und Weg")
    facts = [
        message_fact(message("hello")),
        message_fact(message("again", name="m2", order=2)),
        event(1, "noted"),
        called(),
        settings_fact(titled, revision="2"),
    ]
    write(peer.store, tape.append_piece(facts, now=1.0))
    world.close()
    (tmp_path / "old").mkdir()
    with closing(apsw.Connection(str(tmp_path / "old" / "greenroom.db"))) as db:
        db.execute(MIGRATIONS[0][1])
        db.execute("INSERT INTO migration VALUES (1, 'm001_initial')")
        db.execute("ATTACH ? AS new", (str(tmp_path / "new" / "greenroom.db"),))
        for table in ("session", "fact", "session_info", "message", "block"):
            info = db.execute(f"PRAGMA main.table_info({table})")
            columns = ", ".join(name for _, name, *_ in info)
            db.execute(
                f"INSERT INTO {table} ({columns}) SELECT {columns} FROM new.{table}"
            )
        db.execute("UPDATE session SET indexed = head")
        db.execute("UPDATE session_info SET input_tokens = NULL, output_tokens = NULL")
    return tmp_path / "old"


def test_an_old_state_has_all_that_it_had_and_can_be_listed_and_searched(
    old: Path,
) -> None:
    with closing(open_store(old)) as store:
        while store.index_pending():
            pass
        assert verify(store) == []
        assert [m.id for m in store.messages(S1)] == ["m1", "m2"]
        assert [row.id for row in store.sessions(title="straße")] == [S1]
        assert [row.id for row in store.sessions(agent="default")] == [S1]
        assert store.search("noted") == [(S1, 5)]
        assert [h.message_id for h in store.search_messages("again")] == ["m2"]
        (row,) = store.sessions()
        assert (row.input_tokens, row.output_tokens) == (30, 4)
        assert len(store.named(S1, "compaction/model_call_completed")) == 1


def test_settings_that_cannot_be_read_do_not_keep_a_state_from_its_migration(
    old: Path,
) -> None:
    with closing(apsw.Connection(str(old / "greenroom.db"))) as db:
        db.execute("UPDATE session_info SET settings = '{'")
    with closing(open_store(old)) as store:
        store.rebuild(S1)
        assert [row.settings.title for row in store.sessions(title="weg")] == [
            "STRASSE und Weg"
        ]
