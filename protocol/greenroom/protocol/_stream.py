"""What a provider streams: a closed alphabet of events (TRY-25).

Every provider adapter translates its wire into these and nothing else; an event
type outside of them is a decode error, never ignored text. `Usage`, `Stop` and
`ProviderFailure` are control events: they do not commit output (TRY-11).
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from ._messages import Usage

StopReason = Literal["complete", "max_tokens", "tool_use", "max_turn_requests", "error"]


class TextDelta(msgspec.Struct, frozen=True, tag="text", omit_defaults=True):
    """More text."""

    text: str
    options: dict[str, Any] | None = None


class ReasoningDelta(msgspec.Struct, frozen=True, tag="reasoning", omit_defaults=True):
    """More thinking. ``options`` replaces what the block had."""

    text: str
    options: dict[str, Any] | None = None


class ToolCallStart(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call_start"):
    """A call is announced. ``index`` joins its chunks; ``id`` may repeat."""

    index: int
    id: str
    name: str


class ToolCallChunk(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call_chunk"):
    """More of a call's arguments."""

    index: int
    text: str


class ToolCallEnd(
    msgspec.Struct, frozen=True, kw_only=True, tag="tool_call_end", omit_defaults=True
):
    """A call is complete, with its whole arguments as they came."""

    index: int
    id: str
    name: str
    arguments: str
    options: dict[str, Any] | None = None


class PermissionAsked(msgspec.Struct, frozen=True, kw_only=True, tag="permission"):
    """An agent behind the provider asks for a permission of its own."""

    id: str
    title: str
    payload: dict[str, Any]


class ImageData(msgspec.Struct, frozen=True, kw_only=True, tag="image_data"):
    """An image the model made, base64."""

    media_type: str
    data: str


class RateLimited(msgspec.Struct, frozen=True, kw_only=True, tag="rate_limit"):
    """The provider says how much is left, or that it waits."""

    text: str


class ProviderSearch(msgspec.Struct, frozen=True, kw_only=True, tag="provider_search"):
    """A search that the provider did itself."""

    id: str
    payload: dict[str, Any]


class ProviderUrlSource(
    msgspec.Struct, frozen=True, kw_only=True, tag="provider_url_source"
):
    """A source that the provider cites."""

    url: str
    title: str = ""


class PlanProposed(msgspec.Struct, frozen=True, kw_only=True, tag="plan"):
    """A plan from an agent behind the provider."""

    entries: tuple[dict[str, Any], ...]


class UsageReported(msgspec.Struct, frozen=True, kw_only=True, tag="usage"):
    """Usage of this attempt so far; the last one counts (TRY-16)."""

    usage: Usage


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop", omit_defaults=True):
    """The model stopped. ``raw`` is the provider's own word (RUN-21)."""

    reason: StopReason
    raw: str = ""


class ProviderFailure(
    msgspec.Struct, frozen=True, kw_only=True, tag="error", omit_defaults=True
):
    """The attempt failed, as far as the adapter can tell what happened."""

    message: str
    code: str | None = None
    status: int | None = None
    retryable: bool | None = None
    """The provider's own word on a retry; ``None`` when it said nothing."""
    headers: dict[str, str] = {}
    """Only those that bear on a retry, names in lower case."""


StreamEvent = (
    TextDelta
    | ReasoningDelta
    | ToolCallStart
    | ToolCallChunk
    | ToolCallEnd
    | PermissionAsked
    | ImageData
    | RateLimited
    | ProviderSearch
    | ProviderUrlSource
    | PlanProposed
    | UsageReported
    | Stop
    | ProviderFailure
)

CONTROL_EVENTS: Final = (UsageReported, Stop, ProviderFailure)
"""Events that do not commit output; they wait for the retry decision (TRY-11)."""
