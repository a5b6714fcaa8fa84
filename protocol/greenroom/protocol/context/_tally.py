"""What messages weigh, in tokens and in bytes, and what they are, as a hash.

Each message is encoded once. A `Tally` keeps, for every beginning of the messages it
was shown last, the sum and the hash; the next request mostly begins with the same
messages, and only what comes behind them is looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, assert_never, final

import attrs
import msgspec

from .._estimate import estimate_tokens
from .._messages import (
    AssistantMessage,
    ChatMessage,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)

MEDIA_TOKENS: Final = 512
"""Of an image, or of any other part that is not text (CTX-09)."""

MESSAGE_TOKENS: Final = 4
"""What the role and the marks around a message cost."""

_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def message_tokens(message: ChatMessage) -> int:
    """Return about how many tokens *message* has, all of its parts counted (CTX-09)."""
    match message:
        case SystemMessage(text=text) | ToolMessage(text=text):
            tokens = estimate_tokens(text)
        case UserMessage(parts=parts):
            tokens = sum(
                estimate_tokens(part.text)
                if isinstance(part, TextPart)
                else MEDIA_TOKENS
                for part in parts
            )
        case AssistantMessage(text=text, reasoning=reasoning, calls=calls):
            tokens = estimate_tokens(text) + sum(map(_call_tokens, calls))
            for thought in reasoning:
                tokens += estimate_tokens(thought.text) + _options_tokens(
                    thought.options
                )
        case _:
            assert_never(message)
    return MESSAGE_TOKENS + tokens


def _call_tokens(call: ToolCall) -> int:
    named = estimate_tokens(call.name) + estimate_tokens(call.arguments)
    return MESSAGE_TOKENS + named + _options_tokens(call.options)


def _options_tokens(options: dict[str, Any] | None) -> int:
    return estimate_tokens(_ENCODER.encode(options).decode()) if options else 0


def tools_tokens(tools: Sequence[ToolDefinition]) -> int:
    """Return about how many tokens the definitions of *tools* have, serialised."""
    return estimate_tokens(_ENCODER.encode(tools).decode()) if tools else 0


def tools_hash(tools: Sequence[ToolDefinition]) -> str:
    """Return the SHA-256 of the definitions of *tools*, in their order."""
    return hashlib.sha256(_ENCODER.encode(tools)).hexdigest()


@attrs.frozen
class Mark:
    """What the messages up to a place come to."""

    tokens: int = 0
    size: int = 0
    """Bytes, as JSON: what a limit of the provider on the body is about."""
    digest: bytes = bytes(32)

    def after(self, message: ChatMessage) -> Mark:
        """Return the mark behind one message more."""
        encoded = _ENCODER.encode(message)
        return Mark(
            self.tokens + message_tokens(message),
            self.size + len(encoded),
            hashlib.sha256(self.digest + encoded).digest(),
        )

    @property
    def hash(self) -> str:
        """Names the messages, in their order, up to here."""
        return self.digest.hex()


@final
@attrs.define(eq=False)
class Tally:
    """Sums and hashes of every beginning of the messages that were shown last."""

    _messages: tuple[ChatMessage, ...] = attrs.field(default=(), init=False)
    _marks: list[Mark] = attrs.field(factory=lambda: [Mark()], init=False)

    def show(self, messages: Sequence[ChatMessage]) -> int:
        """Take *messages*; return how many of them are, in front, those from before."""
        new = tuple(messages)
        kept = equal_in_front(self._messages, new)
        del self._marks[kept + 1 :]
        for message in new[kept:]:
            self._marks.append(self._marks[-1].after(message))
        self._messages = new
        return kept

    @property
    def count(self) -> int:
        """How many messages were shown."""
        return len(self._messages)

    def at(self, count: int) -> Mark:
        """Return what the first *count* messages come to."""
        return self._marks[count]

    def message(self, number: int) -> ChatMessage:
        """Return one of the messages that were shown."""
        return self._messages[number]

    @property
    def whole(self) -> Mark:
        """What all messages come to."""
        return self._marks[-1]


def equal_in_front(old: tuple[object, ...], new: tuple[object, ...]) -> int:
    """Return how many values *new* begins with that *old* begins with."""
    if new[: len(old)] == old:
        return len(old)
    return next(
        (
            at
            for at, pair in enumerate(zip(old, new, strict=False))
            if pair[0] != pair[1]
        ),
        min(len(old), len(new)),
    )
