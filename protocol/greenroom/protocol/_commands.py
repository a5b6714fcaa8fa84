"""Commands: what reaches a session through its durable inbox, whoever owns it."""

from __future__ import annotations

import msgspec

from ._messages import ImagePart, TextPart


class PromptCommand(msgspec.Struct, frozen=True, tag="prompt", rename="camel"):
    """Start a turn with this input; somebody waits for it."""

    parts: tuple[TextPart | ImagePart, ...]


class QueueCommand(msgspec.Struct, frozen=True, tag="queue", rename="camel"):
    """Let this input wait until the session is idle (PIN-02)."""

    parts: tuple[TextPart | ImagePart, ...]


class SteerCommand(
    msgspec.Struct, frozen=True, tag="steer", omit_defaults=True, rename="camel"
):
    """Say this to the turn that runs (PIN-03)."""

    parts: tuple[TextPart | ImagePart, ...]
    expected_turn: str | None = None
    """The assistant's message of the turn that is meant; none: whichever runs."""


Command = PromptCommand | QueueCommand | SteerCommand
"""What an inbox may hold."""
