"""The tape: append-only, one sequence, one entry for each provenance key."""

from __future__ import annotations

import threading
from pathlib import Path

import apsw
import msgspec
import pytest
from kit.stores import (
    S1,
    SETTINGS,
    Peer,
    SqliteWorld,
    bootstrap,
    event,
    message,
    started,
    write,
)

from greenroom.protocol import (
    MAX_PAYLOAD_BYTES,
    Fact,
    FactKind,
    JournalError,
    MessageId,
    SessionId,
    SourceType,
    ToolCallBlock,
)
from greenroom.storage import (
    MAX_FACTS,
    MAX_OPEN_COMMANDS,
    Appended,
    HeadMoved,
    Held,
    MemoryStore,
    Piece,
    RefusedFactError,
    Store,
    bootstrap_facts,
    message_fact,
    tool_facts,
)


@pytest.mark.contract("TAP-01")
def test_an_entry_is_never_updated_or_deleted_but_by_the_lifecycle(
    tmp_path: Path,
) -> None:
    world = SqliteWorld(tmp_path / "state")
    tape = world.join().tape()
    store = world.join().store
    db = apsw.Connection(str(tmp_path / "state" / "greenroom.db"))
    for sql in (
        "UPDATE fact SET payload = '{}'",
        "UPDATE OR REPLACE fact SET seq = 2 WHERE seq = 1",
        "DELETE FROM fact",
        "DELETE FROM fact WHERE seq = 2",
    ):
        with pytest.raises(apsw.ConstraintError, match="append-only"):
            db.execute(sql)
    db.close()
    assert [e.fact for e in store.page(S1, 0).entries] == [*bootstrap()]
    # The lifecycle may, and leaves the door shut behind it.
    write(store, tape.reset_piece(bootstrap("again"), now=1.0))
    with pytest.raises(apsw.ConstraintError, match="append-only"):
        store.connection.execute("REPLACE INTO fact SELECT * FROM fact")  # type: ignore[attr-defined]
    world.close()


@pytest.mark.contract("TAP-01")
def test_kinds_and_source_types_are_closed(peer: Peer) -> None:
    assert sorted(FactKind) == [
        "anchor",
        "event",
        "message",
        "tool_call",
        "tool_result",
    ]
    assert sorted(SourceType) == [
        "assistant_block",
        "fork",
        "message",
        "migration",
        "runtime_event",
        "session",
        "subagent",
        "summary",
        "tool_call",
        "tool_result",
    ]
    grant = peer.tape().grant
    for changes in ({"kind": "rumour"}, {"source_type": "hearsay"}):
        bad = msgspec.structs.replace(event(1), **changes)
        with pytest.raises(RefusedFactError, match="unknown kind"):
            peer.store.append(grant, 2, [bad], now=1.0)
    assert peer.store.page(S1, 0).head == 2


@pytest.mark.contract("TAP-01")
def test_the_default_key_is_made_of_five_parts() -> None:
    assert event(7).key == "runtime_event:note:7:event:note/taken"
    explicit = msgspec.structs.replace(event(7), provenance_key="mine")
    assert explicit.key == "mine"


