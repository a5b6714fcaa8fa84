"""What a restart makes of each kind of pending input, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from kit.stores import (
    RUN,
    S1,
    Peer,
    World,
    dispatch,
    message,
    started,
    write,
)

from greenroom.protocol import (
    ActionBlock,
    InputChange,
    InputReceipt,
    ItemId,
    MessageId,
    MessageMetadata,
    MessageRecord,
    PendingInputs,
    TextPart,
    user_message,
)
from greenroom.storage import (
    RUN_ACKNOWLEDGED,
    Tape,
    input_fact,
    message_fact,
    recover,
    recover_session,
    verify,
)

SAID = (TextPart("said"),)
M1, M2, REPLY = MessageId("m1"), MessageId("m2"), MessageId("reply")
ANSWER = MessageId("answer")


def steer_message(
    message_id: MessageId, order: int, read_at: float | None = None
) -> MessageRecord:
    receipt = InputReceipt(mode="steer", read_at=read_at)
    return user_message(
        message_id, SAID, order=order, now=1.0, status="pending", receipt=receipt
    )


class Seed:
    """A session that its owner left behind."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.victim = world.join("victim")
        self.tape: Tape = self.victim.tape()
        self.inputs = PendingInputs()

    def step(self, make: Callable[[PendingInputs], InputChange]) -> None:
        change = make(self.inputs)
        facts = [input_fact(row) for row in change.revisions]
        write(self.victim.store, self.tape.append_piece(facts, now=1.0))
        self.inputs = change.inputs

    def tell(self, *records: MessageRecord) -> None:
        facts = [message_fact(record) for record in records]
        write(self.victim.store, self.tape.append_piece(facts, now=1.0))

    def restart(self) -> Peer:
        self.world.kill(self.victim)
        peer = self.world.join("after")
        report = recover(peer.store, peer.member, 9.0)
        assert report.sessions == (S1,)
        assert verify(peer.store) == []
        # A second start finds nothing to do.
        again = recover(peer.store, peer.member, 10.0)
        assert (again.runs, again.messages, again.sessions) == (0, 0, ())
        return peer


def queue_claimed_with_messages(seed: Seed) -> None:
    seed.step(lambda i: i.enqueue("a", SAID, now=1.0))
    seed.step(lambda i: i.claim("a", now=2.0, message_id=M1))
    seed.tell(message(M1))


def queue_claimed_without(seed: Seed) -> None:
    seed.step(lambda i: i.enqueue("a", SAID, now=1.0))
    seed.step(lambda i: i.claim("a", now=2.0, message_id=M1))


def queue_claimed_and_said(seed: Seed) -> None:
    seed.step(lambda i: i.enqueue("a", SAID, now=1.0))
    seed.step(lambda i: i.claim("a", now=2.0, message_id=M1, reply=REPLY))
    seed.tell(message(M1))


def prompt_claimed_and_said(seed: Seed) -> None:
    claim = partial(PendingInputs.claim_at_once, message_id=M1, reply=REPLY, now=2.0)
    seed.step(lambda i: claim(i, "a", SAID))
    seed.tell(message(M1))


def queue_claimed_and_replied_to(seed: Seed) -> None:
    queue_claimed_and_said(seed)
    seed.tell(message(REPLY, name=REPLY, role="assistant", status="pending", order=2))


def steer_blocked(seed: Seed) -> None:
    seed.step(lambda i: i.add_steer("a", SAID, M1, now=1.0))
    seed.tell(steer_message(M1, 1))
    seed.step(lambda i: i.block("a", ["takes no images"], now=2.0))


def steer_claimed(seed: Seed) -> None:
    seed.step(lambda i: i.add_steer("a", SAID, M1, now=1.0))
    seed.step(lambda i: i.add_steer("b", SAID, M2, now=1.5))
    seed.tell(steer_message(M1, 1, 2.0), steer_message(M2, 2, 2.0))
    seed.step(lambda i: i.claim("a", now=2.0, reply=REPLY))


def steer_unlinked(seed: Seed) -> None:
    seed.step(lambda i: i.add_steer("a", SAID, M1, now=1.0))
    seed.step(lambda i: i.link("a", M1, now=1.0))
    bare = msgspec.structs.replace(seed.inputs.rows[0], message_ids=(), updated_at=2.0)
    write(seed.victim.store, seed.tape.append_piece([input_fact(bare)], now=1.0))


