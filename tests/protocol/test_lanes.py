"""The lanes of pending input, as values and as a machine against a plain model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from greenroom.protocol import (
    MAX_QUEUED,
    ImagePart,
    InputChange,
    InputRefusedError,
    MessageId,
    PendingInput,
    PendingInputs,
    TextPart,
    Wake,
    joined,
    merged_input,
    next_input,
    recovered_inputs,
)
from greenroom.protocol._pending import stepped

PICTURE = ImagePart("image/png", "aWNvbg==")


def said(text: str) -> tuple[TextPart]:
    return (TextPart(text),)


def queued(*texts: str) -> PendingInputs:
    inputs = PendingInputs()
    for text in texts:
        inputs = inputs.enqueue(text, said(text), now=1.0).inputs
    return inputs


def order(inputs: PendingInputs) -> list[tuple[str, int]]:
    return [(row.id, row.order) for row in inputs.queue]


def code_of(step: Callable[[], object]) -> str:
    with pytest.raises(InputRefusedError) as caught:
        step()
    return caught.value.code


#### A row


@pytest.mark.contract("PIN-01")
@pytest.mark.parametrize(
    "wrong", [{"mode": "later"}, {"state": "lost"}, {"order": "first"}, {"parts": 1}]
)
def test_a_row_has_a_mode_a_state_an_order_and_a_payload(wrong: dict[str, Any]) -> None:
    row = PendingInput(
        id="a", mode="queue", parts=said("a"), created_at=1, updated_at=1
    )
    kept = json.loads(msgspec.json.encode(row))

    assert msgspec.convert(kept, PendingInput) == row
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(kept | wrong, PendingInput)


@pytest.mark.contract("PIN-01")
@pytest.mark.parametrize(
    ("state", "illegal"),
    [
        ("pending", ["retry", "degrade"]),
        ("claimed", ["claim", "retry", "degrade", "edit", "delete"]),
        ("blocked", ["claim"]),
    ],
)
def test_an_illegal_step_is_refused_and_changes_nothing(
    state: str, illegal: list[str]
) -> None:
    inputs = queued("a")
    if state == "claimed":
        inputs = inputs.claim("a", now=2.0).inputs
    if state == "blocked":
        inputs = inputs.block("a", ["why"], now=2.0).inputs
    steps: dict[str, Callable[[], object]] = {
        "claim": lambda: inputs.claim("a", now=3.0),
        "retry": lambda: inputs.retry("a", now=3.0),
        "degrade": lambda: inputs.degrade("a", said("x"), now=3.0),
        "edit": lambda: inputs.edit("a", said("x"), now=3.0),
        "delete": lambda: inputs.delete("a", now=3.0),
    }
    before = inputs.rows
    refused = [name for name, step in steps.items() if _is_refused(step)]

    assert refused == [name for name in steps if name in illegal]
    assert inputs.rows == before


@pytest.mark.contract("PIN-01", "PIN-05")
@pytest.mark.parametrize(
    ("mode", "state", "legal"),
    [
        ("queue", "pending", {"pending", "claimed", "blocked", "consumed"}),
        ("queue", "claimed", {"pending", "claimed", "blocked", "consumed"}),
        ("queue", "blocked", {"pending", "blocked", "consumed"}),
        ("queue", "consumed", {"consumed"}),
        ("steer", "pending", {"pending", "claimed", "blocked", "consumed"}),
        # Not taken back, whatever comes of it.
        ("steer", "claimed", {"claimed", "consumed"}),
        ("steer", "consumed", {"consumed"}),
    ],
)
def test_a_row_becomes_only_what_it_may_become(
    mode: Any, state: Any, legal: set[str]
) -> None:
    row = PendingInput(id="a", mode=mode, state=state, created_at=1, updated_at=1)
    found = {
        each
        for each in ("pending", "claimed", "blocked", "consumed")
        if not _is_refused(lambda each=each: stepped(row, state=each))
    }
    assert found == legal


@pytest.mark.contract("PIN-10")
@pytest.mark.parametrize("first", ["delivered", "returned", "released"])
@pytest.mark.parametrize("second", ["delivered", "returned", "released"])
def test_a_claim_is_settled_once_and_a_second_time_changes_nothing(
    first: Any, second: Any
) -> None:
    claimed = queued("a", "b").claim("a", now=2.0).inputs
    settled = claimed.settle("a", first, now=3.0)

    assert settled.revisions
    assert settled.inputs.settle("a", second, now=4.0) == InputChange(settled.inputs)


def _is_refused(step: Callable[[], object]) -> bool:
    try:
        step()
    except InputRefusedError:
        return True
    return False


#### The queue


def test_a_sixth_input_is_refused_and_one_that_left_makes_room() -> None:
    inputs = queued("a", "b", "c", "d", "e")

    assert code_of(lambda: inputs.enqueue("f", said("f"), now=2.0)) == "queue_full"
    smaller = inputs.delete("c", now=2.0).inputs
    assert order(smaller.enqueue("f", said("f"), now=3.0).inputs) == [
        ("a", 1),
        ("b", 2),
        ("d", 3),
        ("e", 4),
        ("f", 5),
    ]


@pytest.mark.parametrize(
    ("to", "expected"),
    [(-7, "cab"), (0, "cab"), (1, "cab"), (2, "acb"), (3, "abc"), (99, "abc")],
)
def test_a_move_is_clamped_and_renumbers(to: int, expected: str) -> None:
    moved = queued("a", "b", "c").move("c", to, now=2.0).inputs

    assert order(moved) == [(name, n) for n, name in enumerate(expected, start=1)]


def test_nothing_is_moved_before_an_input_whose_turn_runs() -> None:
    inputs = queued("a", "b", "c").claim("a", now=2.0).inputs

    assert [name for name, _ in order(inputs.move("c", 1, now=3.0).inputs)] == [
        "a",
        "c",
        "b",
    ]


def test_what_is_claimed_is_neither_edited_moved_deleted_nor_promoted() -> None:
    inputs = queued("a").claim("a", now=2.0).inputs

    assert code_of(lambda: inputs.edit("a", said("x"), now=3.0)) == "input_locked"
    assert code_of(lambda: inputs.move("a", 1, now=3.0)) == "input_locked"
    assert code_of(lambda: inputs.delete("a", now=3.0)) == "input_locked"
    assert code_of(lambda: inputs.claim("a", now=3.0)) == "input_locked"
    promote = lambda: inputs.promote("a", MessageId("m"), now=3.0)  # noqa: E731
    assert code_of(promote) == "input_locked"


def test_a_revision_without_parts_means_unchanged() -> None:
    row = queued("a").rows[0]
    change = queued("a").claim("a", now=2.0)

    assert change.revisions[0].parts is None
    assert merged_input(row, change.revisions[0]) == change.inputs.rows[0]


#### The steer


def test_a_steer_is_one_row_that_later_ones_are_added_to() -> None:
    inputs = queued("first")
    for number, parts in enumerate([said("one"), (PICTURE,), said("two")]):
        name = f"s{number}"
        inputs = inputs.add_steer(name, parts, MessageId(f"m{number}"), now=2.0).inputs

    (steer,) = [row for row in inputs.rows if row.mode == "steer"]
    assert steer.id == "s0"
    assert steer.message_ids == ("m0", "m1", "m2")
    assert steer.parts == (TextPart("one"), PICTURE, TextPart("two"))
    assert order(inputs) == [("first", 1)]


def test_texts_that_meet_are_joined_by_a_blank_line_and_images_stay_in_place() -> None:
    assert joined((PICTURE, TextPart("a")), (TextPart("b"), PICTURE)) == (
        PICTURE,
        TextPart("a\n\nb"),
        PICTURE,
    )


def test_a_steer_is_locked_but_may_be_deleted_until_it_is_read() -> None:
    inputs = PendingInputs().add_steer("s", said("go"), MessageId("m"), now=1.0).inputs

    assert code_of(lambda: inputs.edit("s", said("x"), now=2.0)) == "input_locked"
    assert inputs.delete("s", now=2.0).inputs.rows == ()
    read = inputs.claim("s", now=2.0, reply=MessageId("r")).inputs
    assert code_of(lambda: read.delete("s", now=3.0)) == "input_locked"


@pytest.mark.contract("PIN-08")
def test_a_steer_does_not_count_for_the_queue_and_goes_first() -> None:
    inputs = queued("a", "b", "c", "d", "e")
    inputs = inputs.add_steer("s", said("go"), MessageId("m"), now=2.0).inputs

    assert _next(inputs) == "s"


@pytest.mark.contract("PIN-05")
def test_a_claimed_steer_is_consumed_whatever_became_of_its_turn() -> None:
    inputs = PendingInputs().add_steer("s", said("go"), MessageId("m"), now=1.0).inputs
    inputs = inputs.claim("s", now=2.0, reply=MessageId("r")).inputs

    change = inputs.settle("s", "returned", now=3.0)
    assert change.inputs.rows == ()
    assert change.revisions[0].end == "delivered"


def test_a_promotion_makes_one_row_of_both() -> None:
    inputs = queued("a", "b").promote("b", MessageId("m1"), now=2.0).inputs

    assert [(row.id, row.mode, row.order) for row in inputs.rows] == [
        ("b", "steer", 0),
        ("a", "queue", 1),
    ]
    change = inputs.promote("a", MessageId("m2"), now=3.0)
    (steer,) = change.inputs.rows
    assert steer.message_ids == ("m1", "m2")
    assert steer.parts == (TextPart("b\n\na"),)
    assert [(row.id, row.state, row.end) for row in change.revisions][:1] == [
        ("a", "consumed", "promoted")
    ]


#### Letting in


def _next(inputs: PendingInputs, wake: Wake = Wake.MANUAL, **given: Any) -> str | None:
    conditions: dict[str, Any] = {"state": "idle"} | given
    row = next_input(inputs, wake, **conditions)
    return None if row is None else row.id


@pytest.mark.contract("PIN-08")
def test_each_condition_alone_keeps_the_lanes_closed() -> None:
    inputs = queued("a", "b")

    assert _next(inputs) == "a"
    assert _next(inputs, state="generating") is None
    assert _next(inputs, interaction=True) is None
    assert _next(inputs, kept_back=("a", "b")) is None
    assert _next(inputs.claim("a", now=2.0).inputs) is None
    assert _next(inputs.block("a", ["no images"], now=2.0).inputs) is None
    assert _next(inputs.block("b", ["no images"], now=2.0).inputs) is None
    assert _next(inputs.hold(now=2.0).inputs) is None
    assert _next(inputs, Wake.COMPLETED, state="error") is None
    assert _next(inputs, Wake.ENQUEUE, state="error") == "a"


def test_the_users_own_message_goes_first_when_it_is_awaited() -> None:
    inputs = queued("a").enqueue("mine", said("mine"), now=2.0, sent=True).inputs

    assert _next(inputs, kept_back=("a",)) == "mine"
    assert _next(inputs, kept_back=("a", "mine")) is None
    assert _next(inputs) == "a"
    # What was said to the turn is in the transcript already, so it is read first.
    steered = inputs.add_steer("s", said("s"), MessageId("m"), now=3.0).inputs
    assert _next(steered, kept_back=("a", "s")) == "s"
    assert _next(steered, kept_back=("a", "s", "mine")) is None


def test_what_is_held_goes_on_with_the_next_input_or_a_release() -> None:
    held = queued("a").hold(now=2.0).inputs

    assert not held.hold(now=3.0).revisions
    assert held.rows[0].delivery == "held"
    assert _next(held.release(now=3.0).inputs) == "a"
    assert _next(held.enqueue("b", said("b"), now=3.0).inputs) == "a"


def test_a_prompt_that_somebody_waits_for_lets_the_others_go_on_before_it() -> None:
    inputs = queued("a").enqueue("p", said("p"), now=2.0, sent=True).inputs

    assert inputs.hold(now=3.0).revisions == ()
    assert _next(inputs, Wake.COMPLETED, state="error") == "a"
    assert _next(queued("a"), Wake.COMPLETED, state="error") is None


def test_an_input_whose_turn_never_began_comes_back_in_front() -> None:
    inputs = queued("a", "b").claim("a", now=2.0).inputs

    change = inputs.give_back("p", said("p"), now=3.0)
    assert order(change.inputs) == [("p", 1), ("a", 2), ("b", 3)]
    assert change.inputs.find("p").delivery == "returned"
    assert [row.id for row in change.revisions] == ["p", "a", "b"]


def test_a_blocked_input_is_tried_again_or_goes_on_with_less() -> None:
    blocked = (
        PendingInputs()
        .enqueue("a", (TextPart("see"), PICTURE), now=1.0)
        .inputs.block("a", ["this model takes no images"], now=2.0)
        .inputs
    )

    assert blocked.rows[0].delivery == "blocked"
    assert _next(blocked.retry("a", now=3.0).inputs) == "a"
    less = blocked.degrade("a", said("see"), now=3.0).inputs
    assert (less.rows[0].parts, less.rows[0].blocking) == (said("see"), ())
    assert code_of(lambda: less.retry("a", now=4.0)) == "not_blocked"


def test_a_failed_turn_brings_a_queued_input_back_to_its_place() -> None:
    inputs = queued("a", "b").claim("a", now=2.0, message_id=MessageId("m")).inputs

    back = inputs.settle("a", "returned", now=3.0).inputs
    assert order(back) == [("a", 1), ("b", 2)]
    assert (back.rows[0].delivery, back.rows[0].message_ids) == ("returned", ())
    # It does not fail again and again: the next one, or the user, lets it go on.
    assert _next(back, Wake.ENQUEUE, state="error") == "b"
    assert _next(back.enqueue("c", said("c"), now=4.0).inputs) == "a"
    assert back.settle("a", "delivered", now=4.0).revisions == ()


#### Restart


def test_a_restart_settles_what_was_claimed_and_unblocks_a_steer() -> None:
    inputs = queued("shown", "lost", "waits")
    inputs = inputs.claim("shown", now=2.0).inputs
    # Two claims can't be made by steps; a damaged or older file may hold them.
    inputs = PendingInputs(
        tuple(
            msgspec.structs.replace(row, state="claimed") if row.id == "lost" else row
            for row in inputs.rows
        )
    )
    inputs = inputs.add_steer("s", said("go"), MessageId("m"), now=2.0).inputs
    inputs = inputs.block("s", ["no images"], now=2.0).inputs

    change = recovered_inputs(inputs, lambda row: row.id == "shown", now=9.0)

    assert [(r.id, r.mode, r.state, r.order) for r in change.inputs.rows] == [
        ("lost", "queue", "pending", 1),
        ("waits", "queue", "pending", 2),
        ("s", "queue", "pending", 3),
    ]
    assert change.inputs.find("s").message_ids == ()


def test_a_restart_consumes_a_claimed_steer() -> None:
    inputs = PendingInputs().add_steer("s", said("go"), MessageId("m"), now=1.0).inputs
    inputs = inputs.claim("s", now=2.0, reply=MessageId("r")).inputs

    assert recovered_inputs(inputs, lambda _: False, now=3.0).inputs.rows == ()


#### As a machine


class Lanes(RuleBasedStateMachine):
    """Random steps; the revisions alone must always give the same rows."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = PendingInputs()
        self.stored: dict[str, PendingInput] = {}
        self.accepted = set[str]()
        self.left: dict[str, str] = {}
        self.number = 0

    def take(self, step: Callable[[], InputChange]) -> None:
        before = self.inputs
        try:
            change = step()
        except InputRefusedError:
            assert self.inputs == before
            return
        self.inputs = change.inputs
        for revision in change.revisions:
            row = merged_input(self.stored.get(revision.id), revision)
            if row.state == "consumed":
                assert row.id not in self.left or row.end == "promoted"
                self.left[row.id] = str(row.end)
                self.stored.pop(row.id, None)
            else:
                self.stored[row.id] = row

    def fresh(self) -> str:
        self.number += 1
        return f"i{self.number}"

    def some(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from([row.id for row in self.inputs.rows]))

    @rule(sent=st.booleans())
    def enqueue(self, sent: bool) -> None:
        name = self.fresh()
        self.take(lambda: self.inputs.enqueue(name, said(name), now=1.0, sent=sent))
        self.accepted |= {row.id for row in self.inputs.rows}

    @rule()
    def steer(self) -> None:
        name = self.fresh()
        message = MessageId(f"m-{name}")
        self.take(lambda: self.inputs.add_steer(name, said(name), message, now=1.0))
        self.accepted |= {row.id for row in self.inputs.rows}

    @precondition(lambda self: self.inputs.rows)
    @rule(data=st.data(), to=st.integers(-2, 9))
    def edit(self, data: st.DataObject, to: int) -> None:
        name, message = self.some(data), MessageId(self.fresh())
        inputs = self.inputs
        step = data.draw(
            st.sampled_from(
                [
                    lambda: inputs.edit(name, said("new"), now=2.0),
                    lambda: inputs.move(name, to, now=2.0),
                    lambda: inputs.delete(name, now=2.0),
                    lambda: inputs.promote(name, message, now=2.0),
                    lambda: inputs.block(name, ["why"], now=2.0),
                    lambda: inputs.retry(name, now=2.0),
                    lambda: inputs.degrade(name, said("less"), now=2.0),
                    lambda: inputs.settle(name, "delivered", now=2.0),
                    lambda: inputs.settle(name, "returned", now=2.0),
                    lambda: inputs.give_back(message, said(message), now=2.0),
                    lambda: inputs.requeue(name, now=2.0),
                    lambda: inputs.hold(now=2.0),
                    lambda: inputs.release(now=2.0),
                ]
            )
        )
        self.take(step)

    @rule(wake=st.sampled_from(list(Wake)))
    def let_in(self, wake: Wake) -> None:
        row = next_input(self.inputs, wake, state="idle")
        if row is not None:
            self.take(lambda: self.inputs.claim(row.id, now=3.0))

    @rule(known=st.booleans())
    def restart(self, known: bool) -> None:
        self.take(lambda: recovered_inputs(self.inputs, lambda _: known, now=4.0))
        assert self.inputs.claimed is None

    @invariant()
    def the_revisions_tell_the_same(self) -> None:
        assert {row.id: row for row in self.inputs.rows} == self.stored

    @invariant()
    def the_queue_is_numbered_without_gaps(self) -> None:
        assert [row.order for row in self.inputs.queue] == list(
            range(1, len(self.inputs.queue) + 1)
        )

    @invariant()
    def the_bounds_hold(self) -> None:
        unsent = [r for r in self.inputs.queue if not r.sent and r.state != "claimed"]
        # What came back had its place before.
        came_back = [row for row in unsent if row.returned]
        assert len(unsent) - len(came_back) <= MAX_QUEUED + 1
        assert len([r for r in self.inputs.rows if r.state == "claimed"]) <= 1
        open_steers = [
            r for r in self.inputs.rows if r.mode == "steer" and r.state != "claimed"
        ]
        assert len(open_steers) <= 1

    @invariant()
    def nothing_accepted_is_lost(self) -> None:
        rows = {row.id for row in self.inputs.rows}
        assert self.accepted <= rows | set(self.left)


@pytest.mark.contract("PIN-02")
def test_random_steps_keep_the_lanes_whole() -> None:
    run_state_machine_as_test(
        Lanes, settings=settings(max_examples=50, stateful_step_count=30)
    )
