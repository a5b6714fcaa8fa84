"""The fifteen scenarios that every greenroom must pass (EVL-01 to EVL-15).

Data and nothing else: what the model does, what the tools do, what the turn must come
to, and what it may spend.
"""

from __future__ import annotations

from typing import Final

from greenroom.actors.providers import Call, Cue, Fail, Halt, Say, Use

from ._evals_scenario import (
    CallBudget,
    Expectation,
    ExpectedUsage,
    Scenario,
    ScriptedTool,
)

_CALLS_OF_A_RUN: Final = 128
"""As many as a run may start."""


def _budget(rounds: int, tool_calls: int) -> CallBudget:
    return CallBudget(rounds=rounds, tool_calls=tool_calls)


def _usage(
    input: int,  # noqa: A002 - the standard's word
    output: int,
    total: int,
    cache_read: int | None = None,
    cache_write: int | None = None,
) -> ExpectedUsage:
    return ExpectedUsage(
        input=input,
        output=output,
        total=total,
        cache_read=cache_read,
        cache_write=cache_write,
    )


def _distinct_call(number: int) -> tuple[Cue, ...]:
    return Call("count", {"n": number}), Halt("tool_use")


_DIRECT_COMPLETION: Final = Scenario(
    id="direct-completion",
    script=((Use(10, 4), Say("The answer is 42."), Halt()),),
    budget=_budget(1, 0),
    expect=Expectation(
        status="completed",
        stop_reason="complete",
        rounds=1,
        tool_calls=0,
        failed_tools=0,
        permission_requests=0,
        usage=_usage(10, 4, 14),
        text=("The answer is 42.",),
    ),
)

_MAX_TOKENS: Final = Scenario(
    id="max-tokens",
    script=((Use(11, 4), Say("It goes on and"), Halt("max_tokens")),),
    budget=_budget(1, 0),
    expect=Expectation(
        status="completed",
        stop_reason="max_tokens",
        rounds=1,
        tool_calls=0,
        usage=_usage(11, 4, 15),
        text=("It goes on and",),
    ),
)

_TRUNCATED_TOOL_CALL_RECOVERY: Final = Scenario(
    id="truncated-tool-call-recovery",
    script=(
        (
            Use(3, 2),
            Call("write", '{"path": "notes.txt", "content": "half of', cut=True),
            Halt("max_tokens"),
        ),
        (Say("I will write less at once."), Use(4, 1), Halt()),
    ),
    tools=(ScriptedTool(name="write", permission="write notes.txt"),),
    permission_mode="default",
    budget=_budget(2, 0),
    expect=Expectation(
        status="completed",
        stop_reason="complete",
        rounds=2,
        tool_calls=0,
        failed_tools=0,
        permission_requests=0,
        usage=_usage(7, 3, 10),
        text=("I will write less at once.",),
        tool_text=("cut by the output limit",),
    ),
)

_SINGLE_TOOL_ROUND: Final = Scenario(
    id="single-tool-round",
    script=(
        (Call("read", {"path": "notes.txt"}), Halt("tool_use")),
        (Say("The note says hello."), Use(18, 6), Halt()),
    ),
    tools=(ScriptedTool(name="read", result="hello from the note", read_only=True),),
    budget=_budget(2, 1),
    expect=Expectation(
        status="completed",
        stop_reason="complete",
        rounds=2,
        tool_calls=1,
        failed_tools=0,
        usage=_usage(18, 6, 24),
        text=("The note says hello.",),
        tool_text=("hello from the note",),
    ),
)

_MULTIPLE_TOOL_ROUNDS: Final = Scenario(
    id="multiple-tool-rounds",
    script=(
        (
            Use(7, 1, cache_read=2, cache_write=1),
            Call("grep", {"pattern": "TODO"}),
            Halt("tool_use"),
        ),
        (
            Use(8, 2, cache_read=3),
            Call("read", {"path": "plan.md"}),
            Halt("tool_use"),
        ),
        (Say("One thing is left to do."), Use(10, 5, cache_write=2), Halt()),
    ),
    tools=(
        ScriptedTool(name="grep", result="plan.md:3: TODO", read_only=True),
        ScriptedTool(name="read", result="write the last chapter", read_only=True),
    ),
    budget=_budget(4, 3),
    expect=Expectation(
        status="completed",
        stop_reason="complete",
        rounds=3,
        tool_calls=2,
        failed_tools=0,
        usage=_usage(25, 8, 33, cache_read=5, cache_write=3),
        text=("One thing is left to do.",),
        tool_text=("plan.md:3: TODO", "write the last chapter"),
    ),
)

_TOOL_FAILURE_RECOVERY: Final = Scenario(
    id="tool-failure-recovery",
    script=(
        (Call("read", {"path": "gone.txt"}), Halt("tool_use")),
        (Say("There is no such file."), Use(12, 5), Halt()),
    ),
    tools=(ScriptedTool(name="read", error="gone.txt is not there"),),
    budget=_budget(2, 1),
    expect=Expectation(
        status="completed",
        stop_reason="complete",
        rounds=2,
        tool_calls=1,
        failed_tools=1,
        usage=_usage(12, 5, 17),
        text=("There is no such file.",),
        tool_text=("gone.txt is not there",),
    ),
)

