"""What can be found: words of every script, of what was said, and not of audits."""

from __future__ import annotations

import apsw
import msgspec
import pytest
from hypothesis import given, strategies as st
from kit.stores import (
    S1,
    Peer,
    SqliteWorld,
    dispatch,
    event,
    message,
    open_world,
    outcome,
    started,
    terminal,
    write,
)

from greenroom.protocol import (
    ActionBlock,
    ErrorBlock,
    ImageBlock,
    ItemId,
    MessageId,
    ReasoningBlock,
    StorageError,
    ToolCallBlock,
)
from greenroom.storage import message_fact, retraction_fact, tool_facts
from greenroom.storage._words import (
    MAX_INDEXED_CHARACTERS,
    MAX_QUERY_WORDS,
    index_words,
    query_words,
)
from greenroom.storage.sqlite._connection import write_ahead_log


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello, World-42!", ["hello", "world", "42"]),
        ("snake_case", ["snake", "case"]),
        ("ÀÉ straße", ["àé", "strasse"]),
        ("\uff46ull ﬁne ²", ["full", "fine", "2"]),
        ("हिन्दी", ["हिन्दी"]),
        ("日本語", ["日本", "本語"]),
        ("日", ["日"]),
        ("abc日本def", ["abc", "日本", "def"]),
        ("カタカナ", ["カタ", "タカ", "カナ"]),
        ("𠀀𠀁", ["𠀀𠀁"]),
        ("", []),
        ("\x00\ud800 🙂 — …", []),
    ],
)
def test_a_query_is_cut_into_words(text: str, words: list[str]) -> None:
    assert query_words(text) == words


@given(st.text(max_size=40))
def test_what_is_indexed_is_found_by_any_part_of_it(text: str) -> None:
    indexed = set(index_words(text).split(" "))
    for start in range(0, len(text), 7):
        for word in text[start:].split()[1:-1]:
            assert set(query_words(word)) <= indexed


@given(st.text(max_size=30))
def test_words_never_hold_what_an_index_would_split_at(text: str) -> None:
    for word in query_words(text):
        assert word
        assert all(char.isalnum() for char in word if char.isascii())
        assert query_words(word) == [word] or len(query_words(word)) > 1


def test_texts_and_queries_are_bounded() -> None:
    assert len(index_words("x" * 200_000)) == MAX_INDEXED_CHARACTERS
    assert len(query_words(" ".join(f"w{n}" for n in range(100)))) == MAX_QUERY_WORDS


def indexed(peer: Peer) -> None:
    while peer.store.index_pending():
        pass


def test_audit_facts_are_not_found(peer: Peer) -> None:
    tape = peer.tape()
    facts = [
        event(1, "unicorn", name="view/assembled"),
        event(2, "unicorn", name="provider/attempted"),
        event(3, "unicorn", name="message/compaction_indicator"),
        event(4, "unicorn", name="migration/backfill"),
        event(5, "phoenix", name="note/taken"),
        retraction_fact(MessageId("unicorn")),
    ]
    write(peer.store, tape.append_piece(facts, now=1.0))
    for record in (
        started(message=MessageId("m1")),
        dispatch("unicorn", tool_name="unicorn"),
        outcome("unicorn"),
        terminal(stop_reason="unicorn"),
    ):
        write(peer.store, tape.commit_piece(record, now=1.0))
    indexed(peer)
    assert peer.store.search("unicorn") == []
    assert peer.store.search("phoenix") == [(S1, 7)]
    # Nor do the settings of a session answer for it.
    assert peer.store.search("default") == []


def test_of_a_message_what_was_said_is_found_once_it_is_finished(peer: Peer) -> None:
    tape = peer.tape()
    call = ToolCallBlock(
        id=ItemId("b"),
        call_id="c",
        name="grep",
        arguments='{"pattern":"needle"}',
        status="success",
        response="haystack",
    )
    blocks = [
        *message("spoken").blocks,
        ReasoningBlock(id=ItemId("r"), text="thought"),
        ImageBlock(id=ItemId("i"), media_type="image/png", data="pixels"),
        ErrorBlock(id=ItemId("e"), code="x", text="failure"),
        ActionBlock(
            id=ItemId("a"),
            action="question_request",
            origin="question",
            tool_block_id=ItemId("b"),
            title="Which colour?",
            answer="crimson",
            status="success",
        ),
        call,
    ]
    pending = message("", *blocks, role="assistant", status="pending")
    final = msgspec.structs.replace(pending, status="sent", updated_at=2.0)
    write(peer.store, tape.append_piece([message_fact(pending)], now=1.0))
    indexed(peer)
    assert peer.store.search("spoken") == []
    facts = [message_fact(final), *tool_facts(MessageId("m1"), call)]
    write(peer.store, tape.append_piece(facts, now=1.0))
    indexed(peer)
    for word in ("spoken", "failure", "colour", "crimson"):
        assert peer.store.search(word) == [(S1, 4)], word
    for word in ("thought", "pixels"):
        assert peer.store.search(word) == [], word
    assert peer.store.search("needle") == [(S1, 5)]
    assert peer.store.search("haystack") == [(S1, 6)]


def test_all_text_in_a_payload_is_found(peer: Peer) -> None:
    tape = peer.tape()
    nested = '{"a":[{"b":"deep"},7,null,true,["deeper"]],"key":"value"}'
    fact = msgspec.structs.replace(event(1), payload=nested)
    write(peer.store, tape.append_piece([fact], now=1.0))
    indexed(peer)
    for word in ("deep", "deeper", "value"):
        assert peer.store.search(word) == [(S1, 3)], word
    assert peer.store.search("key") == []


def test_indexing_goes_on_where_it_stopped() -> None:
    with open_world("sqlite") as world:
        peer = world.join()
        tape = peer.tape()
        write(peer.store, tape.append_piece([event(n) for n in range(8)], now=1.0))
        steps = [peer.store.index_pending(4) for _ in range(4)]
        assert steps == [4, 4, 2, 0]
        assert isinstance(world, SqliteWorld)


def test_a_database_that_cannot_have_a_log_is_refused() -> None:
    db = apsw.Connection(":memory:")
    with pytest.raises(StorageError, match="can't use a write-ahead log"):
        write_ahead_log(db)
    db.close()
