"""Requests that say something to a session, and about what waits in it."""

from __future__ import annotations

import msgspec

from .._events import Interaction
from .._ids import MessageId
from .._interactions import Answer
from .._journal import RunOutcome
from .._messages import Usage
from .._pending import Delivery, PendingInput
from ._bounds import CommandId, Content, Id, Place
from ._sessions import Cut


class SendPrompt(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"
):
    """Send a message, and be answered when its turn ends.

    The turn goes on without its client. The same id with the same content joins it.
    """

    session_id: Id
    content: Content
    command_id: CommandId


class PromptResult(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """How the turn ended."""

    message_id: MessageId
    outcome: RunOutcome
    stop_reason: str
    text: str
    """What the model said in its last round; the beginning of it if it is long."""
    error: str | None = None
    usage: Usage | None = None
    cost: float | None = None
    """US dollars."""


class QueueInput(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"
):
    """Let an input wait for its turn; at once when the session is idle."""

    session_id: Id
    content: Content
    command_id: CommandId


class SteerTurn(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """Say something to the turn that runs."""

    session_id: Id
    content: Content
    command_id: CommandId
    expected_turn: Id | None = None
    """The assistant's message of the turn that is meant."""


class InputAccepted(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """The input is durable, and where it stands."""

    input_id: str
    delivery: Delivery
    input: PendingInput | None = None
    """While it waits or is on its way."""


class InputRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Names an input that waits."""

    session_id: Id
    input_id: Id


class EditPendingInput(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"
):
    """Replace what a queued input says."""

    session_id: Id
    input_id: Id
    content: Content


class MovePendingInput(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"
):
    """Move a queued input to a place, from 1; beyond the ends it is clamped."""

    session_id: Id
    input_id: Id
    to: Place


class InputList(msgspec.Struct, frozen=True, omit_defaults=True):
    """What waits, in the order in which it is let in."""

    inputs: tuple[PendingInput, ...]
    cut: tuple[Cut, ...] = ()


class InteractionList(msgspec.Struct, frozen=True):
    """What waits for an answer, the next one first."""

    interactions: tuple[Interaction, ...]


class AnswerPending(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"
):
    """Answer a permission or question; the first valid answer holds."""

    session_id: Id
    interaction_id: Id
    answer: Answer
