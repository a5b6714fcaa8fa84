"""Recovery touches what the dead left, once, and executes nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from kit.stores import (
    MESSAGE,
    OTHER_RUN,
    RUN,
    S1,
    S2,
    Peer,
    SqliteWorld,
    World,
    bootstrap,
    dispatch,
    event,
    message,
    outcome,
    started,
    terminal,
    write,
)

from greenroom.protocol import (
    INTERRUPTED,
    MAX_PAYLOAD_BYTES,
    ActionBlock,
    Block,
    CorruptStoreError,
    ItemId,
    MessageId,
    RunId,
    SessionId,
    TextBlock,
    ToolCallBlock,
    journal_fact,
)
from greenroom.storage import (
    RUN_ACKNOWLEDGED,
    Grant,
    MemoryStore,
    Reader,
    RecoveryReport,
    Tape,
    message_fact,
    recover,
    recover_session,
    verify,
)


def pending(*blocks: Block, **changes: object) -> object:
    return message_fact(
        message("partial", *blocks, role="assistant", status="pending", **changes)  # type: ignore[arg-type]
    )


def call(status: str = "loading", name: str = "call") -> ToolCallBlock:
    return ToolCallBlock(
        id=ItemId(f"b-{name}"),
        call_id=name,
        name="write_file",
        arguments="{}",
        request_seq=1,
        status=status,  # type: ignore[arg-type]
    )


QUESTION = ActionBlock(
    id=ItemId("q"),
    action="tool_call_permission",
    origin="pre-check-permission",
    tool_block_id=ItemId("b-call"),
    title="May I?",
)


def crashed(world: World, *records: object, blocks: tuple[Block, ...] = ()) -> Peer:
    """Return who comes after a process that died in the middle of a run."""
    victim = world.join("victim")
    tape = victim.tape()
    write(victim.store, tape.append_piece([pending(*blocks)], now=1.0))  # type: ignore[list-item]
    for record in records:
        write(victim.store, tape.commit_piece(record, now=2.0))  # type: ignore[arg-type]
    world.kill(victim)
    return world.join("after")


def recovered(peer: Peer, now: float = 9.0) -> RecoveryReport:
    return recover(peer.store, peer.member, now)


def test_an_open_run_is_reported_acknowledged_and_its_message_ended(
    world: World,
) -> None:
    peer = crashed(world, started(), dispatch(), blocks=(call(),))
    report = recovered(peer)
    (detail,) = report.details
    assert (detail.run_id, detail.run_class) == (RUN, "indeterminate")
    assert (report.runs, report.messages, report.sessions) == (1, 1, (S1,))
    (record,) = peer.store.messages(S1)
    block = record.blocks[0]
    assert isinstance(block, ToolCallBlock)
    assert (record.status, record.updated_at) == ("error", 9.0)
    assert "not known whether this call ran" in (block.response or "")
    names = [entry.fact.name for entry in peer.store.page(S1, 5).entries]
    assert names == [RUN_ACKNOWLEDGED, "message/recorded"]
    assert peer.store.open_runs(S1) == []
    assert verify(peer.store) == []


@pytest.mark.contract("JRN-20")
def test_a_second_recovery_reports_and_changes_nothing(world: World) -> None:
    victim = world.join("victim")
    ran: list[str] = []
    for n in range(150):
        tape = victim.tape(SessionId(f"s{n % 3}"))
        run = RunId(f"{n:08}-0000-4000-8000-000000000000")
        write(victim.store, tape.commit_piece(started(run), now=1.0))
        if n % 2:
            write(victim.store, tape.commit_piece(dispatch(run=run), now=1.0))
            ran.append(run)
    world.kill(victim)
    peer = world.join("after")
    first = recovered(peer)
    assert (first.runs, len(first.details)) == (150, 100)
    classes = [detail.run_class for detail in first.details]
    assert classes == ["indeterminate"] * 75 + ["not_dispatched"] * 25
    assert not any(detail.automatic_retry for detail in first.details)
    heads = peer.store.heads(peer.store.scopes())
    # Nothing was executed: no strict fact was added.
    journal = [
        entry
        for scope in peer.store.scopes()
        for entry in peer.store.page(scope, 0, 1_000, "journal").entries
    ]
    assert len(journal) == 150 + len(ran)
    second = recovered(peer)
    assert second == RecoveryReport((), 0, (), 0)
    assert peer.store.heads(peer.store.scopes()) == heads


def test_sessions_of_the_living_are_left_alone(world: World) -> None:
    living = world.join("living")
    tape = living.tape()
    write(living.store, tape.append_piece([pending()], now=1.0))  # type: ignore[list-item]
    write(living.store, tape.commit_piece(started(), now=1.0))
    peer = world.join("other")
    assert recovered(peer) == RecoveryReport((), 0, (), 0)
    write(living.store, tape.commit_piece(terminal(), now=1.0))


def test_sessions_are_given_back(world: World) -> None:
    peer = crashed(world, started())
    recovered(peer)
    assert peer.store.locate(S1) is None
    other = world.join("third")
    assert isinstance(other.store.acquire(other.member, S1, now=9.0), Grant)


@pytest.mark.parametrize(
    ("records", "kept"),
    [
        ((), True),
        ((started(),), True),
        ((started(), dispatch()), False),
        ((started(), dispatch(), outcome()), False),
    ],
)
def test_a_question_stays_open_only_without_effects(
    world: World, records: tuple[object, ...], kept: bool
) -> None:
    peer = crashed(world, *records, blocks=(call("pending"), QUESTION))
    recovered(peer)
    (record,) = peer.store.messages(S1)
    assert (record.status == "pending") is kept
    row = peer.store.session(S1)
    assert row is not None
    assert row.has_open_interaction is kept
    assert peer.store.open_runs(S1) == []


def test_a_question_of_a_settled_run_stays_open(world: World) -> None:
    paused = terminal(outcome="paused", stop_reason="interaction")
    records = (started(), dispatch("other"), outcome("other"), paused)
    peer = crashed(world, *records, blocks=(call("pending"), QUESTION))
    assert recovered(peer).messages == 0
    assert peer.store.messages(S1)[0].status == "pending"


def test_what_the_user_wrote_stays_pending(world: World) -> None:
    victim = world.join("victim")
    steer = message_fact(message("steer", status="pending"))
    write(victim.store, victim.tape().append_piece([steer], now=1.0))
    world.kill(victim)
    peer = world.join("after")
    assert recovered(peer).messages == 0
    assert peer.store.messages(S1)[0].status == "pending"


def test_cached_blocks_are_the_partial_output(world: World) -> None:
    victim = world.join("victim")
    tape = victim.tape()
    write(victim.store, tape.append_piece([pending()], now=1.0))  # type: ignore[list-item]
    more = [TextBlock(id=ItemId("m1-0"), text="partial and more", status="loading")]
    cached = msgspec.json.encode(more).decode()
    write(victim.store, tape.cache_piece(MESSAGE, cached, now=1.0))
    world.kill(victim)
    peer = world.join("after")
    recovered(peer)
    (record,) = peer.store.messages(S1)
    assert isinstance(record.blocks[0], TextBlock)
    assert (record.blocks[0].text, record.blocks[0].status) == (
        "partial and more",
        "error",
    )
    assert peer.store.cached_blocks(S1, MESSAGE) is None


def test_cached_blocks_go_to_those_that_the_tape_has(world: World) -> None:
    victim = world.join("victim")
    tape = victim.tape()
    write(victim.store, tape.append_piece([pending(call())], now=1.0))  # type: ignore[list-item]
    more = [TextBlock(id=ItemId("m1-1"), text="a second block", status="loading")]
    cached = msgspec.json.encode(more).decode()
    write(victim.store, tape.cache_piece(MESSAGE, cached, now=1.0))
    world.kill(victim)
    peer = world.join("after")
    recovered(peer)
    (record,) = peer.store.messages(S1)
    known, unsaved, _ = record.blocks
    assert (known.id, known.status) == (call().id, "error")
    assert (unsaved.id, unsaved.status) == (ItemId("m1-1"), "error")


@pytest.mark.parametrize("cache", ["[1]", '{"a":1}', "too big"])
def test_a_cache_that_is_of_no_use_is_not_used(world: World, cache: str) -> None:
    victim = world.join("victim")
    tape = victim.tape()
    write(victim.store, tape.append_piece([pending()], now=1.0))  # type: ignore[list-item]
    if cache == "too big":
        size = MAX_PAYLOAD_BYTES - 60
        huge = TextBlock(id=ItemId("t"), text="x" * size)
        cache = msgspec.json.encode([huge]).decode()
    write(victim.store, tape.cache_piece(MESSAGE, cache, now=1.0))
    world.kill(victim)
    peer = world.join("after")
    recovered(peer)
    (record,) = peer.store.messages(S1)
    assert record.blocks[0] == message("partial").blocks[0]
    assert record.metadata.error_code == INTERRUPTED


def test_a_message_as_long_as_a_fact_keeps_its_output(world: World) -> None:
    victim = world.join("victim")
    text = "x" * (MAX_PAYLOAD_BYTES - 400)
    fact = message_fact(message(text, role="assistant", status="pending"))
    write(victim.store, victim.tape().append_piece([fact], now=1.0))
    world.kill(victim)
    peer = world.join("after")
    assert recovered(peer).messages == 1
    (record,) = peer.store.messages(S1)
    assert [block.id for block in record.blocks] == [
        "m1-0",
        f"{MESSAGE}:{INTERRUPTED}",
    ]
    assert record.status == "error"


def test_calls_of_a_run_that_ended_are_not_said_to_be_unexecuted(world: World) -> None:
    victim = world.join("victim")
    tape = victim.tape()
    fact = pending(call(), run_id=RUN)
    write(victim.store, tape.append_piece([fact], now=1.0))  # type: ignore[list-item]
    for record in (started(), dispatch(), outcome(), terminal()):
        write(victim.store, tape.commit_piece(record, now=1.0))
    world.kill(victim)
    peer = world.join("after")
    report = recovered(peer)
    assert (report.runs, report.messages) == (0, 1)
    block = peer.store.messages(S1)[0].blocks[0]
    assert isinstance(block, ToolCallBlock)
    assert "the call ran (without an error)" in (block.response or "")


def test_a_message_that_no_run_names_is_ended_too(world: World) -> None:
    peer = crashed(world)
    report = recovered(peer)
    assert (report.runs, report.messages, report.sessions) == (0, 1, (S1,))
    assert peer.store.messages(S1)[0].status == "error"


def test_an_open_run_that_nobody_owns_is_found(world: World) -> None:
    one = world.join("one")
    tape = one.tape()
    write(one.store, tape.commit_piece(started(), now=1.0))
    one.store.leave(one.member, now=1.0)
    peer = world.join("after")
    assert peer.store.owed_by_dead() == [S1]
    assert recovered(peer).runs == 1
    assert peer.store.owed_by_dead() == []


def test_an_owner_recovers_what_it_takes_over_and_goes_on(world: World) -> None:
    peer = crashed(world, started(), dispatch())
    grant = peer.acquire()
    done = recover_session(peer.store, grant, 9.0)
    assert [verdict.run_class for verdict in done.verdicts] == ["indeterminate"]
    assert done.head is not None
    tape = Tape(grant, done.head)
    write(peer.store, tape.append_piece([event(1)], now=9.0))
    again = recover_session(peer.store, peer.acquire(), 9.0)
    assert (again.verdicts, again.messages) == ((), 0)


def test_a_session_lost_during_recovery_is_not_written(world: World) -> None:
    peer = crashed(world, started())
    stale, _ = peer.acquire(), peer.acquire()
    assert recover_session(peer.store, stale, 9.0).head is None
    assert len(peer.store.open_runs(S1)) == 1


class Raced:
    """A store where somebody else takes the session first."""

    def __init__(self, peer: Peer, other: Peer) -> None:
        self.peer, self.other = peer, other

    def __getattr__(self, name: str) -> object:
        if name == "acquire":
            self.other.acquire(now=1.0)
        return getattr(self.peer.store, name)


def test_a_session_that_another_takes_first_is_left_to_it(world: World) -> None:
    peer = crashed(world, started())
    other = world.join("quicker")
    report = recover(Raced(peer, other), peer.member, 2.0)  # type: ignore[arg-type]
    assert report == RecoveryReport((), 0, (), 0)
    assert len(peer.store.open_runs(S1)) == 1


@pytest.mark.slow
def test_many_runs_are_acknowledged_in_several_appends() -> None:
    store = MemoryStore.create()
    member = store.join("node", "", 1e9, now=0.0)
    grant = store.acquire(member, S1, now=0.0)
    assert isinstance(grant, Grant)
    tape = Tape(grant)
    write(store, tape.append_piece(bootstrap(), now=1.0))
    for n in range(1_001):
        run = RunId(f"{n:08}-0000-4000-8000-000000000000")
        write(store, tape.commit_piece(started(run), now=1.0))
    again = store.acquire(member, S1, now=1.0)
    assert isinstance(again, Grant)
    done = recover_session(store, again, 9.0)
    assert len(done.verdicts) == 1_001
    assert done.head == 2 + 2 * 1_001
    assert store.open_runs(S1) == []


#### Damage


def damaged(tmp_path: Path, sql: str, *values: object) -> tuple[SqliteWorld, Peer]:
    world = SqliteWorld(tmp_path / "state")
    victim = world.join("victim")
    tape = victim.tape()
    write(victim.store, tape.append_piece([pending(call())], now=1.0))  # type: ignore[list-item]
    write(victim.store, tape.commit_piece(started(), now=1.0))
    write(victim.store, tape.commit_piece(dispatch(), now=1.0))
    db = victim.store.connection  # type: ignore[attr-defined]
    db.execute("DROP TRIGGER fact_is_not_updated; DROP TRIGGER fact_is_not_deleted")
    db.execute(sql, values)
    world.kill(victim)
    return world, world.join("after")


SWAPPED = """
UPDATE fact SET seq = 40 WHERE seq = 4;
UPDATE fact SET seq = 4 WHERE seq = 5;
UPDATE fact SET seq = 5 WHERE seq = 40;
"""
MISMATCHED = "UPDATE fact SET payload = replace(payload, 'm1', 'm2') WHERE seq = 5"
REUSED = """
INSERT INTO session (id, name) VALUES (77, 'ghost');
INSERT INTO fact SELECT NULL, 77, seq, token, stream, kind, name, source_type,
    source_id, source_seq, digest, provenance_key, payload, meta, at
    FROM fact WHERE seq = 4;