Row = tuple[str, str, str, tuple[str, ...]]
Shown = tuple[str, str]


@pytest.mark.contract("PIN-14")
@pytest.mark.parametrize(
    ("seeded", "rows", "shown"),
    [
        (queue_claimed_with_messages, [], [("m1", "sent")]),
        (queue_claimed_without, [("a", "queue", "waiting", ())], []),
        # Its turn never began (SES-19): what was said is taken back, and waits again.
        (queue_claimed_and_said, [("a", "queue", "waiting", ())], []),
        (prompt_claimed_and_said, [("a", "queue", "waiting", ())], []),
        (queue_claimed_and_replied_to, [], [("m1", "sent"), ("reply", "error")]),
        (steer_blocked, [("a", "queue", "waiting", ())], []),
        (steer_claimed, [], [("m1", "sent"), ("m2", "sent")]),
        (
            steer_unlinked,
            [("a", "steer", "waiting", ("a.message",))],
            [("a.message", "pending")],
        ),
    ],
)
def test_a_restart_leaves_each_kind_of_input_as_the_table_says(
    world: World,
    seeded: Callable[[Seed], None],
    rows: list[Row],
    shown: list[Shown],
) -> None:
    seed = Seed(world)
    seeded(seed)
    peer = seed.restart()

    found = peer.store.pending_inputs(S1).rows
    assert [(r.id, r.mode, r.delivery, r.message_ids) for r in found] == rows
    assert [(m.id, m.status) for m in peer.store.messages(S1)] == shown
    assert all(row.parts == SAID for row in found)


@pytest.mark.contract("JRN-22")
def test_the_journal_is_recovered_before_the_input_and_that_before_the_transcript(
    world: World,
) -> None:
    seed = Seed(world)
    seed.step(lambda i: i.add_steer("s", SAID, M1, now=1.0))
    seed.tell(
        message("said", name="answer", role="assistant", status="pending"),
        steer_message(M1, 2),
    )
    seed.step(lambda i: i.enqueue("q", SAID, now=1.0))
    seed.step(lambda i: i.claim("q", now=2.0, message_id=M2))
    for record in (started(message=ANSWER), dispatch("call", message_id=ANSWER)):
        write(seed.victim.store, seed.tape.commit_piece(record, now=2.0))
    before = seed.tape.head
    peer = seed.restart()

    told = [entry.fact.name for entry in peer.store.page(S1, before).entries]
    assert told == [RUN_ACKNOWLEDGED, "input/recorded", "message/recorded"]
    # What the user said to the turn stays as it was; the answer is interrupted.
    assert [(m.id, m.status) for m in peer.store.messages(S1)] == [
        ("answer", "error"),
        ("m1", "pending"),
    ]
    assert peer.store.messages(S1)[0].metadata.error_code == "session_interrupted"
    assert [r.id for r in peer.store.pending_inputs(S1).rows] == ["s", "q"]


@pytest.mark.contract("JRN-22")
def test_a_message_with_an_open_question_stays_and_so_does_what_waits_for_it(
    world: World,
) -> None:
    seed = Seed(world)
    question = ActionBlock(
        id=ItemId("q"),
        action="question_request",
        origin="question",
        tool_block_id=ItemId("c"),
        title="Which?",
    )
    asked = msgspec.structs.replace(
        message("asked", question, role="assistant", status="pending"),
        metadata=MessageMetadata(run_id=RUN),
    )
    seed.tell(asked)
    seed.step(lambda i: i.enqueue("q", SAID, now=1.0))
    head = seed.tape.head
    world.kill(seed.victim)
    peer = world.join("after")
    grant = peer.acquire()

    found = recover_session(peer.store, grant, 9.0)

    assert (found.head, found.inputs, found.messages) == (head, 0, 0)
    assert peer.store.messages(S1) == [asked]


def test_the_rows_of_the_living_are_left_alone(world: World) -> None:
    seed = Seed(world)
    queue_claimed_without(seed)
    peer = world.join("beside")

    assert recover(peer.store, peer.member, 9.0).sessions == ()
    (row,) = peer.store.pending_inputs(S1).rows
    assert row.state == "claimed"
