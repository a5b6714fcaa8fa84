"""Commands: what reaches a session through its durable inbox, whoever owns it."""

from __future__ import annotations

import msgspec

from ._messages import ImagePart, TextPart


class PromptCommand(msgspec.Struct, frozen=True, tag="prompt", rename="camel"):
    """Start a turn with this input."""

    parts: tuple[TextPart | ImagePart, ...]


Command = PromptCommand
"""A tagged union of one, so far."""
