"""Conversations of an older system become sessions, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from kit.legacy_threads import (
    AT,
    NEWER,
    database,
    newer_file,
    oldest_file,
    put,
    put_block,
    put_message,
    put_session,
    seen_writes,
    watch_writes,
)
from kit.stores import SETTINGS

import greenroom.actors.kernel
import greenroom.engine
import greenroom.storage
from greenroom.protocol import (
    ActionBlock,
    DiskFullError,
    ErrorBlock,
    ImageBlock,
    MessageRecord,
    ReasoningBlock,
    SessionId,
    TapeEntry,
    TextBlock,
    ToolCallBlock,
)
from greenroom.protocol.context import newest_boundary
from greenroom.storage import (
    ExportedSession,
    MemoryStore,
    SqliteStore,
    Store,
    export_session,
    open_store,
    verify_session,
)
from greenroom.storage.legacy import (
    LegacyError,
    LegacyImport,
    export_thread,
    import_threads,
    survey_threads,
)

NOW = 1_800_000_000.0


@pytest.fixture(params=["sqlite", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore.create()
        return
    with closing(open_store(tmp_path / "state")) as made:
        yield made


def take(store: Store, path: Path, **changes: Any) -> LegacyImport:
    member = store.join("import", "", 60.0, now=NOW)
    try:
        return import_threads(
            store, member, path, SETTINGS, new_id=_ids(), now=NOW, **changes
        )
    finally:
        store.leave(member, now=NOW)


def _ids() -> Callable[[], str]:
    numbers = iter(range(1_000))
    return lambda: f"incarnation {next(numbers)}"


def session_of(done: LegacyImport, source: str) -> SessionId:
    (found,) = [thread.id for thread in done.threads if thread.source_id == source]
    return found


def texts(records: list[MessageRecord]) -> list[list[str]]:
    return [
        [block.text for block in record.blocks if isinstance(block, TextBlock)]
        for record in records
    ]


def tape(store: Store, scope: SessionId) -> list[TapeEntry]:
    return list(store.page(scope, 0, 1_000).entries)


@pytest.mark.contract("PER-10")
def test_a_session_is_what_it_was_with_its_status_kept(
    store: Store, tmp_path: Path
) -> None:
    done = take(store, newer_file(tmp_path / "old.db"))
    assert [(t.source_id, t.messages, t.outcome) for t in done.threads] == [
        ("alpha", 6, "imported"),
        ("beta", 3, "imported"),
        ("child", 0, "left out"),
    ]
    scope = session_of(done, "alpha")
    messages = store.messages(scope)
    assert [(m.order_seq, m.role, m.status) for m in messages] == [
        (1, "user", "sent"),
        (2, "assistant", "sent"),
        (3, "user", "sent"),
        (4, "assistant", "error"),
        (5, "user", "sent"),
        (6, "assistant", "error"),
    ]
    assert texts(messages)[0] == ["where is it", "[file map.png]"]
    thought, said, call = messages[1].blocks
    assert isinstance(thought, ReasoningBlock)
    assert isinstance(said, TextBlock)
    assert isinstance(call, ToolCallBlock)
    assert (thought.text, said.text) == ("let me see", "in the lighthouse")
    assert (call.name, call.arguments, call.response) == ("look", '{"n":1}', "found")
    assert messages[1].metadata.model == "m1"
    (failed,) = messages[3].blocks
    assert isinstance(failed, ErrorBlock)
    # What was in progress keeps its output, and nothing of it waits.
    assert texts(messages)[5] == ["half an ans"]
    assert [b.status for b in messages[5].blocks if isinstance(b, ActionBlock)] == [
        "error"
    ]
    pending = [e for e in tape(store, scope) if '"status":"pending"' in e.fact.payload]
    assert len(pending) == 1
    row = store.session(scope)
    assert row is not None
    assert (row.settings.title, row.state) == ("about alpha", "idle")
    assert (row.created_at, row.updated_at) == (AT / 1_000, AT / 1_000 + 60)
    assert row.settings.workspace == SETTINGS.workspace
    assert verify_session(store, scope) == []


@pytest.mark.contract("PER-10", "TAP-08")
def test_the_oldest_form_is_read_too(store: Store, tmp_path: Path) -> None:
    done = take(store, oldest_file(tmp_path / "old.db"))
    scope = session_of(done, "k1")
    messages = store.messages(scope)
    assert [(m.role, m.status) for m in messages] == [
        ("user", "sent"),
        ("assistant", "sent"),
        ("user", "sent"),
        ("assistant", "error"),
    ]
    assert texts(messages) == [["hello"], ["hi"], ["more"], ["cut o"]]
    assert [row.settings.title for row in store.sessions()] == ["An old one"]


@pytest.mark.contract("PER-10", "TAP-08")
def test_twice_makes_nothing_new_and_no_strict_fact(
    store: Store, tmp_path: Path
) -> None:
    path = newer_file(tmp_path / "old.db")
    first = take(store, path)
    scopes = [session_of(first, "alpha"), session_of(first, "beta")]
    before = [tape(store, scope) for scope in scopes]
    copy = tmp_path / "copy.db"
    copy.write_bytes(path.read_bytes())
    for again in (path, copy):
        second = take(store, again)
        assert [t.outcome for t in second.threads][:2] == ["already here"] * 2
    assert [tape(store, scope) for scope in scopes] == before
    assert len(store.sessions()) == 2
    for entries in before:
        names = [entry.fact.name for entry in entries]
        assert names.count("migration/backfill") == 1
        assert not [name for name in names if name.startswith("execution/")]


@pytest.mark.contract("TAP-08")
def test_a_summary_is_an_anchor_at_the_place_it_stands_for(
    store: Store, tmp_path: Path
) -> None:
    done = take(store, newer_file(tmp_path / "old.db"))
    scope = session_of(done, "beta")
    anchors = [
        (entry.fact.name, entry.fact.payload)
        for entry in tape(store, scope)
        if entry.fact.kind == "anchor"
    ]
    # Messages 10 and 20 are 1 and 2 here, and the summary holds those below 20.
    assert anchors[1:] == [
        (
            "compaction/migrated_summary",
            '{"cursorOrderSeq":2,"summary":"they spoke of boats"}',
        )
    ]
    boundary = newest_boundary(tape(store, scope))
    assert boundary is not None
    assert (boundary.cursor, boundary.has_checkpoint) == (2, True)
    row = store.session(scope)
    assert row is not None
    assert row.settings.system_prompt == "be brief"


def test_a_compaction_before_600_messages_is_an_event_that_moves_none(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "old.db"
    with database(path, NEWER) as db:
        put_session(db, "long")
        for order in range(1, 4):
            put_message(db, "long", order, "user", content="before")
        about = {"messageType": "compaction", "compactionStatus": "compacted"}
        content = [{"type": "content", "content": "indicatorword"}]
        put_message(db, "long", 4, "assistant", content=content, metadata=about)
        for order in range(5, 605):
            put_message(db, "long", order, "user", content="behind")
    done = take(store, path)
    scope = session_of(done, "long")
    newest = store.messages(scope, limit=500)
    assert [m.order_seq for m in newest] == list(range(104, 604))
    assert store.message_count(scope) == 603
    facts = [entry.fact for entry in tape(store, scope)]
    indicators = [f for f in facts if f.name == "message/compaction_indicator"]
    assert [(f.kind, f.payload) for f in indicators] == [
        ("event", '{"beforeOrderSeq":4}')
    ]
    # One revision each: nobody was moved to make room.
    assert len({f.source_id for f in facts if f.name == "message/recorded"}) == sum(
        f.name == "message/recorded" for f in facts
    )
    store.index_pending()
    assert store.search("indicatorword") == []
    assert store.search_tape(scope, "indicatorword") == []
    assert verify_session(store, scope) == []


@pytest.mark.contract("PER-10")
def test_the_old_tables_are_never_written(store: Store, tmp_path: Path) -> None:
    for make in (newer_file, oldest_file):
        path = make(tmp_path / f"{make.__name__}.db")
        watch_writes(path)
        before = path.read_bytes()
        take(store, path)
        take(store, path)
        survey_threads(store, path)
        assert seen_writes(path) == []
        assert path.read_bytes() == before


@pytest.mark.contract("PER-10")
def test_an_old_thread_is_listed_and_exported_without_being_imported(
    store: Store, tmp_path: Path
) -> None:
    path = newer_file(tmp_path / "old.db")
    found = survey_threads(None, path)
    assert [(t.title, t.messages, t.outcome) for t in found.threads][:2] == [
        ("about alpha", 6, "would be imported"),
        ("about beta", 3, "would be imported"),
    ]
    assert store.sessions() == []
    header, *entries = export_thread(path, "alpha", SETTINGS, now=NOW)
    assert isinstance(header, ExportedSession)
    assert (header.title, header.entries) == ("about alpha", len(entries))
    # The same as what is exported once it is here.
    here = export_session(store, session_of(take(store, path), "alpha"))
    assert [e.fact.name for e in here if isinstance(e, TapeEntry)] == [
        e.fact.name for e in entries if isinstance(e, TapeEntry)
    ]
    with pytest.raises(LegacyError):
        list(export_thread(path, "nobody", SETTINGS, now=NOW))


@pytest.mark.contract("PER-10")
def test_names_of_the_older_system_are_no_part_of_the_api() -> None:
    retired = (
        "thread_presenter",
        "start_stream",
        "stream_completion",
        "start_stream_completion",
        "conversation",
        "send_message",
        "create_conversation",
        "continue_stream",
        "deepchat",
    )
    names = [
        name.lower()
        for module in (greenroom.engine, greenroom.storage, greenroom.actors.kernel)
        for name in vars(module)
    ]
    names += [name.lower() for name in vars(greenroom.engine.Engine)]
    names += [name.lower() for name in vars(greenroom.engine.SessionHandle)]
    assert not [name for name in names if any(word in name for word in retired)]


#### Faults


class Dying:
    """A store whose disk is full after some appends."""

    def __init__(self, inner: Store, after: int) -> None:
        self._inner, self._left = inner, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def append(self, *args: Any, **kwargs: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise DiskFullError("the disk is full")
        return self._inner.append(*args, **kwargs)


@pytest.mark.contract("PER-10")
def test_an_import_that_broke_off_anywhere_is_made_good_by_the_next(
    store: Store, tmp_path: Path
) -> None:
    path = newer_file(tmp_path / "old.db")
    for after in range(3):
        with pytest.raises(DiskFullError):
            take(Dying(store, after), path)  # type: ignore[arg-type]
        for row in store.sessions():
            assert row.settings.title == "about alpha"
            assert row.message_count == 6
    done = take(store, path)
    assert {t.outcome for t in done.threads[:2]} == {"already here", "imported"}
    assert len(store.sessions()) == 2
    assert {r.message_count for r in store.sessions()} == {6, 3}


@pytest.mark.contract("PER-10")
def test_what_one_that_was_killed_left_is_not_listed_and_made_anew(
    tmp_path: Path,
) -> None:
    path = newer_file(tmp_path / "old.db")
    with closing(open_store(tmp_path / "state")) as store:
        killed = _killed_half_way(store, path)
        assert store.session(killed) is None
        assert store.message_count(killed) > 0
        done = take(store, path)
        assert session_of(done, "alpha") == killed
        assert store.message_count(killed) == 6
        assert verify_session(store, killed) == []


def _killed_half_way(store: SqliteStore, path: Path) -> SessionId:
    class Killed(BaseException):
        pass

    class Stop:
        def __init__(self) -> None:
            self.appends = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def append(self, *args: Any, **kwargs: Any) -> Any:
            self.appends += 1
            if self.appends == 2:
                raise Killed
            return store.append(*args, **kwargs)

        def delete(self, *args: Any) -> None:
            """Nobody is left to undo anything."""

    scope = survey_threads(None, path).threads[0].id
    with pytest.raises(Killed):
        take(Stop(), path)  # type: ignore[arg-type]
    return scope


def test_progress_is_told_of_each_conversation(store: Store, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    take(
        store,
        newer_file(tmp_path / "old.db"),
        done=lambda done, of: told.append((done, of)),
    )
    assert told == [(1, 3), (2, 3), (3, 3)]


#### Hostile files


ODD = [
    {"content": b"\xff\xfe{"},
    {"content": "{not json"},
    {"content": "[" * 100_000},
    {"content": 5, "role": "user"},
    {"content": [1, None, {"type": 7}, {"type": "tool_call", "tool_call": "x"}]},
    {"content": {"text": {"deep": ["\ud800"]}}, "role": "user"},
    {"content": [{"type": "image", "image_data": {"data": "!", "mimeType": "x/y"}}]},
    {"content": [{"type": "content", "content": "y" * 2_000_000}]},
    {"content": [], "metadata": "[]", "status": 9, "created_at": "never"},
    {"content": [], "created_at": float("inf"), "updated_at": -5},
    {"content": None, "order_seq": None},
]


@pytest.mark.parametrize("fields", ODD, ids=lambda fields: str(fields)[:40])
def test_an_odd_message_is_kept_as_far_as_it_can_be(
    store: Store, tmp_path: Path, fields: dict[str, Any]
) -> None:
    path = tmp_path / "old.db"
    with database(path, NEWER) as db:
        put_session(db, "s", title=b"\xff\x00\n", agent_id=7, created_at="x")
        put(
            db,
            "deepchat_messages",
            **({"id": "m", "session_id": "s", "role": "assistant"} | fields),
        )
        put_message(db, "s", 9, "user", content={"text": "after"})
    done = take(store, path)
    scope = session_of(done, "s")
    messages = store.messages(scope)
    assert [m.order_seq for m in messages] == [1, 2]
    assert ["after"] in texts(messages)
    assert all(0 <= m.created_at <= NOW for m in messages)
    assert verify_session(store, scope) == []
    assert len(store.sessions()) == 1


def test_a_picture_is_kept_and_a_call_without_result_says_so(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "old.db"
    with database(path, NEWER) as db:
        put_session(db, "s")
        put_message(db, "s", 1, "assistant")
        put_block(
            db, "s-1", 0, "image", text_content="AAAA", image_mime_type="image/png"
        )
        put_block(db, "s-1", 1, "tool_call", tool_name="look", status="loading")
        put_block(db, "s-1", 2, "tool_call", tool_name="look")
        put_block(db, "s-1", 3, "action", action_type="rate_limit", text_content="w")
        put_block(
            db,
            "s-1",
            4,
            "action",
            action_type="question_request",
            status="success",
            text_content="which?",
        )
    (message,) = store.messages(session_of(take(store, path), "s"))
    image, running, ended, question = message.blocks
    assert isinstance(image, ImageBlock)
    assert isinstance(running, ToolCallBlock)
    assert isinstance(ended, ToolCallBlock)
    assert isinstance(question, ActionBlock)
    assert (image.media_type, image.data) == ("image/png", "AAAA")
    assert (running.status, running.response) == ("error", "no result was kept")
    assert (ended.status, ended.response) == ("error", "no result was kept")
    assert (question.action, question.status) == ("question_request", "success")


def no_file(path: Path) -> None:
    assert not path.exists()


def no_database(path: Path) -> None:
    path.write_bytes(b"hello" * 1_000)


def other_tables(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE TABLE conversations (id); CREATE TABLE messages (x)")


def views(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE VIEW conversations AS SELECT 1 id, 'x' title")
        db.execute(
            "CREATE VIEW messages AS SELECT 1 id, 1 conversation_id, 'user' role,"
            " '\"x\"' content"
        )


@pytest.mark.parametrize(
    "make", [no_file, no_database, other_tables, views], ids=lambda make: make.__name__
)
def test_a_file_that_is_no_such_database_is_refused(
    store: Store, tmp_path: Path, make: Any
) -> None:
    make(tmp_path / "old.db")
    with pytest.raises(LegacyError):
        take(store, tmp_path / "old.db")
    assert store.sessions() == []


def test_a_conversation_that_can_t_be_read_is_told_and_the_others_are_taken(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "old.db"
    with database(path, NEWER) as db:
        put_session(db, "bad")
        put_message(db, "bad", 1, "user", content={"text": "z" * 100_000})
        put_session(db, "good")
        put_message(db, "good", 1, "user", content={"text": "hello"})
    data = bytearray(path.read_bytes())
    page = data.find(b"z" * 4_000) // 4_096 * 4_096
    # Its text goes on in a page that is not there.
    second = data.find(b"z" * 4_000, page + 4_096) // 4_096 * 4_096
    data[second : second + 4] = b"\xff" * 4
    path.write_bytes(data)
    done = take(store, path)
    assert [t.source_id for t in done.threads] == ["good"]
    assert done.problem_count == 1
    assert done.problems[0].startswith("conversation 1: a row can't be read")
    assert store.scopes() == [session_of(done, "good")]
    assert [row.settings.title for row in store.sessions()] == ["about good"]


def test_what_is_far_too_long_is_told_and_left_out(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "old.db"
    with database(path, NEWER) as db:
        put_session(db, "s")
        put_message(db, "s", 1, "user", content=b"")
        db.execute("UPDATE deepchat_messages SET content = zeroblob(70 << 20)")
        put_message(db, "s", 2, "user", content={"text": "after"})
    done = take(store, path)
    assert texts(store.messages(session_of(done, "s"))) == [[], ["after"]]
    assert done.problems == ("'s', message 1: its content is no JSON",)
