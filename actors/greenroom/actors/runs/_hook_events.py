"""What a run tells its hooks, each after the fact that it speaks of (SKL-10)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from greenroom.actors.backend import RunPlan
from greenroom.actors.tools import ToolResult
from greenroom.protocol import (
    MAX_HOOK_TEXT,
    ActionBlock,
    Block,
    HookEvent,
    PermissionRequest,
    PostToolUse,
    PostToolUseFailure,
    PreToolUse,
    RunEnd,
    SessionStart,
    Terminal,
    ToolCallBlock,
    Usage,
    safe_text,
)


def session_start(plan: RunPlan) -> SessionStart:
    """Return that the run of *plan* is registered."""
    return SessionStart(
        session_id=plan.session_id,
        run_id=plan.run_id,
        message_id=plan.message.id,
        agent_id=plan.settings.agent_id,
        provider=plan.settings.provider,
        model=plan.settings.model,
    )


def pre_tool_use(plan: RunPlan, call: ToolCallBlock) -> PreToolUse:
    """Return that *call* passed every gate and is about to run."""
    return PreToolUse(
        session_id=plan.session_id,
        run_id=plan.run_id,
        message_id=plan.message.id,
        item_id=call.id,
        call_id=_text(call.call_id),
        tool=_text(call.name),
        arguments=_text(call.arguments),
    )


def post_tool_use(
    plan: RunPlan, call: ToolCallBlock, result: ToolResult
) -> PostToolUse | PostToolUseFailure:
    """Return what *call* came to."""
    form = PostToolUseFailure if result.is_error else PostToolUse
    return form(
        session_id=plan.session_id,
        run_id=plan.run_id,
        message_id=plan.message.id,
        item_id=call.id,
        tool=_text(call.name),
        response=_text(result.text),
    )


def permission_requests(
    plan: RunPlan, blocks: Collection[Block]
) -> Iterator[HookEvent]:
    """Yield what the run asked for: what waits now and did not before it."""
    before = {block.id for block in plan.message.blocks}
    for block in blocks:
        is_new = block.id not in before
        if isinstance(block, ActionBlock) and is_new and block.status == "pending":
            yield PermissionRequest(
                session_id=plan.session_id,
                run_id=plan.run_id,
                message_id=plan.message.id,
                interaction_id=block.id,
                origin=block.origin,
                title=_text(block.title),
            )


def run_end(plan: RunPlan, terminal: Terminal, usage: Usage | None) -> RunEnd:
    """Return that the run has its terminal."""
    fault = terminal.fault
    return RunEnd(
        session_id=plan.session_id,
        run_id=plan.run_id,
        message_id=plan.message.id,
        outcome=terminal.outcome,
        reason=terminal.stop_reason,
        user_stop=terminal.stop_reason == "user_stop",
        usage=usage,
        error=None if fault is None else _text(fault.text),
    )


def _text(text: str) -> str:
    return safe_text(text)[:MAX_HOOK_TEXT]
