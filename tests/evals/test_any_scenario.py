"""Whatever a scenario says, it is driven to a result that the store agrees with."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import trio
import trio.testing
from hypothesis import given, settings, strategies as st

from greenroom.actors.providers import Cue
from greenroom.testing import (
    Call,
    End,
    Expectation,
    Fail,
    Halt,
    Hang,
    Pause,
    Raise,
    Say,
    Scenario,
    ScenarioResult,
    ScriptedTool,
    Think,
    Use,
    UserAnswer,
    evaluate_scenario,
)

TOOLS = (
    ScriptedTool(name="read", result="read it", read_only=True),
    ScriptedTool(name="write", result="wrote it", permission="write it"),
    ScriptedTool(name="break", error="it broke"),
)
texts = st.text(max_size=20)
counts = st.integers(0, 1_000)
names = st.sampled_from(["read", "write", "break", "unknown"])
arguments = st.one_of(
    st.dictionaries(texts, texts, max_size=2), st.sampled_from(["", "{", "[]", "null"])
)
stops = st.sampled_from(["complete", "max_tokens", "tool_use", "error"])
calls = st.builds(Call, names, arguments, cut=st.booleans())
cues: st.SearchStrategy[Cue] = st.one_of(
    calls,
    calls,
    st.builds(Say, texts, st.integers(0, 3)),
    st.builds(Think, texts),
    st.builds(Use, counts, counts, st.none() | counts),
    st.builds(Halt, stops),
    st.builds(Fail, texts, status=st.sampled_from([None, 400, 429, 500])),
    st.builds(Raise, texts),
    st.builds(Pause, st.floats(0, 60)),
    st.builds(Hang),
    st.builds(End),
)
answers = st.builds(
    UserAnswer,
    answer=st.sampled_from(["grant", "deny", "reply", "other"]),
    text=texts,
)
replies = st.builds(
    lambda some, stop: (*some, Halt(stop)), st.lists(cues, max_size=5), stops
)
scenarios = st.builds(
    Scenario,
    id=st.just("any"),
    script=st.lists(replies, max_size=5).map(tuple),
    expect=st.just(Expectation(status="completed")),
    tools=st.just(TOOLS),
    permission_mode=st.sampled_from(["default", "auto_approve", "full_access"]),
    max_rounds=st.none() | st.integers(1, 4),
    answers=st.lists(answers, max_size=3).map(tuple),
    stop_before_event=st.none() | st.integers(1, 8),
    steer_waiting=st.booleans(),
)


def run(scenario: Scenario) -> ScenarioResult:
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(partial(evaluate_scenario, scenario), clock=clock)


def timeless(result: ScenarioResult) -> dict[str, Any]:
    return msgspec.to_builtins(msgspec.structs.replace(result, elapsed_ms=0.0))


@settings(max_examples=60)
@given(scenarios)
def test_what_is_returned_is_what_is_stored_and_the_same_each_time(scenario: Scenario):
    first = run(scenario)
    expect = Expectation(
        status=first.status,  # pyright: ignore[reportArgumentType] - unfinished has a failure of its own
        stop_reason=first.stop_reason,
        rounds=first.provider_rounds.used,
        tool_calls=first.tool_calls.used,
    )
    again = run(msgspec.structs.replace(scenario, expect=expect))
    if first.status == "unfinished":
        assert "did not end" in again.failures[0] or "answer" in again.failures[0]
    else:
        assert again.failures == ()
    unlike = {"passed", "failures"}
    assert {k: v for k, v in timeless(first).items() if k not in unlike} == {
        k: v for k, v in timeless(again).items() if k not in unlike
    }


@given(scenarios)
def test_a_scenario_is_data(scenario: Scenario):
    encoded = msgspec.json.encode(scenario)
    assert msgspec.json.decode(encoded, type=Scenario) == scenario
