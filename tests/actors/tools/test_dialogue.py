"""Questions and plans: bounds, pauses, revisions."""

from __future__ import annotations

import pytest
from kit.operations import FakeOperation, builtin

from greenroom.actors.tools import Needs, Question, ToolRefused
from greenroom.protocol import PlanEntry, QuestionOption


def option(label="yes", description=""):
    return {"label": label, "description": description}


async def ask(context, **changes):
    arguments = {"question": "Go on?", "options": [option()], **changes}
    return await builtin("ask_user").precheck(arguments, context)


@pytest.mark.contract("INT-08")
async def test_a_question_is_a_pause_and_takes_custom_answers_by_default(context):
    assert await ask(context) == Question(
        text="Go on?", header="", options=(QuestionOption("yes"),)
    )
    asked = await ask(context, header="H", multiple=True, custom=False)
    assert asked == Question(
        "Go on?", "H", (QuestionOption("yes"),), multiple=True, custom=False
    )
    assert Question("", "", ()).custom


@pytest.mark.contract("INT-08")
@pytest.mark.parametrize(
    "fits",
    [
        {"question": "q" * 500},
        {"header": "h" * 30},
        {"options": [option(f"{number}") for number in range(10)]},
        {"options": [option("l" * 30, "d" * 200)]},
        {"question": "é" * 500},
    ],
)
async def test_limits_are_reached(context, fits):
    assert isinstance(await ask(context, **fits), Question)


@pytest.mark.contract("INT-08")
@pytest.mark.parametrize(
    "bad",
    [
        {"question": "q" * 501},
        {"question": ""},
        {"question": " \n"},
        {"header": "h" * 31},
        {"options": []},
        {"options": [option(f"{number}") for number in range(11)]},
        {"options": [option("l" * 31)]},
        {"options": [option("")]},
        {"options": [option(" ")]},
        {"options": [option("x", "d" * 201)]},
        {"options": [option("x"), option("x ")]},
        {"options": ["yes"]},
        {"multiple": 1},
        {"extra": True},
    ],
)
async def test_limits_are_not_passed_and_then_there_is_no_pause(context, bad):
    with pytest.raises(ToolRefused):
        await ask(context, **bad)


async def test_a_question_is_never_run(context):
    operation = FakeOperation(context)
    with pytest.raises(ToolRefused, match="can't be run"):
        await builtin("ask_user").run(
            {"question": "?", "options": [option()]}, operation
        )
    assert operation.order == []


async def test_a_question_is_safe_to_store(context):
    asked = await ask(context, question="a\x00b", options=[option("c\x00")])
    assert asked == Question("a�b", "", (QuestionOption("c�"),))


async def test_a_plan_is_replaced_as_a_whole_after_dispatch(context):
    operation, tool = FakeOperation(context), builtin("update_plan")
    entries = [{"content": "a\x00", "status": "in_progress"}, {"content": "b"}]
    needs = await tool.precheck({"entries": entries}, context)
    assert needs == Needs(None, "update the plan", "think")
    result = await tool.run({"entries": entries}, operation)
    assert operation.order == ["dispatch", "plan"]
    assert operation.plans == [(PlanEntry("a�", "in_progress"), PlanEntry("b"))]
    assert result.text == "the plan has 2 entries, revision 1"


@pytest.mark.parametrize(
    ("entries", "good"),
    [
        ([], True),
        ([{"content": "x" * 500, "priority": "low"}] * 50, True),
        ([{"content": "x"}] * 51, False),
        ([{"content": "x" * 501}], False),
        ([{"content": ""}], False),
        ([{"content": " "}], False),
        ([{"content": "x", "status": "done"}], False),
        ([{"content": "x", "priority": "urgent"}], False),
        ([{"content": "x", "other": 1}], False),
    ],
)
async def test_plans_are_bounded_at_both_doors(context, entries, good):
    tool, operation = builtin("update_plan"), FakeOperation(context)
    if good:
        await tool.precheck({"entries": entries}, context)
        await tool.run({"entries": entries}, operation)
        return
    with pytest.raises(ToolRefused):
        await tool.precheck({"entries": entries}, context)
    with pytest.raises(ToolRefused):
        await tool.run({"entries": entries}, operation)
    assert operation.order == []
