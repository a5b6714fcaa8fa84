"""What a client is told of a turn: everything once, and an end for every call."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from kit.acp_schema import validate

from greenroom.protocol import (
    ActionBlock,
    Diff,
    ErrorBlock,
    ImageBlock,
    ItemId,
    Location,
    MessageId,
    MessageRecord,
    MessagesChanged,
    Plan,
    PlanEntry,
    PlanUpdated,
    QuestionOption,
    ReasoningBlock,
    RunId,
    SessionId,
    SessionSettings,
    SessionUpdated,
    StatusChanged,
    StreamCompleted,
    StreamFailed,
    StreamUpdated,
    TextBlock,
    ToolCallBlock,
)
from greenroom.protocol.acp.v1 import (
    AgentMessageChunk,
    AgentThoughtChunk,
    CurrentModeUpdate,
    ImageContent,
    Narration,
    PlanReplaced,
    SessionInfoUpdate,
    TextContent,
    ToolCall,
    ToolCallUpdate,
    ToolDiff,
    ToolLocation,
    fenced,
)

SETTINGS = SessionSettings(
    agent_id="default", title="t", workspace="/project", provider="p", model="m"
)


def stream(kind: Any, item: str, **fields: Any) -> StreamUpdated:
    return StreamUpdated(
        session_id=SessionId("s"),
        run_id=RunId("r"),
        message_id=MessageId("m"),
        item_id=ItemId(item),
        kind=kind,
        **fields,
    )


def shown(block: Any, kind: Any = "tool_call") -> StreamUpdated:
    return stream(kind, block.id, block=block)


def record(*blocks: Any, role: Any = "assistant") -> MessageRecord:
    return MessageRecord(
        id=MessageId("m"),
        order_seq=2,
        role=role,
        status="pending",
        blocks=blocks,
        created_at=0.0,
        updated_at=0.0,
    )


def stored(*blocks: Any, role: Any = "assistant") -> MessagesChanged:
    message = record(*blocks, role=role)
    return MessagesChanged(session_id=SessionId("s"), seq=1, message=message)


def call(item: str = "m.0", **fields: Any) -> ToolCallBlock:
    defaults: dict[str, Any] = {"call_id": "c", "name": "write", "arguments": ""}
    return ToolCallBlock(id=ItemId(item), **(defaults | fields))


def action(item: str = "m.1", about: str = "m.0", **fields: Any) -> ActionBlock:
    defaults: dict[str, Any] = {
        "action": "tool_call_permission",
        "origin": "pre-check-permission",
        "title": "write a",
    }
    return ActionBlock(
        id=ItemId(item), tool_block_id=ItemId(about), **(defaults | fields)
    )


def tell(narration: Narration, *events: Any) -> list[Any]:
    updates = [u for event in events for u in narration.updates_of(event)]
    for update in updates:
        validate("SessionUpdate", update)
    return updates


def narrate(*events: Any) -> list[Any]:
    return tell(Narration(SETTINGS), *events)


def text_of(updates: list[Any]) -> str:
    return "".join(
        u.content.text
        for u in updates
        if isinstance(u, AgentMessageChunk) and isinstance(u.content, TextContent)
    )


def statuses(updates: list[Any]) -> list[Any]:
    calls = [u for u in updates if isinstance(u, ToolCall | ToolCallUpdate)]
    return [u.status for u in calls if u.status is not None]


#### Text


def test_text_and_thoughts_are_chunks_of_their_item() -> None:
    assert narrate(
        stream("reasoning", "m.0", text="hm"), stream("text", "m.1", text="hi")
    ) == [
        AgentThoughtChunk(TextContent("hm"), "m.0"),
        AgentMessageChunk(TextContent("hi"), "m.1"),
    ]


TEXT = "The quick brown \U0001f98a jumps."


@given(st.lists(st.tuples(st.integers(0, len(TEXT)), st.integers(0, len(TEXT)))))
def test_text_is_told_once_whatever_comes_twice_or_not_at_all(
    pieces: list[tuple[int, int]],
) -> None:
    narration = Narration(SETTINGS)
    block = TextBlock(id=ItemId("m.0"), text=TEXT)
    updates = []
    for start, end in pieces:
        if start > end:
            snapshot = msgspec.structs.replace(block, text=TEXT[:end])
            updates += tell(narration, shown(snapshot, "text"))
        else:
            updates += tell(
                narration, stream("text", "m.0", offset=start, text=TEXT[start:end])
            )
        assert TEXT.startswith(text_of(updates))
    updates += tell(narration, stored(block))
    assert text_of(updates) == TEXT
    assert narration.finish(record(block)) == []


def test_an_image_of_the_model_is_told_once() -> None:
    image = ImageBlock(id=ItemId("m.0"), media_type="image/png", data="aaaa")
    assert narrate(shown(image, "text"), stored(image)) == [
        AgentMessageChunk(ImageContent("image/png", "aaaa"), "m.0")
    ]


#### Tool calls


def test_a_call_is_announced_once_and_then_only_what_changed_is_told() -> None:
    place = (Location("/project/a", 3),)
    diffs = (Diff("/project/a", "new", "old"),)
    begun = call(arguments='{"path": "a"}', title="Write a", kind="edit")
    about = msgspec.structs.replace(begun, locations=place, diffs=diffs)
    working = msgspec.structs.replace(about, status="loading")
    done = msgspec.structs.replace(working, status="success", response="written")

    first, named, *rest = narrate(
        shown(call()), shown(begun), shown(about), shown(working), shown(done)
    )

    assert first == ToolCall(
        tool_call_id="m.0", title="write", name="write", kind="other", status="pending"
    )
    assert named == ToolCallUpdate(
        tool_call_id="m.0", title="Write a", kind="edit", raw_input={"path": "a"}
    )
    described, started, ended = rest
    assert [(one.path, one.line) for one in described.locations] == [("/project/a", 3)]
    assert described.content == (ToolDiff("/project/a", "new", "old"),)
    assert started == ToolCallUpdate(tool_call_id="m.0", status="in_progress")
    # The diff says it all, and was told.
    assert ended == ToolCallUpdate(tool_call_id="m.0", status="completed")


def test_arguments_that_grow_or_are_no_object_are_not_told() -> None:
    updates = narrate(
        shown(call()),
        stream("tool_call", "m.0", text='{"pa'),
        shown(call(arguments='{"pa')),
        shown(call(arguments="[1]")),
        shown(call(arguments='{"a":' + "[" * 5_000)),
        shown(call(arguments=f'{{"a":"{"x" * 70_000}"}}')),
    )
    assert len(updates) == 1


def test_places_are_absolute_and_lines_are_lines() -> None:
    (told,) = narrate(
        shown(call(locations=(Location("b", -1), Location("/c", 2**40)))),
    )
    assert told.locations == (ToolLocation("/project/b"), ToolLocation("/c"))


def test_a_failed_call_says_why_beside_its_diff() -> None:
    failed = call(diffs=(Diff("a", "x"),), status="error", response="no `tick`")
    (told,) = narrate(shown(failed))
    diff, text = told.content
    assert (diff.path, diff.old_text) == ("/project/a", None)
    assert text.content.text == "```\nno `tick`\n```"


def test_output_of_a_running_call_is_shown_by_its_end() -> None:
    narration = Narration(SETTINGS)
    tell(narration, shown(call(status="loading")))
    tell(narration, stream("tool_output", "m.0", text="a" * 10_000))
    (update,) = tell(narration, stream("tool_output", "m.0", text="the end"))
    shown_text = update.content[0].content.text
    assert shown_text.endswith("the end\n```")
    assert len(shown_text) < 4_100

    (ended,) = tell(narration, shown(call(status="success", response="all of it")))
    assert ended.content[0].content.text == "```\nall of it\n```"
    assert tell(narration, stream("tool_output", "m.0", text="late")) == []
    assert tell(narration, stream("tool_output", "m.9", text="of nothing")) == []


def test_what_comes_after_a_call_s_end_is_not_told() -> None:
    narration = Narration(SETTINGS)
    tell(narration, shown(call(status="success", response="done")))
    assert tell(narration, shown(call(status="error", response="no"))) == []
    assert tell(narration, stored(call(status="loading"))) == []
    assert narration.finish(record(call(status="error", response="no"))) == []


def test_a_call_without_an_end_gets_one() -> None:
    narration = Narration(SETTINGS)
    tell(narration, shown(call("m.0")), shown(call("m.1", status="loading")))
    updates = narration.finish(None)
    assert statuses(updates) == ["failed", "failed"]
    assert narration.finish(None) == []


def test_a_call_that_was_never_seen_is_told_whole_at_the_end() -> None:
    (told,) = Narration(SETTINGS).finish(
        record(call(status="success", response="done"))
    )
    assert isinstance(told, ToolCall)
    assert told.status == "completed"


@pytest.mark.parametrize(
    ("text", "fence"), [("a", "```"), ("a ``` b", "````"), ("`````", "``````")]
)
def test_a_fence_is_longer_than_any_in_the_text(text: str, fence: str) -> None:
    assert fenced(text) == f"{fence}\n{text}\n{fence}"


#### Calls that wait

WAITS = call(status="success", response="")


def test_a_call_that_waits_is_neither_done_nor_failed() -> None:
    narration = Narration(SETTINGS)
    asked = action()
    updates = tell(
        narration, shown(call()), shown(WAITS), shown(asked, "action"), stored(WAITS)
    )
    # Stored without its question it would be an empty result; here both come.
    assert statuses(updates) == ["pending", "completed"]

    narration = Narration(SETTINGS)
    updates = tell(narration, shown(call()), shown(WAITS), stored(WAITS, asked))
    assert statuses(updates) == ["pending"]
    assert narration.waiting == (asked,)


def test_only_a_question_that_is_on_disk_waits() -> None:
    narration = Narration(SETTINGS)
    tell(narration, shown(action(), "action"))
    assert narration.waiting == ()


def test_a_granted_call_goes_on_to_its_one_end() -> None:
    narration = Narration(SETTINGS)
    tell(narration, shown(call()), shown(WAITS), stored(WAITS, action()))

    granted = tell(narration, stored(action(status="granted")))
    assert granted == []
    assert narration.waiting == ()
    updates = tell(
        narration,
        shown(call(status="loading")),
        shown(call(status="success", response="done")),
        stored(call(status="success", response="done")),
    )
    assert statuses(updates) == ["in_progress", "completed"]


def test_a_denied_call_has_failed() -> None:
    narration = Narration(SETTINGS)
    tell(narration, shown(call()), shown(WAITS), stored(WAITS, action()))
    updates = tell(
        narration,
        stored(action(status="denied"), call(status="error", response="denied")),
    )
    assert statuses(updates) == ["failed"]


def test_an_empty_result_is_a_result() -> None:
    narration = Narration(SETTINGS)
    empty = call(status="success", response="")
    assert statuses(tell(narration, shown(call(status="loading")), shown(empty))) == [
        "in_progress"
    ]
    assert statuses(tell(narration, stored(empty))) == ["completed"]


def test_of_several_calls_that_wait_the_first_is_asked_first() -> None:
    narration = Narration(SETTINGS)
    one, two = action("m.2", "m.0"), action("m.3", "m.1")
    other = call("m.1", status="success", response="")
    tell(narration, shown(WAITS), shown(other), stored(WAITS, other, one, two))
    assert narration.waiting == (one, two)

    tell(narration, stored(msgspec.structs.replace(one, status="granted")))
    assert narration.waiting == (two,)
    assert statuses(narration.finish(None)) == ["failed", "failed"]


def test_the_call_is_shown_with_its_question() -> None:
    narration = Narration(SETTINGS)
    tell(narration, shown(call(title="Write a")))
    assert narration.call_of(action()).title == "Write a"
    assert narration.call_of(action(about="m.7")).tool_call_id == "m.7"


#### The rest


def test_a_plan_replaces_the_one_before() -> None:
    plan = Plan(1, (PlanEntry("a", "completed", "high"), PlanEntry("b")))
    (told,) = narrate(PlanUpdated(session_id=SessionId("s"), seq=1, plan=plan))
    assert isinstance(told, PlanReplaced)
    assert [(e.content, e.status, e.priority) for e in told.entries] == [
        ("a", "completed", "high"),
        ("b", "pending", "medium"),
    ]


def test_settings_are_told_when_they_change() -> None:
    narration = Narration(SETTINGS)
    changed = msgspec.structs.replace(
        SETTINGS, title="other", permission_mode="full_access"
    )
    event = SessionUpdated(session_id=SessionId("s"), seq=1, settings=changed)
    assert tell(narration, event) == [
        SessionInfoUpdate("other"),
        CurrentModeUpdate("full_access"),
    ]
    assert tell(narration, event) == []


@pytest.mark.parametrize(
    "event",
    [
        StatusChanged(session_id=SessionId("s"), version=1, state="idle"),
        StreamCompleted(session_id=SessionId("s"), seq=1, message=record()),
        StreamFailed(session_id=SessionId("s"), seq=1, message=record()),
        stored(TextBlock(id=ItemId("u.0"), text="what I said"), role="user"),
        shown(ErrorBlock(id=ItemId("m.0"), code="x", text="told otherwise"), "error"),
        stream("action", "m.0", text="?"),
        stored(ReasoningBlock(id=ItemId("m.0"), text="")),
        stored(
            action(
                action="question_request",
                origin="question",
                options=(QuestionOption("a"),),
            )
        ),
    ],
)
def test_other_events_are_not_told(event: Any) -> None:
    assert narrate(event) == []
