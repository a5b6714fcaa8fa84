"""Tools that answer with what is no answer: each call has one result, the turn ends."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from kit.rehearsal import Probe, calls_of, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, Say
from greenroom.actors.tools import (
    Needs,
    PermissionRequired,
    Question,
    ToolRefused,
    ToolResult,
)
from greenroom.protocol import (
    DispatchCommitted,
    Location,
    QuestionOption,
    Reply,
    ToolDefinition,
    ToolOutcome,
)

DONE = [Say("done"), Halt()]
ONE = [Call("foreign", {"n": 1}), Halt("tool_use")]
FULL: dict[str, Any] = {"permission_mode": "full_access"}


@attrs.define(eq=False)
class Foreign:
    """A tool of somebody else's: the doors answer with any object."""

    needs: Any = attrs.field(factory=lambda: needs())
    result: Any = attrs.field(factory=lambda: ToolResult("fine"))
    read_only: bool = False
    parallel_safe: bool = False

    @property
    def definition(self) -> ToolDefinition:
        return ToolDefinition("foreign", "for tests", {"type": "object"})

    async def precheck(self, arguments, context):
        await trio.lowlevel.checkpoint()
        return self.needs

    async def run(self, arguments, operation):
        await operation.dispatch()
        return self.result


def needs(**changes: Any) -> Needs:
    return Needs(**{"permission": None, "title": "it", "kind": "other", **changes})


def unchecked(value: Any, **changes: Any) -> Any:
    """Return *value* with *changes* that its class would refuse."""
    fields = {f.name: getattr(value, f.name) for f in attrs.fields(type(value))}
    made = object.__new__(type(value))
    for name, field in (fields | changes).items():
        object.__setattr__(made, name, field)
    return made


JUNK_NEEDS = [
    None,
    "write it",
    {"permission": None},
    *(
        unchecked(needs(), **{name: value})
        for name, value in [
            ("timeout", float("nan")),
            ("timeout", -1.0),
            ("timeout", 0.0),
            ("timeout", "60"),
            ("cleanup", float("nan")),
            ("cleanup", -1.0),
            ("cleanup", None),
            ("title", None),
            ("title", 7),
            ("kind", "weird"),
            ("locations", ("a",)),
            ("diffs", (object(),)),
        ]
    ),
]


@pytest.mark.parametrize("junk", JUNK_NEEDS, ids=str)
async def test_a_precheck_that_says_nothing_usable_refuses_its_call(
    tmp_path, autojump_clock, junk
):
    script = replies([Call("foreign"), Call("probe"), Halt("tool_use")], DONE)
    tools = Foreign(needs=junk), Probe()
    async with open_stage(tmp_path, script, *tools, **FULL) as stage:
        turn = await stage.session.prompt("go")
        foreign, probe = calls_of(turn.message)
        assert turn.outcome == "completed"
        assert foreign.status == "error"
        assert probe.status == "success"
        dispatched = [r for r in stage.journal() if isinstance(r, DispatchCommitted)]
        assert len(dispatched) == 1


JUNK_RESULTS = [
    None,
    "text",
    7,
    unchecked(ToolResult(""), text=None),
    unchecked(ToolResult(""), text=b"bytes"),
    unchecked(ToolResult(""), locations=(object(),)),
    unchecked(ToolResult(""), locations=("a",)),
    unchecked(ToolResult(""), diffs=7),
    unchecked(ToolResult(""), title=7),
    unchecked(ToolResult(""), is_error="no"),
]


@pytest.mark.parametrize("junk", JUNK_RESULTS, ids=str)
async def test_a_result_that_is_none_is_an_error_with_a_durable_outcome(tmp_path, junk):
    async with open_stage(
        tmp_path, replies(ONE, DONE), Foreign(result=junk), **FULL
    ) as stage:
        turn = await stage.session.prompt("go")
        (call,) = calls_of(turn.message)
        assert turn.outcome == "completed"
        assert call.status == "error"
        (outcome,) = [r for r in stage.journal() if isinstance(r, ToolOutcome)]
        assert outcome.is_error


UNSAFE = "a\x00b\ud800c"


