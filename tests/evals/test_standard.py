"""The fifteen standard scenarios, each against numbers that are written here anew."""

from __future__ import annotations

import msgspec
import pytest

from greenroom.actors.providers import Cue
from greenroom.testing import (
    STANDARD_SCENARIOS,
    Call,
    Halt,
    Scenario,
    ScenarioResult,
    Spent,
    Use,
    evaluate,
    evaluate_scenario,
    report_of,
)

MIDNIGHT_2026 = 1_767_225_600.0
IDS = [
    "direct-completion",
    "max-tokens",
    "truncated-tool-call-recovery",
    "single-tool-round",
    "multiple-tool-rounds",
    "tool-failure-recovery",
    "permission-pause",
    "cancellation",
    "pending-input-yield",
    "max-provider-rounds",
    "max-tool-calls",
    "repeated-tool-no-progress",
    "empty-provider-output",
    "generic-provider-error",
    "context-window-error",
]


def scenario(scenario_id: str) -> Scenario:
    (found,) = (each for each in STANDARD_SCENARIOS if each.id == scenario_id)
    return found


async def run(scenario_id: str) -> ScenarioResult:
    result = await evaluate_scenario(scenario(scenario_id))
    assert result.failures == ()
    assert result.passed
    return result


def ended(result: ScenarioResult) -> tuple[str | None, ...]:
    """How the turn was returned, then what the store says of it."""
    assert result.persisted is not None
    persisted = result.persisted
    assert (persisted.provider_rounds, persisted.tool_calls) == (
        result.provider_rounds.used,
        result.tool_calls.used,
    )
    assert persisted.usage == result.usage
    return (
        result.status,
        result.stop_reason,
        persisted.statuses[-1],
        f"{persisted.outcome}/{persisted.stop_reason}",
    )


def spent(result: ScenarioResult) -> str:
    """Rounds and tool calls, of how many of each."""
    rounds, calls = result.provider_rounds, result.tool_calls
    return f"{rounds.used}/{calls.used} of {rounds.budget}/{calls.budget}"


def tokens(result: ScenarioResult) -> tuple[int | None, ...] | None:
    usage = result.usage
    if usage is None:
        return None
    cached = (usage.cache_read, usage.cache_write)
    return (usage.input, usage.output, usage.total, *cached)


#### What is played

CALL = "call {}, stop tool_use"
SCRIPTS = {
    "direct-completion": ["use 10/4, say, stop complete"],
    "max-tokens": ["use 11/4, say, stop max_tokens"],
    "truncated-tool-call-recovery": [
        "use 3/2, cut call write, stop max_tokens",
        "say, use 4/1, stop complete",
    ],
    "single-tool-round": [CALL.format("read"), "say, use 18/6, stop complete"],
    "multiple-tool-rounds": [
        "use 7/1 read 2 write 1, call grep, stop tool_use",
        "use 8/2 read 3, call read, stop tool_use",
        "say, use 10/5 write 2, stop complete",
    ],
    "tool-failure-recovery": [CALL.format("read"), "say, use 12/5, stop complete"],
    "permission-pause": [CALL.format("write")],
    "cancellation": ["say, say, use 1/1, stop complete"],
    "pending-input-yield": [CALL.format("read"), "say, stop complete"],
    "max-provider-rounds": [CALL.format("read"), "say, stop complete"],
    "max-tool-calls": [
        *[CALL.format("count")] * 128,
        "use 130/1, call count, stop tool_use",
    ],
    "repeated-tool-no-progress": [CALL.format("read")] * 5,
    "empty-provider-output": ["stop complete"],
    "generic-provider-error": ["use 8/1, say, fail, stop complete"],
    "context-window-error": ["use 20/1, fail"],
}
DISTINCT = ("multiple-tool-rounds", "max-tool-calls")


def word(cue: Cue) -> str:
    match cue:
        case Use():
            read = f" read {cue.cache_read}" if cue.cache_read is not None else ""
            write = f" write {cue.cache_write}" if cue.cache_write is not None else ""
            return f"use {cue.input}/{cue.output}{read}{write}"
        case Call():
            return f"{'cut ' if cue.cut else ''}call {cue.name}"
        case Halt(reason=reason):
            return f"stop {reason}"
        case _:
            return type(cue).__name__.lower()


def arguments_of(given: Scenario) -> set[str]:
    cues = [cue for reply in given.script for cue in reply]
    return {str(cue.arguments) for cue in cues if isinstance(cue, Call)}


@pytest.mark.contract("EVL-01", "EVL-02", "EVL-03", "EVL-04", "EVL-05", "EVL-06")
@pytest.mark.contract("EVL-07", "EVL-08", "EVL-09", "EVL-10", "EVL-11", "EVL-12")
@pytest.mark.contract("EVL-13", "EVL-14", "EVL-15", "EVL-16")
@pytest.mark.parametrize("given", STANDARD_SCENARIOS, ids=lambda each: each.id)
def test_the_model_plays_what_the_scenario_is_about(given: Scenario):
    played = [", ".join(map(word, reply)) for reply in given.script]
    assert played == SCRIPTS[given.id]
    # Every call of one is another, every call of the others is the same.
    calls = sum("call" in each for each in played)
    different = calls if given.id in DISTINCT else min(calls, 1)
    assert len(arguments_of(given)) == different
    asks = given.id in ("truncated-tool-call-recovery", "permission-pause")
    assert given.permission_mode == ("default" if asks else "full_access")


