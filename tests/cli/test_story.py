from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from greenroom.cli._harmless import harmless, json_line
from greenroom.cli._story import StoryLine, format_story, run_story, story_lines
from greenroom.protocol import (
    ActionBlock,
    Block,
    DispatchCommitted,
    ErrorBlock,
    Fact,
    FactKind,
    ItemId,
    JournalRecord,
    MessageId,
    MessageMetadata,
    MessageRecord,
    OperationId,
    Plan,
    PlanEntry,
    RunId,
    RunStarted,
    RunTerminal,
    SessionId,
    SessionSettings,
    SourceType,
    TapeEntry,
    TextBlock,
    ToolCallBlock,
    ToolOutcome,
    ToolTarget,
    journal_fact,
    make_payload,
)

RUN = RunId("11111111-1111-4111-8111-111111111111")
OTHER = RunId("22222222-2222-4222-8222-222222222222")
MESSAGE = MessageId("m1")
OPERATION = OperationId(run_id=RUN, request_seq=1, provider_tool_call_id="call_1")
HASH = "0" * 64
RECOVERED = "recovered after an interruption"


def fact(name: str, payload: Any = None, kind: FactKind = FactKind.EVENT) -> Fact:
    return Fact(
        kind=kind,
        name=name,
        source_type=SourceType.RUNTIME_EVENT,
        source_id="x",
        payload=payload if isinstance(payload, str) else make_payload(payload or {}),
    )


def tape(*said: Fact | JournalRecord) -> list[TapeEntry]:
    return [
        TapeEntry(
            session_id=SessionId("s"),
            seq=seq,
            token=1,
            fact=item if isinstance(item, Fact) else journal_fact(item),
            created_at=86_400.0 + seq,
        )
        for seq, item in enumerate(said, 1)
    ]


def texts(*said: Fact | JournalRecord) -> list[str]:
    return [line.text for line in story_lines(tape(*said))]


def message(*blocks: Block, **changes: Any) -> Fact:
    fields: dict[str, Any] = {
        "id": MESSAGE,
        "order_seq": 2,
        "role": "assistant",
        "status": "pending",
        "blocks": blocks,
        "created_at": 0.0,
        "updated_at": 0.0,
    }
    record = MessageRecord(**(fields | changes))
    return fact("message/recorded", msgspec.to_builtins(record), FactKind.MESSAGE)


def text(words: str) -> TextBlock:
    return TextBlock(id=ItemId("t1"), text=words)


def call(**changes: Any) -> ToolCallBlock:
    return ToolCallBlock(
        id=ItemId("c1"), call_id="call_1", name="shell", arguments="{}", **changes
    )


def action(**changes: Any) -> ActionBlock:
    return ActionBlock(
        id=ItemId("a1"),
        action="tool_call_permission",
        origin="pre-check-permission",
        tool_block_id=ItemId("c1"),
        title="run a command: ls",
        **changes,
    )


def started(run_id: RunId = RUN, **changes: Any) -> RunStarted:
    fields: dict[str, Any] = {"message_id": MESSAGE, "run_kind": "loop"}
    return RunStarted(run_id=run_id, **(fields | changes))


def dispatched() -> DispatchCommitted:
    return DispatchCommitted(
        operation=OPERATION,
        message_id=MESSAGE,
        tool_name="shell",
        tool_source="agent",
        arguments_hash=HASH,
        target=ToolTarget(server_name="builtin"),
    )


def outcome(*, is_error: bool = False) -> ToolOutcome:
    return ToolOutcome(operation=OPERATION, response_hash=HASH, is_error=is_error)


def ended(run_id: RunId = RUN, outcome: Any = "completed") -> RunTerminal:
    return RunTerminal(run_id=run_id, outcome=outcome, stop_reason="complete")


def test_a_run_is_told_from_its_start_to_its_end() -> None:
    done = MessageMetadata(
        run_id=RUN, run_outcome="completed", run_stop_reason="complete"
    )
    assert texts(
        message(text("list the files"), id="m0", role="user", status="sent"),
        started(),
        fact("view/assembled", {"requestSeq": 1}),
        fact(
            "provider/attempt_completed",
            {
                "logicalRound": 1,
                "requestSeq": 1,
                "physicalAttempt": 1,
                "status": "completed",
            },
        ),
        message(call(title="ls")),
        dispatched(),
        outcome(),
        fact(
            "tool/settled",
            {"toolCallId": "call_1", "name": "shell", "response": "a\nb"},
            FactKind.TOOL_RESULT,
        ),
        ended(),
        message(call(title="ls"), text("two files"), status="sent", metadata=done),
    ) == [
        "user: list the files",
        "run started",
        "assembled the view for request 1",
        "asked the model (round 1, request 1, attempt 1)",
        "the model called shell call_1: ls",
        "committed dispatch of shell call_1",
        "outcome of shell call_1: ok",
        "result of shell call_1: a b",
        "run ended: completed/complete",
        "model: two files",
        "turn: done",
    ]


