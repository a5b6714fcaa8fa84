"""The tools that speak to the user: ``ask_user`` and ``update_plan``.

A question is a pause, not a result: `ask_user` answers the first door with a
`Question` and never comes to the second (INT-08). The plan is replaced as a whole,
durably, by the run.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from greenroom.protocol import PlanEntry, QuestionOption, safe_text

from .._port import Needs, Operation, Question, ToolContext, ToolRefused, ToolResult
from .._typed import TypedTool, define


class OptionArgument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One choice."""

    label: Annotated[str, msgspec.Meta(min_length=1, max_length=30)]
    description: Annotated[str, msgspec.Meta(max_length=200)] = ""


class AskArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to ask."""

    question: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    options: Annotated[
        tuple[OptionArgument, ...], msgspec.Meta(min_length=1, max_length=10)
    ]
    header: Annotated[
        str, msgspec.Meta(max_length=30, description="A word or two above it")
    ] = ""
    multiple: Annotated[
        bool, msgspec.Meta(description="More than one option may be chosen")
    ] = False
    custom: Annotated[
        bool, msgspec.Meta(description="An answer in own words is possible")
    ] = True


class EntryArgument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step."""

    content: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    status: Literal["pending", "in_progress", "completed"] = "pending"
    priority: Literal["high", "medium", "low"] = "medium"


class PlanArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole plan."""

    entries: Annotated[tuple[EntryArgument, ...], msgspec.Meta(max_length=50)]


async def _ask(arguments: AskArguments, context: ToolContext) -> Question:
    labels = [safe_text(option.label).strip() for option in arguments.options]
    if not arguments.question.strip() or not all(labels):
        raise ToolRefused("the question and every label must say something")
    if len(set(labels)) < len(labels):
        raise ToolRefused("two options have the same label; an answer names its label")
    return Question(
        text=safe_text(arguments.question),
        header=safe_text(arguments.header),
        options=tuple(
            QuestionOption(label, safe_text(option.description))
            for label, option in zip(labels, arguments.options, strict=True)
        ),
        multiple=arguments.multiple,
        custom=arguments.custom,
    )


async def _not_run(arguments: AskArguments, operation: Operation) -> ToolResult:
    raise ToolRefused("a question is answered by the user; it can't be run")


async def _check_plan(arguments: PlanArguments, context: ToolContext) -> Needs:
    if not all(entry.content.strip() for entry in arguments.entries):
        raise ToolRefused("every entry of a plan must say something")
    return Needs(permission=None, title="update the plan", kind="think")


async def _update_plan(arguments: PlanArguments, operation: Operation) -> ToolResult:
    await _check_plan(arguments, operation.context)
    entries = tuple(
        PlanEntry(safe_text(entry.content), entry.status, entry.priority)
        for entry in arguments.entries
    )
    await operation.dispatch()
    revision = await operation.update_plan(entries)
    return ToolResult(f"the plan has {len(entries)} entries, revision {revision}")


ASK_USER: Final = TypedTool(
    definition=define(
        "ask_user",
        "Ask the user a question with options to choose from, and wait for the "
        "answer. For decisions that only the user can make.",
        AskArguments,
    ),
    arguments=AskArguments,
    check=_ask,
    perform=_not_run,
    read_only=True,
)

UPDATE_PLAN: Final = TypedTool(
    definition=define(
        "update_plan",
        "Show the user the steps of the work and how far it is. Each call replaces "
        "the whole plan.",
        PlanArguments,
    ),
    arguments=PlanArguments,
    check=_check_plan,
    perform=_update_plan,
)
