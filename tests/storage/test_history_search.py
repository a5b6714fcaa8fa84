"""Messages are found the same with the index, without it, and from their rows alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from hypothesis import given, strategies as st
from kit.stores import S1, S2, Peer, SqliteWorld, message, write

from greenroom.protocol import ItemId, SessionId, StoreLockedError, TextBlock
from greenroom.storage import SNIPPET, MessageHit, message_fact
from greenroom.storage._words import MAX_BLOCK_CHARACTERS, index_words, snippet_of

LONG = "filler " * 40
WIDE = "\uff21\uff30\uff30\uff2c\uff25"
"""APPLE, as wide as ideographs."""
CORPUS = (
    "red apple",
    "green APPLE, and another apple",
    f"an apple among much else {LONG}",
    "red pear",
    "100% sure_thing",
    'say "OR" near* (nothing) words:x',
    "日本語のテスト",
    "Straße ﬁne",
    "O'Reilly; DROP TABLE message; --",
)
QUERIES = {
    "apple": {1, 2, 3},
    "RED apple": {1},
    "apple OR pear": set[int](),
    '"OR"': {6},
    "near*": {6},
    "words:x": {6},
    "(nothing)": {6},
    "-apple": {1, 2, 3},
    "100%": {5},
    "%": set[int](),
    "sure_thing": {5},
    "s_re": set[int](),
    "本語": {7},
    "strasse fine": {8},
    "'; DROP TABLE message; --": {9},
    "app": set[int](),
    "unknown": set[int](),
}
WAYS = {
    "with the index": "",
    "without FTS5": "DROP TABLE word_index;",
    "with an index that fails": "DELETE FROM word_index_data;",
    "without documents": "DROP TABLE document;",
}


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    world = SqliteWorld(tmp_path / "state")
    peer = world.join()
    tape = peer.tape()
    records = [
        message(text, name=f"m{n}", order=n, at=float(n))
        for n, text in enumerate(CORPUS, start=1)
    ]
    facts = [message_fact(record) for record in records]
    write(peer.store, tape.append_piece(facts, now=1.0))
    peer.tape(S2)
    index(peer)
    yield peer
    world.close()


def index(peer: Peer) -> None:
    while peer.store.index_pending():
        pass


def db(peer: Peer) -> apsw.Connection:
    return peer.store.connection  # type: ignore[attr-defined]


def orders(hits: list[MessageHit]) -> list[int]:
    return [hit.order_seq for hit in hits]


@pytest.mark.contract("PER-07")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_finds_the_same_on_every_way(peer: Peer, way: str, query: str) -> None:
    db(peer).execute(WAYS[way])
    hits = peer.store.search_messages(query)
    assert set(orders(hits)) == QUERIES[query]
    assert {hit.session_id for hit in hits} <= {S1}
    assert all(hit.snippet for hit in hits)


@pytest.mark.contract("PER-07")
def test_the_best_come_first_where_the_index_is(peer: Peer) -> None:
    assert orders(peer.store.search_messages("apple")) == [2, 1, 3]
    db(peer).execute("DROP TABLE word_index")
    assert orders(peer.store.search_messages("apple")) == [3, 2, 1]


@pytest.mark.contract("PER-07")
@pytest.mark.parametrize("way", WAYS)
def test_hits_are_twelve_or_one_to_fifty(peer: Peer, way: str) -> None:
    tape = peer.tape(S2)
    records = [message("plum", name=f"m{n}", order=n) for n in range(1, 61)]
    facts = [message_fact(record) for record in records]
    write(peer.store, tape.append_piece(facts, now=1.0))
    index(peer)
    db(peer).execute(WAYS[way])
    assert len(peer.store.search_messages("plum")) == 12
    assert len(peer.store.search_messages("plum", limit=0)) == 1
    assert len(peer.store.search_messages("plum", limit=51)) == 50
    assert peer.store.search_messages("plum", S1) == []
    assert len(peer.store.search_messages("plum", S2, 50)) == 50


@pytest.mark.contract("PER-07")
@pytest.mark.parametrize("way", WAYS)
def test_of_an_attachment_the_beginning_is_found(peer: Peer, way: str) -> None:
    filler = "x " * (MAX_BLOCK_CHARACTERS // 2 - 3)
    blocks = [
        TextBlock(id=ItemId(f"b{n}"), text=f"{filler} in{n} out{n}") for n in (1, 2)
    ]
    tape = peer.tape(S2)
    record = message("", *blocks)
    write(peer.store, tape.append_piece([message_fact(record)], now=1.0))
    index(peer)
    db(peer).execute(WAYS[way])
    assert len(peer.store.search_messages("in1 in2", S2)) == 1
    assert peer.store.search_messages("out1", S2) == []
    assert peer.store.search_messages("out2", S2) == []


@pytest.mark.contract("PER-07")
def test_the_index_follows_its_documents_by_triggers(peer: Peer) -> None:
    db(peer).execute("INSERT INTO document VALUES (900, 1, 'planted')")
    assert orders(peer.store.search_messages("planted")) == [1]
    db(peer).execute("DELETE FROM document WHERE fact = 900")
    assert peer.store.search_messages("planted") == []
    db(peer).execute("INSERT INTO word_index(word_index) VALUES ('integrity-check')")


@pytest.mark.contract("PER-07")
@pytest.mark.parametrize(
    ("text", "snippet"),
    [
        ("short apple", "short apple"),
        ("many\n\nlines   apple", "many lines apple"),
        (f"{LONG}apple {LONG}", None),
        ("apple " + "x" * 500, None),
        (f"{WIDE} " + "y" * 300, None),
    ],
)
def test_a_snippet_is_short_and_shows_a_word(text: str, snippet: str | None) -> None:
    found = snippet_of(text, ["apple"])
    assert len(found) <= SNIPPET
    if snippet is not None:
        assert found == snippet
    assert "apple" in found or WIDE in found


@given(st.text(), st.lists(st.text(min_size=1), max_size=3))
def test_any_text_has_a_snippet_on_one_line(text: str, words: list[str]) -> None:
    found = snippet_of(text, words)
    assert len(found) <= SNIPPET
    assert len(found.splitlines()) <= 1


def test_a_message_that_cannot_be_read_keeps_no_other_from_being_found(
    peer: Peer,
) -> None:
    db(peer).execute("UPDATE block SET body = '{' WHERE message = 1")
    peer.store.rebuild(S2)
    index(peer)
    assert set(orders(peer.store.search_messages("apple"))) == {1, 2, 3}
    db(peer).execute("UPDATE session SET indexed = 0; DELETE FROM document")
    index(peer)
    assert set(orders(peer.store.search_messages("apple"))) == {2, 3}
    db(peer).execute("DROP TABLE document")
    assert set(orders(peer.store.search_messages("apple"))) == {2, 3}


def test_a_busy_database_is_said_and_not_searched_in_other_ways(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> list[int]:
        raise apsw.BusyError("busy")

    monkeypatch.setattr("greenroom.storage.sqlite._search._by_rank", busy)
    with pytest.raises(StoreLockedError):
        peer.store.search_messages("apple")


def test_words_of_a_document_hold_nothing_that_like_would_read() -> None:
    assert not set("%_") & set(index_words("100% a_b %_ \\"))


def test_a_session_that_is_not_listed_is_not_searched(peer: Peer) -> None:
    db(peer).execute("UPDATE session_info SET settings = NULL")
    assert peer.store.search_messages("apple") == []
    assert peer.store.search_messages("apple", SessionId("s1")) == []
