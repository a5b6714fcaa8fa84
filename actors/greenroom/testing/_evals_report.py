"""What came of scenarios: one result for each, and the sums. Pure.

The report is what `greenroom eval --json` prints. Of two evaluations of the same
scenarios only ids and elapsed times may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from uuid import UUID

import attrs
import msgspec

from greenroom.protocol import (
    ActionBlock,
    MessageRecord,
    ModelRequest,
    RunStarted,
    TextBlock,
    ToolMessage,
    ToolOutcome,
    Usage,
    usage_of,
)

from ._evals_scenario import CallBudget, Expectation, ExpectedUsage, Scenario

SCHEMA_VERSION: Final = 1

MAX_SHOWN_CHARS: Final = 300
"""Of a text that lacks a fragment, in the sentence that says so."""

_PATHS: Final = {
    "completed": ("none", "pending", "sent"),
    "aborted": ("none", "pending", "error"),
    "error": ("none", "pending", "error"),
    "paused": ("none", "pending"),
}
"""What the store must have said of the message of a turn that ended so."""


class Persisted(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the store has of the assistant's message."""

    run_id: str | None
    """Its last run."""
    statuses: tuple[str, ...]
    """What the message was, one after the other; the last is what it is."""
    outcome: str | None
    stop_reason: str | None
    code: str | None
    provider_rounds: int
    tool_calls: int
    usage: Usage | None
    created_at: float
    """Seconds since the epoch, by the clock that stands; so is the next."""
    updated_at: float


class Spent(msgspec.Struct, frozen=True):
    """What was spent of what might be."""

    used: int
    budget: int

    @property
    def is_within(self) -> bool:
        """Whether the budget was kept."""
        return self.used <= self.budget


class ScenarioResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How one scenario went."""

    id: str
    passed: bool
    failures: tuple[str, ...]
    """What was not as expected, a sentence each."""
    status: str
    """How the turn ended; ``paused`` and ``unfinished`` if it did not."""
    stop_reason: str | None
    error: str | None
    usage: Usage | None
    """As it was returned; ``null``: the provider told none."""
    persisted: Persisted | None
    """``null``: the turn did not come to a message."""
    provider_rounds: Spent
    tool_calls: Spent
    """Without a budget, of as many as were used; so are the rounds."""
    within_call_budgets: bool
    failed_tools: int
    permission_requests: int
    elapsed_ms: float


class Aggregate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The sums over all scenarios."""

    scenarios: int
    passed: int
    pass_rate: float
    """From 0 to 1."""
    provider_rounds: Spent
    tool_calls: Spent
    tokens: int
    """Of the turns whose provider told any."""
    within_call_budgets: bool
    """Whether every scenario kept to its own budget."""


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The results in the order of the scenarios, and their sums."""

    scenarios: tuple[ScenarioResult, ...]
    aggregate: Aggregate
    schema_version: int = SCHEMA_VERSION


@attrs.frozen
class Observed:
    """What was seen of one scenario, before it is judged."""

    status: str
    stop_reason: str | None
    usage: Usage | None
    """As returned, or as told to whoever watched a turn that paused."""
    revisions: tuple[MessageRecord, ...]
    """Of the assistant's message: each that is on the tape, headers only."""
    message: MessageRecord | None
    """The same as the transcript has it, with every block."""
    journal: tuple[Any, ...]
    """Every strict fact of the session."""
    requests: tuple[ModelRequest, ...]
    """What the model was asked."""
    problem: str | None = None
    """Why the turn could not be driven to its end."""
    elapsed_ms: float = 0.0


def judged(scenario: Scenario, observed: Observed) -> ScenarioResult:
    """Return the result of *scenario*, with everything that is not as expected."""
    message = observed.message
    persisted = None if message is None else _persisted(message, observed.revisions)
    rounds = 0 if persisted is None else persisted.provider_rounds
    tool_calls = 0 if persisted is None else persisted.tool_calls
    budget = scenario.budget or CallBudget(rounds=rounds, tool_calls=tool_calls)
    result = ScenarioResult(
        id=scenario.id,
        passed=True,
        failures=(),
        status=observed.status,
        stop_reason=observed.stop_reason,
        error=None if message is None else message.metadata.error_text,
        usage=observed.usage,
        persisted=persisted,
        provider_rounds=Spent(rounds, budget.rounds),
        tool_calls=Spent(tool_calls, budget.tool_calls),
        within_call_budgets=True,
        failed_tools=_failed_tools(observed.journal),
        permission_requests=_permission_requests(message),
        elapsed_ms=observed.elapsed_ms,
    )
    failures = (
        *_not_as_expected(scenario.expect, result, observed),
        *_not_as_stored(result, observed),
    )
    return msgspec.structs.replace(
        result,
        passed=not failures,
        failures=failures,
        within_call_budgets=_is_within(result),
    )


def report_of(results: Sequence[ScenarioResult]) -> Report:
    """Return the report of *results*; the sums are made from them alone."""
    return Report(scenarios=tuple(results), aggregate=_aggregate(results))


def _aggregate(results: Sequence[ScenarioResult]) -> Aggregate:
    passed = sum(result.passed for result in results)
    return Aggregate(
        scenarios=len(results),
        passed=passed,
        pass_rate=passed / len(results) if results else 0.0,
        provider_rounds=_sum(result.provider_rounds for result in results),
        tool_calls=_sum(result.tool_calls for result in results),
        tokens=sum(result.usage.total for result in results if result.usage),
        within_call_budgets=all(_is_within(result) for result in results),
    )


def _sum(parts: Iterable[Spent]) -> Spent:
    each = list(parts)
    return Spent(sum(part.used for part in each), sum(part.budget for part in each))