@pytest.mark.parametrize(
    "result",
    [
        ToolResult("fine", title=UNSAFE),
        ToolResult(UNSAFE, is_error=True),
        ToolResult("fine", locations=(Location(UNSAFE),)),
    ],
    ids=["title", "text", "locations"],
)
async def test_text_of_a_tool_that_cannot_be_encoded_loses_no_turn(tmp_path, result):
    async with open_stage(
        tmp_path, replies(ONE, DONE), Foreign(result=result), **FULL
    ) as stage:
        turn = await stage.session.prompt("go")
        assert turn.outcome == "completed"
        assert turn.text == "done"


async def test_a_report_that_cannot_be_encoded_loses_no_turn(tmp_path):
    async def body(arguments, operation):
        await operation.dispatch()
        operation.report(title=UNSAFE, locations=(Location(UNSAFE),))
        operation.progress(UNSAFE)
        return ToolResult("fine")

    script = replies([Call("probe"), Halt("tool_use")], DONE)
    async with open_stage(tmp_path, script, Probe(body=body), **FULL) as stage:
        turn = await stage.session.prompt("go")
        assert turn.outcome == "completed"


JUNK_QUESTIONS = [
    unchecked(Question("", "", ()), options=None),
    unchecked(Question("", "", ()), text=None),
    unchecked(Question("", "", ()), options=("yes",)),
    Question("", "", (), custom=False),
    Question("", "", (QuestionOption("a" * 501),)),
    Question("a" * 100_001, "", ()),
    Question("", "", (QuestionOption("a"),) * 51),
]


@pytest.mark.parametrize(
    "question", JUNK_QUESTIONS, ids=lambda question: repr(question)[:60]
)
async def test_a_question_that_cannot_be_asked_refuses_its_call(tmp_path, question):
    script = replies(ONE, DONE)
    async with open_stage(tmp_path, script, Foreign(needs=question), **FULL) as stage:
        turn = await stage.session.prompt("go")
        assert turn.outcome == "completed"
        assert calls_of(turn.message)[0].status == "error"


async def test_a_question_in_unsafe_text_is_asked_and_answered_in_safe_text(tmp_path):
    safe = UNSAFE.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
    question = Question(UNSAFE, UNSAFE, (QuestionOption(UNSAFE),), custom=False)
    script = replies(ONE, DONE)
    async with (
        open_stage(tmp_path, script, Foreign(needs=question), **FULL) as stage,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stage.session.prompt, "go")
        await wait_all_tasks_blocked()
        (asked,) = await stage.session.interactions()
        assert asked.title == safe
        await stage.session.answer(asked.id, Reply(safe))


def late_asker(result: str):
    asked = []

    async def body(arguments, operation):
        if not asked:
            asked.append(operation.id)
            raise PermissionRequired(needs(permission="more"))
        await operation.dispatch()
        await trio.sleep_forever()
        return ToolResult(result)

    return Probe(name="one", read_only=True, parallel_safe=True, body=body)


@pytest.mark.contract("TOL-05", "JRN-23")
async def test_a_known_result_outlives_the_cancel_of_a_sibling_that_asked(tmp_path):
    two = Probe(name="two", read_only=True, parallel_safe=True, result="known")
    script = replies([Call("one"), Call("two"), Halt("tool_use")], DONE)
    async with (
        open_stage(tmp_path, script, late_asker("late"), two, **FULL) as stage,
        trio.open_nursery() as nursery,
    ):
        turns = []

        async def prompt():
            turns.append(await stage.session.prompt("go"))

        nursery.start_soon(prompt)
        await wait_all_tasks_blocked()
        await stage.session.cancel()
        await wait_all_tasks_blocked()
        assert [c.response for c in calls_of(turns[0].message)][1] == "known"


async def test_a_refusal_that_cannot_be_encoded_loses_no_turn(tmp_path):
    probe = Probe(refuse=ToolRefused(UNSAFE))
    script = replies([Call("probe"), Halt("tool_use")], DONE)
    async with open_stage(tmp_path, script, probe, **FULL) as stage:
        turn = await stage.session.prompt("go")
        assert turn.outcome == "completed"
        assert calls_of(turn.message)[0].response == "a\ufffdb\ufffdc"