#### What it comes to


@pytest.mark.contract("EVL-01")
async def test_a_direct_completion():
    result = await run("direct-completion")
    assert ended(result) == ("completed", "complete", "sent", "completed/complete")
    assert spent(result) == "1/0 of 1/0"
    assert tokens(result) == (10, 4, 14, None, None)
    assert scenario("direct-completion").expect.text


@pytest.mark.contract("EVL-02")
async def test_a_reply_that_is_cut_by_the_output_limit():
    result = await run("max-tokens")
    assert ended(result) == ("completed", "max_tokens", "sent", "completed/max_tokens")
    assert spent(result) == "1/0 of 1/0"
    assert tokens(result) == (11, 4, 15, None, None)
    assert scenario("max-tokens").expect.text


@pytest.mark.contract("EVL-03")
async def test_a_call_that_is_cut_is_not_run_and_not_asked_about():
    result = await run("truncated-tool-call-recovery")
    assert ended(result) == ("completed", "complete", "sent", "completed/complete")
    assert spent(result) == "2/0 of 2/0"
    assert tokens(result) == (7, 3, 10, None, None)
    assert (result.permission_requests, result.failed_tools) == (0, 0)
    given = scenario("truncated-tool-call-recovery")
    assert given.permission_mode == "default"
    assert all(tool.permission for tool in given.tools)
    assert "output limit" in given.expect.tool_text[0]


@pytest.mark.contract("EVL-04")
async def test_a_round_with_one_tool():
    result = await run("single-tool-round")
    assert ended(result) == ("completed", "complete", "sent", "completed/complete")
    assert spent(result) == "2/1 of 2/1"
    assert tokens(result) == (18, 6, 24, None, None)
    given = scenario("single-tool-round")
    assert given.expect.tool_text == (given.tools[0].result,)


@pytest.mark.contract("EVL-05")
async def test_several_rounds_with_tools():
    result = await run("multiple-tool-rounds")
    assert ended(result) == ("completed", "complete", "sent", "completed/complete")
    assert spent(result) == "3/2 of 4/3"
    assert tokens(result) == (25, 8, 33, 5, 3)
    given = scenario("multiple-tool-rounds")
    assert given.expect.tool_text == tuple(tool.result for tool in given.tools)


@pytest.mark.contract("EVL-06")
async def test_a_tool_that_fails():
    result = await run("tool-failure-recovery")
    assert ended(result) == ("completed", "complete", "sent", "completed/complete")
    assert spent(result) == "2/1 of 2/1"
    assert tokens(result) == (12, 5, 17, None, None)
    assert result.failed_tools == 1
    given = scenario("tool-failure-recovery")
    assert given.expect.tool_text == (given.tools[0].error,)


@pytest.mark.contract("EVL-07")
async def test_a_permission_pauses_the_turn():
    result = await run("permission-pause")
    assert ended(result) == ("paused", None, "pending", "paused/interaction")
    assert spent(result) == "1/0 of 1/0"
    assert tokens(result) is None
    assert result.permission_requests == 1
    assert scenario("permission-pause").permission_mode == "default"


@pytest.mark.contract("EVL-08")
async def test_the_user_stops_before_the_second_event():
    result = await run("cancellation")
    assert ended(result) == ("aborted", "user_stop", "error", "aborted/user_stop")
    assert result.persisted is not None
    assert result.persisted.code == "user_canceled"
    assert spent(result) == "1/0 of 1/0"
    assert tokens(result) is None
    assert scenario("cancellation").stop_before_event == 2


@pytest.mark.contract("EVL-09")
async def test_a_turn_makes_way_for_waiting_input():
    result = await run("pending-input-yield")
    reason = "pending_input"
    assert ended(result) == ("completed", reason, "sent", f"completed/{reason}")
    assert spent(result) == "1/1 of 1/1"


@pytest.mark.contract("EVL-10")
async def test_the_limit_of_rounds():
    result = await run("max-provider-rounds")
    assert ended(result) == ("error", "max_turns", "error", "error/max_turns")
    assert spent(result) == "1/1 of 1/1"
    assert " 1 " in (result.error or "")
    assert scenario("max-provider-rounds").max_rounds == 1


@pytest.mark.contract("EVL-11")
async def test_the_limit_of_tool_calls():
    result = await run("max-tool-calls")
    reason = "max_tool_calls"
    assert ended(result) == ("completed", reason, "sent", f"completed/{reason}")
    assert spent(result) == "129/128 of 129/128"
    assert tokens(result) == (130, 1, 131, None, None)


@pytest.mark.contract("EVL-12")
async def test_the_same_calls_with_the_same_results():
    result = await run("repeated-tool-no-progress")
    assert ended(result) == ("error", "no_progress", "error", "error/no_progress")
    assert spent(result) == "4/4 of 4/4"
    expected = scenario("repeated-tool-no-progress").expect
    assert expected.tool_text == ("agent_no_progress",)


