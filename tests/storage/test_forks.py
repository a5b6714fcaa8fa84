"""Forks of a tape: merged once, whole or not at all, or gone for good."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from kit.stores import (
    RUN,
    S1,
    Peer,
    bootstrap,
    event,
    message,
    open_world,
    run_pieces,
    started,
    terminal,
    write,
)

from greenroom.protocol import SessionId
from greenroom.storage import (
    ForkMerged,
    ForkRefusedError,
    Grant,
    Held,
    Piece,
    Tape,
    begin_fork,
    delete_fork,
    discard_piece,
    fork_scope,
    linked_tape,
    merge_piece,
    message_fact,
    open_store,
    retraction_fact,
    sweep,
    verify,
)

FORK = fork_scope(S1, "try")


def fork(peer: Peer, fork_id: str = "try") -> Tape:
    def body(store):
        return begin_fork(
            store, peer.member, S1, fork_id, incarnation=f"fork {fork_id}", now=2.0
        )

    grant = write(peer.store, Piece(body))
    assert isinstance(grant, Grant)
    return Tape(grant)


def names(peer: Peer, scope: SessionId = S1, after: int = 0) -> list[str]:
    return [entry.fact.name for entry in peer.store.page(scope, after).entries]


def merge(peer: Peer, tape: Tape, fork_id: str = "try") -> ForkMerged:
    return write(peer.store, merge_piece(tape, fork_id, now=3.0))


def discard(peer: Peer, tape: Tape, fork_id: str = "try") -> None:
    write(peer.store, discard_piece(tape, fork_id, now=4.0))
    write(
        peer.store,
        Piece(lambda store: delete_fork(store, peer.member, S1, fork_id, now=4.0)),
    )


@pytest.mark.contract("TAP-14")
def test_a_fork_is_a_tape_of_its_own_that_names_where_it_began(peer: Peer):
    parent = peer.tape()
    forked = fork(peer)
    assert FORK == "s1::fork::try"
    start, anchor = peer.store.page(FORK, 0).entries
    assert start.fact.name == "session/start"
    assert anchor.fact.name == "fork/start"
    assert anchor.fact.payload == (
        f'{{"parentHeadEntryId":{parent.head},"parentSessionId":"s1"}}'
    )
    assert peer.store.session(FORK) is None
    write(peer.store, forked.append_piece([event(1)], now=2.0))
    assert names(peer) == ["session/start", "session/configured"]
    # The same fork goes on.
    assert fork(peer).head == 3


@pytest.mark.contract("TAP-14")
def test_a_merge_copies_what_was_added_but_the_journal_and_again_is_the_same(
    peer: Peer,
):
    parent, forked = peer.tape(), fork(peer)
    write(peer.store, forked.append_piece([event(1), event(2)], now=2.0))
    write(peer.store, forked.commit_piece(started(), now=2.0))
    write(peer.store, forked.commit_piece(terminal(), now=2.0))
    write(peer.store, parent.append_piece([event(1)], now=2.0))
    before = parent.head
    receipt = merge(peer, parent)
    assert receipt == ForkMerged(
        fork_id="try", fork_session_id=FORK, merged_count=2, fork_head_entry_id=6
    )
    assert names(peer, after=before) == ["note/taken", "note/taken", "fork/merge"]
    copied = peer.store.page(S1, before, 1).entries[0].fact
    assert copied.provenance_key == "fork:merge:try:3"
    assert copied.payload == event(1).payload
    write(peer.store, forked.append_piece([event(3)], now=3.0))
    assert merge(peer, parent) == receipt
    assert parent.head == before + 3
    assert verify(peer.store) == []
    # What a fork had at its merge can be read like a linked tape.
    assert linked_tape(peer.store, S1, FORK).head == 6
    with pytest.raises(ForkRefusedError, match="was merged before"):
        fork(peer)


@pytest.mark.contract("TAP-14")
def test_a_discarded_fork_is_neither_merged_nor_used_again(peer: Peer):
    parent, forked = peer.tape(), fork(peer)
    write(peer.store, forked.append_piece([event(1)], now=2.0))
    discard(peer, parent)
    assert peer.store.heads([FORK]) == []
    assert names(peer, after=2) == ["fork/discard"]
    discard(peer, parent)
    assert parent.head == 3
    for again in (lambda: merge(peer, parent), lambda: fork(peer)):
        with pytest.raises(ForkRefusedError, match="was discarded"):
            again()
    assert names(peer, after=2) == ["fork/discard"]


@pytest.mark.contract("TAP-14")
def test_a_fork_that_somebody_holds_is_discarded_all_the_same(peer: Peer, world):
    parent, other = peer.tape(), world.join("another")
    held = other.store.acquire(other.member, FORK, now=2.0)
    begun = [*bootstrap("fork")[:1], event(1)]
    write(other.store, Tape(held).append_piece(begun, now=2.0))
    discard(peer, parent)
    assert dict(peer.store.heads([FORK])) == {FORK: 2}
    with pytest.raises(ForkRefusedError, match="was discarded"):
        merge(peer, parent)


def test_messages_of_a_fork_get_the_next_places_of_their_parent(peer: Peer):
    parent, forked = peer.tape(), fork(peer)
    one, two = message("one", name="a", order=1), message("two", name="b", order=2)
    gone = message("gone", name="c", order=3)
    facts = [message_fact(one), message_fact(two), message_fact(gone)]
    write(peer.store, forked.append_piece([*facts, retraction_fact(gone.id)], now=2.0))
    write(peer.store, parent.append_piece([message_fact(message())], now=2.0))
    merge(peer, parent)
    kept = [(m.id, m.order_seq) for m in peer.store.messages(S1)]
    assert kept == [("m1", 1), ("a", 2), ("b", 3)]
    assert verify(peer.store) == []


def test_a_fork_that_works_is_not_merged(peer: Peer):
    parent, forked = peer.tape(), fork(peer)
    working = message(name="a", role="assistant", status="pending")
    write(peer.store, forked.append_piece([message_fact(working)], now=2.0))
    with pytest.raises(ForkRefusedError, match="still works"):
        merge(peer, parent)
    done = message(name="a", role="assistant", at=2.0)
    write(peer.store, forked.append_piece([message_fact(done)], now=2.0))
    write(peer.store, forked.commit_piece(started(RUN), now=2.0))
    with pytest.raises(ForkRefusedError, match="still works"):
        merge(peer, parent)
    write(peer.store, forked.commit_piece(terminal(RUN), now=2.0))
    assert merge(peer, parent).merged_count == 2


@pytest.mark.parametrize("fork_id", ["", "a::b", "a/b", "x" * 65, "é"])
def test_an_id_that_is_none_is_refused(fork_id: str):
    with pytest.raises(ForkRefusedError, match="a fork's id has"):
        fork_scope(S1, fork_id)


def test_there_is_no_fork_of_nothing(peer: Peer, world):
    with pytest.raises(ForkRefusedError, match="no session 's1'"):
        fork(peer)
    parent = peer.tape()
    with pytest.raises(ForkRefusedError, match="there is no fork"):
        merge(peer, parent)
    other = world.join("another")
    other.store.acquire(other.member, FORK, now=2.0)
    assert isinstance(
        begin_fork(peer.store, peer.member, S1, "try", incarnation="x", now=2.0), Held
    )


@pytest.mark.contract("TAP-14")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@given(count=st.integers(1_000, 2_100))
@settings(max_examples=4, deadline=None)
def test_a_merge_that_fails_at_its_last_batch_leaves_nothing(kind: str, count: int):
    with open_world(kind) as world:
        peer = world.join()
        parent, forked = peer.tape(), fork(peer)
        events = [event(n) for n in range(count)]
        for start in range(0, count, 500):
            some = events[start : start + 500]
            write(peer.store, forked.append_piece(some, now=2.0))
        whole = merge_piece(parent, "try", now=3.0)

        def cut(store):
            whole.run(store)
            raise OSError("the power fails")

        piece = Piece(cut, whole.aborted)
        assert run_pieces(peer.store, piece)[0].error is not None
        assert whole.aborted is not None
        whole.aborted()
        assert names(peer) == ["session/start", "session/configured"]
        assert parent.head == 2
        assert merge(peer, parent).merged_count == count
        assert parent.head == count + 3


@pytest.mark.contract("TAP-14")
def test_a_process_that_dies_in_a_merge_leaves_nothing_of_it():
    with open_world("sqlite") as world:
        peer = world.join()
        parent, forked = peer.tape(), fork(peer)
        events = [event(n) for n in range(1_500)]
        write(peer.store, forked.append_piece(events[:800], now=2.0))
        write(peer.store, forked.append_piece(events[800:], now=2.0))
        piece = merge_piece(parent, "try", now=3.0)

        class Died(BaseException):
            pass

        def die(store):
            piece.run(store)
            raise Died

        with pytest.raises(Died):
            peer.store.run_group([Piece(die)])
        world.kill(peer)
        after = world.join()
        assert names(after) == ["session/start", "session/configured"]
        assert merge(after, Tape(after.acquire())).merged_count == 1_500


def test_a_sweep_takes_forks_that_are_of_no_use_any_more():
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        store = open_store(state)
        peer = Peer(store, store.join("node", "", 60.0, now=0.0))
        parent = peer.tape()
        kept = fork(peer, "kept")
        write(store, discard_piece(parent, "gone", now=2.0))
        gone = Tape(peer.acquire(fork_scope(S1, "gone")))
        orphan = Tape(peer.acquire(fork_scope(SessionId("no one"), "orphan")))
        for tape in (gone, orphan):
            write(store, tape.append_piece(bootstrap("fork")[:1], now=2.0))
        store.leave(peer.member, now=3.0)
        store.close()
        swept = sweep(
            state, older_than=1e9, archived=False, dry_run=False, node="n", now=9.0
        )
        assert set(swept.unfinished) == {gone.scope, orphan.scope}
        again = open_store(state)
        assert dict(again.heads([kept.scope, gone.scope, orphan.scope])) == {
            kept.scope: 2
        }
        again.close()
