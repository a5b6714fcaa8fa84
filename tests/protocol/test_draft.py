from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from greenroom.protocol import (
    MAX_ARGUMENT_CHARS,
    MAX_ROUND_CHARS,
    ROUND_FULL,
    ActionBlock,
    Draft,
    ImageData,
    ItemId,
    MessageId,
    ReasoningBlock,
    ReasoningDelta,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallChunk,
    ToolCallEnd,
    ToolCallStart,
)


def make() -> Draft:
    draft = Draft(MessageId("m"))
    draft.begin_round(1, 1)
    return draft


def whole_call(index: int, call_id: str, arguments: str = "{}"):
    return [
        ToolCallStart(index=index, id=call_id, name="read"),
        ToolCallChunk(index=index, text=arguments),
        ToolCallEnd(index=index, id=call_id, name="read", arguments=arguments),
    ]


def apply(draft: Draft, *events) -> None:
    for event in events:
        draft.apply(event)


def test_text_and_thinking_make_blocks_in_the_order_they_came():
    draft = make()
    apply(draft, ReasoningDelta("hm"), TextDelta("a"), TextDelta("b"))
    draft.begin_round(2, 2)
    assert draft.blocks == (
        ReasoningBlock(id=ItemId("m.0"), text="hm", round=1),
        TextBlock(id=ItemId("m.1"), text="ab", round=1),
    )


@given(st.lists(st.tuples(st.sampled_from("tr"), st.text(max_size=5)), max_size=20))
def test_what_watchers_are_told_adds_up_to_what_is_kept(deltas):
    draft, seen = make(), {}
    for kind, text in deltas:
        event = TextDelta(text) if kind == "t" else ReasoningDelta(text)
        for change in draft.apply(event):
            assert change.offset == len(seen.get(change.item_id, ""))
            seen[change.item_id] = seen.get(change.item_id, "") + change.text
    kept = {block.id: block.text for block in draft.blocks}  # pyright: ignore[reportAttributeAccessIssue]
    assert kept == seen


def test_unsafe_text_is_made_safe_at_capture():
    draft = make()
    apply(draft, TextDelta("a\x00b\ud800"), *whole_call(0, "c\x00", '{"a":"\x00"}'))
    text, call = draft.blocks
    assert isinstance(text, TextBlock)
    assert isinstance(call, ToolCallBlock)
    assert "\x00" not in text.text + call.call_id + call.arguments
    text.text.encode()


@pytest.mark.parametrize("ids", [["a", "a"], ["a", "a", "a-2"], ["", "", "call_1"]])
def test_every_announced_call_has_an_identity_of_its_own(ids):
    draft = make()
    for index, call_id in enumerate(ids):
        apply(draft, *whole_call(index, call_id))
    call_ids = [call.call_id for call in draft.completed_calls]
    assert len(set(call_ids)) == len(ids)
    assert all(call_ids)


def test_a_call_without_its_end_is_open_and_not_complete():
    draft = make()
    apply(draft, *whole_call(0, "a"), ToolCallStart(index=1, id="b", name="read"))
    apply(draft, ToolCallChunk(index=1, text='{"pa'))
    assert [call.call_id for call in draft.completed_calls] == ["a"]
    assert [call.call_id for call in draft.open_calls] == ["a", "b"]
    assert draft.open_calls[1].arguments == '{"pa'


def test_endless_arguments_are_cut_one_character_after_the_limit():
    draft = make()
    apply(draft, ToolCallStart(index=0, id="a", name="write"))
    for _ in range(5):
        apply(draft, ToolCallChunk(index=0, text="x" * 100_000))
    assert len(draft.open_calls[0].arguments) == MAX_ARGUMENT_CHARS + 1


def test_only_what_changed_is_handed_out_and_can_be_given_back():
    draft = make()
    apply(draft, TextDelta("a"), *whole_call(0, "c"))
    first = draft.take_changed()
    assert [block.id for block in first] == ["m.0", "m.1"]
    assert draft.take_changed() == ()

    call = draft.completed_calls[0]
    draft.replace(
        ToolCallBlock(
            id=call.id, call_id="c", name="read", arguments="{}", response="r"
        )
    )
    changed = draft.take_changed()
    assert [block.id for block in changed] == ["m.1"]
    draft.give_back(changed)
    assert draft.take_changed() == changed


def test_a_resumed_draft_goes_on_with_the_stored_blocks():
    draft = make()
    apply(draft, TextDelta("a"))
    ask = ActionBlock(
        id=draft.new_id(),
        action="tool_call_permission",
        origin="pre-check-permission",
        tool_block_id=ItemId("m.0"),
        title="?",
    )
    draft.add(ask)

    again = Draft.resume(MessageId("m"), draft.blocks)
    assert again.unresolved == (ask,)
    again.begin_round(2, 2)
    apply(again, TextDelta("b"))
    assert [block.id for block in again.blocks] == ["m.0", "m.1", "m.2"]
    assert [block.round for block in again.round_blocks] == [2]


def test_a_very_long_reply_is_split_into_blocks_that_fit_a_fact():
    draft = make()
    apply(draft, TextDelta("x" * 450_000))
    texts = [block.text for block in draft.blocks if isinstance(block, TextBlock)]
    assert [len(text) for text in texts] == [100_000] * 4 + [50_000]


def test_a_reply_without_end_is_cut_once_with_a_note():
    draft = Draft(MessageId("m"))
    draft.begin_round(1, 1)
    for _ in range(60):
        draft.apply(TextDelta("x" * 100_000))
    kept = "".join(block.text for block in draft.blocks if isinstance(block, TextBlock))
    assert kept.count(ROUND_FULL) == 1
    assert kept.endswith(ROUND_FULL)
    assert MAX_ROUND_CHARS * 0.9 < len(kept) < MAX_ROUND_CHARS + len(ROUND_FULL)
    # The next round has room of its own.
    draft.begin_round(2, 2)
    assert draft.apply(TextDelta("more"))


def test_many_small_items_and_images_are_bounded_too():
    draft = Draft(MessageId("m"))
    draft.begin_round(1, 1)
    for _ in range(10_000):
        draft.apply(TextDelta("a"))
        draft.apply(ReasoningDelta("b"))
    assert len(draft.blocks) < 10_000
    draft.begin_round(2, 2)
    image = ImageData(media_type="image/png", data="A" * 700_000)
    images = [draft.apply(image) for _ in range(10)]
    assert [bool(changes) for changes in images] == [True] * 5 + [False] * 5
