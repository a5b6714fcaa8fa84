"""One exact payload for a provider: what `requestSeq` names (TRY-22)."""

from __future__ import annotations

from typing import Literal

import msgspec

from ._messages import ChatMessage, ToolDefinition

ToolChoice = Literal["auto", "none", "required"]


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request before it has a wire format. Absent settings are left to the peer."""

    model: str
    messages: tuple[ChatMessage, ...]
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: ToolChoice = "auto"
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
