"""A scenario fails for whatever is not as expected, and says what it is."""

from __future__ import annotations

from typing import Any

import attrs
import msgspec
import pytest

from greenroom.protocol import RunTerminal
from greenroom.testing import (
    STANDARD_SCENARIOS,
    Call,
    Expectation,
    ExpectedUsage,
    Fail,
    Halt,
    Hang,
    Pause,
    Say,
    Scenario,
    ScenarioError,
    ScriptedTool,
    Spent,
    Use,
    UserAnswer,
    evaluate,
    evaluate_scenario,
    report_of,
)
from greenroom.testing._evals_report import Observed, judged
from greenroom.testing._evals_run import MAX_SECONDS

BY_ID = {scenario.id: scenario for scenario in STANDARD_SCENARIOS}
DONE = (Say("done"), Halt())
ASK = (Call("mail", {}), Halt("tool_use"))
MAIL = ScriptedTool(name="mail", result="sent", permission="send a mail")


def asking(**fields: Any) -> Scenario:
    status = fields.pop("status", "completed")
    given: dict[str, Any] = {
        "id": "asking",
        "script": (ASK, DONE),
        "tools": (MAIL,),
        "permission_mode": "default",
        "expect": Expectation(status=status),
    }
    return Scenario(**(given | fields))


def expecting(scenario_id: str, **changes: Any) -> Scenario:
    scenario = BY_ID[scenario_id]
    expect = msgspec.structs.replace(scenario.expect, **changes)
    return msgspec.structs.replace(scenario, expect=expect)


@pytest.mark.contract("EVL-16")
@pytest.mark.parametrize(
    ("scenario_id", "changes", "failure"),
    [
        ("max-tokens", {"status": "error"}, "status: expected 'error', "),
        ("max-tokens", {"stop_reason": "complete"}, "stop reason: expected "),
        ("cancellation", {"code": "deadline"}, "error code: expected 'deadline', "),
        ("multiple-tool-rounds", {"rounds": 4}, "rounds: expected 4, found 3"),
        ("multiple-tool-rounds", {"tool_calls": 3}, "tool calls: expected 3, found 2"),
        ("tool-failure-recovery", {"failed_tools": 0}, "failed tools: expected 0, "),
        ("permission-pause", {"permission_requests": 0}, "permission requests: "),
        ("max-tokens", {"usage": "unknown"}, "usage: expected none, found 11/4/15"),
        (
            "permission-pause",
            {"usage": ExpectedUsage(input=0, output=0, total=0)},
            "usage: expected 0/0/0, found none",
        ),
        (
            "multiple-tool-rounds",
            {"usage": ExpectedUsage(input=25, output=8, total=33, cache_read=5)},
            "usage: expected 25/8/33, cache 5/None, found 25/8/33, cache 5/3",
        ),
        ("max-tokens", {"text": ("It goes", "nowhere")}, "text: expected 'nowhere' "),
        (
            "tool-failure-recovery",
            {"tool_text": ("all is well",)},
            "tool text: expected 'all is well' in 'the tool failed",
        ),
        (
            "generic-provider-error",
            {"error_text": ("overloaded",)},
            "error text: expected 'overloaded' in 'Rate limit exceeded'",
        ),
    ],
)
async def test_whatever_is_not_as_expected_fails(
    scenario_id: str, changes: dict[str, Any], failure: str
):
    (result,) = (await evaluate([expecting(scenario_id, **changes)])).scenarios
    assert not result.passed
    (said,) = result.failures
    assert said.startswith(failure)


async def test_what_is_left_out_is_not_looked_at():
    for scenario in STANDARD_SCENARIOS:
        bare = Expectation(status=scenario.expect.status)
        result = await evaluate_scenario(msgspec.structs.replace(scenario, expect=bare))
        assert result.failures == ()


async def test_without_a_budget_a_scenario_counts_with_what_it_spent():
    free = msgspec.structs.replace(BY_ID["single-tool-round"], budget=None)
    report = await evaluate([free])
    (result,) = report.scenarios
    assert (result.provider_rounds, result.tool_calls) == (Spent(2, 2), Spent(1, 1))
    assert report.aggregate.within_call_budgets


def test_no_scenario_is_no_success():
    assert report_of([]).aggregate.pass_rate == 0.0


#### The user


@pytest.mark.parametrize(("given", "text"), [("grant", "sent"), ("deny", "not today")])
async def test_the_user_answers(given: Any, text: str):
    answer = UserAnswer(answer=given, text="not today")
    expect = Expectation(
        status="completed", rounds=2, permission_requests=1, tool_text=(text,)
    )
    result = await evaluate_scenario(asking(answers=(answer,), expect=expect))
    assert result.failures == ()
    assert result.tool_calls.used == (given == "grant")


async def test_two_questions_get_two_answers_in_order():
    script = ((*ASK[:1], *ASK), DONE)
    answers = (UserAnswer(answer="grant"), UserAnswer(answer="deny", text="enough"))
    expect = Expectation(
        status="completed",
        tool_calls=1,
        permission_requests=2,
        tool_text=("sent", "enough"),
    )
    result = await evaluate_scenario(
        asking(script=script, answers=answers, expect=expect)
    )
    assert result.failures == ()


