"""Open runs are classified from whatever the disk holds, and messages made right."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from greenroom.protocol import (
    INTERRUPTED,
    MAX_DETAILS,
    ActionBlock,
    CorruptionReason,
    DispatchCommitted,
    ErrorBlock,
    Fact,
    ItemId,
    JournalRecord,
    MessageId,
    MessageMetadata,
    MessageRecord,
    OperationId,
    RunId,
    RunStarted,
    RunTerminal,
    RunVerdict,
    SessionId,
    TapeEntry,
    TextBlock,
    ToolCallBlock,
    ToolOutcome,
    ToolTarget,
    classify_run,
    interrupted,
    is_kept_pending,
    journal_fact,
    recovery_details,
)

S1 = SessionId("s1")
RUN = RunId("11111111-1111-4111-8111-111111111111")
OTHER = RunId("22222222-2222-4222-8222-222222222222")
M1 = MessageId("m1")

START = RunStarted(run_id=RUN, message_id=M1, run_kind="loop")
END = RunTerminal(run_id=RUN, outcome="completed", stop_reason="end_turn")


def dispatch(call: str = "a", message: str = "m1") -> DispatchCommitted:
    return DispatchCommitted(
        operation=OperationId(RUN, 1, call),
        message_id=MessageId(message),
        tool_name="write_file",
        tool_source="agent",
        arguments_hash="a" * 64,
        target=ToolTarget("server"),
    )


def outcome(call: str = "a", *, is_error: bool = False) -> ToolOutcome:
    return ToolOutcome(
        operation=OperationId(RUN, 1, call), response_hash="b" * 64, is_error=is_error
    )


def entries(*things: JournalRecord | Fact) -> list[TapeEntry]:
    return [
        TapeEntry(
            session_id=S1,
            seq=seq,
            token=1,
            fact=thing if isinstance(thing, Fact) else journal_fact(thing),
            created_at=1.0,
        )
        for seq, thing in enumerate(things, start=3)
    ]


def classify(*things: JournalRecord | Fact, elsewhere: bool = False) -> RunVerdict:
    return classify_run(S1, RUN, entries(*things), elsewhere=elsewhere)


#### Classes


@pytest.mark.contract("JRN-19")
@pytest.mark.parametrize(
    ("things", "run_class"),
    [
        ([START], "not_dispatched"),
        ([START, dispatch(), outcome()], "completed"),
        ([START, dispatch(), outcome(is_error=True)], "completed"),
        (
            [START, dispatch("a"), dispatch("b"), outcome("b"), outcome("a")],
            "completed",
        ),
        ([START, dispatch()], "indeterminate"),
        ([START, dispatch("a"), dispatch("b"), outcome("a")], "indeterminate"),
    ],
)
def test_a_sound_run_has_its_class(things: list[JournalRecord], run_class: str) -> None:
    verdict = classify(*things)
    assert (verdict.run_class, verdict.reason) == (run_class, None)
    assert verdict.message_ids == {M1}


def changed(record: JournalRecord, **changes: object) -> Fact:
    return msgspec.structs.replace(journal_fact(record), **changes)


CORRUPT: list[tuple[list[JournalRecord | Fact], CorruptionReason]] = [
    ([], "missing_run_started"),
    ([dispatch()], "missing_run_started"),
    ([END], "missing_run_started"),
    ([START, changed(START, payload="{")], "malformed_fact"),
    ([changed(START, payload='{"runId":1}'), dispatch()], "malformed_fact"),
    ([START, changed(dispatch(), provenance_key="other")], "malformed_fact"),
    ([START, changed(dispatch(), source_seq=9)], "malformed_fact"),
    ([START, changed(dispatch(), meta="{}")], "malformed_fact"),
    ([START, changed(dispatch(), name="execution/unheard_of")], "malformed_fact"),
    ([START, changed(dispatch(), payload="[" * 10_000)], "malformed_fact"),
    ([START, changed(dispatch(), payload="\ud800")], "malformed_fact"),
    (
        [START, journal_fact(RunStarted(run_id=OTHER, message_id=M1, run_kind="loop"))],
        "malformed_fact",
    ),
    ([START, dispatch(message="m2")], "message_identity_mismatch"),
    ([START, START], "duplicate_fact"),
    ([START, dispatch(), dispatch()], "duplicate_fact"),
    ([START, dispatch(), outcome(), outcome()], "duplicate_fact"),
    ([START, END, END], "duplicate_fact"),
    ([dispatch(), START], "fact_before_run_started"),
    ([END, START], "fact_before_run_started"),
    ([START, outcome()], "outcome_without_dispatch"),
    ([START, dispatch("a"), outcome("b")], "outcome_without_dispatch"),
    ([START, outcome(), dispatch()], "outcome_before_dispatch"),
    ([START, END, dispatch()], "fact_after_run_terminal"),
    ([START, dispatch(), END, outcome()], "fact_after_run_terminal"),
]


@pytest.mark.contract("JRN-19")
@pytest.mark.parametrize(("things", "reason"), CORRUPT)
def test_a_journal_that_contradicts_itself_has_its_reason(
    things: list[JournalRecord | Fact], reason: str
) -> None:
    verdict = classify(*things)
    assert (verdict.run_class, verdict.reason) == ("corruption", reason)


@pytest.mark.contract("JRN-19")
def test_a_run_of_two_sessions_is_corrupt() -> None:
    verdict = classify(START, elsewhere=True)
    assert verdict.run_class == "corruption"
    assert verdict.reason == "run_identity_reused_across_sessions"


things = st.sampled_from(
    [
        START,
        END,
        *map(dispatch, "ab"),
        *map(outcome, "ab"),
        dispatch(message="m2"),
        changed(START, payload="{"),
    ]
)


@given(st.lists(things, max_size=7))
def test_no_order_of_facts_is_an_exception(found: list[JournalRecord | Fact]) -> None:
    verdict = classify(*found)
    assert (verdict.run_class == "corruption") == (verdict.reason is not None)
    legal = is_legal(found)
    assert (verdict.reason is None) == legal


def is_legal(found: list[JournalRecord | Fact]) -> bool:
    """Whether a fold that knows one state at a time accepts *found*."""
    state, waiting, done = "new", set[str](), set[str]()
    for thing in found:
        match thing:
            case RunStarted() if state == "new":
                state = "open"
            case RunTerminal() if state == "open":
                state = "ended"
            case DispatchCommitted() if state == "open":
                call = thing.operation.provider_tool_call_id
                if call in waiting | done or thing.message_id != M1:
                    return False
                waiting.add(call)
            case ToolOutcome() if state == "open":
                call = thing.operation.provider_tool_call_id
                if call not in waiting:
                    return False
                waiting.remove(call)
                done.add(call)
            case _:
                return False
    return state != "new"


#### Report


@pytest.mark.contract("JRN-20")
def test_a_report_is_bounded_clean_and_worst_first() -> None:
    runs = [RunId(f"{n:08}-0000-4000-8000-000000000000") for n in range(150)]
    verdicts = [
        RunVerdict(S1, run, ("not_dispatched", "completed", "indeterminate")[n % 3])
        for n, run in enumerate(runs)
    ]
    hostile = RunVerdict(
        SessionId("s\x00\x1b[31m\n\u202e" + "x" * 5_000),
        RUN,
        "corruption",
        "malformed_fact",
    )
    details = recovery_details([*verdicts, hostile])
    assert len(details) == MAX_DETAILS == 100
    classes = [detail.run_class for detail in details]
    assert classes == ["corruption"] + ["indeterminate"] * 50 + ["completed"] * 49
    assert [d.run_id for d in details[1:51]] == runs[2::3]
    for text in (details[0].text, details[0].session_id):
        assert len(text) <= 2_048
        assert text.isprintable()
    assert details[0].reason == "malformed_fact"
    assert {(d.automatic_retry, d.disposition) for d in details} == {(False, "parked")}


def test_a_detail_names_the_calls_in_doubt() -> None:
    (detail,) = recovery_details([classify(START, dispatch("call-7"))])
    assert "not known whether these calls ran: call-7" in detail.text
    wire = msgspec.json.decode(msgspec.json.encode(detail))
    assert wire["runClass"] == "indeterminate"


@pytest.mark.parametrize("things", [[], [START], [START, dispatch(), outcome()]])
def test_every_class_has_its_sentence(things: list[JournalRecord]) -> None:
    (detail,) = recovery_details([classify(*things)])
    assert detail.text.startswith(f"run {RUN} of session s1: ")


#### Messages


def call_block(
    call: str = "a", status: str = "loading", **more: object
) -> ToolCallBlock:
    fields = {
        "id": ItemId(f"b-{call}"),
        "call_id": call,
        "name": "write_file",
        "arguments": "{}",
        "request_seq": 1,
        "status": status,
    }
    return ToolCallBlock(**(fields | more))  # type: ignore[arg-type]


QUESTION = ActionBlock(
    id=ItemId("q"),
    action="question_request",
    origin="question",
    tool_block_id=ItemId("b-a"),
    title="Which?",
)


def record(*blocks: object, role: str = "assistant") -> MessageRecord:
    return MessageRecord(
        id=M1,
        order_seq=2,
        role=role,  # type: ignore[arg-type]
        status="pending",
        blocks=blocks,  # type: ignore[arg-type]
        metadata=MessageMetadata(run_id=RUN, provider_rounds=3, input_tokens=5),
        created_at=1.0,
        updated_at=2.0,
    )


@pytest.mark.parametrize(
    ("things", "kept"),
    [
        ([START], True),
        ([START, dispatch(), outcome()], False),
        ([START, dispatch()], False),
        ([START, START], False),
    ],
)
def test_only_a_run_without_effects_keeps_a_question_open(
    things: list[JournalRecord], kept: bool
) -> None:
    assert is_kept_pending(record(QUESTION), [classify(*things)]) is kept


def test_what_stays_pending_without_open_runs() -> None:
    answered = msgspec.structs.replace(QUESTION, status="success")
    assert is_kept_pending(record(QUESTION), [])
    assert not is_kept_pending(record(answered), [])
    assert not is_kept_pending(record(TextBlock(id=ItemId("t"), text="a")), [])
    assert is_kept_pending(record(role="user"), [classify(START, dispatch())])


def test_an_interrupted_message_keeps_its_output_and_says_why() -> None:
    text = TextBlock(id=ItemId("t"), text="half an ans", status="loading")
    done = call_block("done", "success", response="ok")
    before = record(text, done, QUESTION)
    after = interrupted(before, before.blocks, [], 9.0)
    assert (after.status, after.updated_at, after.created_at) == ("error", 9.0, 1.0)
    *kept, note = after.blocks
    assert kept[0] == msgspec.structs.replace(text, status="error")
    assert kept[1] == done
    assert kept[2].status == "error"
    assert isinstance(note, ErrorBlock)
    assert (note.code, note.round) == (INTERRUPTED, 3)
    assert after.metadata.error_code == after.metadata.run_stop_reason == INTERRUPTED
    assert after.metadata.run_outcome == "error"
    assert after.metadata.input_tokens == 5


def test_an_interrupted_message_is_the_same_when_interrupted_again() -> None:
    once = interrupted(record(call_block()), [call_block()], [], 9.0)
    assert interrupted(once, once.blocks, [], 9.0) == once


@pytest.mark.parametrize(
    ("things", "status", "told"),
    [
        ([START], "loading", "not executed"),
        ([START, dispatch("b")], "loading", "not executed"),
        ([START, dispatch("a")], "loading", "not known whether this call ran"),
        ([START, dispatch("a"), outcome("a")], "loading", "without an error"),
        (
            [START, dispatch("a"), outcome("a", is_error=True)],
            "loading",
            "with an error",
        ),
        ([START, dispatch("a"), END, outcome("a")], "pending", "not known whether"),
        (None, "pending", "not executed"),
        (None, "loading", "not known whether this call ran"),
    ],
)
def test_every_announced_call_is_told_what_became_of_it(
    things: list[JournalRecord] | None, status: str, told: str
) -> None:
    verdicts = [] if things is None else [classify(*things)]
    block = call_block("a", status)
    after = interrupted(record(block), [block], verdicts, 9.0).blocks[0]
    assert isinstance(after, ToolCallBlock)
    assert after.status == "error"
    assert told in (after.response or "")
    assert after.note == after.response


@pytest.mark.parametrize(("kind", "seq"), [("loop", 3), ("deferred_tool", 1)])
def test_a_call_in_doubt_names_its_operation_also_when_it_was_a_granted_one(
    kind: Any, seq: int
) -> None:
    # The request of a granted call has the number 1, whatever round announced it.
    started = msgspec.structs.replace(START, run_kind=kind)
    operation = msgspec.structs.replace(dispatch("a").operation, request_seq=seq)
    dispatched = msgspec.structs.replace(dispatch("a"), operation=operation)
    block = msgspec.structs.replace(call_block("a", "pending"), request_seq=3)
    verdict = classify(started, dispatched)
    after = interrupted(record(block), [block], [verdict], 9.0).blocks[0]
    assert isinstance(after, ToolCallBlock)
    assert after.in_doubt == operation
    assert "not known whether this call ran" in (after.response or "")
    known = msgspec.structs.replace(outcome("a"), operation=operation)
    verdict = classify(started, dispatched, known)
    after = interrupted(record(block), [block], [verdict], 9.0).blocks[0]
    assert isinstance(after, ToolCallBlock)
    assert after.in_doubt is None
    assert "result lost" in (after.response or "")


def test_a_call_that_waited_for_an_answer_is_no_success() -> None:
    block = call_block("a", "success", response="")
    asked = ActionBlock(
        id=ItemId("m1.1"),
        action="tool_call_permission",
        origin="pre-check-permission",
        tool_block_id=block.id,
        title="may it?",
    )
    after = interrupted(record(block, asked), [block, asked], [], 9.0).blocks
    call, action = after[0], after[1]
    assert isinstance(call, ToolCallBlock)
    assert (call.status, action.status) == ("error", "error")
    assert "not executed" in (call.response or "")


def test_a_result_that_was_stored_is_not_replaced() -> None:
    block = call_block("a", "loading", response="partial output")
    after = interrupted(record(block), [block], [], 9.0).blocks[0]
    assert isinstance(after, ToolCallBlock)
    assert after.response == "partial output"