@pytest.mark.contract("EVL-13")
async def test_an_empty_reply():
    result = await run("empty-provider-output")
    assert ended(result) == ("error", "empty_response", "error", "error/empty_response")
    assert result.persisted is not None
    assert result.persisted.code == "no_model_response"
    assert spent(result) == "1/0 of 1/0"
    assert tokens(result) is None


@pytest.mark.contract("EVL-14")
async def test_an_error_of_the_provider_after_text():
    result = await run("generic-provider-error")
    assert ended(result) == ("error", "provider_error", "error", "error/provider_error")
    assert result.error == "Rate limit exceeded"
    assert spent(result) == "1/0 of 1/0"
    assert tokens(result) == (8, 1, 9, None, None)
    assert scenario("generic-provider-error").expect.text


@pytest.mark.contract("EVL-15")
async def test_a_conversation_that_is_too_long():
    result = await run("context-window-error")
    assert ended(result) == ("error", "context_window", "error", "error/context_window")
    assert spent(result) == "1/0 of 1/0"
    assert tokens(result) == (20, 1, 21, None, None)


@pytest.mark.contract("EVL-16")
async def test_the_clock_stands_at_the_first_of_january_2026():
    report = await evaluate(STANDARD_SCENARIOS[:3])
    for result in report.scenarios:
        assert result.persisted is not None
        times = (result.persisted.created_at, result.persisted.updated_at)
        assert times == (MIDNIGHT_2026, MIDNIGHT_2026)
        assert result.elapsed_ms >= 0


@pytest.mark.contract("EVL-16")
async def test_a_message_goes_from_none_through_pending_to_its_end():
    report = await evaluate(STANDARD_SCENARIOS)
    paths = {each.persisted.statuses for each in report.scenarios if each.persisted}
    assert paths == {
        ("none", "pending", "sent"),
        ("none", "pending", "error"),
        ("none", "pending"),
    }


@pytest.mark.contract("EVL-17")
async def test_the_sums_over_all_scenarios():
    report = await evaluate(STANDARD_SCENARIOS)
    assert [result.id for result in report.scenarios] == IDS
    assert msgspec.to_builtins(report.aggregate) == {
        "scenarios": 15,
        "passed": 15,
        "passRate": 1.0,
        "providerRounds": {"used": 151, "budget": 152},
        "toolCalls": {"used": 138, "budget": 139},
        "tokens": 274,
        "withinCallBudgets": True,
    }
    assert report.schema_version == 1


@pytest.mark.contract("EVL-17")
def test_the_sums_are_those_of_the_expectations():
    expected = [each.expect for each in STANDARD_SCENARIOS]
    assert sum(each.rounds or 0 for each in expected) == 151
    assert sum(each.tool_calls or 0 for each in expected) == 138
    usages = [each.usage for each in expected]
    totals = [getattr(usage, "total", 0) for usage in usages]
    assert sum(totals) == 274


@pytest.mark.contract("EVL-17")
async def test_a_result_over_its_budget_is_not_within_the_call_budgets():
    report = await evaluate(STANDARD_SCENARIOS)
    results = list(report.scenarios)
    results[4] = msgspec.structs.replace(
        results[4], provider_rounds=Spent(5, 4), tool_calls=Spent(4, 3)
    )
    over = report_of(results).aggregate
    assert not over.within_call_budgets
    assert (over.provider_rounds.used, over.tool_calls.used) == (153, 140)


@pytest.mark.contract("EVL-17")
@pytest.mark.parametrize("over", ["provider_rounds", "tool_calls"])
async def test_one_scenario_over_one_budget_is_enough(over: str):
    report = await evaluate(STANDARD_SCENARIOS[:5])
    results = list(report.scenarios)
    budget = getattr(results[0], over).budget
    results[0] = msgspec.structs.replace(
        results[0], **{over: Spent(budget + 1, budget)}
    )
    # The sums have room for it: scenario 5 has a round and a call left over.
    assert getattr(report_of(results).aggregate, over).is_within
    assert not report_of(results).aggregate.within_call_budgets


@pytest.mark.contract("EVL-17")
async def test_the_pass_rate_is_the_part_that_passed():
    report = await evaluate(STANDARD_SCENARIOS[:4])
    results = list(report.scenarios)
    results[1] = msgspec.structs.replace(results[1], passed=False)
    failed = report_of(results).aggregate
    assert (failed.passed, failed.pass_rate) == (3, 0.75)


@pytest.mark.contract("EVL-16", "EVL-17")
async def test_a_scenario_that_spends_more_fails_and_is_not_within_the_call_budgets():
    fifth = scenario("multiple-tool-rounds")
    grep, read, answer = fifth.script
    longer = msgspec.structs.replace(fifth, script=(grep, read, grep, read, answer))
    (result,) = (report := await evaluate([longer])).scenarios
    assert spent(result) == "5/4 of 4/3"
    assert not report.aggregate.within_call_budgets
    assert report.aggregate.pass_rate == 0.0
    assert "budget: 5 rounds of 4, 4 tool calls of 3" in result.failures
