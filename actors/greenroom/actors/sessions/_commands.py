"""Commands as they come out of the durable inbox: read, or withdrawn.

Whoever posted one need not have been this program, so nothing in it is trusted.
"""

from __future__ import annotations

import msgspec

from greenroom.protocol import (
    Command,
    Fact,
    FactKind,
    InputChange,
    MessageId,
    PendingInputs,
    PromptCommand,
    QueueCommand,
    SourceType,
    SteerCommand,
)
from greenroom.storage import InboxCommand, endpoint_fact

from ._input import check_parts
from ._messages import TurnRefusedError


def read_command(posted: InboxCommand) -> Command:
    """Return what was *posted*.

    Raises:
        TurnRefusedError: it can't be read, or says nothing that can be taken.
    """
    try:
        command: Command = msgspec.json.decode(posted.body, type=Command)  # pyright: ignore[reportArgumentType] - a union
    except (msgspec.DecodeError, RecursionError) as exc:
        raise TurnRefusedError(
            "unknown_command", f"a command can't be read: {exc}"
        ) from exc
    check_parts(command.parts)
    return command


def put_in(
    inputs: PendingInputs, command_id: str, command: Command, now: float
) -> InputChange:
    """Return what *command* makes of the rows.

    Raises:
        InputRefusedError: there is no room.
    """
    match command:
        case PromptCommand(parts=parts):
            return inputs.enqueue(command_id, parts, now=now, sent=True)
        case QueueCommand(parts=parts):
            return inputs.enqueue(command_id, parts, now=now)
        case SteerCommand(parts=parts):
            return inputs.add_steer(command_id, parts, MessageId(command_id), now=now)


def arrival_facts(command_id: str, endpoint: str, now: float) -> list[Fact]:
    """Return that a command came through *endpoint*; nothing where nobody said so.

    For the append that takes it in: what is refused, or sent again, leaves no hop.
    """
    if not endpoint:
        return []
    return [endpoint_fact(MessageId(command_id), endpoint, "", at=now)]


def withdrawal_fact(command_id: str) -> Fact:
    """Return the fact that a command was taken back before it was taken in."""
    return Fact(
        kind=FactKind.EVENT,
        name="input/withdrawn",
        source_type=SourceType.RUNTIME_EVENT,
        source_id=command_id,
    )
