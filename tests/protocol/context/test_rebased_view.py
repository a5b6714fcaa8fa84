"""A view whose history begins elsewhere in the middle of a turn."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from greenroom.protocol import (
    ImagePart,
    ItemId,
    MessageId,
    MessageRecord,
    TextBlock,
    ToolCallBlock,
    ToolMessage,
    ViewBuilder,
)
from greenroom.protocol.context import (
    Boundary,
    Reconstruction,
    checkpoint_of,
    stub_results,
)

LONG = "x" * 9_000


def message(order: int, *blocks: Any, status: Any = "sent") -> MessageRecord:
    return MessageRecord(
        id=MessageId(f"m{order}"),
        order_seq=order,
        role="user" if order % 2 else "assistant",
        status=status,
        blocks=blocks,
        created_at=0.0,
        updated_at=0.0,
    )


def said(order: int, text: str) -> MessageRecord:
    return message(order, TextBlock(id=ItemId(f"m{order}.0"), text=text))


def call(order: int, number: int, response: str) -> ToolCallBlock:
    return ToolCallBlock(
        id=ItemId(f"m{order}.{number}"),
        call_id="call",
        name="read",
        arguments="{}",
        round=number,
        status="success",
        response=response,
    )


def whole(records: list[MessageRecord], boundary: Boundary | None = None) -> Any:
    view = ViewBuilder("p", "m")
    view.add_system("rules")
    if boundary is not None and (checkpoint := checkpoint_of(boundary)) is not None:
        view.add_checkpoint(checkpoint.text, checkpoint.sections)
    for record in records:
        if record.role == "user" and not view.has_pin:
            view.pin(record)
        if boundary is not None and record.order_seq < boundary.cursor:
            view.leave_out(record, "before_summary_cursor")
        else:
            view.add_record(record)
    return view


def test_the_turn_stays_when_the_history_begins_elsewhere():
    records = [said(1, "first"), message(2, call(2, 0, "old")), said(3, "now")]
    turn = message(4, call(4, 0, "done before"), status="pending")
    blocks = [*turn.blocks, call(4, 1, "done now")]
    view = whole(records)
    view.replace_system("other rules")
    view.begin_turn(turn)
    view.prefix_user("remember")
    view.add_resumed(turn.blocks)
    view.add_rounds(blocks[1:])
    state = Reconstruction(cursor_order_seq=3, summary="the story")
    view.rebase(whole(records, Boundary("compaction/auto", 9, state)), blocks)
    messages = view.messages
    assert [type(m).__name__ for m in messages] == [
        "SystemMessage",
        "UserMessage",
        "UserMessage",
        "UserMessage",
        "AssistantMessage",
        "ToolMessage",
        "AssistantMessage",
        "ToolMessage",
    ]
    assert messages[0].text == "other rules"
    assert messages[1].parts[0].text == "first"
    assert "the story" in messages[2].parts[0].text
    assert [part.text for part in messages[3].parts] == ["remember", "now"]
    assert [m.text for m in messages if isinstance(m, ToolMessage)] == [
        "done before",
        "done now",
    ]
    reasons = [part.reason for part in view.parts if part.count]
    assert reasons[-2:] == ["resume_target", "tool_loop_message"]


def test_what_a_provider_refused_stays_left_out():
    view = whole([said(1, "look")])
    view.reject(ImagePart("image/png", "AAAA"))
    base = whole([said(1, "look")])
    view.rebase(base, [])
    assert view.left_out_items == base.left_out_items == 1


@given(st.integers(1, 5), st.integers(0, 4), st.booleans())
def test_calls_stay_paired_and_unique_whatever_is_hidden(turns, rounds, newest):
    records = [
        each
        for n in range(turns)
        for each in (
            said(2 * n + 1, f"ask {n}"),
            message(2 * n + 2, call(2 * n + 2, 0, LONG)),
        )
    ]
    active = 2 * turns + 1
    records.append(said(active, "now"))
    turn = message(active + 1, status="pending")
    blocks = [call(active + 1, n, LONG) for n in range(rounds)]
    view = whole(records)
    view.begin_turn(turn)
    view.add_rounds(blocks)
    state = Reconstruction(cursor_order_seq=2 * turns - 1, summary="s")
    view.rebase(whole(records, Boundary("compaction/auto", 9, state)), blocks)
    view.shorten(stub_results(view.messages, newest=newest))
    calls = [c.id for m in view.messages for c in getattr(m, "calls", ())]
    results = [m.call_id for m in view.messages if isinstance(m, ToolMessage)]
    assert calls == results
    assert len(set(calls)) == len(calls)
    assert len(results) == rounds + 1
