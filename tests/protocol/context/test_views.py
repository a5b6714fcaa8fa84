"""What a view holds and in which order, for any history and any budget."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from greenroom.protocol import (
    AssistantMessage,
    ItemId,
    MessageId,
    MessageMetadata,
    MessageRecord,
    SyntheticPart,
    SystemMessage,
    TextBlock,
    TextPart,
    ToolCallBlock,
    ToolMessage,
    UserMessage,
    ViewBuilder,
)
from greenroom.protocol.context import (
    Boundary,
    Reconstruction,
    checkpoint_of,
)

SHAPES = st.lists(
    st.sampled_from(["turn", "tools", "empty", "failed", "gone", "compaction"]),
    max_size=8,
)


def text(value: str, number: int = 0) -> TextBlock:
    return TextBlock(id=ItemId("i"), text=value, round=number)


def call(number: int) -> ToolCallBlock:
    return ToolCallBlock(
        id=ItemId(f"c{number}"),
        call_id="same",
        name="read",
        arguments="{}",
        round=number,
        status="success",
        response=f"result {number}",
    )


def record(order: int, role: Any, blocks: Any, status: Any = "sent", **about: Any):
    return MessageRecord(
        id=MessageId(f"m{order}"),
        order_seq=order,
        role=role,
        status=status,
        blocks=tuple(blocks),
        metadata=MessageMetadata(provider="p", model="m", **about),
        created_at=0.0,
        updated_at=float(order),
    )


def history(shapes: list[str]) -> list[MessageRecord]:
    """A transcript of such turns; what was taken back leaves its place empty."""
    records: list[MessageRecord] = []
    for number, shape in enumerate(shapes):
        order = 2 * number + 1
        if shape == "gone":
            continue
        said = [] if shape == "empty" else [text(f"question {order}")]
        records.append(record(order, "user", said))
        kind = "compaction" if shape == "compaction" else None
        answer = [text(f"answer {order}", 1)]
        if shape == "tools":
            answer = [text("look", 1), call(1), call(2), text("done", 3)]
        status = "error" if shape == "failed" else "sent"
        records.append(
            record(order + 1, "assistant", answer, status, message_type=kind)
        )
    return records


def placed(view: ViewBuilder, records: list[MessageRecord], cursor: int) -> None:
    for each in records:
        if each.role == "user" and not view.has_pin:
            view.pin(each)
        if each.order_seq < cursor:
            view.leave_out(each, "before_summary_cursor")
        elif each.metadata.message_type == "compaction":
            view.leave_out(each, "compaction_indicator")
        else:
            view.add_record(each)


def made(shapes: list[str], cursor: int, *, rounds: int = 0, resumed: int = 0):
    """A view of a turn behind such a history; and every record there is."""
    records = history(shapes)
    order = 2 * len(shapes) + 1
    records.append(record(order, "user", [text("the question now")]))
    view = ViewBuilder("p", "m")
    view.add_system("be brief")
    boundary = Boundary("compaction/auto", 9, Reconstruction(cursor_order_seq=cursor))
    checkpoint = checkpoint_of(boundary)
    if checkpoint is not None:
        view.add_checkpoint(checkpoint.text, checkpoint.sections)
    placed(view, records, cursor)
    reply = record(order + 1, "assistant", [], "pending")
    view = view.fork()
    view.begin_turn(reply)
    view.add_resumed([call(n + 1) for n in range(resumed)])
    for number in range(resumed, resumed + rounds):
        view.add_rounds([call(number + 1)])
    return view, [*records, reply]


def is_paired(messages) -> bool:
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if not waiting or waiting.pop(0) != message.call_id:
                return False
            continue
        if waiting:
            return False
        if isinstance(message, AssistantMessage):
            waiting = [each.id for each in message.calls]
    return not waiting


CASES = st.tuples(SHAPES, st.integers(1, 14), st.integers(0, 3), st.integers(0, 2))


@given(CASES, st.integers(0, 9), st.booleans())
def test_whatever_is_dropped_system_pin_and_active_turn_stay_and_pairs_are_closed(
    case, dropped, forgets
):
    shapes, cursor, rounds, resumed = case
    # Compaction never moves the cursor into the active turn.
    cursor = min(cursor, 2 * len(shapes) + 1)
    view, records = made(shapes, cursor, rounds=rounds, resumed=resumed)
    view.prefix_user("a memory")
    view.prefix_user("a directive", "directive_context")
    turn = view.messages[view.front_count + view.history_count :]
    if forgets:
        view.drop_contributions("memory_context")
    view.drop_turns(dropped)
    messages = view.messages

    assert messages[0] == SystemMessage("be brief")
    assert is_paired(messages)
    asked = messages[view.front_count + view.history_count]
    assert isinstance(asked, UserMessage)
    assert asked.parts[-1] == TextPart("the question now")
    told = [part.text for part in asked.parts if isinstance(part, TextPart)]
    wanted = ["a memory", "a directive", "the question now"]
    assert told == wanted[1 if forgets else 0 :]
    if turn:
        assert messages[view.front_count + view.history_count + 1 :] == turn[1:]
    first = next(each for each in records if each.role == "user")
    said = [
        part.text
        for message in messages
        if isinstance(message, UserMessage)
        for part in message.parts
        if isinstance(part, TextPart)
    ]
    for block in first.blocks:
        assert isinstance(block, TextBlock)
        assert said.count(block.text) == 1


@given(CASES, st.integers(0, 9))
def test_included_and_excluded_are_all_places_of_the_transcript(case, dropped):
    shapes, cursor, rounds, resumed = case
    cursor = min(cursor, 2 * len(shapes) + 1)
    view, records = made(shapes, cursor, rounds=rounds, resumed=resumed)
    view.drop_turns(dropped)
    out = [n for e in view.excluded for n in range(e.first, e.last + 1)]
    assert len(out) == len(set(out)) == sum(e.count for e in view.excluded)
    covered = set(out)
    for part in view.parts:
        if part.orders is not None:
            covered |= set(range(part.orders[0], part.orders[1] + 1))
    assert covered == set(range(1, records[-1].order_seq + 1))
    # What is in the history and in no range that is out, is one message of it each.
    counted = sum(part.count for part in view.parts)
    assert counted == len(view.messages)
    starts = [part.start for part in view.parts if part.count]
    assert starts == sorted(set(starts))


def test_each_message_that_is_not_in_is_told_with_its_reason():
    shapes = ["turn", "turn", "gone", "turn", "empty", "compaction", "turn"]
    view, _ = made(shapes, 3)
    view.drop_turns(1)
    told = {(e.first, e.last, e.count, e.reason) for e in view.excluded}
    assert told == {
        (1, 2, 2, "before_summary_cursor"),
        (3, 4, 2, "out_of_budget"),
        (5, 6, 2, "retracted"),
        (9, 9, 1, "empty_after_formatting"),
        (12, 12, 1, "compaction_indicator"),
        (16, 16, 1, "pending_not_context_history"),
    }


def test_many_ranges_widen_the_last_one_of_their_reason():
    view = ViewBuilder("p", "m")
    for order in range(1, 400, 2):
        view.leave_out(record(order, "user", [text("x")]), "compaction_indicator")
    assert len(view.excluded) <= 66
    by_reason = {e.reason: 0 for e in view.excluded}
    for each in view.excluded:
        by_reason[each.reason] += each.count
    assert by_reason == {"compaction_indicator": 200, "retracted": 199}


@pytest.mark.contract("CTX-01")
def test_a_view_is_ordered_for_the_cache_of_the_provider():
    records = history(["turn", "turn", "turn"])
    view = ViewBuilder("p", "m")
    view.add_system("be brief")
    view.add_checkpoint("CHECKPOINT", [SyntheticPart("summary_checkpoint", "0" * 64)])
    placed(view, [*records, record(7, "user", [text("now")])], 5)
    view.begin_turn(record(8, "assistant", [], "pending"))
    view.prefix_user("DIRECTIVE", "directive_context")
    view.prefix_user("MEMORY")
    view.add_rounds([call(1)])
    golden = [
        SystemMessage("be brief"),
        UserMessage((TextPart("question 1"),)),
        UserMessage((TextPart("CHECKPOINT"),)),
        UserMessage((TextPart("question 5"),)),
        AssistantMessage(text="answer 5"),
        UserMessage((TextPart("MEMORY"), TextPart("DIRECTIVE"), TextPart("now"))),
    ]
    assert list(view.messages[:6]) == golden
    assert [part.reason for part in view.parts] == [
        "system_prompt",
        "pinned_first_user",
        "summary_checkpoint",
        "selected_history",
        "new_user_input",
        "memory_context",
        "directive_context",
        "tool_loop_message",
    ]


@pytest.mark.contract("CTX-01")
@given(CASES, st.text(min_size=1, max_size=20), st.text(max_size=20))
def test_other_memory_changes_nothing_before_the_active_turn(case, one, other):
    shapes, cursor, rounds, _ = case
    before, _ = made(shapes, cursor, rounds=rounds)
    after = before.fork()
    before.prefix_user(one)
    after.prefix_user(other)
    end = before.front_count + before.history_count
    assert before.messages[:end] == after.messages[:end]
    assert before.messages[end + 1 :] == after.messages[end + 1 :]
    assert before.messages[0] == SystemMessage("be brief")


#### The pin


@pytest.mark.contract("CTX-32")
def test_the_first_message_of_the_user_stays_in_front_of_a_cut_history():
    view, _ = made(["turn", "turn", "turn"], 5)
    assert view.messages[1] == UserMessage((TextPart("question 1"),))
    first, second = view.messages[2], view.messages[3]
    assert isinstance(first, UserMessage)
    assert isinstance(first.parts[0], TextPart)
    assert "untrusted" in first.parts[0].text
    assert second == UserMessage((TextPart("question 5"),))


@pytest.mark.contract("CTX-33")
def test_a_first_message_that_the_history_holds_is_not_repeated():
    view, _ = made(["turn", "turn"], 1)
    said = [m for m in view.messages if m == UserMessage((TextPart("question 1"),))]
    assert len(said) == 1
    assert view.pinned is None
    alone, _ = made([], 1)
    assert alone.pinned is None
    assert len(alone.messages) == 2


@pytest.mark.contract("CTX-33")
def test_the_pin_follows_an_edit_and_moves_on_when_it_is_taken_back():
    records = history(["turn", "turn", "turn"])
    edited = record(1, "user", [text("edited")])
    for first, pinned in [(edited, "edited"), (None, "question 3")]:
        rest = records[2:] if first is None else [first, *records[1:]]
        view = ViewBuilder("p", "m")
        placed(view, rest, 5)
        assert view.messages[0] == UserMessage((TextPart(pinned),))