"""


@pytest.mark.contract("JRN-19")
@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("UPDATE fact SET payload = '{' WHERE seq = 5", "malformed_fact"),
        ("DELETE FROM fact WHERE seq = 4", "missing_run_started"),
        (MISMATCHED, "message_identity_mismatch"),
        (REUSED, "run_identity_reused_across_sessions"),
        (SWAPPED, "fact_before_run_started"),
    ],
)
def test_a_damaged_journal_is_reported_and_parked(
    tmp_path: Path, sql: str, reason: str
) -> None:
    world, peer = damaged(tmp_path, sql)
    report = recovered(peer)
    (detail,) = report.details
    assert (detail.run_class, detail.reason) == ("corruption", reason)
    (record,) = peer.store.messages(S1)
    block = record.blocks[0]
    assert record.status == "error"
    assert isinstance(block, ToolCallBlock)
    assert "not known whether" in (block.response or "")
    assert recovered(peer).runs == 0
    world.close()


def test_state_that_cannot_be_read_stops_the_recovery(tmp_path: Path) -> None:
    world, peer = damaged(tmp_path, "UPDATE message SET metadata = 'nonsense'")
    with pytest.raises(CorruptStoreError, match="can't be read back"):
        recovered(peer)
    world.close()


def test_an_acknowledged_run_can_still_be_told_from_its_facts(world: World) -> None:
    peer = crashed(world, started(), dispatch())
    recovered(peer)
    reader: Reader = peer.store
    facts = [entry.fact for entry in reader.run_entries(S1, RUN)]
    assert facts == [journal_fact(started()), journal_fact(dispatch())]
    assert reader.run_session(RUN) == S1
    tape = peer.tape(S2)
    record = started(OTHER_RUN, MessageId("m2"))
    assert write(peer.store, tape.commit_piece(record, now=9.0)).created
