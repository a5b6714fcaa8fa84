"""What a session actor is told, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from greenroom.actors.kernel import CancelCause, Request
from greenroom.protocol import (
    Answer,
    Delivery,
    GreenroomError,
    ImagePart,
    MessageRecord,
    Parts,
    PendingInput,
    PromptCommand,
    QueueCommand,
    RunOutcome,
    SessionSettings,
    SteerCommand,
    TextBlock,
    TextPart,
    Usage,
    usage_of,
)
from greenroom.storage import Store, Unfinished


@attrs.frozen
class TurnResult:
    """How a turn ended; a turn may have been several runs."""

    message: MessageRecord
    """The assistant's message, with every block."""

    @property
    def outcome(self) -> RunOutcome:
        """completed, aborted or error."""
        return self.message.metadata.run_outcome or "error"

    @property
    def stop_reason(self) -> str:
        """Why, as the ledger of stop reasons has it."""
        return self.message.metadata.run_stop_reason or "unknown"

    @property
    def text(self) -> str:
        """What the model said in its last round."""
        blocks = [b for b in self.message.blocks if isinstance(b, TextBlock)]
        last = blocks[-1].round if blocks else 0
        return "".join(block.text for block in blocks if block.round == last)

    @property
    def error(self) -> str | None:
        """What went wrong, for a person."""
        return self.message.metadata.error_text

    @property
    def usage(self) -> Usage | None:
        """Tokens of the whole turn; ``None`` when the provider told none."""
        return usage_of(self.message.metadata)

    @property
    def cost(self) -> float | None:
        """US dollars of the whole turn; ``None`` when it is not known."""
        return self.message.metadata.cost


@attrs.frozen
class Prompt(Request[TurnResult]):
    """Start a turn, or wait for the one that this command id started."""

    parts: tuple[TextPart | ImagePart, ...]
    command_id: str
    endpoint: str = ""
    """Through which it came, if that is to be told of it (PER-08)."""


@attrs.frozen
class AcceptedInput:
    """An input that was taken in, and where it stands."""

    input_id: str
    """Its row: that of the open steer, where it was added to one."""
    delivery: Delivery
    row: PendingInput | None
    """While it waits or is on its way; ``None`` once it is delivered or deleted."""


@attrs.frozen
class PutIn(Request[AcceptedInput]):
    """Take an input in and let it have its turn; the same id is one input."""

    command: PromptCommand | QueueCommand | SteerCommand
    command_id: str
    endpoint: str = ""
    """Through which it came, if that is to be told of it (PER-08)."""


@attrs.frozen
class EditInput:
    """Replace what a queued input says."""

    input_id: str
    parts: Parts


@attrs.frozen
class MoveInput:
    """Move a queued input to a place, from 1; beyond the ends it is clamped."""

    input_id: str
    to: int


@attrs.frozen
class DeleteInput:
    """Take an input back that is not on its way."""

    input_id: str


@attrs.frozen
class PromoteInput:
    """Say a queued input to the turn that runs."""

    input_id: str


@attrs.frozen
class RetryInput:
    """Try a blocked input again as it is."""

    input_id: str


@attrs.frozen
class DegradeInput:
    """Let a blocked input go on without what can't be sent."""

    input_id: str


@attrs.frozen
class ReleaseInputs:
    """Let what waits go on, whatever it waits for."""


InputStep = (
    EditInput
    | MoveInput
    | DeleteInput
    | PromoteInput
    | RetryInput
    | DegradeInput
    | ReleaseInputs
)


@attrs.frozen
class ChangeInputs(Request[tuple[PendingInput, ...]]):
    """Change what waits; answered with what waits then."""

    step: InputStep


@attrs.frozen
class AnswerInteraction(Request[None]):
    """Answer a pending permission or question."""

    interaction_id: str
    answer: Answer


@attrs.frozen
class ChangeSettings(Request[SessionSettings]):
    """Change settings; a run that goes on keeps its snapshot (SES-14)."""

    changes: dict[str, Any]


@attrs.frozen
class AssignSession(Request[SessionSettings]):
    """Give the session, at rest, to another agent, in one transaction (DEL-11)."""

    judge: Callable[[SessionSettings, Unfinished | None], SessionSettings]
    """Returns the new settings, or refuses by raising."""
    keep: Callable[[Store], object]
    """Writes what goes with them, in the same transaction; refuses by raising."""


@attrs.frozen
class CancelTurn:
    """End what the session is doing. Control."""

    cause: CancelCause
    command_id: str | None = None
    """Only the turn of this command, or its place in the inbox."""


class TurnRefusedError(GreenroomError):
    """The input was not taken; nothing was written (SES-18).

    ``code`` is ``empty_message``, ``message_too_large``, ``bad_image``,
    ``interaction_pending``, ``conflicting_command``, ``unknown_command``,
    ``withdrawn_command``, ``too_many_commands``, ``too_many_answers``,
    ``unknown_provider``, ``session_closing``, ``turn_ended``, ``unknown_setting`` or
    ``wrong_setting``.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class InputBlockedError(GreenroomError):
    """The input was taken in, and needs a decision before it can have its turn."""

    code = "input_blocked"
    hint = "change the model and retry the input, or degrade or delete it"

    def __init__(self, input_id: str, reasons: Sequence[str]) -> None:
        super().__init__(f"input {input_id[:80]!r} waits: {'; '.join(reasons)}")
        self.input_id = input_id
        self.reasons = tuple(reasons)


def session_closing() -> TurnRefusedError:
    """Return the refusal of a session that is being unloaded."""
    return TurnRefusedError(
        "session_closing", "the session is being closed; open it again"
    )


class TurnFailedError(GreenroomError):
    """The turn could not be run or stored; what is on disk is on disk."""

    code = "turn_failed"
