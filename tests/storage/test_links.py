"""Linked tapes: read at their frozen head, by their parent alone."""

from __future__ import annotations

import msgspec
import pytest
from kit.stores import RUN, S1, S2, SETTINGS, Peer, event, write

from greenroom.protocol import (
    Fact,
    FactKind,
    JournalError,
    SessionId,
    SourceType,
    canonical_json,
    sha256_hex,
)
from greenroom.storage import (
    Appended,
    Reader,
    Tape,
    TapeNotLinkedError,
    bootstrap_facts,
    freeze_child,
    link_fact,
    linked_tape,
    linked_tapes,
    tape_identity,
)

CHILD, GRANDCHILD = SessionId("child"), SessionId("grandchild")


def child_of(peer: Peer, parent: SessionId, name: SessionId = CHILD, n: int = 3):
    tape = Tape(peer.acquire(name))
    facts = bootstrap_facts(f"incarnation of {name}", SETTINGS, parent=parent)
    write(peer.store, tape.append_piece([*facts, *map(event, range(n))], now=1.0))
    return tape


def frozen(reader: Reader, child: SessionId = CHILD, **changes):
    how = {
        "run_id": RUN,
        "task_id": "task",
        "slot_id": "slot",
        "task_title": "Look it up",
        "outcome": "completed",
        "result_summary": "it is so",
    }
    return freeze_child(reader, child, **(how | changes))


def append(peer: Peer, tape: Tape, *facts: Fact) -> Appended:
    return write(peer.store, tape.append_piece(facts, now=2.0))


@pytest.mark.contract("TAP-12")
def test_a_child_that_has_ended_is_one_entry_of_its_parent(peer: Peer):
    parent = peer.tape(S1)
    child_of(peer, S1)
    before = parent.head
    link = frozen(peer.store, task_title="t" * 501, result_summary="s" * 2_001)
    done = append(peer, parent, link_fact(link))
    assert done.head == parent.head == before + 1
    entry = peer.store.page(S1, before).entries[0]
    first = peer.store.page(CHILD, 0, 1).entries[0]
    assert entry.fact.kind is FactKind.EVENT
    assert (entry.fact.name, entry.fact.source_type) == (
        "subagent/tape_linked",
        SourceType.SUBAGENT,
    )
    assert entry.fact.provenance_key.startswith("subagent:tape-link:v1:")
    assert msgspec.json.decode(entry.fact.payload) == {
        "version": 2,
        "childSessionId": "child",
        "childHeadEntryId": 5,
        "childEntryCount": 5,
        "childTapeIdentity": sha256_hex(canonical_json(first)),
        "runId": RUN,
        "taskId": "task",
        "slotId": "slot",
        "taskTitle": "t" * 500,
        "outcome": "completed",
        "resultSummary": "s" * 2_000,
    }


@pytest.mark.contract("TAP-12")
def test_the_same_link_again_is_the_same_and_another_is_a_conflict(peer: Peer):
    parent, child = peer.tape(S1), child_of(peer, S1)
    link = frozen(peer.store)
    first = append(peer, parent, link_fact(link))
    again = append(peer, parent, link_fact(link))
    assert (again.seqs, again.head, again.created) == (
        first.seqs,
        first.head,
        (False,),
    )
    append(peer, child, event(9))
    for other in (frozen(peer.store), frozen(peer.store, outcome="error")):
        with pytest.raises(JournalError) as caught:
            append(peer, parent, link_fact(other))
        assert caught.value.code == "conflicting_fact"
    assert linked_tape(peer.store, S1, CHILD).head == 5


@pytest.mark.contract("TAP-13")
def test_what_the_child_adds_after_the_link_is_not_seen(peer: Peer):
    parent, child = peer.tape(S1), child_of(peer, S1)
    append(peer, parent, link_fact(frozen(peer.store)))
    append(peer, child, event(9))
    assert linked_tape(peer.store, S1, CHILD).head == 5
    append(peer, parent, link_fact(frozen(peer.store, task_id="another")))
    assert linked_tape(peer.store, S1, CHILD).head == 6
    assert linked_tapes(peer.store, S1, 10) == [linked_tape(peer.store, S1, CHILD)]