@pytest.mark.contract("TAP-01")
@pytest.mark.slow
def test_entries_are_contiguous_under_concurrent_appends(tmp_path: Path) -> None:
    world = SqliteWorld(tmp_path / "state")
    peers = [world.join(f"window {n}") for n in range(3)]
    grant = peers[0].tape().grant
    gate = threading.Barrier(len(peers))
    moved = [0] * len(peers)

    def work(index: int) -> None:
        store = peers[index].store
        gate.wait()
        for number in range(15):
            fact = event(index * 100 + number)
            while True:
                ((_, head),) = store.heads([S1])
                result = store.append(grant, head, [fact], now=1.0)
                if isinstance(result, Appended):
                    break
                assert isinstance(result, HeadMoved)
                moved[index] += 1

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(peers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = peers[0].store.page(S1, 0).entries
    assert [entry.seq for entry in entries] == list(range(1, 48))
    assert sum(moved) > 0
    world.close()


@pytest.mark.contract("TAP-02")
def test_a_known_key_returns_the_older_entry(peer: Peer) -> None:
    grant = peer.tape().grant
    other = event(1, "another payload")
    first = peer.store.append(grant, 2, [event(1)], now=1.0)
    again = peer.store.append(grant, 3, [event(1), event(2)], now=1.0)
    differs = peer.store.append(grant, 4, [other, event(3), event(3)], now=1.0)
    assert first == Appended(3, (3,), (True,))
    assert again == Appended(4, (3, 4), (False, True))
    assert differs == Appended(5, (3, 5, 5), (False, True, False))
    kept = [entry.fact for entry in peer.store.page(S1, 2).entries]
    assert kept == [event(1), event(2), event(3)]


@pytest.mark.contract("TAP-02")
def test_a_strict_family_refuses_a_difference_and_keeps_the_first(peer: Peer) -> None:
    grant = peer.tape().grant
    link = event(1, "first", name="subagent/tape_linked")
    other = event(1, "other", name="subagent/tape_linked")
    peer.store.append(grant, 2, [link], now=1.0)
    again = peer.store.append(grant, 3, [link], now=1.0)
    assert again == Appended(3, (3,), (False,))
    with pytest.raises(JournalError, match="another payload") as caught:
        peer.store.append(grant, 3, [event(2), other], now=1.0)
    assert caught.value.code == "conflicting_fact"
    assert [e.fact for e in peer.store.page(S1, 2).entries] == [link]


def test_processes_live_unless_the_owner_of_a_memory_store_says_otherwise() -> None:
    store = MemoryStore.create()
    one, two = (store.join(name, "", 9.0, now=0.0) for name in ("one", "two"))
    store.acquire(one, S1, now=0.0)
    assert isinstance(store.acquire(two, S1, now=8.0), Held)
    assert store.owed_by_dead() == []
    assert store.log_bytes() == 0
    store.checkpoint()
    store.close()


def test_keys_are_unique_per_session_only(peer: Peer) -> None:
    for scope in (S1, SessionId("s2")):
        grant = peer.tape(scope).grant
        result = peer.store.append(grant, 2, [event(1)], now=1.0)
        assert result == Appended(3, (3,), (True,))


@pytest.mark.contract("TAP-03")
def test_a_tape_begins_with_its_anchor_and_each_incarnation_has_its_own(
    peer: Peer,
) -> None:
    tape = peer.tape()
    write(peer.store, tape.append_piece([event(1)], now=1.0))
    first = incarnation(peer)
    fresh = "99999999-9999-4999-8999-999999999999"
    write(peer.store, tape.reset_piece(bootstrap_facts(fresh, SETTINGS), now=2.0))
    assert incarnation(peer) == fresh != first
    write(peer.store, tape.delete_piece())
    assert peer.store.page(S1, 0).entries == ()
    again = peer.acquire()
    with pytest.raises(RefusedFactError, match="begins with the session/start"):
        peer.store.append(again, 0, [event(1)], now=3.0)
    peer.store.append(again, 0, bootstrap("third"), now=3.0)
    assert incarnation(peer) not in (first, fresh)


@pytest.mark.contract("TAP-03")
def test_the_anchor_is_the_first_entry_only(peer: Peer) -> None:
    tape = peer.tape()
    second = bootstrap("second")
    for facts in (second, [event(1), *second]):
        with pytest.raises(RefusedFactError, match="first entry only"):
            write(peer.store, tape.append_piece(facts, now=1.0))
    with pytest.raises(RefusedFactError, match="begins with"):
        write(peer.store, tape.reset_piece([event(1), *second], now=1.0))
    with pytest.raises(RefusedFactError, match="bootstrap facts"):
        write(peer.store, tape.reset_piece([], now=1.0))
    assert [e.fact for e in peer.store.page(S1, 0).entries] == [*bootstrap()]


@pytest.mark.contract("TAP-03")
def test_an_anchor_needs_its_incarnation(peer: Peer) -> None:
    anchor, settings = bootstrap()
    grant = peer.acquire()
    for meta in ("{}", "[]", '{"incarnation":1}'):
        bad = msgspec.structs.replace(anchor, meta=meta)
        with pytest.raises(RefusedFactError, match="incarnation"):
            peer.store.append(grant, 0, [bad, settings], now=1.0)
    wrong = msgspec.structs.replace(anchor, kind=FactKind.EVENT)
    with pytest.raises(RefusedFactError, match="anchor"):
        peer.store.append(grant, 0, [wrong], now=1.0)


def incarnation(peer: Peer) -> str:
    entry = peer.store.page(S1, 0, 1).entries[0]
    assert (entry.seq, entry.fact.name) == (1, "session/start")
    return msgspec.json.decode(entry.fact.meta)["incarnation"]


#### What is refused


BAD_FACTS = [
    ("not JSON", {"payload": "{"}),
    ("not JSON", {"payload": ""}),
    ("not JSON", {"payload": '{"a": NaN}'}),
    ("not JSON", {"payload": "[" * 100_000}),
    ("not JSON", {"payload": '"raw \x00 nul"'}),
    ("not JSON", {"meta": "nonsense"}),
    ("lone surrogate", {"payload": '"\ud800"'}),
    ("not JSON", {"payload": '"\\ud800"'}),
    ("lone surrogate", {"source_id": "\udfff"}),
    ("holds a NUL", {"source_id": "a\x00b"}),
    ("holds a NUL", {"provenance_key": "a\x00b"}),
    ("1 to 1024", {"source_id": ""}),
    ("1 to 1024", {"source_id": "x" * 1_025}),
    ("1 to 4096", {"provenance_key": "x" * 4_097}),
    ("not a fact's name", {"name": ""}),
    ("not a fact's name", {"name": "Bad Name"}),
    ("not a fact's name", {"name": "a/" * 150 + "a"}),
    ("source sequence", {"source_seq": -1}),
    ("source sequence", {"source_seq": 1 << 63}),
    ("1048577 bytes", {"payload": '"' + "x" * (MAX_PAYLOAD_BYTES - 1) + '"'}),
    ("1048577 bytes", {"meta": '"' + "x" * (MAX_PAYLOAD_BYTES - 1) + '"'}),
    ("payload of plan", {"name": "plan/updated", "payload": '{"revision":"x"}'}),
    ("of kind message", {"name": "message/recorded"}),
    ("payload of session", {"name": "session/configured", "payload": "{}"}),
]


@pytest.mark.parametrize(("problem", "changes"), BAD_FACTS)
def test_a_malformed_fact_is_refused_whole(
    peer: Peer, problem: str, changes: dict[str, object]
) -> None:
    grant = peer.tape().grant
    bad = msgspec.structs.replace(event(2), **changes)
    with pytest.raises(RefusedFactError, match=problem):
        peer.store.append(grant, 2, [event(1), bad], now=1.0)
    assert peer.store.page(S1, 0).head == 2


def test_what_is_at_the_limit_is_kept_verbatim(peer: Peer) -> None:
    grant = peer.tape().grant
    payload = ' { "b" : 1, "a" : "\\u0000 é' + "x" * (MAX_PAYLOAD_BYTES - 31) + '" }'
    assert len(payload.encode()) == MAX_PAYLOAD_BYTES
    fact = msgspec.structs.replace(event(1), payload=payload, meta="[1]")
    peer.store.append(grant, 2, [fact], now=1.0)
    assert peer.store.page(S1, 2).entries[0].fact == fact


def test_an_append_is_bounded(peer: Peer) -> None:
    grant = peer.tape().grant
    many = [event(n) for n in range(MAX_FACTS + 1)]
    with pytest.raises(RefusedFactError, match="at most 1000"):
        peer.store.append(grant, 2, many, now=1.0)
    with pytest.raises(RefusedFactError, match="at most 1000"):
        peer.store.append(grant, 2, [], ["c"] * (MAX_FACTS + 1), now=1.0)


@pytest.mark.slow
def test_an_inbox_is_bounded(peer: Peer) -> None:
    def fill(store: Store) -> None:
        for n in range(MAX_OPEN_COMMANDS):
            store.post(S1, f"c{n}", "{}", now=1.0)

    write(peer.store, Piece(fill))
    with pytest.raises(RefusedFactError, match="1000 unsettled"):
        peer.store.post(S1, "one more", "{}", now=1.0)


def test_bad_names_of_things_are_refused(peer: Peer) -> None:
    store = peer.store
    for bad in ("", "x" * 201, "a\x00", "\ud800"):
        with pytest.raises(RefusedFactError, match="session id"):
            store.acquire(peer.member, SessionId(bad), now=1.0)
        with pytest.raises(RefusedFactError, match="session id"):
            store.post(SessionId(bad), "c", "{}", now=1.0)
    with pytest.raises(RefusedFactError, match="command id"):
        store.post(S1, "", "{}", now=1.0)
    with pytest.raises(RefusedFactError, match="body of a command"):
        store.post(S1, "c", "{", now=1.0)
    with pytest.raises(RefusedFactError, match="append id"):
        store.append(peer.acquire(), 0, [], append_id="", now=1.0)
    with pytest.raises(RefusedFactError, match="blocks"):
        store.cache_blocks(peer.acquire(), "m", "[", now=1.0)
    with pytest.raises(RefusedFactError, match="node"):
        store.join("", "", 1.0, now=1.0)
    with pytest.raises(RefusedFactError, match="addr"):
        store.join("node", "\x00", 1.0, now=1.0)
    for ttl in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="some time"):
            store.join("node", "", ttl, now=1.0)


