"""What every store must do: one function for each promise, over any world.

`test_conformance` runs them over each implementation, `test_mutants` over broken
ones, of which every one must be caught. Another implementation needs a world, and
nothing here changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from kit.stores import (
    MESSAGE,
    OTHER_RUN,
    RUN,
    S1,
    S2,
    SETTINGS,
    Peer,
    World,
    bootstrap,
    dispatch,
    event,
    message,
    run_pieces,
    started,
    terminal,
    write,
)

from greenroom.protocol import (
    MAX_TRACE_BYTES,
    ActionBlock,
    AgentRow,
    AttemptTrace,
    Chunk,
    Fact,
    FactKind,
    ImagePart,
    IngestMark,
    ItemId,
    JournalError,
    MessageId,
    MessageRecord,
    PendingInputs,
    Plan,
    PlanEntry,
    SessionId,
    SourceType,
    TextBlock,
    TextPart,
)
from greenroom.storage import (
    Appended,
    Binding,
    Fenced,
    FencedError,
    Grant,
    HeadMoved,
    HeadMovedError,
    Held,
    MemberLost,
    Owner,
    Piece,
    Posted,
    Receipt,
    RefusedFactError,
    Seen,
    Store,
    Tape,
    archived_fact,
    input_fact,
    message_fact,
    plan_fact,
    retraction_fact,
    settings_fact,
    verify,
)

Check = Callable[[World], None]


#### Tape


def check_append_returns_places_and_page_returns_facts(world: World) -> None:
    peer = world.join()
    grant = peer.acquire()
    facts = [*bootstrap(), event(1), event(2)]
    result = peer.store.append(grant, 0, facts, now=5.0)
    assert result == Appended(4, (1, 2, 3, 4), (True,) * 4)
    page = peer.store.page(S1, 0)
    assert [entry.fact for entry in page.entries] == facts
    assert [entry.seq for entry in page.entries] == [1, 2, 3, 4]
    assert {entry.created_at for entry in page.entries} == {5.0}
    assert {entry.token for entry in page.entries} == {grant.token}
    assert page.head == 4


def check_pages_follow_each_other_without_gap_or_repeat(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    write(peer.store, tape.append_piece([event(n) for n in range(10)], now=1.0))
    seen: list[int] = []
    while page := peer.store.page(S1, seen[-1] if seen else 0, 3).entries:
        assert len(page) <= 3
        seen += [entry.seq for entry in page]
    assert seen == list(range(1, 13))


def check_a_page_can_be_of_one_stream(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    write(peer.store, tape.commit_piece(started(), now=1.0))
    write(peer.store, tape.append_piece([event(1)], now=1.0))
    journal = peer.store.page(S1, 0, stream="journal")
    assert [entry.seq for entry in journal.entries] == [3]
    assert journal.head == 4
    tape_only = peer.store.page(S1, 0, stream="tape")
    assert [entry.seq for entry in tape_only.entries] == [1, 2, 4]


def check_pages_are_bounded_by_bytes_but_never_empty(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    big = [event(n, "x" * 900_000) for n in range(12)]
    write(peer.store, tape.append_piece(big, now=1.0))
    page = peer.store.page(S1, 2)
    assert 1 < len(page.entries) < 12
    assert page.head == 14


def check_unknown_sessions_read_as_empty(world: World) -> None:
    store = world.join().store
    unknown = SessionId("nobody")
    assert store.page(unknown, 0).entries == ()
    assert store.page(unknown, 0).head == 0
    assert store.heads([unknown]) == []
    assert store.session(unknown) is None
    assert store.messages(unknown) == []
    assert store.message(unknown, "m") is None
    assert store.message_count(unknown) == 0
    assert store.retracted_messages(unknown) == []
    assert store.plan(unknown) is None
    assert store.pending_inputs(unknown).rows == ()
    assert store.locate(unknown) is None
    assert store.open_runs(unknown) == []
    assert store.run_entries(unknown, RUN) == ()
    assert store.run_session(RUN) is None
    assert store.cached_blocks(unknown, "m") is None


def check_scopes_and_heads_are_of_begun_tapes(world: World) -> None:
    peer = world.join()
    peer.tape(S2)
    peer.tape(S1)
    peer.acquire(SessionId("empty"))
    assert peer.store.scopes() == [S1, S2]
    assert peer.store.scopes(S1) == [S2]
    assert peer.store.scopes(limit=1) == [S1]
    assert peer.store.heads([S1, SessionId("empty"), S2]) == [(S1, 2), (S2, 2)]


def check_a_stale_head_writes_nothing(world: World) -> None:
    peer = world.join()
    grant = peer.tape().grant
    assert peer.store.append(grant, 0, [event(1)], now=1.0) == HeadMoved(S1, 2)
    assert peer.store.append(grant, 3, [event(1)], now=1.0) == HeadMoved(S1, 2)
    assert peer.store.page(S1, 0).head == 2


def check_one_winner_per_head(world: World) -> None:
    peer = world.join()
    grant = peer.tape().grant
    results = [peer.store.append(grant, 2, [event(n)], now=1.0) for n in range(3)]
    assert [type(result) for result in results] == [Appended, HeadMoved, HeadMoved]
    assert peer.store.page(S1, 0).head == 3


def check_a_bad_fact_among_good_ones_writes_none(world: World) -> None:
    peer = world.join()
    grant = peer.tape().grant
    bad = msgspec.structs.replace(event(2), payload="{nonsense")
    with pytest.raises(RefusedFactError, match="not JSON"):
        peer.store.append(grant, 2, [event(1), bad], now=1.0)
    assert peer.store.page(S1, 0).head == 2


def check_a_late_refusal_undoes_what_was_written_before_it(world: World) -> None:
    peer = world.join()
    grant = peer.tape().grant
    first, twin = message(), message(name="m2", order=1)
    with pytest.raises(RefusedFactError, match="another message's"):
        peer.store.append(grant, 2, [message_fact(first), message_fact(twin)], now=1.0)
    assert peer.store.page(S1, 0).head == 2
    assert peer.store.messages(S1) == []
    assert verify(peer.store) == []


def check_the_same_append_id_returns_the_first_result(world: World) -> None:
    peer = world.join()
    grant = peer.tape().grant
    first = peer.store.append(grant, 2, [event(1)], append_id="a", now=1.0)
    again = peer.store.append(grant, 2, [event(1)], append_id="a", now=1.0)
    assert first == again == Appended(3, (3,), (True,))
    assert peer.store.page(S1, 0).head == 3
    peer.store.release(grant, now=1.0)
    late = peer.store.append(grant, 2, [event(1)], append_id="a", now=1.0)
    assert late == first


def check_results_of_append_ids_are_kept_for_the_newest(world: World) -> None:
    peer = world.join()
    grant = peer.tape().grant
    for n in range(20):
        peer.store.append(grant, n + 2, [event(n)], append_id=f"a{n}", now=1.0)
    assert isinstance(
        peer.store.append(grant, 0, [], append_id="a19", now=1.0), Appended
    )
    assert isinstance(
        peer.store.append(grant, 0, [], append_id="a0", now=1.0), HeadMoved
    )


def check_an_append_without_facts_only_settles(world: World) -> None:
    peer = world.join()
    grant = peer.acquire()
    peer.store.post(S1, "c1", "{}", now=1.0)
    assert peer.store.append(grant, 0, [], ["c1"], now=1.0) == Appended(0, (), ())
    assert peer.store.inbox(grant) == []


#### Members and grants


def check_a_held_session_names_its_owner(world: World) -> None:
    one, two = world.join("one"), world.join("two")
    one.acquire()
    held = two.store.acquire(two.member, S1, now=1.0)
    assert held == Held(S1, Owner(one.member.id, "one", ""))
    assert two.store.locate(S1) == Owner(one.member.id, "one", "")


def check_a_dead_owner_is_taken_over_at_once_and_fenced(world: World) -> None:
    one, two = world.join("one"), world.join("two")
    old = one.tape().grant
    world.kill(one)
    new = two.acquire()
    assert new.token > old.token
    assert new.head == 2
    fenced = two.store.append(old, 2, [event(1)], now=1.0)
    assert fenced == Fenced(S1, old.token)
    assert two.store.commit(old, 2, started(), now=1.0) == Fenced(S1, old.token)
    assert two.store.inbox(old) == Fenced(S1, old.token)
    assert two.store.cache_blocks(old, MESSAGE, "[]", now=1.0) == Fenced(S1, old.token)
    assert two.store.delete(old, 2) == Fenced(S1, old.token)
    assert two.store.reset(old, 2, bootstrap(), now=1.0) == Fenced(S1, old.token)
    assert two.store.page(S1, 0).head == 2


def check_a_takeover_kills_the_whole_incarnation(world: World) -> None:
    one, two = world.join("one", ttl=10.0), world.join("two", ttl=100.0)
    one.acquire(S1)
    other = one.acquire(S2)
    assert isinstance(two.store.acquire(two.member, S1, now=9.9), Held)
    two.acquire(S1, now=11.0)
    assert one.store.beat(one.member, now=11.0) == MemberLost(one.member.id)
    lost = one.store.acquire(one.member, S1, now=11.0)
    assert lost == MemberLost(one.member.id)
    # Its other session's token moves when that one is taken.
    assert one.store.append(other, 0, bootstrap(S2), now=11.0) == Appended(
        2, (1, 2), (True, True)
    )
    two.acquire(S2, now=11.0)
    assert one.store.append(other, 2, [event(1)], now=11.0) == Fenced(S2, other.token)


def check_an_expired_owner_may_append_until_taken_over(world: World) -> None:
    one, two = world.join("one", ttl=10.0), world.join("two")
    tape = one.tape()
    assert isinstance(one.store.append(tape.grant, 2, [event(1)], now=50.0), Appended)
    two.acquire(now=50.0)
    assert isinstance(one.store.append(tape.grant, 3, [event(2)], now=50.0), Fenced)


def check_a_beat_keeps_a_member_alive(world: World) -> None:
    one, two = world.join("one", ttl=10.0), world.join("two")
    one.acquire()
    assert one.store.beat(one.member, now=8.0) is None
    assert isinstance(two.store.acquire(two.member, S1, now=17.0), Held)
    assert isinstance(two.store.acquire(two.member, S1, now=19.0), Grant)


def check_leave_frees_sessions_and_moves_their_tokens(world: World) -> None:
    one, two = world.join("one"), world.join("two")
    old = one.tape().grant
    one.store.leave(one.member, now=1.0)
    assert two.store.locate(S1) is None
    assert two.store.append(old, 2, [event(1)], now=1.0) == Fenced(S1, old.token)
    assert one.store.beat(one.member, now=1.0) == MemberLost(one.member.id)
    two.acquire()


def check_release_moves_the_token_once(world: World) -> None:
    one, two = world.join("one"), world.join("two")
    old = one.tape().grant
    one.store.release(old, now=1.0)
    assert isinstance(one.store.append(old, 2, [event(1)], now=1.0), Fenced)
    new = two.acquire()
    one.store.release(old, now=1.0)
    assert isinstance(two.store.append(new, 2, [event(1)], now=1.0), Appended)


def check_acquiring_what_is_owned_fences_the_older_grant(world: World) -> None:
    peer = world.join()
    old, new = peer.tape().grant, peer.acquire()
    assert isinstance(peer.store.append(old, 2, [event(1)], now=1.0), Fenced)
    assert isinstance(peer.store.append(new, 2, [event(1)], now=1.0), Appended)


def check_members_have_ids_of_their_own_for_ever(world: World) -> None:
    one = world.join("one")
    one.store.leave(one.member, now=1.0)
    two = world.join("two")
    assert one.member.id != two.member.id
    assert one.store.beat(one.member, now=1.0) == MemberLost(one.member.id)


#### Inbox


def check_a_command_is_posted_once(world: World) -> None:
    peer = world.join()
    assert peer.store.post(S1, "c1", '{"a":1}', now=1.0) == Posted()
    assert peer.store.post(S1, "c1", '{"a":1}', now=2.0) == Seen(same_body=True)
    assert peer.store.post(S1, "c1", '{"a":2}', now=3.0) == Seen(same_body=False)
    assert peer.store.post(S2, "c1", '{"a":2}', now=3.0) == Posted()
    inbox = peer.store.inbox(peer.acquire())
    assert not isinstance(inbox, Fenced)
    assert [(c.command_id, c.body, c.posted_at) for c in inbox] == [
        ("c1", '{"a":1}', 1.0)
    ]


def check_commands_come_oldest_first_and_settle_with_their_append(
    world: World,
) -> None:
    peer = world.join()
    tape = peer.tape()
    for name in ("b", "a", "c"):
        peer.store.post(S1, name, "{}", now=1.0)
    assert peer.store.owed(peer.member) == [S1]
    write(peer.store, tape.append_piece([event(1)], ["b", "c"], now=1.0))
    left = write(peer.store, tape.inbox_piece())
    assert [command.command_id for command in left] == ["a"]
    write(peer.store, tape.append_piece([], ["a"], now=1.0))
    assert peer.store.owed(peer.member) == []
    assert peer.store.post(S1, "a", "{}", now=9.0) == Seen(same_body=True)


def check_settling_the_unknown_writes_nothing(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    peer.store.post(S1, "c1", "{}", now=1.0)
    with pytest.raises(RefusedFactError, match="no command"):
        peer.store.append(tape.grant, 2, [event(1)], ["c1", "nobody"], now=1.0)
    assert peer.store.page(S1, 0).head == 2
    assert peer.store.owed(peer.member) == [S1]


def check_a_moved_head_settles_nothing(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    peer.store.post(S1, "c1", "{}", now=1.0)
    peer.store.append(tape.grant, 1, [event(1)], ["c1"], now=1.0)
    assert peer.store.owed(peer.member) == [S1]


def check_claims_of_two_members_are_disjoint(world: World) -> None:
    one, two, three = world.join("one"), world.join("two"), world.join("three")
    scopes = [SessionId(f"s{n}") for n in range(6)]
    for scope in scopes:
        one.store.post(scope, "c", "{}", now=1.0)
    three.acquire(scopes[5])
    first = one.store.claim(one.member, 2, now=1.0)
    second = two.store.claim(two.member, 9, now=1.0)
    assert [grant.scope for grant in first] == scopes[:2]
    assert [grant.scope for grant in second] == scopes[2:5]
    assert two.store.claim(two.member, 9, now=1.0) == []
    world.kill(three)
    assert [g.scope for g in two.store.claim(two.member, 9, now=1.0)] == scopes[5:]


def check_what_the_dead_owe_is_known(world: World) -> None:
    one, two = world.join("one"), world.join("two")
    one.tape(S1)
    two.tape(S2)
    one.store.post(SessionId("new"), "c", "{}", now=1.0)
    assert two.store.owed_by_dead() == ["new"]
    world.kill(one)
    assert two.store.owed_by_dead() == ["new", S1]


#### Strict facts, groups, pieces


def check_strict_facts_share_the_sequence(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    receipt = write(peer.store, tape.commit_piece(started(), now=1.0))
    assert receipt == Receipt(3, 3, created=True)
    assert write(peer.store, tape.append_piece([event(1)], now=1.0)).seqs == (4,)
    assert peer.store.run_session(RUN) == S1
    assert [run.run_id for run in peer.store.open_runs(S1)] == [RUN]
    write(peer.store, tape.commit_piece(terminal(), now=1.0))
    assert peer.store.open_runs(S1) == []
    assert [e.seq for e in peer.store.run_entries(S1, RUN)] == [3, 5]


def check_a_strict_fact_needs_the_right_head(world: World) -> None:
    peer = world.join()
    grant = peer.tape().grant
    assert peer.store.commit(grant, 1, started(), now=1.0) == HeadMoved(S1, 2)
    assert peer.store.page(S1, 0).head == 2


def check_a_run_belongs_to_one_session(world: World) -> None:
    peer = world.join()
    one, two = peer.tape(S1), peer.tape(S2)
    write(peer.store, one.commit_piece(started(), now=1.0))
    with pytest.raises(JournalError, match="another session") as caught:
        write(peer.store, two.commit_piece(started(), now=1.0))
    assert caught.value.code == "conflicting_fact"
    assert not peer.store.is_elsewhere(S1, RUN)
    assert peer.store.is_elsewhere(S2, RUN)


def check_a_failed_piece_is_undone_alone(world: World) -> None:
    peer = world.join()
    one, two = peer.tape(S1), peer.tape(S2)

    def fails(store: Store) -> None:
        store.append(two.grant, 2, [event(1)], now=1.0)
        raise LookupError("later in the piece")

    settled = run_pieces(
        peer.store,
        one.append_piece([event(1)], now=1.0),
        Piece(fails),
        two.append_piece([event(2)], now=1.0),
    )
    assert [type(s.error) for s in settled] == [type(None), LookupError, type(None)]
    assert (one.head, two.head) == (3, 3)
    assert [e.fact for e in peer.store.page(S2, 2).entries] == [event(2)]


def check_pieces_of_one_session_may_be_queued_together(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    pieces = [tape.append_piece([event(n)], now=1.0) for n in range(3)]
    pieces.append(tape.commit_piece(started(), now=1.0))
    pieces.append(tape.commit_piece(dispatch(), now=1.0))
    assert write(peer.store, *pieces) == Receipt(7, 7, created=True)
    assert tape.head == 7


def check_an_interrupt_inside_a_group_undoes_it(world: World) -> None:
    peer = world.join()
    tape = peer.tape()

    def interrupted(store: Store) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_pieces(
            peer.store, tape.append_piece([event(1)], now=1.0), Piece(interrupted)
        )
    assert tape.head == 2
    write(peer.store, tape.append_piece([event(1)], now=1.0))
    assert tape.head == peer.store.page(S1, 0).head == 3


def check_a_group_is_not_nested(world: World) -> None:
    peer = world.join()
    piece = Piece(lambda store: store.run_group([]))
    (settled,) = run_pieces(peer.store, piece)
    assert isinstance(settled.error, RuntimeError)


def check_an_owner_that_is_wrong_is_told_by_its_tape(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    stale = Tape(tape.grant)
    write(peer.store, tape.append_piece([event(1)], now=1.0))
    pieces = [
        stale.append_piece([event(2)], now=1.0),
        stale.commit_piece(started(), now=1.0),
        stale.reset_piece(bootstrap("other"), now=1.0),
        stale.delete_piece(),
    ]
    for settled in run_pieces(peer.store, *pieces):
        assert isinstance(settled.error, HeadMovedError)
        assert (settled.error.expected, settled.error.found) == (0, 3)
    write(peer.store, tape.release_piece(now=1.0))
    more = [stale.inbox_piece(), stale.cache_piece(MESSAGE, "[]", now=1.0)]
    for settled in run_pieces(peer.store, *pieces, *more):
        assert isinstance(settled.error, FencedError)
    assert stale.head == 0
    assert peer.store.page(S1, 0).head == 3


#### Projections


def check_a_message_is_as_last_recorded(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    for status, text, at in (("pending", "a", 2.0), ("pending", "ab", 3.0)):
        record = message(text, role="assistant", status=status, at=at)
        write(peer.store, tape.append_piece([message_fact(record)], now=at))
        assert peer.store.messages(S1) == [record]
        assert peer.store.pending_messages(S1) == [record]
    final = message("abc", role="assistant", at=4.0, input_tokens=7, output_tokens=2)
    late = message("zzz", role="assistant", status="pending", at=5.0)
    write(peer.store, tape.append_piece(map_facts(final, late), now=4.0))
    assert peer.store.message(S1, MESSAGE) == final
    assert peer.store.pending_messages(S1) == []
    row = peer.store.session(S1)
    assert row is not None
    assert (row.message_count, row.input_tokens, row.output_tokens) == (1, 7, 2)
    assert (row.created_at, row.updated_at, row.head) == (1.0, 4.0, 6)
    assert row.settings == SETTINGS
    assert verify(peer.store) == []


def check_a_revision_changes_its_blocks_and_keeps_the_others(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    (a,), (b,) = message("a").blocks, message("b", name="x").blocks
    (changed,), (c,) = message("a2").blocks, message("c", name="y").blocks
    first = message("", a, b, role="assistant", status="pending")
    second = message("", c, changed, role="assistant", status="pending", at=2.0)
    last = message("", role="assistant", at=3.0)
    last = msgspec.structs.replace(last, blocks=())
    for revision, blocks in ((first, (a, b)), (second, (changed, b, c)), (last, None)):
        write(peer.store, tape.append_piece(map_facts(revision), now=1.0))
        (found,) = peer.store.messages(S1)
        assert found.blocks == (blocks or (changed, b, c))
        assert found.updated_at == revision.updated_at
    assert verify(peer.store) == []


def check_an_answer_alone_settles_what_waits(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    asks = ActionBlock(
        id=ItemId("ask"),
        action="question_request",
        origin="question",
        tool_block_id=ItemId("m1-0"),
        title="?",
    )
    answered = msgspec.structs.replace(asks, status="success")
    (text,) = message("a").blocks
    waiting = message("", text, asks, role="assistant", status="pending")
    write(peer.store, tape.append_piece(map_facts(waiting), now=1.0))
    assert peer.store.sessions()[0].has_open_interaction
    for blocks, waits in (((text,), True), ((answered,), False)):
        revision = message("", *blocks, role="assistant", status="pending", at=2.0)
        write(peer.store, tape.append_piece(map_facts(revision), now=1.0))
        assert peer.store.sessions()[0].has_open_interaction == waits
    assert verify(peer.store) == []


def check_a_retracted_message_never_comes_back(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    first, edit = message(), message("edited", at=2.0)
    facts = [message_fact(first), retraction_fact(MESSAGE), message_fact(edit)]
    write(peer.store, tape.append_piece(facts, now=1.0))
    assert peer.store.messages(S1) == []
    assert peer.store.message(S1, MESSAGE) is None
    assert peer.store.message_count(S1) == 0
    successor = message(name="m2", order=1)
    write(peer.store, tape.append_piece(map_facts(successor), now=1.0))
    assert peer.store.messages(S1) == [successor]
    assert peer.store.page(S1, 0).head == 6
    assert verify(peer.store) == []


def check_what_was_taken_back_is_known_with_its_places(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    records = [message(name=f"m{n}", order=n) for n in (1, 2, 3)]
    gone = map(retraction_fact, (MessageId("m3"), MessageId("m2")))
    write(peer.store, tape.append_piece([*map_facts(*records), *gone], now=1.0))
    again = message(name="a", order=2)
    facts = [*map_facts(again), retraction_fact(again.id), *map_facts(again)]
    write(peer.store, tape.append_piece(facts, now=1.0))
    assert peer.store.retracted_messages(S1) == [("a", 2), ("m2", 2), ("m3", 3)]
    assert verify(peer.store) == []


def check_messages_page_backwards(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    records = [message(name=f"m{n}", order=n) for n in range(1, 8)]
    write(peer.store, tape.append_piece(map_facts(*records), now=1.0))
    assert peer.store.messages(S1, limit=3) == records[4:]
    assert peer.store.messages(S1, before=5, limit=3) == records[1:4]
    assert peer.store.messages(S1, before=2, limit=3) == records[:1]
    assert peer.store.messages(S1, before=1) == []


def check_sessions_page_by_their_last_update(world: World) -> None:
    peer = world.join()
    for n in range(5):
        peer.tape(SessionId(f"s{n}"), now=float(n // 2))
    rows = peer.store.sessions(limit=2)
    assert [row.id for row in rows] == ["s4", "s3"]
    more = peer.store.sessions(before=(rows[-1].updated_at, rows[-1].id))
    assert [row.id for row in more] == ["s2", "s1", "s0"]


def check_a_list_is_filtered_and_paged_by_the_same_key(world: World) -> None:
    peer = world.join()
    for n in range(12):
        settings = msgspec.structs.replace(
            SETTINGS, title=f"Straße {n}", agent_id=f"agent-{n % 2}"
        )
        tape = peer.tape(SessionId(f"s{n:02}"), now=float(n))
        facts = [settings_fact(settings, revision="2")]
        if n % 3 == 0:
            facts.append(archived_fact(archived=True, revision="3"))
        write(peer.store, tape.append_piece(facts, now=float(n)))
    numbers = [
        [int(row.id[1:]) for row in rows]
        for rows in (
            peer.store.sessions(agent="agent-1"),
            peer.store.sessions(agent="nobody"),
            peer.store.sessions(archived=True),
            peer.store.sessions(archived=False, agent="agent-0"),
            peer.store.sessions(title="STRASSE 1"),
            peer.store.sessions(title="%"),
        )
    ]
    assert numbers == [
        [11, 9, 7, 5, 3, 1],
        [],
        [9, 6, 3, 0],
        [10, 8, 4, 2],
        [11, 10, 1],
        [],
    ]
    page = peer.store.sessions(2, archived=True)
    key = page[-1].updated_at, page[-1].id
    assert [row.id for row in peer.store.sessions(2, key, archived=True)] == [
        "s03",
        "s00",
    ]


def check_a_session_is_put_away_and_taken_back(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    first = peer.store.session(S1)
    assert first is not None
    assert first.archived_at is None
    for n, archived in enumerate((True, False, True)):
        fact = archived_fact(archived=archived, revision=str(n))
        write(peer.store, tape.append_piece([fact], now=5.0 + n))
        row = peer.store.session(S1)
        assert row is not None
        assert row.archived_at == (5.0 + n if archived else None)
        # It keeps its place in the list.
        assert row.updated_at == first.updated_at
    peer.store.rebuild(S1)
    again = peer.store.session(S1)
    assert again is not None
    assert again.archived_at == 7.0
    assert verify(peer.store) == []


def check_a_page_can_be_of_one_role(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    records = [
        message(name=f"m{n}", order=n, role="user" if n % 3 == 0 else "assistant")
        for n in range(1, 10)
    ]
    write(peer.store, tape.append_piece(map_facts(*records), now=1.0))
    of_user = [record for record in records if record.role == "user"]
    assert peer.store.messages(S1, role="user") == of_user
    assert peer.store.messages(S1, 9, 1, role="user") == of_user[1:2]
    assert peer.store.broken_messages(S1) == []


def check_plan_and_settings_are_the_newest(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    plans = [Plan(n, (PlanEntry(f"step {n}"),)) for n in (1, 2)]
    renamed = msgspec.structs.replace(SETTINGS, title="Renamed")
    facts = [*map(plan_fact, plans), settings_fact(renamed, revision="2")]
    write(peer.store, tape.append_piece(facts, now=3.0))
    assert peer.store.plan(S1) == plans[1]
    row = peer.store.session(S1)
    assert row is not None
    assert row.settings.title == "Renamed"
    assert verify(peer.store) == []


def check_pending_inputs_are_the_rows_that_are_not_consumed(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    said = (TextPart("one"),)
    inputs = PendingInputs()
    steps = (
        lambda: inputs.enqueue("a", said, now=1.0),
        lambda: inputs.enqueue("b", (ImagePart("image/png", "aWNvbg=="),), now=2.0),
        lambda: inputs.add_steer("s", said, MESSAGE, now=3.0),
        lambda: inputs.move("b", 1, now=4.0),
        lambda: inputs.claim("s", now=5.0, reply=MessageId("reply")),
        lambda: inputs.add_steer("t", said, MessageId("m2"), now=6.0),
        lambda: inputs.hold(now=7.0),
        lambda: inputs.settle("s", "delivered", now=8.0),
        lambda: inputs.promote("a", MessageId("m3"), now=9.0),
        lambda: inputs.delete("b", now=10.0),
    )
    for step in steps:
        change = step()
        facts = [input_fact(row) for row in change.revisions]
        write(peer.store, tape.append_piece(facts, now=1.0))
        inputs = change.inputs
        assert peer.store.pending_inputs(S1) == inputs
        assert verify(peer.store) == []
    peer.store.rebuild(S1)
    assert peer.store.pending_inputs(S1) == inputs
    assert peer.store.search("one") == []


def check_cached_blocks_live_until_the_next_revision(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    pending = message(role="assistant", status="pending")
    write(peer.store, tape.append_piece(map_facts(pending), now=1.0))
    for text in ("[1]", "[2]"):
        write(peer.store, tape.cache_piece(MESSAGE, text, now=1.0))
        assert peer.store.cached_blocks(S1, MESSAGE) == text
    final = message(role="assistant", at=2.0)
    write(peer.store, tape.append_piece(map_facts(final), now=1.0))
    assert peer.store.cached_blocks(S1, MESSAGE) is None
    write(peer.store, tape.cache_piece(MESSAGE, "[3]", now=1.0))
    assert peer.store.cached_blocks(S1, MESSAGE) is None


def check_a_rebuild_changes_nothing_that_was_right(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    for record in (started(), started(OTHER_RUN), dispatch(), terminal(OTHER_RUN)):
        write(peer.store, tape.commit_piece(record, now=1.0))
    write(peer.store, tape.append_piece(map_facts(message()), now=1.0))
    peer.store.index_pending()
    before = (
        peer.store.session(S1),
        peer.store.messages(S1),
        peer.store.open_runs(S1),
    )
    peer.store.rebuild(S1)
    peer.store.index_pending()
    after = (
        peer.store.session(S1),
        peer.store.messages(S1),
        peer.store.open_runs(S1),
    )
    assert before == after
    assert peer.store.search("hello") == [(S1, 7)]
    assert verify(peer.store) == []


def check_a_session_without_settings_is_not_listed(world: World) -> None:
    peer = world.join()
    peer.store.append(peer.acquire(), 0, bootstrap()[:1], now=1.0)
    assert peer.store.session(S1) is None
    assert peer.store.sessions() == []
    assert peer.store.scopes() == [S1]
    assert verify(peer.store) == []


def check_a_reset_forgets_all_and_begins_anew(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    write(peer.store, tape.append_piece(map_facts(message("secret")), now=1.0))
    write(peer.store, tape.commit_piece(started(), now=1.0))
    write(peer.store, tape.cache_piece("m9", "[]", now=1.0))
    peer.store.post(S1, "c1", "{}", now=1.0)
    peer.store.index_pending()
    write(peer.store, tape.reset_piece(bootstrap("again"), now=2.0))
    peer.store.index_pending()
    assert tape.head == 2
    assert [e.seq for e in peer.store.page(S1, 0).entries] == [1, 2]
    assert peer.store.messages(S1) == []
    assert peer.store.open_runs(S1) == []
    assert peer.store.search("secret") == []
    assert peer.store.inbox(tape.grant) == []
    assert peer.store.cached_blocks(S1, "m9") is None
    assert verify(peer.store) == []


def check_a_command_of_before_a_reset_is_never_new_again(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    peer.store.post(S1, "settled", '"secret"', now=1.0)
    write(peer.store, tape.append_piece([], ["settled"], now=1.0))
    peer.store.post(S1, "open", '"secret"', now=1.0)
    write(peer.store, tape.reset_piece(bootstrap("again"), now=2.0))
    # What they said is forgotten, so whatever comes under their ids is taken for it.
    for command_id in ("settled", "open"):
        for body in ('"secret"', "{}"):
            seen = peer.store.post(S1, command_id, body, now=3.0)
            assert seen == Seen(same_body=True)
    assert peer.store.inbox(tape.grant) == []
    assert peer.store.post(S1, "new", "{}", now=3.0) == Posted()
    write(peer.store, tape.delete_piece())
    assert peer.store.post(S1, "settled", "{}", now=4.0) == Posted()


def check_a_deleted_session_is_gone_and_its_token_is_not(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    write(peer.store, tape.append_piece(map_facts(message("secret")), now=1.0))
    peer.store.index_pending()
    write(peer.store, tape.delete_piece())
    assert peer.store.scopes() == []
    assert peer.store.sessions() == []
    assert peer.store.session(S1) is None
    assert peer.store.search("secret") == []
    assert peer.store.locate(S1) is None
    again = peer.acquire()
    assert again.token > tape.grant.token
    assert again.head == 0


def check_old_traces_are_counted_and_forgotten(world: World) -> None:
    peer = world.join()
    for scope in (S1, S2):
        tape = peer.tape(scope)
        for n in range(1, 4):
            made = AttemptTrace(
                run_id=RUN,
                message_id=MESSAGE,
                logical_round=1,
                request_seq=1,
                physical_attempt=n,
                provider="p",
                model="m",
                payload="{}",
                created_at=float(n),
            )
            write(peer.store, tape.trace_piece(lambda made=made: made))
    assert peer.store.count_traces(3.0) == 4
    assert peer.store.forget_traces(3.0) == 4
    assert peer.store.forget_traces(3.0) == peer.store.count_traces(3.0) == 0
    for scope in (S1, S2):
        assert [t.physical_attempt for t in peer.store.traces(scope)] == [3]


#### Search


def check_search_finds_all_words_newest_first(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    texts = ("Red apple", "green APPLE", "red pear", "日本語のテスト", "Straße ﬁne")
    for n, text in enumerate(texts, start=1):
        record = message(text, name=f"m{n}", order=n)
        write(peer.store, tape.append_piece(map_facts(record), now=float(n)))
    while peer.store.index_pending(2):
        pass
    assert peer.store.search("apple") == [(S1, 4), (S1, 3)]
    assert peer.store.search("RED apple") == [(S1, 3)]
    assert peer.store.search("apple", limit=1) == [(S1, 4)]
    assert peer.store.search("本語") == [(S1, 6)]
    assert peer.store.search("語") == [(S1, 6)]
    assert peer.store.search("日語") == []
    assert peer.store.search("strasse fine") == [(S1, 7)]
    assert peer.store.search("apple", scope_prefix="s") == [(S1, 4), (S1, 3)]
    assert peer.store.search("apple", scope_prefix="t") == []


def check_a_message_is_found_whole_and_at_its_newest_revision(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    first = message("red", role="assistant", status="pending")
    blocks = (TextBlock(id=ItemId("m1-1"), text="apple"),)
    final = msgspec.structs.replace(first, blocks=blocks, status="sent")
    write(peer.store, tape.append_piece(map_facts(first, final), now=1.0))
    peer.store.index_pending()
    assert peer.store.search("red apple") == [(S1, 4)]
    (hit,) = peer.store.search_messages("apple red")
    assert (hit.session_id, hit.message_id, hit.order_seq, hit.role, hit.title) == (
        S1,
        MESSAGE,
        1,
        "assistant",
        SETTINGS.title,
    )
    assert hit.snippet == "red apple"
    edited = (TextBlock(id=ItemId("m1-1"), text="pear"),)
    newer = msgspec.structs.replace(final, blocks=edited, updated_at=2.0)
    write(peer.store, tape.append_piece(map_facts(newer), now=2.0))
    peer.store.index_pending()
    assert peer.store.search("apple") == []
    assert peer.store.search("red pear") == [(S1, 5)]
    # A late revision of what is finished changes nothing but the place.
    late = msgspec.structs.replace(first, updated_at=3.0)
    write(peer.store, tape.append_piece(map_facts(late), now=3.0))
    peer.store.index_pending()
    assert peer.store.search("red pear") == [(S1, 6)]
    write(peer.store, tape.append_piece([retraction_fact(MESSAGE)], now=4.0))
    peer.store.index_pending()
    assert peer.store.search("pear") == []
    assert peer.store.search_messages("pear") == []


def check_messages_are_searched_in_all_sessions_or_in_one(world: World) -> None:
    peer = world.join()
    for scope in (S1, S2):
        tape = peer.tape(scope)
        records = [
            message(f"apple {scope} {n}", name=f"m{n}", order=n, at=float(n))
            for n in range(1, 61)
        ]
        write(peer.store, tape.append_piece(map_facts(*records), now=1.0))
    while peer.store.index_pending():
        pass
    assert len(peer.store.search_messages("apple")) == 12
    assert len(peer.store.search_messages("apple", limit=0)) == 1
    assert len(peer.store.search_messages("apple", limit=999)) == 50
    found = peer.store.search_messages("apple", S2, 50)
    assert {hit.session_id for hit in found} == {S2}
    assert [hit.order_seq for hit in found] == list(range(60, 10, -1))
    assert peer.store.search_messages("") == []
    assert peer.store.search_messages("pear") == []
    assert peer.store.search_messages("apple", SessionId("nobody")) == []


def check_operators_in_a_query_are_literal(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    record = message('say "OR" near* (nothing) words:x')
    write(peer.store, tape.append_piece(map_facts(record), now=1.0))
    peer.store.index_pending()
    for query in ('"OR"', "near*", "(nothing)", "words:x", "say AND nothing", "-say"):
        expected = [] if "AND" in query else [(S1, 3)]
        assert peer.store.search(query) == expected, query
    assert peer.store.search('" * ( ) : ^ -') == []
    assert peer.store.search("") == []


#### Traces of attempts


def trace(seq: int = 1, attempt: int = 1, text: str = "{}", **other: Any) -> Any:
    fields = {"run_id": RUN, "message_id": MESSAGE, "created_at": 1.0} | other
    return AttemptTrace(
        logical_round=1,
        request_seq=seq,
        physical_attempt=attempt,
        provider="p",
        model="m",
        payload=text,
        **fields,
    )


def keep(peer: Peer, tape: Tape, *made: AttemptTrace) -> None:
    for one in made:
        write(peer.store, tape.trace_piece(lambda one=one: one))


def check_traces_are_returned_as_they_were_kept(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    head = tape.head
    one, two = trace(1, 1, '{"a":1}'), trace(2, 1, "cut", truncated=True)
    other = trace(1, 1, run_id=OTHER_RUN, message_id=MessageId("m2"))
    keep(peer, tape, one, two, other, trace(1, 1, '{"another":true}'))
    assert peer.store.traces(S1) == [one, two, other]
    assert peer.store.traces(S1, MESSAGE) == [one, two]
    assert peer.store.traces(S1, limit=1) == [other]
    assert peer.store.traces(S2) == []
    # They are beside the tape, and change nothing of it.
    assert peer.store.heads([S1]) == [(S1, head)]


def check_a_request_has_the_trace_of_its_highest_attempt(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    keep(peer, tape, trace(1, 2, "2"), trace(1, 10, "10"), trace(1, 3, "3"))
    keep(peer, tape, trace(2, 1, "other"))
    found = peer.store.request_trace(S1, MESSAGE, 1)
    assert found is not None
    assert found.payload == "10"
    assert peer.store.request_trace(S1, MESSAGE, 3) is None
    assert peer.store.request_trace(S1, "m2", 1) is None


def check_the_newest_traces_are_kept(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    keep(peer, tape, *(trace(n) for n in range(1, 104)))
    kept = [each.request_seq for each in peer.store.traces(S1, limit=500)]
    assert kept == list(range(4, 104))


def check_a_trace_out_of_bounds_is_refused(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    for bad in (
        trace(text="x" * (MAX_TRACE_BYTES + 1)),
        trace(text="a\x00b"),
        trace(message_id=MessageId("")),
        trace(-1),
    ):
        with pytest.raises(RefusedFactError):
            keep(peer, tape, bad)
    assert peer.store.traces(S1) == []


def check_a_trace_needs_the_token_in_force(world: World) -> None:
    peer = world.join()
    old = peer.tape().grant
    peer.acquire()
    assert peer.store.keep_trace(old, trace()) == Fenced(S1, old.token)
    assert peer.store.traces(S1) == []


def check_a_trace_is_undone_with_its_piece_and_forgotten_with_its_session(
    world: World,
) -> None:
    peer = world.join()
    tape = peer.tape()
    keep(peer, tape, *(trace(n) for n in range(1, 101)))

    def fail(store: Store) -> None:
        assert store.keep_trace(tape.grant, trace(101)) is None
        raise LookupError

    (settled,) = run_pieces(peer.store, Piece(fail))
    assert isinstance(settled.error, LookupError)
    kept = [each.request_seq for each in peer.store.traces(S1)]
    assert kept == list(range(1, 101))
    write(peer.store, tape.reset_piece(bootstrap(), now=2.0))
    assert peer.store.traces(S1) == []
    assert peer.store.last_request(S1, MESSAGE) == 0


def check_the_last_request_is_the_highest_of_manifest_attempt_and_trace(
    world: World,
) -> None:
    peer = world.join()
    tape = peer.tape()

    def told(name: str, key: int, payload: Any) -> None:
        text = msgspec.json.encode(payload).decode()
        fact = msgspec.structs.replace(event(key, name=name), payload=text)
        write(peer.store, tape.append_piece([fact], now=1.0))

    assert peer.store.last_request(S1, MESSAGE) == 0
    assert peer.store.last_request(S2, MESSAGE) == 0
    told("view/assembled", 1, {"messageId": MESSAGE, "requestSeq": 3})
    assert peer.store.last_request(S1, MESSAGE) == 3
    told("provider/attempt_completed", 2, {"messageId": MESSAGE, "requestSeq": 12})
    assert peer.store.last_request(S1, MESSAGE) == 12
    keep(peer, tape, trace(13), trace(99, message_id=MessageId("m2")))
    assert peer.store.last_request(S1, MESSAGE) == 13
    told("view/assembled", 3, {"messageId": MESSAGE, "requestSeq": 4})
    told("note/taken", 4, {"messageId": MESSAGE, "requestSeq": 50})
    # What is no number counts nothing, whatever else it is.
    told("view/assembled", 5, {"messageId": MESSAGE, "requestSeq": "60"})
    told("view/assembled", 6, {"messageId": MESSAGE, "requestSeq": 60.5})
    told("view/assembled", 7, ["messageId"])
    assert peer.store.last_request(S1, MESSAGE) == 13
    assert peer.store.last_request(S1, "m2") == 99


def map_facts(*records: MessageRecord) -> list[Fact]:
    return [message_fact(record) for record in records]


#### Agents and settings of the application


def agent_row(agent_id: str, at: float = 1.0, **fields: object) -> AgentRow:
    kept = {"kind": "native", "source": "manual", "name": agent_id} | fields
    return AgentRow(id=agent_id, created_at=at, updated_at=at, **kept)  # type: ignore[arg-type]


def check_agents_are_kept_as_they_are_given_the_oldest_first(world: World) -> None:
    store = world.join().store
    odd = agent_row("b", 2.0, kind="?", config="{not json", avatar="[", icon="i")
    rows = [agent_row("z", 1.0, enabled=False, protected=True), odd]
    for row in reversed(rows):
        store.put_agent(row)
    assert store.agents() == rows
    assert store.agent("b") == odd
    assert store.agent("c") is None
    store.put_agent(agent_row("z", 1.0, state='{"a":1}'))
    assert store.agents() == [agent_row("z", 1.0, state='{"a":1}'), odd]


def check_an_agent_that_is_dropped_is_gone(world: World) -> None:
    store = world.join().store
    store.put_agent(agent_row("a"))
    assert store.drop_agent("a")
    assert not store.drop_agent("a")
    assert store.agents() == []


def check_an_agent_out_of_bounds_is_refused(world: World) -> None:
    store = world.join().store
    wrong: list[dict[str, object]] = [
        {"name": ""},
        {"name": "n" * 201},
        {"kind": "k" * 41},
        {"description": "d" * 2_001},
        {"config": "c" * (1 << 20) + "c"},
        {"config": "é" * (600 << 10)},
        {"state": "\x00"},
        {"icon": "\ud800"},
        {"at": float("nan")},
    ]
    for fields in wrong:
        with pytest.raises(RefusedFactError):
            store.put_agent(agent_row("a", **fields))  # type: ignore[arg-type]
    with pytest.raises(RefusedFactError):
        store.put_agent(agent_row("i" * 201))
    assert store.agents() == []


def check_a_thousand_agents_are_kept_and_no_more(world: World) -> None:
    store = world.join().store
    fill = Piece(lambda s: [s.put_agent(agent_row(f"a{n}")) for n in range(1_000)])
    write(store, fill)
    with pytest.raises(RefusedFactError):
        store.put_agent(agent_row("one more"))
    store.put_agent(agent_row("a7", name="changed"))
    assert len(store.agents()) == 1_000


def check_settings_of_the_application_are_kept_by_key(world: World) -> None:
    store = world.join().store
    store.put_app_setting("a", "1", now=1.0)
    store.put_app_setting("b", '{"x":[]}', now=1.0)
    store.put_app_setting("a", "2", now=2.0)
    assert (store.app_setting("a"), store.app_setting("b")) == ("2", '{"x":[]}')
    store.put_app_setting("a", None, now=3.0)
    assert store.app_setting("a") is None
    for key, value in (("", "1"), ("k" * 201, "1"), ("k", "{")):
        with pytest.raises(RefusedFactError):
            store.put_app_setting(key, value, now=1.0)


def check_a_piece_that_fails_leaves_no_agent_and_no_setting(world: World) -> None:
    store = world.join().store
    store.put_agent(agent_row("a"))

    def fail(inner: Store) -> None:
        inner.drop_agent("a")
        inner.put_agent(agent_row("b"))
        inner.put_app_setting("k", "1", now=1.0)
        raise ValueError

    (settled,) = run_pieces(store, Piece(fail))
    assert isinstance(settled.error, ValueError)
    assert store.agents() == [agent_row("a")]
    assert store.app_setting("k") is None


def check_bindings_are_kept_by_client_and_session(world: World) -> None:
    peer, other = world.join(), world.join()
    store = peer.store
    store.bind(peer.member, "phone", S1, now=1.0)
    store.bind(peer.member, "phone", S1, now=2.0)
    store.bind(peer.member, "phone", S2, now=3.0)
    other.store.bind(other.member, "laptop", S1, now=4.0)
    first = Binding("phone", S1, peer.member.id, 1.0)
    second = Binding("phone", S2, peer.member.id, 3.0)
    third = Binding("laptop", S1, other.member.id, 4.0)
    assert store.bindings() == [third, first, second]
    assert store.bindings(client="phone") == [first, second]
    assert store.bindings(session=S1) == [third, first]
    assert store.bindings(client="phone", session=S2) == [second]
    store.unbind(peer.member, "phone", [S2, S2])
    assert store.bindings(client="phone") == [first], "exactly one row"
    for client, scope in (("", S1), ("c" * 201, S1), ("c", SessionId(""))):
        with pytest.raises(RefusedFactError):
            store.bind(peer.member, client, scope, now=5.0)

    def fail(inner: Store) -> None:
        inner.unbind(peer.member, "phone", [S1])
        inner.bind(peer.member, "watch", S1, now=5.0)
        raise ValueError

    run_pieces(store, Piece(fail))
    assert store.bindings() == [third, first]


def check_a_client_that_comes_through_another_member_keeps_its_binding(
    world: World,
) -> None:
    old, new = world.join(), world.join()
    old.store.bind(old.member, "phone", S1, now=1.0)
    new.store.bind(new.member, "phone", S1, now=2.0)
    moved = Binding("phone", S1, new.member.id, 2.0)
    assert new.store.bindings() == [moved]
    old.store.unbind(old.member, "phone", [S1])
    assert new.store.bindings() == [moved], "it is not the old member's any more"
    new.store.unbind(new.member, "phone", [S1])
    assert new.store.bindings() == []


def check_bindings_go_with_their_member_and_with_their_session(world: World) -> None:
    living, leaving, dying = world.join(), world.join(), world.join()
    tape = living.tape()
    for peer, client in ((living, "a"), (leaving, "b"), (dying, "c")):
        peer.store.bind(peer.member, client, S1, now=1.0)
        peer.store.bind(peer.member, client, S2, now=1.0)
    store = living.store
    leaving.store.leave(leaving.member, now=2.0)
    assert {row.client_id for row in store.bindings()} == {"a", "c"}
    assert store.drop_stale_bindings() == 0, "both live"
    world.kill(dying)
    assert store.drop_stale_bindings() == 2
    assert {row.client_id for row in store.bindings()} == {"a"}
    assert store.delete(tape.grant, tape.head) is None
    assert [row.session_id for row in store.bindings()] == [S2]


def check_a_selection_of_skills_is_names_of_a_session(world: World) -> None:
    peer = world.join()
    store, tape = peer.store, peer.tape()
    assert store.skill_selection(S1) == ()
    store.put_skill_selection(S2, ["z"])
    store.put_skill_selection(S1, ["b", "a", "b"])
    assert store.skill_selection(S1) == ("a", "b")
    assert store.skill_selections() == [(S1, ("a", "b")), (S2, ("z",))]
    store.put_skill_selection(S2, [])
    assert store.skill_selections() == [(S1, ("a", "b"))]
    for names in (["n" * 65], [""], [f"n{n}" for n in range(101)]):
        with pytest.raises(RefusedFactError):
            store.put_skill_selection(S1, names)

    def fail(inner: Store) -> None:
        inner.put_skill_selection(S1, [])
        inner.put_skill_selection(S2, ["c"])
        raise ValueError

    run_pieces(store, Piece(fail))
    assert store.skill_selections() == [(S1, ("a", "b"))]
    assert store.delete(tape.grant, tape.head) is None
    assert store.skill_selections() == []


def remember(
    store: Store, *texts: str, agent: str = "a", cursor: int = 1, **how: Any
) -> bool:
    mark = how.get("mark") or store.ingest_mark(agent, S1)
    chunks = [Chunk(cursor, text) for text in texts]
    return store.keep_recollections(agent, S1, mark, cursor, chunks, now=5.0)


def check_what_an_agent_remembers_only_that_agent_finds(world: World) -> None:
    store = world.join().store
    assert remember(store, "the sky is blue", "Straße und Haus, a house")
    assert remember(store, "blue is a colour", agent="b")
    assert [each.text for each in store.recall("a", 'Blue OR "sky')] == [
        "the sky is blue"
    ]
    assert [each.text for each in store.recall("a", "STRASSE house sky")] == [
        "Straße und Haus, a house",
        "the sky is blue",
    ]
    assert len(store.recall("a", "sky house", limit=1)) == 1
    assert store.recall("a", "nothing") == store.recall("a", " ") == []
    assert store.recall("c", "blue") == []
    newest, oldest = store.recollections("a")
    assert (oldest.agent_id, oldest.session_id, oldest.order_seq, oldest.at) == (
        "a",
        S1,
        1,
        5.0,
    )
    assert store.recollections("a", before=newest.id) == [oldest]
    assert store.recollections("a", limit=1) == [newest]
    assert store.forget_recollections("b", newest.id) == 0
    assert store.forget_recollections("a", newest.id) == 1
    assert store.recollections("a") == [oldest]
    assert store.recall("a", "house") == []


def check_what_was_begun_in_an_older_epoch_is_not_kept(world: World) -> None:
    peer = world.join()
    store, tape = peer.store, peer.tape()
    assert remember(store, "one", cursor=4)
    mark = store.ingest_mark("a", S1)
    assert mark.cursor == 4
    # Somebody else was quicker.
    assert remember(store, "two", cursor=6, mark=mark)
    assert not remember(store, "two again", cursor=6, mark=mark)
    # The agent forgets everything meanwhile; one memory that goes is no epoch.
    mark = store.ingest_mark("a", S1)
    assert store.forget_recollections("a", store.recollections("a")[0].id) == 1
    assert remember(store, "three", cursor=7, mark=mark)
    mark = store.ingest_mark("a", S1)
    assert store.forget_recollections("a") == 2
    assert not remember(store, "four", cursor=8, mark=mark)
    # The session is cleared meanwhile.
    mark = store.ingest_mark("a", S1)
    assert mark.cursor == 7
    result = store.reset(tape.grant, tape.head, bootstrap("again"), now=2.0)
    assert isinstance(result, Appended)
    assert not remember(store, "five", cursor=8, mark=mark)
    assert store.ingest_mark("a", S1).cursor == 0
    assert store.recollections("a") == []
    with pytest.raises(RefusedFactError):
        remember(store, "m" * 12_001, cursor=9)
    with pytest.raises(RefusedFactError):
        remember(store, "back", cursor=1, mark=IngestMark(2, 9))


def check_a_place_that_is_free_again_is_taken_in_again(world: World) -> None:
    peer = world.join()
    store, tape = peer.store, peer.tape()
    said = [message(name=f"m{place}", order=place) for place in (1, 2, 3)]
    write(store, tape.append_piece(map_facts(*said), now=2.0))
    assert remember(store, "all of it", cursor=3)
    assert remember(store, "the first", agent="b", cursor=1)
    mark = store.ingest_mark("a", S1)
    gone = [retraction_fact(MessageId("m3")), retraction_fact(MessageId("m2"))]
    write(store, tape.append_piece(gone, now=3.0))
    # What was begun before would be of what is gone.
    assert not remember(store, "late", cursor=3, mark=mark)
    assert [store.ingest_mark(agent, S1).cursor for agent in "ab"] == [1, 1]
    assert remember(store, "said anew", cursor=2)
    # Neither the same facts again nor a repair changes what was taken in.
    write(store, tape.append_piece(gone, now=4.0))
    store.rebuild(S1)
    assert store.ingest_mark("a", S1).cursor == 2
    # What was remembered stays.
    assert len(store.recollections("a")) == 2


def check_one_tape_is_searched_up_to_a_place(world: World) -> None:
    peer = world.join()
    store, tape = peer.store, peer.tape()
    other = peer.tape(SessionId("s1-and-more"))
    write(store, other.append_piece([event(1, "blue sky")], now=1.0))
    write(
        store,
        tape.append_piece(
            [
                event(1, "blue sky"),
                event(2, "the sky"),
                event(3, "sky blue"),
                event(4, "blue sky", "view/assembled"),
                message_fact(message("a blue, blue sky")),
                message_fact(message("a sky of blue", name="m2", order=2)),
                retraction_fact(MessageId("m2")),
            ],
            now=2.0,
        ),
    )
    while store.index_pending():
        pass
    assert store.search_tape(S1, "Blue SKY") == [7, 5, 3]
    assert store.search_tape(S1, "blue sky", until=5) == [5, 3]
    assert store.search_tape(S1, "blue sky", until=0) == []
    assert store.search_tape(S1, "sky", limit=2) == [7, 5]
    assert store.search_tape(S1, "sky", limit=0) == [7]
    assert store.search_tape(S1, 'sky OR "') == []
    assert store.search_tape(S1, " ") == store.search_tape(S2, "sky") == []


def check_marks_are_found_by_their_name(world: World) -> None:
    peer = world.join()
    store, tape = peer.store, peer.tape()
    marks = [event(n, name="fork/merge") for n in range(1, 4)]
    write(store, tape.append_piece([*marks, event(4), event(5)], now=1.0))
    write(store, peer.tape(S2).append_piece([event(9, name="fork/merge")], now=1.0))
    assert [e.seq for e in store.named(S1, "fork/merge")] == [5, 4, 3]
    assert [e.seq for e in store.named(S1, "fork/merge", before=5)] == [4, 3]
    assert [e.seq for e in store.named(S1, "fork/merge", limit=1)] == [5]
    assert store.named(S1, "fork/merge", before=4)[0].fact == marks[0]
    assert store.named(S1, "fork/discard") == []
    assert store.named(SessionId("none"), "fork/merge") == []
    with pytest.raises(ValueError, match="can't be found by 'note/taken'"):
        store.named(S1, "note/taken")


def check_a_view_is_found_by_its_id(world: World) -> None:
    peer = world.join()
    store = peer.store
    for scope, at in ((S1, 1.0), (S2, 2.0)):
        tape = peer.tape(scope)
        told = [
            _view_fact(1, {"viewId": f"view_{scope}"}),
            _view_fact(2, {"viewId": "view_both"}),
            _view_fact(3, ["view_both"]),
        ]
        write(store, tape.append_piece(told, now=at))
    found = store.view_entry(f"view_{S1}")
    assert found is not None
    assert (found.session_id, found.seq) == (S1, 3)
    assert found.fact == _view_fact(1, {"viewId": f"view_{S1}"})
    both = store.view_entry("view_both")
    assert both is not None
    assert both.session_id == S2
    assert store.view_entry("view_none") is None


def _view_fact(seq: int, payload: Any) -> Fact:
    return _told("view/assembled", seq, payload)


def _told(name: str, seq: int, payload: Any) -> Fact:
    return Fact(
        kind=FactKind.EVENT,
        name=name,
        source_type=SourceType.RUNTIME_EVENT,
        source_id="run",
        source_seq=seq,
        payload=msgspec.json.encode(payload).decode(),
    )


def check_what_a_compaction_used_is_the_sessions_unless_a_turn_has_it(
    world: World,
) -> None:
    peer = world.join()
    store, tape = peer.store, peer.tape()
    usage = {"input": 100, "output": 7, "total": 107}
    calls = [
        {"status": "completed", "usage": usage},
        {"status": "failed", "usage": None},
        {"status": "completed", "usage": usage, "messageId": MESSAGE},
    ]
    facts = [
        _told("compaction/model_call_completed", n, call)
        for n, call in enumerate(calls)
    ]
    write(store, tape.append_piece(facts, now=1.0))
    row = store.session(S1)
    assert row is not None
    assert (row.input_tokens, row.output_tokens) == (100, 7)
    assert len(store.named(S1, "compaction/model_call_completed")) == 3
    assert verify(store) == []
    less = {"usage": usage | {"total": -1}}
    bad = _told("compaction/model_call_completed", 9, less)
    with pytest.raises(RefusedFactError):
        write(store, tape.append_piece([bad], now=1.0))
    store.rebuild(S1)
    assert store.session(S1) == row


def check_what_the_tape_says_of_a_request_is_found(world: World) -> None:
    peer = world.join()
    store, tape = peer.store, peer.tape()
    told = [
        Fact(
            kind=FactKind.EVENT,
            name=name,
            source_type=SourceType.RUNTIME_EVENT,
            source_id="run",
            payload=f'{{"messageId":"{whose}","requestSeq":{seq}}}',
            provenance_key=f"{name}{whose}{seq}",
        )
        for whose in ("m1", "m2")
        for seq in (1, 2)
        for name in ("view/assembled", "note/taken", "provider/attempt_completed")
    ]
    write(store, tape.append_piece(told, now=1.0))
    found = store.request_entries(S1, "m1", 2)
    assert [entry.fact for entry in found] == [told[3], told[5]]
    assert store.request_entries(S1, "m1", 3) == []
    assert store.request_entries(S2, "m1", 2) == []


CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): function
    for name, function in sorted(globals().items())
    if name.startswith("check_")
}
