"""A transcript is kept in rows, written where it changed, and read page by page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import apsw
import msgspec
import pytest
from kit.stores import MESSAGE, S1, Peer, SqliteWorld, World, message, write

from greenroom.protocol import (
    ActionBlock,
    BlockStatus,
    ErrorBlock,
    ImageBlock,
    ItemId,
    MessageRecord,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
)
from greenroom.storage import message_fact, retraction_fact, verify

FLUSHES = 200
EVERY_BLOCK: tuple[Any, ...] = (
    TextBlock(id=ItemId("t"), text="text", options={"signature": "s"}),
    ReasoningBlock(id=ItemId("r"), text="thought"),
    ImageBlock(id=ItemId("i"), media_type="image/png", data="AAAA"),
    ErrorBlock(id=ItemId("e"), code="broken", text="it broke"),
    *(
        ToolCallBlock(
            id=ItemId(f"c-{status}"),
            call_id="c",
            name="grep",
            arguments="{}",
            status=status,
        )
        for status in get_args(BlockStatus)
    ),
    *(
        ActionBlock(
            id=ItemId(f"a-{action}"),
            action=action,
            origin="question",
            tool_block_id=ItemId("c"),
            title="may it?",
            status="granted",
        )
        for action in ("tool_call_permission", "question_request")
    ),
)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    world = SqliteWorld(tmp_path / "state")
    yield world.join()
    world.close()


def db(peer: Peer) -> apsw.Connection:
    return peer.store.connection  # type: ignore[attr-defined]


def keep(peer: Peer, tape: Any, *records: MessageRecord, at: float = 1.0) -> None:
    write(peer.store, tape.append_piece([message_fact(r) for r in records], now=at))


@contextmanager
def statements(peer: Peer) -> Iterator[list[dict[str, Any]]]:
    """Collect what the database runs, with what each statement cost."""
    seen: list[dict[str, Any]] = []
    db(peer).trace_v2(apsw.SQLITE_TRACE_PROFILE, seen.append)
    yield seen
    db(peer).trace_v2(0, None)


def steps(seen: list[dict[str, Any]]) -> int:
    return sum(s["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"] for s in seen)


#### Rows


def break_facts(peer: Peer) -> None:
    db(peer).execute(
        "DROP TRIGGER fact_is_not_updated;"
        "UPDATE fact SET payload = '{' WHERE name = 'message/recorded'"
    )


@pytest.mark.contract("PER-01")
def test_a_message_of_every_block_is_kept_in_rows_of_their_own(peer: Peer) -> None:
    record = message("", *EVERY_BLOCK, role="assistant", run_stop_reason="end_turn")
    keep(peer, peer.tape(), record)
    break_facts(peer)
    assert peer.store.messages(S1) == [record]
    rows = db(peer).execute("SELECT position, name FROM block ORDER BY 1").fetchall()
    assert rows == [(n, block.id) for n, block in enumerate(EVERY_BLOCK)]
    # What is listed and paged by is a column; a header has no content.
    info = db(peer).execute("PRAGMA table_info(message)").fetchall()
    columns = {name for _, name, *_ in info}
    assert {"session", "order_seq", "role", "status", "blocks"} <= columns
    assert not columns & {"content", "body", "payload"}


@pytest.mark.contract("PER-01")
def test_the_statuses_of_blocks_are_closed(peer: Peer) -> None:
    assert set(get_args(BlockStatus)) == {
        "pending",
        "loading",
        "success",
        "error",
        "granted",
        "denied",
    }
    tape = peer.tape()
    fact = message_fact(message("", EVERY_BLOCK[0]))
    wrong = fact.payload.replace('"id":"t"', '"id":"t","status":"done"')
    with pytest.raises(Exception, match="Invalid enum value 'done'"):
        peer.store.append(
            tape.grant,
            tape.head,
            [msgspec.structs.replace(fact, payload=wrong)],
            now=1.0,
        )


@pytest.mark.contract("PER-01")
def test_what_is_found_of_a_message_has_a_row_of_its_own(peer: Peer) -> None:
    keep(peer, peer.tape(), message("hello there"))
    peer.store.index_pending()
    (found,) = db(peer).execute("SELECT message, words FROM document").fetchall()
    assert found == (1, "hello there")


@pytest.mark.contract("PER-02")
def test_a_stream_writes_what_changed_and_the_header_at_its_end(peer: Peer) -> None:
    tape = peer.tape()
    earlier = [TextBlock(id=ItemId(f"b{n}"), text=f"round {n}") for n in range(50)]
    keep(peer, tape, message("", *earlier, role="assistant", status="pending"))
    with statements(peer) as seen:
        before = db(peer).total_changes()
        for n in range(1, FLUSHES + 1):
            text = msgspec.json.encode([TextBlock(id=ItemId("new"), text="x" * n)])
            write(peer.store, tape.cache_piece(MESSAGE, text.decode(), now=float(n)))
        assert db(peer).total_changes() - before == FLUSHES
    writes = [s["sql"] for s in seen if s["sql"].startswith(("INSERT", "UPDATE"))]
    assert len(writes) == FLUSHES
    assert all(sql.startswith("INSERT INTO cached_blocks") for sql in writes)
    final = message(
        "", TextBlock(id=ItemId("new"), text="x" * 200), role="assistant", at=9.0
    )
    with statements(peer) as seen:
        keep(peer, tape, final, at=9.0)
    ran = [s["sql"] for s in seen]
    assert sum(sql.startswith("INSERT INTO message ") for sql in ran) == 1
    assert sum(sql.startswith("INSERT INTO block ") for sql in ran) == 1
    (whole,) = peer.store.messages(S1)
    assert whole.blocks == (*earlier, *final.blocks)


@pytest.mark.contract("PER-02")
def test_a_block_that_did_not_change_is_not_written_again(peer: Peer) -> None:
    tape = peer.tape()
    blocks = [TextBlock(id=ItemId(f"b{n}"), text=f"round {n}") for n in range(50)]
    record = message("", *blocks, role="assistant", status="pending")
    keep(peer, tape, record)
    db(peer).execute("CREATE TEMP TABLE touched (name TEXT)")
    db(peer).execute(
        "CREATE TEMP TRIGGER t AFTER UPDATE ON block BEGIN"
        " INSERT INTO touched VALUES (NEW.name); END"
    )
    changed = msgspec.structs.replace(blocks[7], text="changed")
    newer = msgspec.structs.replace(
        record, blocks=(*blocks[:7], changed, *blocks[8:]), updated_at=2.0
    )
    keep(peer, tape, newer)
    assert db(peer).execute("SELECT name FROM touched").fetchall() == [("b7",)]
    assert peer.store.messages(S1) == [newer]


@pytest.mark.contract("PER-03")
@pytest.mark.parametrize("lost", ["position = 0", "position = 1", "true"])
def test_a_message_that_lost_rows_is_read_from_its_facts(peer: Peer, lost: str) -> None:
    tape = peer.tape()
    first = message("one", role="assistant", status="pending")
    second = TextBlock(id=ItemId("m1-1"), text="two")
    final = msgspec.structs.replace(
        first, blocks=(second,), status="sent", updated_at=2.0
    )
    other = message("whole", name="m2", order=2)
    keep(peer, tape, first, final, other)
    whole = peer.store.messages(S1)
    assert [b.text for b in whole[0].blocks] == ["one", "two"]  # type: ignore[union-attr]
    db(peer).execute(
        "DELETE FROM block WHERE message ="
        f" (SELECT id FROM message WHERE name = 'm1') AND {lost}"
    )
    assert peer.store.messages(S1) == whole
    assert peer.store.message(S1, "m1") == whole[0]
    assert [problem.code for problem in verify(peer.store)] == ["projection"]
    peer.store.rebuild(S1)
    assert verify(peer.store) == []
    assert peer.store.messages(S1) == whole


@pytest.mark.contract("PER-03")
def test_rows_are_read_whatever_became_of_the_facts(peer: Peer) -> None:
    record = message("hello")
    keep(peer, peer.tape(), record)
    break_facts(peer)
    assert peer.store.messages(S1) == [record]


def test_a_message_without_blocks_is_read_without_its_facts(peer: Peer) -> None:
    empty = msgspec.structs.replace(message(status="pending"), blocks=())
    keep(peer, peer.tape(), empty)
    with statements(peer) as seen:
        assert peer.store.messages(S1) == [empty]
    assert not any("FROM fact" in statement["sql"] for statement in seen)


FAULT = "CREATE TEMP TRIGGER f BEFORE {} BEGIN SELECT RAISE(ABORT, 'fault'); END"
PLACES = (
    "INSERT ON main.fact",
    "INSERT ON main.message",
    "INSERT ON main.block",
    "UPDATE ON main.session_info",
)


@pytest.mark.contract("PER-04")
@pytest.mark.parametrize("place", PLACES)
def test_a_users_message_its_edit_and_their_facts_are_written_together_or_not(
    peer: Peer, place: str
) -> None:
    tape = peer.tape()
    edited = message("edited", name="m1", at=2.0)
    for record in (message("first"), edited):
        before = peer.store.messages(S1), peer.store.page(S1, 0)
        db(peer).execute(FAULT.format(place))
        with pytest.raises(Exception, match=r"fault|another message"):
            keep(peer, tape, record)
        assert (peer.store.messages(S1), peer.store.page(S1, 0)) == before
        db(peer).execute("DROP TRIGGER f")
        keep(peer, tape, record)
        assert peer.store.messages(S1) == [record]
    assert verify(peer.store) == []


#### Pages


@pytest.mark.contract("PER-06")
def test_every_match_of_a_sparse_filter_is_reached_once_while_others_append(
    world: World,
) -> None:
    peer = world.join()
    tape = peer.tape()
    records = [
        message(name=f"m{n}", order=n, role="user" if n % 97 == 0 else "assistant")
        for n in range(1, 1_251)
    ]
    for start in range(0, len(records), 250):
        keep(peer, tape, *records[start : start + 250])
    seen: list[str] = []
    before: int | None = None
    order = 1_251
    while page := peer.store.messages(S1, before, 5, role="user"):
        seen = [*(m.id for m in page), *seen]
        before = page[0].order_seq
        keep(peer, tape, message(name=f"m{order}", order=order))
        order += 1
    assert seen == [f"m{n}" for n in range(97, 1_251, 97)]


@pytest.mark.contract("PER-06")
def test_a_page_is_a_hundred_messages_and_five_hundred_at_most(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    keep(peer, tape, *[message(name=f"m{n}", order=n) for n in range(1, 601)])
    assert [m.order_seq for m in peer.store.messages(S1)] == list(range(501, 601))
    assert len(peer.store.messages(S1, limit=9_999)) == 500
    assert len(peer.store.messages(S1, limit=0)) == 1
    everything: list[int] = []
    before: int | None = None
    while page := peer.store.messages(S1, before):
        everything = [*(m.order_seq for m in page), *everything]
        before = page[0].order_seq
    assert everything == list(range(1, 601))


@pytest.mark.contract("PER-06")
def test_the_newest_page_costs_the_same_in_a_session_of_any_length(peer: Peer) -> None:
    tape = peer.tape()

    def cost() -> int:
        with statements(peer) as seen:
            assert len(peer.store.messages(S1)) == 100
        return steps(seen)

    keep(peer, tape, *[message(name=f"m{n}", order=n) for n in range(1, 201)])
    short = cost()
    for start in range(201, 3_001, 400):
        batch = [message(name=f"m{n}", order=n) for n in range(start, start + 400)]
        keep(peer, tape, *batch)
    assert cost() <= short * 1.05


def test_a_retracted_message_gives_its_place_away(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    keep(peer, tape, message("gone"))
    write(peer.store, tape.append_piece([retraction_fact(MESSAGE)], now=2.0))
    keep(peer, tape, message("here", name="m2"))
    assert [m.id for m in peer.store.messages(S1)] == ["m2"]


#### Revisions


@pytest.mark.contract("TAP-05")
def test_every_edit_and_status_is_a_fact_and_a_retraction_hides_them_all(
    world: World,
) -> None:
    peer = world.join()
    tape = peer.tape()
    revisions = [
        message("draft", status="pending", at=1.0),
        message("sent", at=2.0),
        message("edited", at=3.0),
        message("edited again", status="error", at=4.0),
    ]
    for record in revisions:
        keep(peer, tape, record, at=record.updated_at)
    assert peer.store.messages(S1) == [revisions[-1]]
    write(peer.store, tape.append_piece([retraction_fact(MESSAGE)], now=5.0))
    assert peer.store.messages(S1) == []
    assert peer.store.message(S1, MESSAGE) is None
    facts = [entry.fact for entry in peer.store.page(S1, 0).entries]
    kept = [fact for fact in facts if fact.name == "message/recorded"]
    assert [
        msgspec.json.decode(fact.payload, type=MessageRecord) for fact in kept
    ] == revisions
    for fact, record in zip(kept, revisions, strict=True):
        key = f"message:m1:revision:{record.status}:{record.updated_at!r}:"
        assert fact.provenance_key.startswith(key)
    assert verify(peer.store) == []