@pytest.mark.contract("TAP-13")
def test_a_child_that_begins_anew_is_not_read(peer: Peer):
    parent, child = peer.tape(S1), child_of(peer, S1)
    append(peer, parent, link_fact(frozen(peer.store)))
    anew = bootstrap_facts("another incarnation", SETTINGS, parent=S1)
    facts = [*anew, *map(event, range(9))]
    write(peer.store, child.reset_piece(facts, now=3.0))
    with pytest.raises(TapeNotLinkedError, match="has begun anew"):
        linked_tape(peer.store, S1, CHILD)
    assert linked_tapes(peer.store, S1, 10) == []
    write(peer.store, child.delete_piece())
    with pytest.raises(TapeNotLinkedError, match="there is none any more"):
        linked_tape(peer.store, S1, CHILD)


@pytest.mark.contract("TAP-13")
def test_a_head_below_the_frozen_one_is_refused(peer: Peer):
    parent = peer.tape(S1)
    child_of(peer, S1)
    longer = msgspec.structs.replace(frozen(peer.store), child_head_entry_id=6)
    append(peer, parent, link_fact(longer))
    with pytest.raises(TapeNotLinkedError, match="shorter"):
        linked_tape(peer.store, S1, CHILD)


@pytest.mark.contract("TAP-13")
def test_a_grandchild_is_refused_with_a_link_and_without(peer: Peer):
    parent, child = peer.tape(S1), child_of(peer, S1)
    child_of(peer, CHILD, GRANDCHILD)
    append(peer, child, link_fact(frozen(peer.store, GRANDCHILD)))
    append(peer, parent, link_fact(frozen(peer.store)))
    with pytest.raises(TapeNotLinkedError, match="has no link to it"):
        linked_tape(peer.store, S1, GRANDCHILD)
    append(peer, parent, link_fact(frozen(peer.store, GRANDCHILD)))
    with pytest.raises(TapeNotLinkedError, match="no direct child"):
        linked_tape(peer.store, S1, GRANDCHILD)
    assert linked_tape(peer.store, CHILD, GRANDCHILD).head == 5


def older(name: str, **payload: object) -> Fact:
    return Fact(
        kind=FactKind.EVENT,
        name=name,
        source_type=SourceType.SUBAGENT,
        source_id="older",
        payload=canonical_json(payload),
    )


@pytest.mark.contract("TAP-13")
@pytest.mark.parametrize(
    "record",
    [
        older("subagent/tape_linked", childSessionId="s2", childHeadEntryId=2),
        older("fork/merge", forkSessionId="s2", forkHeadEntryId=2, mergedCount=0),
    ],
)
def test_older_records_open_tapes_without_a_mark_alone(peer: Peer, record: Fact):
    parent, unmarked = peer.tape(S1), peer.tape(S2)
    append(peer, parent, record)
    append(peer, unmarked, event(1))
    assert linked_tape(peer.store, S1, S2).head == 2
    marked = bootstrap_facts("marked", SETTINGS, parent=S1)
    write(peer.store, unmarked.reset_piece([*marked, event(1)], now=3.0))
    with pytest.raises(TapeNotLinkedError, match="older than its tape"):
        linked_tape(peer.store, S1, S2)


def test_a_tape_that_is_not_there_can_not_be_frozen(peer: Peer):
    with pytest.raises(TapeNotLinkedError, match="there is none"):
        frozen(peer.store, SessionId("nobody"))


def test_a_damaged_link_opens_nothing(peer: Peer):
    parent = peer.tape(S1)
    child_of(peer, S1)
    append(peer, parent, older("subagent/tape_linked", childSessionId=5))
    assert linked_tapes(peer.store, S1, 10) == []


def test_an_identity_is_of_the_first_entry_with_its_session(peer: Peer):
    child_of(peer, S1)
    child_of(peer, S1, GRANDCHILD)
    ones = [peer.store.page(c, 0, 1).entries[0] for c in (CHILD, GRANDCHILD)]
    assert len({tape_identity(one) for one in ones}) == 2
