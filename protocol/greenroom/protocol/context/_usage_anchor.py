"""What a provider counted, put to use for the requests that go on from there.

The count of a completed attempt is exact for the messages that it sent. A later request
that begins with the very same messages, to the same model with the same parameters and
tools, needs an estimate only for what follows them (CTX-12, CTX-13).
"""

from __future__ import annotations

import hashlib
from typing import Final

import attrs
import msgspec

from .._counters import MAX_SAFE_INTEGER
from .._messages import Usage
from .._request import ModelRequest
from ._tally import Tally

_PARAMETERS: Final = (
    "temperature",
    "top_p",
    "reasoning_effort",
    "verbosity",
    "tool_choice",
)
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


@attrs.frozen
class RequestKind:
    """What two requests have in common whose prompts are counted alike."""

    provider: str
    model: str
    generation_hash: str
    """Of the parameters, the output limit left out: it changes with the room."""
    tools_hash: str


def generation_hash(provider: str, request: ModelRequest) -> str:
    """Return the hash of what *request* asks for besides messages and tools."""
    asked = {name: getattr(request, name) for name in _PARAMETERS}
    asked |= {"provider": provider, "model": request.model}
    return hashlib.sha256(_ENCODER.encode(asked)).hexdigest()


@attrs.frozen
class UsageAnchor:
    """How many tokens the provider counted for a beginning of the messages."""

    kind: RequestKind
    message_count: int
    messages_hash: str
    prompt_tokens: int
    cache_read_tokens: int | None = None

    def applies(self, kind: RequestKind, tally: Tally) -> bool:
        """Whether the messages of *tally* begin with those that were counted."""
        return (
            kind == self.kind
            and self.message_count <= tally.count
            and tally.at(self.message_count).hash == self.messages_hash
        )


def usage_anchor(
    kind: RequestKind, tally: Tally, usage: Usage | None
) -> UsageAnchor | None:
    """Return the anchor that a completed attempt with *usage* sets; ``None``: none.

    *tally* was shown exactly what was sent and will be sent again.
    """
    if usage is None or not _is_count(usage.input):
        return None
    cached = usage.cache_read if _is_count(usage.cache_read) else None
    return UsageAnchor(kind, tally.count, tally.whole.hash, usage.input, cached)


def prompt_tokens(
    anchor: UsageAnchor | None, kind: RequestKind, tally: Tally, tools: int
) -> tuple[int, int, bool]:
    """Return estimated input, what *tools* add to it, and whether it is anchored.

    The count of an anchor has the tools in it.
    """
    whole = tally.whole.tokens
    if anchor is None or not anchor.applies(kind, tally):
        return whole, tools, False
    suffix = whole - tally.at(anchor.message_count).tokens
    return anchor.prompt_tokens + suffix, 0, True


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value <= MAX_SAFE_INTEGER