def test_a_message_needs_a_name_and_a_place(peer: Peer) -> None:
    grant = peer.tape().grant
    for record in (message(name=""), message(order=0), message(order=1 << 63)):
        with pytest.raises(RefusedFactError):
            peer.store.append(grant, 2, [message_fact(record)], now=1.0)


#### Facts that are made


def test_two_revisions_at_one_instant_are_two_facts(peer: Peer) -> None:
    tape = peer.tape()
    facts = [
        message_fact(message("a")),
        message_fact(message("b")),
        message_fact(message("a")),
        message_fact(message("a"), revision=1),
    ]
    result = write(peer.store, tape.append_piece(facts, now=1.0))
    assert result.created == (True, True, False, True)
    assert peer.store.messages(S1) == [message("a")]


def test_tool_facts_are_keyed_by_their_payload() -> None:
    block = ToolCallBlock(
        id="b1",  # type: ignore[arg-type]
        call_id="c1",
        name="read",
        arguments="{}",
        request_seq=2,
        status="error",
        response="no such file",
    )
    call, result = tool_facts(MessageId("m1"), block)
    assert (call.kind, result.kind) == (FactKind.TOOL_CALL, FactKind.TOOL_RESULT)
    assert msgspec.json.decode(result.payload) == {
        "messageId": "m1",
        "toolCallId": "c1",
        "name": "read",
        "response": "no such file",
        "isError": True,
    }
    assert call.key.startswith("tool_call:m1:c1:")
    other = msgspec.structs.replace(block, response="other")
    assert tool_facts(MessageId("m1"), other)[1].key != result.key
    pending = msgspec.structs.replace(block, status="loading")
    with pytest.raises(ValueError, match="not finished"):
        tool_facts(MessageId("m1"), pending)


def test_only_the_journal_writes_execution_facts(peer: Peer) -> None:
    tape = peer.tape()
    write(peer.store, tape.commit_piece(started(), now=1.0))
    fact: Fact = peer.store.page(S1, 2).entries[0].fact
    assert (fact.stream, fact.is_execution) == ("journal", True)
