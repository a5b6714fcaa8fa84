"""Calls that say something to a session, and that deal with what waits in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from greenroom.actors.sessions import AcceptedInput
from greenroom.protocol import PendingInput, SessionId
from greenroom.protocol.gateway import (
    AnswerPending,
    EditPendingInput,
    InputAccepted,
    InputList,
    InputRef,
    InteractionList,
    MovePendingInput,
    Nothing,
    PromptResult,
    QueueInput,
    SendPrompt,
    SessionRef,
    SteerTurn,
    fit_inputs,
    interactions_of,
)

from ._calls_sessions import row_of
from ._ports import EnginePort, Handler

_TEXT_CHARS: Final = 200_000
"""Of what the model said, in the result of a prompt."""

_ENDPOINT: Final = "gateway"
"""The first hop of what is said here (PER-08)."""


async def _prompt(engine: EnginePort, asked: SendPrompt) -> PromptResult:
    # The turn is the engine's: a gateway that stops only waits no longer.
    turn = await engine.session(asked.session_id).prompt(
        asked.content, command_id=asked.command_id, detached=True, endpoint=_ENDPOINT
    )
    return PromptResult(
        message_id=turn.message.id,
        outcome=turn.outcome,
        stop_reason=turn.stop_reason,
        text=turn.text[:_TEXT_CHARS],
        error=turn.error,
        usage=turn.usage,
        cost=turn.cost,
    )


async def _queue(engine: EnginePort, asked: QueueInput) -> InputAccepted:
    accepted = await engine.session(asked.session_id).queue(
        asked.content, command_id=asked.command_id, endpoint=_ENDPOINT
    )
    return _accepted(accepted)


async def _steer(engine: EnginePort, asked: SteerTurn) -> InputAccepted:
    accepted = await engine.session(asked.session_id).steer(
        asked.content,
        expected_turn=asked.expected_turn,
        command_id=asked.command_id,
        endpoint=_ENDPOINT,
    )
    return _accepted(accepted)


def _accepted(accepted: AcceptedInput) -> InputAccepted:
    return InputAccepted(
        input_id=accepted.input_id, delivery=accepted.delivery, input=accepted.row
    )


async def _cancel(engine: EnginePort, asked: SessionRef) -> Nothing:
    await row_of(engine, asked.session_id)
    await engine.session(asked.session_id).cancel()
    return Nothing()


#### What waits for its turn


async def _inputs(engine: EnginePort, asked: SessionRef) -> InputList:
    await row_of(engine, asked.session_id)
    return _waiting(await engine.session(asked.session_id).inputs())


async def _edit(engine: EnginePort, asked: EditPendingInput) -> InputList:
    session = engine.session(asked.session_id)
    return _waiting(await session.edit_input(asked.input_id, asked.content))


async def _move(engine: EnginePort, asked: MovePendingInput) -> InputList:
    session = engine.session(asked.session_id)
    return _waiting(await session.move_input(asked.input_id, asked.to))


async def _delete(engine: EnginePort, asked: InputRef) -> InputList:
    session = engine.session(asked.session_id)
    return _waiting(await session.delete_input(asked.input_id))


async def _promote(engine: EnginePort, asked: InputRef) -> InputList:
    session = engine.session(asked.session_id)
    return _waiting(await session.promote_input(asked.input_id))


async def _retry(engine: EnginePort, asked: InputRef) -> InputList:
    session = engine.session(asked.session_id)
    return _waiting(await session.retry_input(asked.input_id))


async def _degrade(engine: EnginePort, asked: InputRef) -> InputList:
    session = engine.session(asked.session_id)
    return _waiting(await session.degrade_input(asked.input_id))


async def _release(engine: EnginePort, asked: SessionRef) -> InputList:
    return _waiting(await engine.session(asked.session_id).release_inputs())


def _waiting(rows: tuple[PendingInput, ...]) -> InputList:
    return InputList(*fit_inputs(rows))


#### What waits for an answer


async def _interactions(engine: EnginePort, asked: SessionRef) -> InteractionList:
    scope = (await row_of(engine, asked.session_id)).id
    newest = await engine.read(
        lambda reader: reader.messages(SessionId(scope), None, 1, "assistant")
    )
    return InteractionList(interactions_of(scope, newest))


async def _answer(engine: EnginePort, asked: AnswerPending) -> Nothing:
    session = engine.session(asked.session_id)
    await session.answer(asked.interaction_id, asked.answer)
    return Nothing()


PROMPTS: Final[Mapping[str, Handler]] = {
    "_greenroom/prompt": _prompt,
    "_greenroom/queue": _queue,
    "_greenroom/steer": _steer,
    "_greenroom/cancel": _cancel,
    "_greenroom/input/list": _inputs,
    "_greenroom/input/edit": _edit,
    "_greenroom/input/move": _move,
    "_greenroom/input/delete": _delete,
    "_greenroom/input/promote": _promote,
    "_greenroom/input/retry": _retry,
    "_greenroom/input/degrade": _degrade,
    "_greenroom/input/release": _release,
    "_greenroom/interaction/list": _interactions,
    "_greenroom/interaction/answer": _answer,
}