def _is_within(result: ScenarioResult) -> bool:
    return result.provider_rounds.is_within and result.tool_calls.is_within


#### What was seen


def _persisted(message: MessageRecord, revisions: Sequence[MessageRecord]) -> Persisted:
    metadata = message.metadata
    statuses = ["none"]
    for revision in (*revisions, message):
        if revision.status != statuses[-1]:
            statuses.append(revision.status)
    return Persisted(
        run_id=metadata.run_id,
        statuses=tuple(statuses),
        outcome=metadata.run_outcome,
        stop_reason=metadata.run_stop_reason,
        code=metadata.error_code,
        provider_rounds=metadata.provider_rounds,
        tool_calls=metadata.tool_calls,
        usage=usage_of(message.metadata),
        created_at=message.created_at,
        updated_at=message.updated_at,
    )


def _failed_tools(journal: Sequence[Any]) -> int:
    return sum(isinstance(fact, ToolOutcome) and fact.is_error for fact in journal)


def _permission_requests(message: MessageRecord | None) -> int:
    return sum(
        isinstance(block, ActionBlock) and block.action == "tool_call_permission"
        for block in (() if message is None else message.blocks)
    )


#### What was expected


def _not_as_expected(
    expect: Expectation, result: ScenarioResult, observed: Observed
) -> Iterator[str]:
    if observed.problem is not None:
        yield observed.problem
    code = None if result.persisted is None else result.persisted.code
    pairs = (
        ("status", expect.status, result.status),
        ("stop reason", expect.stop_reason, result.stop_reason),
        ("error code", expect.code, code),
        ("rounds", expect.rounds, result.provider_rounds.used),
        ("tool calls", expect.tool_calls, result.tool_calls.used),
        ("failed tools", expect.failed_tools, result.failed_tools),
        (
            "permission requests",
            expect.permission_requests,
            result.permission_requests,
        ),
    )
    for what, expected, found in pairs:
        if expected is not None and expected != found:
            yield f"{what}: expected {expected!r}, found {found!r}"
    if expect.status == "paused" and result.stop_reason is not None:
        yield f"stop reason: a paused turn has none, found {result.stop_reason!r}"
    yield from _wrong_usage(expect.usage, result.usage)
    yield from _missing_texts(expect, observed)
    if not _is_within(result):
        rounds, calls = result.provider_rounds, result.tool_calls
        yield (
            f"budget: {rounds.used} rounds of {rounds.budget}, "
            f"{calls.used} tool calls of {calls.budget}"
        )


def _wrong_usage(
    expected: ExpectedUsage | str | None, found: Usage | None
) -> Iterator[str]:
    match expected:
        case None:
            return
        case ExpectedUsage():
            wanted = Usage(**msgspec.structs.asdict(expected))
        case _:
            wanted = None
    if wanted != found:
        yield f"usage: expected {_tokens(wanted)}, found {_tokens(found)}"


def _tokens(usage: Usage | None) -> str:
    if usage is None:
        return "none"
    cached = f", cache {usage.cache_read}/{usage.cache_write}"
    told = (usage.cache_read, usage.cache_write) != (None, None)
    return f"{usage.input}/{usage.output}/{usage.total}{cached if told else ''}"


def _missing_texts(expect: Expectation, observed: Observed) -> Iterator[str]:
    message = observed.message
    blocks = () if message is None else message.blocks
    said = [block.text for block in blocks if isinstance(block, TextBlock)]
    read = [
        part.text
        for request in observed.requests[-1:]
        for part in request.messages
        if isinstance(part, ToolMessage)
    ]
    error = "" if message is None else message.metadata.error_text or ""
    places = (
        ("text", expect.text, said),
        ("tool text", expect.tool_text, read),
        ("error text", expect.error_text, [error]),
    )
    for what, fragments, texts in places:
        for fragment in fragments:
            if not any(fragment in text for text in texts):
                shown = " | ".join(texts)[:MAX_SHOWN_CHARS]
                yield f"{what}: expected {fragment[:MAX_SHOWN_CHARS]!r} in {shown!r}"


#### What must be so in every scenario


def _not_as_stored(result: ScenarioResult, observed: Observed) -> Iterator[str]:
    persisted = result.persisted
    if observed.problem is not None:
        return
    if persisted is None:
        yield "the store has no message of the turn"
        return
    runs = [fact for fact in observed.journal if isinstance(fact, RunStarted)]
    pairs = (
        ("ending", _stored_ending(result, runs), _ending(persisted)),
        ("statuses", _PATHS.get(result.status), persisted.statuses),
        ("run id", runs[-1].run_id if runs else None, persisted.run_id),
    )
    for what, expected, found in pairs:
        if expected != found:
            yield f"stored {what}: expected {expected!r}, found {found!r}"
    if not _is_uuid(persisted.run_id):
        yield f"stored run id: {persisted.run_id!r} is not a UUID"
    if persisted.usage != result.usage:
        wanted, found = _tokens(result.usage), _tokens(persisted.usage)
        yield f"stored usage: expected {wanted}, found {found}"


def _stored_ending(result: ScenarioResult, runs: Sequence[RunStarted]) -> str:
    if result.status != "paused":
        return f"{result.status}/{result.stop_reason}"
    # A call that was allowed has run since; the question behind it still waits.
    allowed = bool(runs) and runs[-1].run_kind == "deferred_tool"
    return "completed/tool_result" if allowed else "paused/interaction"


def _ending(persisted: Persisted) -> str:
    return f"{persisted.outcome}/{persisted.stop_reason}"


def _is_uuid(text: str | None) -> bool:
    try:
        return text is not None and str(UUID(text)) == text
    except ValueError:
        return False
