from __future__ import annotations

import msgspec
from hypothesis import given, strategies as st

from greenroom.protocol import (
    MAX_BLOCK_BYTES,
    MAX_PAYLOAD_BYTES,
    ActionBlock,
    Diff,
    ErrorBlock,
    ImageBlock,
    ItemId,
    MessageId,
    MessageRecord,
    TextBlock,
    ToolCallBlock,
    fit_block,
    in_revisions,
    revisions,
)

ITEM = ItemId("m.0")
# One character that JSON writes as six.
WIDE = "\x01"
sizes = st.sampled_from([0, 10, 39_000, 150_000, 400_000])


def text(size):
    return TextBlock(id=ITEM, text=WIDE * size)


def call(arguments, response, diff):
    return ToolCallBlock(
        id=ITEM,
        call_id="c",
        name="write",
        arguments=WIDE * arguments,
        response=WIDE * response,
        diffs=(Diff("f", WIDE * diff),),
    )


def action(size):
    return ActionBlock(
        id=ITEM,
        action="tool_call_permission",
        origin="question",
        tool_block_id=ITEM,
        title=WIDE * size,
        detail=WIDE * size,
    )


blocks = st.one_of(
    st.builds(text, sizes),
    st.builds(call, sizes, sizes, sizes),
    st.builds(action, sizes),
    st.builds(lambda n: ErrorBlock(id=ITEM, code="c", text=WIDE * n), sizes),
    st.builds(lambda n: ImageBlock(id=ITEM, media_type="i", data="A" * n * 4), sizes),
)


@given(blocks)
def test_every_block_fits_and_keeps_its_place(block):
    fitted = fit_block(block)
    assert len(msgspec.json.encode(fitted)) <= MAX_BLOCK_BYTES
    assert (fitted.id, type(fitted)) == (block.id, type(block))


def test_a_block_that_fits_is_left_alone():
    block = call(10, 10, 10)
    assert fit_block(block) is block


def test_what_was_only_shown_goes_before_what_was_said():
    fitted = fit_block(call(30_000, 30_000, 150_000))
    assert isinstance(fitted, ToolCallBlock)
    assert fitted.diffs == ()
    assert len(fitted.arguments) == 30_000


@given(st.lists(blocks, max_size=6))
def test_revisions_hold_every_block_once_in_order_and_fit_a_fact(many):
    groups = in_revisions(many)
    assert groups
    assert [block for group in groups for block in group] == list(map(fit_block, many))
    for group in groups:
        assert len(msgspec.json.encode(group)) < MAX_PAYLOAD_BYTES
    assert all(groups) or groups == [()]


@given(st.lists(blocks, max_size=6), st.sampled_from(["pending", "sent", "error"]))
def test_only_the_last_revision_ends_a_message(many, status):
    record = MessageRecord(
        id=MessageId("m"),
        order_seq=1,
        role="assistant",
        status=status,
        created_at=0.0,
        updated_at=0.0,
    )
    *earlier, last = revisions(record, many)
    assert last.status == status
    assert {part.status for part in earlier} <= {"pending"}
    parts = [part.blocks for part in (*earlier, last)]
    assert parts == in_revisions(many)