def test_lines_know_their_run_their_entry_and_their_time() -> None:
    lines = story_lines(
        tape(
            fact("session/start", kind=FactKind.ANCHOR),
            started(),
            fact("view/assembled"),
            ended(),
            started(OTHER),
            ended(OTHER),
            fact("note/taken"),
        )
    )

    assert [line.run_id for line in lines] == [
        *(None, RUN, RUN, RUN, OTHER, OTHER, None)
    ]
    assert [line.seq for line in lines] == list(range(1, 8))
    assert lines[0].at == 86_401.0
    assert [line.seq for line in run_story(lines, OTHER)] == [5, 6]


def test_a_message_that_comes_after_the_terminal_belongs_to_its_run() -> None:
    lines = story_lines(
        tape(
            started(),
            ended(),
            message(text("done"), status="sent", metadata=MessageMetadata(run_id=RUN)),
        )
    )
    assert {line.run_id for line in lines} == {RUN}


def test_a_result_that_comes_after_the_terminal_belongs_to_the_run_of_its_call() -> (
    None
):
    result = {"toolCallId": "call_1", "name": "shell", "response": "done"}
    lines = story_lines(
        tape(
            started(),
            dispatched(),
            ended(),
            fact("tool/settled", result, FactKind.TOOL_RESULT),
        )
    )
    assert lines[-1].run_id == RUN


def test_the_same_revision_again_tells_nothing() -> None:
    revision = message(call(), action())
    assert texts(revision, revision, revision) == [
        "the model called shell call_1",
        "paused for a permission: run a command: ls",
    ]


@pytest.mark.parametrize(
    ("block", "told"),
    [
        (action(status="granted"), "granted"),
        (action(status="denied", answer="too risky"), "denied: too risky"),
        (
            msgspec.structs.replace(
                action(), action="question_request", title="which?"
            ),
            "paused for an answer: which?",
        ),
        (
            msgspec.structs.replace(
                action(status="success", answer="red"), action="question_request"
            ),
            "answered: red",
        ),
        (ErrorBlock(id=ItemId("e"), code="no_key", text="no key"), "no_key: no key"),
    ],
)
def test_a_block_tells_what_became_of_it(block: Block, told: str) -> None:
    assert texts(message(block)) == [told]


@pytest.mark.parametrize(
    ("said", "tone", "told"),
    [
        (outcome(is_error=True), "bad", "outcome of call_1: error"),
        (ended(outcome="paused"), "careful", "run ended: paused/complete"),
        (ended(outcome="error"), "bad", "run ended: error/complete"),
        (ended(outcome="aborted"), "careful", "run ended: aborted/complete"),
        (
            started(run_kind="deferred_tool"),
            "plain",
            "run started for an answered call",
        ),
        (
            fact(
                "provider/attempt_completed",
                {"requestSeq": 2, "errorCode": "429", "retryDelayMs": 250.0},
            ),
            "careful",
            "asked the model (request 2): 429, again in 250 ms",
        ),
        (
            fact("provider/attempt_completed", {"status": "aborted"}),
            "bad",
            "asked the model (no numbers): aborted",
        ),
        (
            fact(
                "recovery/run_acknowledged",
                {"runId": RUN, "runClass": "indeterminate"},
            ),
            "careful",
            f"{RECOVERED}: it is not known whether a tool had its effect",
        ),
        (
            fact(
                "recovery/run_acknowledged",
                {"runId": RUN, "runClass": "corruption", "reason": "no start"},
            ),
            "careful",
            f"{RECOVERED}: its journal can't be trusted (no start)",
        ),
        (fact("message/retracted"), "careful", "a message was retracted"),
        (fact("moon/landed"), "plain", "noted moon/landed"),
        (fact("session/start"), "plain", "session started"),
        (
            fact(
                "tool/settled",
                {"toolCallId": "c", "name": "read", "isError": True},
                FactKind.TOOL_RESULT,
            ),
            "bad",
            "result of read c: (empty)",
        ),
    ],
)
def test_each_fact_has_words_and_a_tone(
    said: Fact | JournalRecord, tone: str, told: str
) -> None:
    (line,) = story_lines(tape(said))
    assert (line.tone, line.text) == (tone, told)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ["waits in the inbox: say it"]),
        ({"held": True}, ["held in the inbox: say it"]),
        ({"held": True, "returned": True}, ["is back in the inbox: say it"]),
        (
            {"state": "blocked", "blocking": ["no images"]},
            ["blocked in the inbox: no images"],
        ),
        ({"state": "claimed", "sent": True}, []),
        ({"state": "consumed", "end": "delivered"}, []),
        ({"state": "consumed", "end": "deleted"}, ["deleted from the inbox"]),
    ],
)
def test_input_is_told_until_its_message_is(
    changes: dict[str, Any], told: list[str]
) -> None:
    row = {"id": "i", "mode": "queue", "createdAt": 1.0, "updatedAt": 1.0}
    row |= {"parts": [{"type": "text", "text": "say it"}]}
    lines = story_lines(tape(started(), fact("input/recorded", row | changes)))[1:]
    assert [line.text for line in lines] == told
    # Whatever ran meanwhile, it is the session's.
    assert all(line.run_id is None for line in lines)