_PERMISSION_PAUSE: Final = Scenario(
    id="permission-pause",
    script=((Call("write", {"path": "notes.txt"}), Halt("tool_use")),),
    tools=(ScriptedTool(name="write", permission="write notes.txt"),),
    permission_mode="default",
    budget=_budget(1, 0),
    expect=Expectation(
        status="paused",
        rounds=1,
        tool_calls=0,
        failed_tools=0,
        permission_requests=1,
        usage="unknown",
    ),
)

_CANCELLATION: Final = Scenario(
    id="cancellation",
    script=((Say("I begin to"), Say(" explain"), Use(1, 1), Halt()),),
    stop_before_event=2,
    budget=_budget(1, 0),
    expect=Expectation(
        status="aborted",
        stop_reason="user_stop",
        code="user_canceled",
        rounds=1,
        tool_calls=0,
        usage="unknown",
        text=("I begin to",),
        error_text=("stopped by the user",),
    ),
)

_PENDING_INPUT_YIELD: Final = Scenario(
    id="pending-input-yield",
    script=(
        (Call("read", {"path": "notes.txt"}), Halt("tool_use")),
        (Say("Nobody waits for this."), Halt()),
    ),
    tools=(ScriptedTool(name="read", result="hello", read_only=True),),
    steer_waiting=True,
    budget=_budget(1, 1),
    expect=Expectation(
        status="completed",
        stop_reason="pending_input",
        rounds=1,
        tool_calls=1,
        failed_tools=0,
        usage="unknown",
    ),
)

_MAX_PROVIDER_ROUNDS: Final = Scenario(
    id="max-provider-rounds",
    script=(
        (Call("read", {"path": "notes.txt"}), Halt("tool_use")),
        (Say("One round too many."), Halt()),
    ),
    tools=(ScriptedTool(name="read", result="hello", read_only=True),),
    max_rounds=1,
    budget=_budget(1, 1),
    expect=Expectation(
        status="error",
        stop_reason="max_turns",
        code="max_turns",
        rounds=1,
        tool_calls=1,
        usage="unknown",
        error_text=("limit of 1 model rounds",),
    ),
)

_MAX_TOOL_CALLS: Final = Scenario(
    id="max-tool-calls",
    script=(
        *(_distinct_call(number) for number in range(_CALLS_OF_A_RUN)),
        (Use(130, 1), *_distinct_call(_CALLS_OF_A_RUN)),
    ),
    tools=(ScriptedTool(name="count", result="counted"),),
    budget=_budget(129, 128),
    expect=Expectation(
        status="completed",
        stop_reason="max_tool_calls",
        rounds=129,
        tool_calls=128,
        failed_tools=0,
        usage=_usage(130, 1, 131),
    ),
)

_REPEATED_TOOL_NO_PROGRESS: Final = Scenario(
    id="repeated-tool-no-progress",
    script=((Call("read", {"path": "notes.txt"}), Halt("tool_use")),) * 5,
    tools=(ScriptedTool(name="read", result="the same as before", read_only=True),),
    budget=_budget(4, 4),
    expect=Expectation(
        status="error",
        stop_reason="no_progress",
        code="no_progress",
        rounds=4,
        tool_calls=4,
        usage="unknown",
        tool_text=("agent_no_progress",),
    ),
)

_EMPTY_PROVIDER_OUTPUT: Final = Scenario(
    id="empty-provider-output",
    script=((Halt(),),),
    budget=_budget(1, 0),
    expect=Expectation(
        status="error",
        stop_reason="empty_response",
        code="no_model_response",
        rounds=1,
        tool_calls=0,
        usage="unknown",
    ),
)

_GENERIC_PROVIDER_ERROR: Final = Scenario(
    id="generic-provider-error",
    script=((Use(8, 1), Say("So far"), Fail("Rate limit exceeded"), Halt()),),
    budget=_budget(1, 0),
    expect=Expectation(
        status="error",
        stop_reason="provider_error",
        rounds=1,
        tool_calls=0,
        usage=_usage(8, 1, 9),
        text=("So far",),
        error_text=("Rate limit exceeded",),
    ),
)

_CONTEXT_WINDOW_ERROR: Final = Scenario(
    id="context-window-error",
    script=((Use(20, 1), Fail("maximum context length exceeded")),),
    budget=_budget(1, 0),
    expect=Expectation(
        status="error",
        stop_reason="context_window",
        rounds=1,
        tool_calls=0,
        usage=_usage(20, 1, 21),
        error_text=("maximum context length exceeded",),
    ),
)

STANDARD_SCENARIOS: Final[tuple[Scenario, ...]] = (
    _DIRECT_COMPLETION,
    _MAX_TOKENS,
    _TRUNCATED_TOOL_CALL_RECOVERY,
    _SINGLE_TOOL_ROUND,
    _MULTIPLE_TOOL_ROUNDS,
    _TOOL_FAILURE_RECOVERY,
    _PERMISSION_PAUSE,
    _CANCELLATION,
    _PENDING_INPUT_YIELD,
    _MAX_PROVIDER_ROUNDS,
    _MAX_TOOL_CALLS,
    _REPEATED_TOOL_NO_PROGRESS,
    _EMPTY_PROVIDER_OUTPUT,
    _GENERIC_PROVIDER_ERROR,
    _CONTEXT_WINDOW_ERROR,
)
"""In the order of the rows."""
