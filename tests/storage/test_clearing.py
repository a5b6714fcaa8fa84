"""A cleared session keeps nothing of what was said, or everything (TAP-04)."""

from __future__ import annotations

import apsw
import msgspec
import pytest
from kit.stores import S1, SETTINGS, Peer, event, message, open_world, write

from greenroom.protocol import (
    ItemId,
    MessageId,
    PendingInput,
    Plan,
    PlanEntry,
    StorageError,
    TextPart,
    ToolCallBlock,
)
from greenroom.storage import (
    SqliteStore,
    Tape,
    bootstrap_facts,
    input_fact,
    message_fact,
    plan_fact,
    tool_facts,
    verify,
)

CALL = ToolCallBlock(
    id=ItemId("b"),
    call_id="c",
    name="grep",
    arguments="{}",
    status="success",
    response="a blue whale",
)
ROW = PendingInput(
    id="i1",
    mode="queue",
    order=1,
    parts=(TextPart("wait"),),
    created_at=1.0,
    updated_at=1.0,
)


def filled(peer: Peer) -> Tape:
    tape = peer.tape()
    facts = [
        message_fact(message("a whale")),
        *tool_facts(MessageId("m1"), CALL),
        message_fact(message(name="m2", order=2, role="assistant", status="pending")),
        plan_fact(Plan(1, (PlanEntry("do", "pending"),))),
        input_fact(ROW),
        event(1, "whale"),
    ]
    write(peer.store, tape.append_piece(facts, now=1.0))
    peer.store.post(S1, "command", "{}", now=1.0)
    peer.store.cache_blocks(tape.grant, "m2", "[]", now=1.0)
    while peer.store.index_pending():
        pass
    return tape


def picture(peer: Peer, tape: Tape) -> list[object]:
    store = peer.store
    commands = store.inbox(tape.grant)
    return [
        store.page(S1, 0),
        store.messages(S1),
        store.pending_inputs(S1),
        store.plan(S1),
        commands,
        store.cached_blocks(S1, "m2"),
        store.search_tape(S1, "whale"),
        store.search_messages("whale"),
        store.session(S1),
        verify(store),
    ]


def anew(incarnation: str = "another") -> tuple:
    return bootstrap_facts(incarnation, SETTINGS)


@pytest.mark.contract("TAP-04")
def test_only_the_new_bootstrap_is_left(peer: Peer):
    tape = filled(peer)
    write(peer.store, tape.reset_piece(anew(), now=2.0))
    store = peer.store
    entries = store.page(S1, 0).entries
    assert [entry.fact for entry in entries] == list(anew())
    assert tape.head == 2
    assert store.messages(S1) == []
    assert store.pending_inputs(S1).rows == ()
    assert store.plan(S1) is None
    assert store.inbox(tape.grant) == []
    assert store.cached_blocks(S1, "m2") is None
    while store.index_pending():
        pass
    assert store.search_tape(S1, "whale") == store.search_messages("whale") == []
    row = store.session(S1)
    assert row is not None
    assert (row.message_count, row.settings) == (0, SETTINGS)
    assert verify(store) == []


@pytest.mark.contract("TAP-04")
def test_a_fault_at_any_step_of_it_leaves_all_that_was():
    with open_world("sqlite") as world:
        peer = world.join()
        tape = filled(peer)
        store = peer.store
        assert isinstance(store, SqliteStore)
        before = picture(peer, tape)
        steps = 0
        while True:
            left = [steps]

            def fails(cursor, sql, bindings, left=left):
                # Undoing is not a step that fails.
                if sql.startswith(("ROLLBACK", "RELEASE")):
                    return True
                left[0] -= 1
                if left[0] < 0:
                    raise apsw.IOError("the disk is gone")
                return True

            store.connection.exec_trace = fails
            (settled,) = store.run_group([tape.reset_piece(anew(), now=2.0)])
            store.connection.exec_trace = None
            if settled.error is None:
                break
            assert isinstance(settled.error, StorageError)
            assert picture(peer, tape) == before
            assert tape.head == 9
            steps += 1
        # Each table is a step of its own: transcript, inputs, inbox, tape, search.
        assert steps > 12
        assert [e.fact for e in store.page(S1, 0).entries] == list(anew())


@pytest.mark.contract("TAP-04")
def test_each_clearing_is_another_incarnation(peer: Peer):
    tape = filled(peer)
    seen = set[str]()
    for name in ("one", "two"):
        write(peer.store, tape.reset_piece(anew(name), now=2.0))
        meta = peer.store.page(S1, 0, 1).entries[0].fact.meta
        seen.add(msgspec.json.decode(meta)["incarnation"])
    assert seen == {"one", "two"}
