"""Whatever was said goes into frames, and nothing of it is lost without a word."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from kit.stores import SETTINGS, message

from greenroom.protocol import (
    ActionBlock,
    Block,
    Diff,
    ImageBlock,
    ImagePart,
    ItemId,
    MessageId,
    MessageRecord,
    MessagesChanged,
    PendingInput,
    RunId,
    SessionId,
    Snapshot,
    StreamUpdated,
    TextBlock,
    TextPart,
    ToolCallBlock,
)
from greenroom.protocol.gateway import (
    MAX_FRAME_BYTES,
    Cut,
    EventNotice,
    Opcode,
    attached,
    event_message,
    fit_inputs,
    fit_message,
    interactions_of,
    message_from,
    page_of,
    server_frame,
    slice_of,
)

S = SessionId("s")
SMALL = 40_000
"""A budget that is small enough to try much, and above what one block needs."""


def size(value: object) -> int:
    return len(msgspec.json.encode(value))


def text(number: int, length: int) -> TextBlock:
    return TextBlock(id=ItemId(f"m:{number}"), text="\x01" * length)


def call(number: int, length: int) -> ToolCallBlock:
    diff = Diff(path="a", new_text="n" * length, old_text="o" * length)
    return ToolCallBlock(
        id=ItemId(f"m:{number}"),
        call_id=f"c{number}",
        name="edit",
        arguments="a" * length,
        response="r" * length,
        diffs=(diff,) if length else (),
        options={"k": "v" * length} if length else None,
    )


def image(number: int, length: int) -> ImageBlock:
    return ImageBlock(
        id=ItemId(f"m:{number}"), media_type="image/png", data="d" * length
    )


def action(number: int, status: Any = "pending", detail: int = 0) -> ActionBlock:
    return ActionBlock(
        id=ItemId(f"a:{number}"),
        action="tool_call_permission",
        origin="pre-check-permission",
        tool_block_id=ItemId(f"m:{number}"),
        title="may it?",
        detail="d" * detail,
        status=status,
    )


def record(*blocks: Block, order: int = 1, role: Any = "assistant") -> MessageRecord:
    made = message(name=f"m{order}", order=order, role=role)
    return msgspec.structs.replace(made, blocks=blocks)


BLOCKS = st.tuples(
    st.sampled_from([text, call, image]), st.sampled_from([0, 10, 900, 5_000, 70_000])
)


def whole(found: MessageRecord, block_id: str, field: str) -> Any:
    """Read a field in slices, as a client does."""
    said = ""
    while True:
        part = slice_of(found, block_id, field, len(said), 1_000)
        assert part is not None
        said += part.text
        if len(said) == part.total:
            return said


@settings(max_examples=60, deadline=None)
@given(st.lists(BLOCKS, max_size=60))
def test_a_message_fits_and_every_loss_is_told(made: list[Any]):
    found = record(*(make(n, length) for n, (make, length) in enumerate(made)))
    fitted, cuts = fit_message(found, SMALL)
    assert size(fitted) <= SMALL
    if not cuts:
        assert fitted == found
        return
    kept = {block.id: block for block in fitted.blocks}
    left_out = [cut for cut in cuts if cut.field == "blocks"]
    if len(kept) < len(found.blocks):
        assert left_out == [
            Cut(message_id=found.id, field="blocks", total=len(found.blocks))
        ]
        assert list(kept) == [b.id for b in found.blocks[-len(kept) :]] or not kept
    told = {(cut.block_id, cut.field): cut.total for cut in cuts}
    for block in found.blocks:
        for field in block.__struct_fields__ if block.id in kept else ():
            was, now = getattr(block, field), getattr(kept[block.id], field)
            if was != now:
                assert told[block.id, field] == len(whole(found, block.id, field))
                if isinstance(was, str):
                    assert was.startswith(now)
                    assert whole(found, block.id, field) == was


@settings(max_examples=60, deadline=None)
@given(st.lists(BLOCKS, max_size=60))
def test_a_message_is_read_whole_in_parts(made: list[Any]):
    found = record(*(make(n, length) for n, (make, length) in enumerate(made)))
    read: list[str] = []
    offset: int | None = 0
    while offset is not None:
        part = message_from(found, offset, SMALL)
        assert part.total == len(found.blocks)
        assert size(part.message) <= SMALL
        read += [block.id for block in part.message.blocks]
        assert part.next is None or part.next > offset
        offset = part.next
    assert read == [block.id for block in found.blocks]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([10, 5_000, 20_000, 90_000]), max_size=12))
def test_pages_hold_every_message_once_in_order(lengths: list[int]):
    said = [record(text(0, n), order=order) for order, n in enumerate(lengths, 1)]
    read: list[int] = []
    before: int | None = len(said) + 1
    while before is not None:
        rows = said[: before - 1]
        page = page_of(rows, older=False, budget=SMALL)
        assert sum(map(size, page.messages)) <= SMALL
        read = [m.order_seq for m in page.messages] + read
        assert page.next is None or page.next < before
        before = page.next
    assert read == [m.order_seq for m in said]


def test_a_page_says_that_there_is_more_before_what_was_read():
    assert page_of([record(text(0, 1), order=7)], older=True).next == 7
    assert page_of([], older=True).next is None


def test_what_is_no_text_of_a_block_can_not_be_sliced():
    found = record(call(0, 10), text(1, 5))
    assert slice_of(found, "m:9", "text", 0, 10) is None
    assert slice_of(found, "m:1", "status", 0, 10) is None
    assert slice_of(found, "m:1", "__class__", 0, 10) is None
    assert slice_of(found, "m:1", "response", 0, 10) is None
    diffs = slice_of(found, "m:0", "diffs", 0, 10_000)
    assert diffs is not None
    assert json.loads(diffs.text)[0]["path"] == "a"
    assert slice_of(found, "m:1", "text", 9, 10) == slice_of(found, "m:1", "text", 5, 1)


def test_an_event_goes_into_a_frame_or_says_what_it_lacks():
    small = MessagesChanged(session_id=S, seq=1, message=record(text(0, 10)))
    data = event_message(small, msgspec.json.encode(small))
    assert msgspec.json.decode(data)["params"].keys() == {"event"}
    blocks = [text(n, 20_000) for n in range(50)]
    large = MessagesChanged(session_id=S, seq=1, message=record(*blocks))
    output = StreamUpdated(
        session_id=S,
        run_id=RunId("r"),
        message_id=MessageId("m1"),
        item_id=ItemId("m:1"),
        kind="tool_output",
        offset=7,
        text="\x01" * 900_000,
    )
    block = msgspec.structs.replace(
        output, kind="tool_call", text="", block=call(1, 1_200_000)
    )
    for event, fields in (
        (large, {"text"}),
        (output, {"response"}),
        (block, {"arguments", "response", "diffs", "options"}),
    ):
        encoded = msgspec.json.encode(event)
        assert len(encoded) > MAX_FRAME_BYTES
        data = event_message(event, encoded, more=True)
        assert len(data) <= MAX_FRAME_BYTES
        params = msgspec.json.encode(msgspec.json.decode(data)["params"])
        notice = msgspec.json.decode(params, type=EventNotice)
        assert notice.more
        assert {cut.field for cut in notice.cut} == fields
    assert notice.cut[0].block_id == "m:1"


def test_what_waits_is_in_the_newest_message_of_the_assistant():
    old = record(call(1, 1), action(1), order=2)
    new = record(
        call(1, 1), call(2, 20_000), action(1, "granted"), action(2), action(3), order=4
    )
    user = record(text(0, 1), order=5, role="user")
    waiting = interactions_of(S, [old, new, user])
    assert [each.block.id for each in waiting] == ["a:2", "a:3"]
    first = waiting[0]
    assert (first.session_id, first.message_id) == (S, "m4")
    assert isinstance(first.tool, ToolCallBlock)
    assert (first.tool.id, len(first.tool.arguments)) == ("m:2", 8_192)
    assert waiting[1].tool is None
    assert interactions_of(S, [user]) == ()
    many = record(*(action(n) for n in range(500)))
    assert len(interactions_of(S, [many])) == 32


def test_an_attachment_with_everything_at_its_longest_goes_into_a_frame():
    rows = [
        PendingInput(
            id=f"i{n}",
            mode="queue",
            parts=(TextPart("\x01" * 150_000), ImagePart("image/png", "d" * 100_000)),
            created_at=0.0,
            updated_at=0.0,
        )
        for n in range(6)
    ]
    said = [
        record(call(n, 200_000), action(n, detail=90_000), order=n) for n in range(30)
    ]
    asks = record(*(action(n, detail=90_000) for n in range(200)), order=30)
    begun = attached(
        Snapshot(
            session_id=S,
            seq=99,
            incarnation="i",
            settings=msgspec.structs.replace(SETTINGS, system_prompt="p" * 200_000),
            state="idle",
            status_version=0,
            messages=(*said, asks),
            inputs=tuple(rows),
        ),
        99,
        interactions_of(S, [asks]),
    )
    assert size(begun) < MAX_FRAME_BYTES
    assert begun.snapshot is not None
    assert begun.older
    assert begun.snapshot.messages[-1].order_seq == 30
    assert {cut.input_id for cut in begun.cut if cut.input_id} == {r.id for r in rows}
    first = begun.snapshot.inputs[0].parts
    assert first == (TextPart("\x01" * 8_192), ImagePart("image/png", ""))
    assert attached(None, 3, ()) == attached(None, 3, [])


def test_inputs_that_fit_are_as_they_are():
    rows = [
        PendingInput(id="a", mode="queue", parts=None, created_at=0.0, updated_at=0.0),
        PendingInput(
            id="b", mode="steer", parts=(TextPart("x"),), created_at=0.0, updated_at=0.0
        ),
    ]
    assert fit_inputs(rows) == (tuple(rows), ())
    assert fit_inputs(rows, 1) == (tuple(rows), ())


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 65_535, 65_536, 100_000])
def test_a_frame_of_the_server_has_no_mask_and_says_its_length(length: int):
    payload = b"x" * length
    frame = server_frame(payload)
    assert frame[0] == 0x81, "one whole text frame"
    assert frame.endswith(payload)
    head = frame[1 : len(frame) - length]
    if length < 126:
        assert head == bytes((length,))
    elif length < 65_536:
        assert head == b"\x7e" + length.to_bytes(2, "big")
    else:
        assert head == b"\x7f" + length.to_bytes(8, "big")


def test_a_control_frame_is_short():
    assert server_frame(b"hi", Opcode.PING) == b"\x89\x02hi"
    assert server_frame(b"x" * 125, Opcode.CLOSE)[:2] == b"\x88\x7d"
    with pytest.raises(ValueError, match="125 bytes, not 126"):
        server_frame(b"x" * 126, Opcode.PONG)
