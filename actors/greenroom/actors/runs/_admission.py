"""The gates that a tool call passes before it may run.

In order: the definition exists, the arguments are an object that fits, the tool's own
precheck (validation, paths), the permission. Behind them comes the dispatch, in the
operation. A gate that refuses gives that call an error result and nothing else
(TOL-12); a request that a tool makes while it runs, before its dispatch, comes to the
same judgement (TOL-10).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar, final

import attrs
import trio

from greenroom.actors.backend import Reviewer, RunPlan, RunPorts
from greenroom.actors.tools import (
    Needs,
    Question,
    Tool,
    ToolRefused,
    decode_arguments,
    received_needs,
)
from greenroom.protocol import (
    ASK_USER,
    DRAFT_OPTIONS,
    MAX_ARGUMENT_CHARS,
    MAX_QUESTIONS,
    TOO_MANY_QUESTIONS,
    ActionBlock,
    ChatMessage,
    InteractionOrigin,
    ItemId,
    Review,
    ReviewedCall,
    ToolCallBlock,
    permission_verdict,
    questions_asked,
    safe_text,
)

from ._calls import CallBlocks
from ._operation import describe

PRECHECK_SECONDS: Final = 60.0
"""A precheck looks and touches nothing; one that takes longer hangs."""

REVIEW_SECONDS: Final = 30.0
"""By then the reviewer has decided, or the user is asked."""

T = TypeVar("T")


@attrs.frozen
class Admitted:
    """The call may run now."""

    call: ToolCallBlock
    tool: Tool
    arguments: dict[str, Any]
    needs: Needs
    granted: bool = False
    """Somebody has allowed it: the user, the mode or the reviewer."""
    again: bool = False
    """It has begun before, and asked."""


@attrs.frozen
class Refused:
    """The call does not run; the model is told why (TOL-12)."""

    call: ToolCallBlock
    text: str


@attrs.frozen
class Asks:
    """The call waits for the user."""

    call: ToolCallBlock
    what: Needs | Question
    origin: InteractionOrigin


Admission = Admitted | Refused | Asks


class ForeignCode(Protocol):
    """Where code runs that may hear no cancel."""

    async def ask(self, name: str, seconds: float, fn: Callable[[], Awaitable[T]]) -> T:
        """Return what *fn* brings, in a task that can be left behind.

        Raises:
            trio.TooSlowError: it did not end within *seconds*.
        """
        ...


@final
@attrs.define(eq=False)
class Gates:
    """Judges the calls of one run."""

    plan: RunPlan
    ports: RunPorts
    calls: CallBlocks
    reviewer: Reviewer
    foreign: ForeignCode
    conversation: Callable[[], Sequence[ChatMessage]]
    """What was said so far, for the reviewer."""

    async def admit(self, block: ToolCallBlock, *, granted: bool) -> Admission:
        """Take *block* through every gate; *granted* means the user has said yes."""
        try:
            tool = self.ports.tools.find(block.name)
            arguments = _arguments(block)
            what = await self._precheck(tool, arguments)
        except ToolRefused as exc:
            return Refused(block, str(exc))
        except Exception as exc:
            return Refused(block, describe(exc))
        if isinstance(what, Question):
            if questions_asked(self.calls.draft.blocks) >= MAX_QUESTIONS:
                return Refused(block, TOO_MANY_QUESTIONS)
            return Asks(block, what, "question")
        block = self.calls.show(block, what)
        admitted = Admitted(block, tool, arguments, what, granted=granted)
        if granted:
            return admitted
        return await self._judge(admitted, what, "pre-check-permission")

    async def ask_again(self, item: Admitted, asked: Needs) -> Admission:
        """Judge what the call *item* asked for while it ran, before its dispatch."""
        try:
            needs = received_needs(asked)
        except ToolRefused as exc:
            return Refused(item.call, str(exc))
        if isinstance(needs, Question):
            return Refused(item.call, "a tool that runs may only ask for a permission")
        if item.granted:
            # It was allowed and asks for more: that is the user's to decide.
            return Asks(item.call, needs, "post-call-permission")
        again = attrs.evolve(item, granted=True, again=True)
        return await self._judge(again, needs, "post-call-permission")

    async def _precheck(
        self, tool: Tool, arguments: dict[str, Any]
    ) -> Needs | Question:
        try:
            said = await self.foreign.ask(
                f"precheck-{tool.definition.name}",
                PRECHECK_SECONDS,
                lambda: tool.precheck(arguments, self.plan.context),
            )
        except trio.TooSlowError:
            raise ToolRefused(
                f"the tool did not say within {PRECHECK_SECONDS:g} s what it needs"
            ) from None
        return received_needs(said)

    async def _judge(
        self, admitted: Admitted, needs: Needs, origin: InteractionOrigin
    ) -> Admission:
        verdict = permission_verdict(self.plan.settings.permission_mode, needs)
        if verdict == "review":
            return await self._review(admitted, needs, origin)
        if verdict == "ask":
            return Asks(admitted.call, needs, origin)
        return admitted

    async def _review(
        self, admitted: Admitted, needs: Needs, origin: InteractionOrigin
    ) -> Admission:
        review = await self._reviewed(admitted.call, needs)
        if review.decision == "auto_allow":
            return attrs.evolve(admitted, granted=True)
        if review.decision == "block":
            because = f", saying: {review.reason}" if review.reason else ""
            return Refused(admitted.call, f"the reviewer blocked this call{because}")
        return Asks(admitted.call, needs, origin)

    async def _reviewed(self, call: ToolCallBlock, needs: Needs) -> Review:
        reviewed = ReviewedCall(
            tool=safe_text(call.name),
            arguments=safe_text(call.arguments),
            permission=safe_text(needs.permission or needs.title),
            detail=safe_text(needs.detail),
        )
        until = trio.current_time() + REVIEW_SECONDS
        self.ports.watchers.waiting("review", until)
        try:
            said = await self.foreign.ask(
                f"review-{call.call_id}",
                REVIEW_SECONDS,
                lambda: self.reviewer.review(reviewed, self.conversation()),
            )
        except Exception:
            # A reviewer that fails, or is late, has allowed nothing.
            return ASK_USER
        finally:
            self.ports.watchers.waiting(None)
        return _decided(said)


def _decided(said: object) -> Review:
    return said if isinstance(said, Review) else ASK_USER


def _arguments(block: ToolCallBlock) -> dict[str, Any]:
    if len(block.arguments) > MAX_ARGUMENT_CHARS:
        raise ToolRefused(
            f"the arguments are longer than {MAX_ARGUMENT_CHARS} characters; "
            "do the work in smaller parts"
        )
    return decode_arguments(block.arguments, dict[str, Any])


def action_block(item_id: ItemId, asks: Asks) -> ActionBlock:
    """Return the interaction that *asks* becomes."""
    what, call = asks.what, asks.call
    if isinstance(what, Question):
        return ActionBlock(
            id=item_id,
            action="question_request",
            origin=asks.origin,
            tool_block_id=call.id,
            title=safe_text(what.header),
            detail=safe_text(what.text),
            options=what.options,
            multiple=what.multiple,
            custom=what.custom,
            round=call.round,
        )
    draft = what.origin == "skill-draft-confirmation"
    return ActionBlock(
        id=item_id,
        action="question_request" if draft else "tool_call_permission",
        origin=what.origin or asks.origin,
        tool_block_id=call.id,
        title=safe_text(what.permission or what.title),
        detail=safe_text(what.detail),
        options=DRAFT_OPTIONS if draft else (),
        custom=not draft,
        round=call.round,
    )