def test_settings_and_plans_are_told() -> None:
    settings = SessionSettings(
        agent_id="a", title="t", workspace="/w", provider="ollama", model="small"
    )
    plan = Plan(
        revision=2,
        entries=(PlanEntry(content="a", status="completed"), PlanEntry(content="b")),
    )
    assert texts(
        fact("session/configured", msgspec.to_builtins(settings)),
        fact("plan/updated", msgspec.to_builtins(plan)),
        fact("tool/called", {}, FactKind.TOOL_CALL),
    ) == [
        "settings: small of ollama, default permissions",
        "plan revision 2: 1 of 2 steps done",
    ]


#### Hostile tapes


UNREADABLE = {
    "empty": " ",
    "array": "[]",
    "cut": "{",
    "wrong type": '{"requestSeq":"x"}',
    "deep": "[" * 50_000,
    "deep and unknown": '{"unknown":' + "[" * 50_000 + "]" * 50_000 + "}",
}
NAMES = (
    "message/recorded",
    "session/configured",
    "plan/updated",
    "provider/attempt_completed",
    "view/assembled",
    "recovery/run_acknowledged",
    "execution/run_started",
    "execution/forged",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("payload", UNREADABLE.values(), ids=list(UNREADABLE))
def test_an_entry_that_cannot_be_read_is_told_as_such(name: str, payload: str) -> None:
    assert texts(started(), fact(name, payload), ended()) == [
        "run started",
        f"{name}: can't be read",
        "run ended: completed/complete",
    ]


@given(
    st.lists(
        st.builds(
            fact,
            st.sampled_from([*NAMES, "\x1b]0;x\x07/y"]),
            st.text(),
            st.sampled_from(FactKind),
        ),
        max_size=5,
    )
)
def test_no_tape_breaks_the_teller(facts: Sequence[Fact]) -> None:
    lines = story_lines(tape(*facts))

    assert [line for line in lines if harmless(line.text) != line.text] == []
    assert all(json_line(line).count("\n") == 1 for line in lines)


def test_what_is_quoted_is_harmless_and_on_one_line() -> None:
    attack = "\x1b[2J\n" + "x" * 9_000
    (line,) = texts(message(text(attack), id="m0", role="user"))

    assert line.startswith("user: ␛[2J xxx")
    assert len(line) < 250


#### As text


def test_a_story_has_a_heading_for_each_run() -> None:
    lines = story_lines(tape(fact("session/start"), started(), ended(), started(OTHER)))

    assert format_story(lines, UTC) == [
        "session  1970-01-02",
        "  00:00:01  session started",
        f"run {RUN}  1970-01-02",
        "  00:00:02  run started",
        "  00:00:03  run ended: completed/complete",
        f"run {OTHER}  1970-01-02",
        "  00:00:04  run started",
    ]


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -1e18, 1e18])
def test_a_time_that_is_none_is_said_to_be_none(at: float) -> None:
    line = StoryLine(seq=1, at=at, run_id=None, tone="plain", text="x")
    assert format_story([line], UTC) == ["session  (no time)", "  (no time)  x"]


def test_a_line_is_camel_case_json() -> None:
    (line,) = story_lines(tape(started()))
    assert json_line(line) == (
        f'{{"seq":1,"at":86401.0,"runId":"{RUN}",'
        '"tone":"plain","text":"run started"}\n'
    )
