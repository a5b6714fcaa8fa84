"""Answers to a pause (INT-03, INT-04, INT-09)."""

from __future__ import annotations

import msgspec

from ._errors import GreenroomError


class Grant(msgspec.Struct, frozen=True, tag="grant"):
    """The user allows this one call."""


class Deny(msgspec.Struct, frozen=True, tag="deny"):
    """The user refuses this one call; the reason reaches the model."""

    reason: str = ""


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """The answer to a question: labels of options, or the user's own text."""

    text: str


class Other(msgspec.Struct, frozen=True, tag="other"):
    """The user will write a message of their own instead (INT-09)."""


Answer = Grant | Deny | Reply | Other


class InteractionError(GreenroomError):
    """An answer that can't be taken; nothing has changed.

    ``code`` is ``unknown_interaction``, ``already_answered``, ``out_of_order`` or
    ``wrong_answer``.
    """

    def __init__(self, code: str, interaction_id: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.interaction_id = interaction_id
