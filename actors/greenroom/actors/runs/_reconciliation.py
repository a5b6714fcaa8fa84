"""Operations in doubt: the tool is asked what became of them (three-state recovery).

After a crash an operation was not dispatched, has its outcome, or is in doubt. Recovery
never runs one again; but a tool may know how to look. It is asked when the session is
loaded, before anything goes to the model, within a bound. What it knows becomes the
call's result, with a fact that says so; when it does not know, raises or is late, the
honest text stays: nobody knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import msgspec
import outcome
import trio

from greenroom.actors.backend import Reconciled
from greenroom.actors.kernel import Reaper
from greenroom.actors.tools import (
    Doubt,
    Reconciling,
    ToolContext,
    ToolRefused,
    ToolResult,
    ToolSet,
    decode_arguments,
    received_result,
)
from greenroom.protocol import (
    Fact,
    MessageRecord,
    OperationId,
    RunId,
    ToolCallBlock,
    revisions,
    sha256_hex,
)
from greenroom.storage import (
    OperationReconciled,
    message_fact,
    reconciled_fact,
    tool_facts,
)

from ._batch import OperationHandle
from ._operation import bounded

_LOG: Final = logging.getLogger("greenroom.runs")

RECONCILE_SECONDS: Final = 10.0
"""For all operations of a session together; loading waits no longer."""

RECONCILED: Final = "the session was interrupted; its tool told later what came of it"


@attrs.frozen
class _Question:
    block: ToolCallBlock
    operation: OperationId
    tool: Reconciling
    doubt: Doubt


async def reconcile(
    message: MessageRecord,
    tools: ToolSet,
    context: Callable[[RunId], ToolContext],
    reaper: Reaper,
    now: float,
) -> Reconciled | None:
    """Ask the tools of *message* about its operations in doubt.

    ``None``: there are none, or nothing is known of them. Executes nothing.
    """
    questions = [*_questions(message, tools, context)]
    if not questions:
        return None
    results = await _ask(questions, reaper)
    known = [
        (question, result)
        for question, result in zip(questions, results, strict=True)
        if result is not None
    ]
    return _reconciled(message, known, now) if known else None


def _questions(
    message: MessageRecord, tools: ToolSet, context: Callable[[RunId], ToolContext]
) -> Sequence[_Question]:
    found: list[_Question] = []
    for block in message.blocks:
        if not isinstance(block, ToolCallBlock) or block.in_doubt is None:
            continue
        operation = block.in_doubt
        try:
            tool = tools.find(block.name)
            arguments = decode_arguments(block.arguments, dict[str, Any])
        except ToolRefused:
            continue
        if isinstance(tool, Reconciling):
            doubt = Doubt(operation, arguments, context(operation.run_id))
            found.append(_Question(block, operation, tool, doubt))
    return found


async def _ask(
    questions: Sequence[_Question], reaper: Reaper
) -> list[ToolResult | None]:
    until = trio.current_time() + RECONCILE_SECONDS
    handles = [
        reaper.start(
            question.tool.reconcile,
            question.doubt,
            name=f"reconcile-{question.operation.hash[:12]}",
        )
        for question in questions
    ]
    try:
        return [
            _known(question, await _outcome(handle, until))
            for question, handle in zip(questions, handles, strict=True)
        ]
    finally:
        with trio.CancelScope(shield=True):
            for handle in handles:
                await handle.stop(0.0, 0.0)


async def _outcome(
    handle: OperationHandle, until: float
) -> outcome.Outcome[Any] | None:
    with trio.move_on_at(until):
        return await handle.wait()
    return None


def _known(
    question: _Question, ended: outcome.Outcome[Any] | None
) -> ToolResult | None:
    try:
        said = None if ended is None else ended.unwrap()
        if said is not None:
            return bounded(received_result(said))
        why = "late" if ended is None else None
    except Exception as exc:
        why = repr(exc)[:500]
    if why is not None:
        _LOG.warning(
            "tool %r could not tell what became of %s: %s",
            question.block.name,
            question.operation.hash,
            why,
        )
    return None


def _reconciled(
    message: MessageRecord,
    known: Sequence[tuple[_Question, ToolResult]],
    now: float,
) -> Reconciled:
    changed = {q.block.id: _with_result(q.block, result) for q, result in known}
    blocks = tuple(changed.get(block.id, block) for block in message.blocks)
    mended = msgspec.structs.replace(message, blocks=blocks, updated_at=now)
    facts = [message_fact(each) for each in revisions(mended, changed.values())]
    for question, result in known:
        block = changed[question.block.id]
        facts += [_fact(message, question, result), *tool_facts(message.id, block)]
    return Reconciled(mended, tuple(facts))


def _fact(message: MessageRecord, question: _Question, result: ToolResult) -> Fact:
    return reconciled_fact(
        OperationReconciled(
            operation=question.operation,
            message_id=message.id,
            response_hash=sha256_hex(result.text),
            is_error=result.is_error,
        )
    )


def _with_result(block: ToolCallBlock, result: ToolResult) -> ToolCallBlock:
    return msgspec.structs.replace(
        block,
        status="error" if result.is_error else "success",
        response=result.text,
        title=result.title or block.title,
        locations=result.locations or block.locations,
        diffs=result.diffs or block.diffs,
        note=RECONCILED,
        in_doubt=None,
    )
