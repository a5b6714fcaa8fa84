"""That the checker of the laws finds each kind of breach."""

from __future__ import annotations

import attrs
import msgspec
import pytest
from kit.laws import check_requests, request_problems, tape_problems
from kit.rehearsal import Probe, open_stage, replies

from greenroom.protocol import (
    AssistantMessage,
    ModelRequest,
    TapeEntry,
    ToolCall,
    ToolMessage,
)
from greenroom.testing import Call, Fail, Halt, Say

SCRIPT = replies(
    [Fail("overloaded", status=503, headers={"retry-after": "0"})],
    [Call("probe", {"n": 1}), Halt("tool_use")],
    [Say("done"), Halt()],
)


async def a_good_tape(tmp_path) -> list[TapeEntry]:
    async with open_stage(tmp_path, SCRIPT, Probe()) as stage:
        await stage.session.prompt("go")
        return stage.tape()


def without(tape, name):
    kept = [entry for entry in tape if entry.fact.name != name]
    return [
        msgspec.structs.replace(entry, seq=seq) for seq, entry in enumerate(kept, 1)
    ]


def repeated(tape, name):
    (one,) = [entry for entry in tape if entry.fact.name == name]
    again = [*tape, one]
    return [
        msgspec.structs.replace(entry, seq=seq) for seq, entry in enumerate(again, 1)
    ]


def swapped_token(tape):
    return [msgspec.structs.replace(tape[0], token=99), *tape[1:]]


def decided(tape, decision):
    changed = []
    for entry in tape:
        payload = entry.fact.payload
        fact = msgspec.structs.replace(
            entry.fact, payload=payload.replace("retry_scheduled", decision)
        )
        changed.append(msgspec.structs.replace(entry, fact=fact))
    return changed


BREACHES = {
    "no terminal": (lambda t: without(t, "execution/run_terminal"), "law 2"),
    "no start": (lambda t: without(t, "execution/run_started"), "law 2"),
    "two terminals": (lambda t: repeated(t, "execution/run_terminal"), "law 2"),
    "no dispatch": (lambda t: without(t, "execution/dispatch_committed"), "law 3"),
    "two dispatches": (lambda t: repeated(t, "execution/dispatch_committed"), "law 3"),
    "two outcomes": (lambda t: repeated(t, "execution/tool_outcome"), "law 3"),
    "a retry unasked": (lambda t: decided(t, "output_committed"), "law 4"),
    "a gap": (lambda t: t[1:], "law 10"),
    "an old owner": (swapped_token, "law 14"),
}


async def test_a_good_tape_breaks_no_law(tmp_path):
    assert list(tape_problems(await a_good_tape(tmp_path))) == []


@pytest.mark.parametrize("breach", BREACHES)
async def test_each_breach_of_a_law_is_found(tmp_path, breach):
    change, law = BREACHES[breach]
    tape = change(await a_good_tape(tmp_path))
    assert any(problem.startswith(law) for problem in tape_problems(tape))


CALL = ToolCall(id="a", name="probe", arguments="{}")
RESULT = ToolMessage(call_id="a", name="probe", text="ok")
ASKED = AssistantMessage(calls=(CALL,))


@attrs.frozen
class Case:
    messages: tuple
    law: str | None


CASES = [
    Case((ASKED, RESULT), None),
    Case((ASKED,), "law 1"),
    Case((RESULT,), "law 1"),
    Case((ASKED, RESULT, RESULT), "law 1"),
    Case((ASKED, AssistantMessage(text="x"), RESULT), "law 1"),
    Case((ASKED, RESULT, ASKED, RESULT), "law 13"),
    Case((AssistantMessage(calls=(CALL, CALL)), RESULT, RESULT), "law 13"),
    Case((AssistantMessage(),), "law 13"),
    Case((AssistantMessage(text="a\x00"),), "law 13"),
    Case(
        (
            AssistantMessage(calls=(ToolCall(id="a", name="p", arguments="[1]"),)),
            RESULT,
        ),
        "law 13",
    ),
]


@pytest.mark.parametrize("case", CASES)
def test_a_request_that_could_not_be_sent_is_found(case):
    request = ModelRequest(model="m", messages=case.messages)
    problems = list(request_problems(request))
    if case.law is None:
        assert problems == []
        check_requests([request])
    else:
        assert any(problem.startswith(case.law) for problem in problems)
        with pytest.raises(AssertionError, match=case.law):
            check_requests([request])