async def test_a_question_beyond_the_answers_leaves_the_turn_paused():
    script = ((*ASK[:1], *ASK), DONE)
    answers = (UserAnswer(answer="grant"),)
    result = await evaluate_scenario(
        asking(script=script, answers=answers, status="paused")
    )
    assert result.failures == ()
    assert (result.tool_calls.used, result.permission_requests) == (1, 2)


async def test_what_a_paused_turn_has_cost_is_known():
    script = ((Use(3, 4), *ASK), DONE)
    usage = ExpectedUsage(input=3, output=4, total=7)
    expect = Expectation(status="paused", usage=usage)
    result = await evaluate_scenario(asking(script=script, expect=expect))
    assert result.failures == ()


async def test_an_answer_of_the_wrong_kind_fails():
    answers = (UserAnswer(answer="reply", text="yes"),)
    result = await evaluate_scenario(asking(answers=answers))
    assert result.status == "unfinished"
    assert result.failures[0].startswith("wrong_answer: ")


async def test_a_prompt_that_is_refused_fails():
    result = await evaluate_scenario(asking(prompt=" "))
    assert result.persisted is None
    assert result.failures[0].startswith("empty_message: ")


#### Time


async def test_a_pause_of_the_model_is_waited_for(autojump_clock: Any):
    before = autojump_clock.current_time()
    script = ((Pause(30.0), *DONE),)
    result = await evaluate_scenario(asking(script=script))
    assert result.failures == ()
    assert autojump_clock.current_time() - before >= 30.0


async def test_a_model_that_hangs_is_given_up(autojump_clock: Any):
    result = await evaluate_scenario(asking(script=((Say("wait"), Hang()),)))
    assert result.status == "unfinished"
    assert f"the turn did not end within {MAX_SECONDS:g} s" in result.failures
    assert autojump_clock.current_time() <= MAX_SECONDS + 10


#### What a scenario does not meet


@pytest.mark.contract("EVL-16")
async def test_no_scenario_meets_the_retry_layer():
    busy = (Fail("busy", status=429, retryable=True),)
    expect = Expectation(status="error", stop_reason="provider_error", rounds=1)
    result = await evaluate_scenario(asking(script=(busy, DONE), expect=expect))
    assert result.failures == ()
    assert result.error == "busy"


#### What is asked for twice


async def test_ids_and_names_of_tools_are_not_used_twice():
    scenario = BY_ID["max-tokens"]
    with pytest.raises(ScenarioError, match="several scenarios have the id"):
        await evaluate([scenario, scenario])
    with pytest.raises(ScenarioError, match="several tools of scenario 'asking'"):
        await evaluate([asking(tools=(MAIL, MAIL))])


#### What must be so in any case


async def observed_of(scenario_id: str) -> Observed:
    """What was seen of a scenario, as the judge gets it."""
    seen: list[Observed] = []

    def note(scenario: Scenario, observed: Observed) -> Any:
        seen.append(observed)
        return judged(scenario, observed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("greenroom.testing._evals_run.judged", note)
        await evaluate_scenario(BY_ID[scenario_id])
    return seen[0]


def changed_metadata(observed: Observed, **changes: Any) -> Observed:
    assert observed.message is not None
    metadata = msgspec.structs.replace(observed.message.metadata, **changes)
    message = msgspec.structs.replace(observed.message, metadata=metadata)
    return attrs.evolve(observed, message=message)


@pytest.mark.contract("EVL-16")
@pytest.mark.parametrize(
    ("change", "failure"),
    [
        ({"run_outcome": "error"}, "stored ending: "),
        ({"run_stop_reason": "max_tokens"}, "stored ending: "),
        ({"input_tokens": 11}, "stored usage: expected 10/4/14, found 11/4/14"),
        ({"input_tokens": None}, "stored usage: expected 10/4/14, found none"),
        ({"run_id": "00000000-0000-4000-8000-000000000000"}, "stored run id: "),
        ({"run_id": None}, "stored run id: "),
    ],
)
async def test_a_store_that_says_something_else_fails(
    change: dict[str, Any], failure: str
):
    observed = await observed_of("direct-completion")
    scenario = BY_ID["direct-completion"]
    assert judged(scenario, observed).failures == ()
    result = judged(scenario, changed_metadata(observed, **change))
    assert not result.passed
    assert result.failures[0].startswith(failure)


@pytest.mark.contract("EVL-16")
async def test_a_message_that_was_never_pending_fails():
    observed = await observed_of("direct-completion")
    never = attrs.evolve(observed, revisions=observed.revisions[-1:])
    (failure,) = judged(BY_ID["direct-completion"], never).failures
    assert failure.startswith("stored statuses: ")


@pytest.mark.contract("EVL-16")
async def test_a_run_without_a_uuid_fails():
    observed = await observed_of("direct-completion")
    journal = tuple(
        msgspec.structs.replace(fact, run_id="seven")
        for fact in observed.journal
        if not isinstance(fact, RunTerminal)
    )
    odd = attrs.evolve(changed_metadata(observed, run_id="seven"), journal=journal)
    (failure,) = judged(BY_ID["direct-completion"], odd).failures
    assert failure == "stored run id: 'seven' is not a UUID"
