"""From records to messages that can be sent: the pairing law, in one place.

What comes out can always be sent: each call has exactly one result, in the next
messages, in the order of the calls; arguments are JSON objects; names are such as a
tool can have; call ids are unique in the whole request and the same after a reload;
there is no NUL and no lone surrogate, nor one behind an escape; thinking, and the odder
ids, go back only to the provider and model that they came from (`docs/design.md`,
pairing).

The raw text of a malformed call stays in the record; only what is sent is mended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final, final

import attrs
import msgspec

from ._canonical import safe_json, safe_text
from ._messages import (
    AssistantMessage,
    Block,
    ChatMessage,
    ErrorBlock,
    ImageBlock,
    ImagePart,
    MessageRecord,
    Reasoning,
    ReasoningBlock,
    TextBlock,
    TextPart,
    ToolCall,
    ToolCallBlock,
    ToolMessage,
    UserMessage,
)

NO_RESULT: Final = "no result: the turn ended before this call had one"
UNNAMED_TOOL: Final = "unnamed_tool"
"""What a call without a name is sent back as; providers refuse an empty name."""
MAX_NAME: Final = 64
"""Characters of a name, and of an id that another provider made."""

_NOT_PLAIN: Final = re.compile("[^A-Za-z0-9_-]")


@final
@attrs.define(eq=False)
class Pairing:
    """Messages made of records, one behind the other."""

    provider: str
    model: str
    messages: list[ChatMessage] = attrs.field(factory=list[ChatMessage], init=False)
    # Each id that was given out, with the last number put behind it. Some providers
    # call every call the same: looking for a free number must not take ever longer.
    _call_ids: dict[str, int] = attrs.field(factory=dict[str, int], init=False)

    def fork(self) -> Pairing:
        """Return one that goes on from here and leaves this one as it is."""
        fork = Pairing(self.provider, self.model)
        fork._call_ids = self._call_ids.copy()
        fork.messages = self.messages.copy()
        return fork

    def add_record(self, record: MessageRecord) -> None:
        """Add one message of the transcript."""
        if record.role == "user":
            self._add_user(record.blocks)
            return
        same = (record.metadata.provider, record.metadata.model) == (
            self.provider,
            self.model,
        )
        self.add_rounds(record.blocks, keep_reasoning=same)
        if record.status == "error":
            self._add_interruption(record)

    def add_rounds(
        self, blocks: Sequence[Block], *, keep_reasoning: bool = True
    ) -> None:
        """Add the rounds that *blocks* of an assistant message make up."""
        for _, group in groupby(blocks, key=lambda block: block.round):
            self._add_round(tuple(group), keep_reasoning=keep_reasoning)

    def _add_user(self, blocks: Iterable[Block]) -> None:
        message = user_message(blocks)
        if message is not None:
            self.messages.append(message)

    def _add_round(self, blocks: Sequence[Block], *, keep_reasoning: bool) -> None:
        text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
        # Providers refuse a message of nothing but spaces.
        text = text if text.strip() else ""
        reasoning = tuple(
            Reasoning(safe_text(block.text), _safe_options(block.options))
            for block in blocks
            if keep_reasoning and isinstance(block, ReasoningBlock)
        )
        pairs = [
            (block, self._call(block, foreign=not keep_reasoning))
            for block in blocks
            if isinstance(block, ToolCallBlock)
        ]
        if not text and not pairs:
            # Thinking alone is no message: providers refuse one without content.
            return
        calls = tuple(call for _, call in pairs)
        self._say(
            AssistantMessage(text=safe_text(text), reasoning=reasoning, calls=calls)
        )
        self.messages.extend(_result(block, call) for block, call in pairs)

    def _call(self, block: ToolCallBlock, *, foreign: bool) -> ToolCall:
        call_id = block.call_id
        return ToolCall(
            id=self._unique(_plain(call_id) if foreign else call_id),
            name=_sendable_name(block.name),
            arguments=sendable_arguments(block.arguments),
            options=None if foreign else _safe_options(block.options),
        )

    def _unique(self, call_id: str) -> str:
        wanted = safe_text(call_id) or "call"
        unique, number = wanted, self._call_ids.get(wanted, 1)
        while unique in self._call_ids:
            number += 1
            unique = f"{wanted}-{number}"
        self._call_ids[wanted] = number
        self._call_ids.setdefault(unique, 1)
        return unique

    def _add_interruption(self, record: MessageRecord) -> None:
        # The model must know that its work was cut, or it repeats or forgets it.
        why = next(
            (block.text for block in record.blocks if isinstance(block, ErrorBlock)),
            "interrupted",
        )
        note = f"[this turn ended early: {safe_text(why)}]"
        self._say(AssistantMessage(text=note))

    def _say(self, message: AssistantMessage) -> None:
        # Templates of many models refuse two assistant messages in a row.
        last = self.messages[-1] if self.messages else None
        if isinstance(last, AssistantMessage) and not last.calls:
            message = AssistantMessage(
                text="\n\n".join(filter(None, (last.text, message.text))),
                reasoning=last.reasoning + message.reasoning,
                calls=message.calls,
            )
            self.messages.pop()
        self.messages.append(message)


def user_message(blocks: Iterable[Block]) -> UserMessage | None:
    """Return what the user said in *blocks*; ``None``: nothing that can be sent."""
    parts: list[TextPart | ImagePart] = []
    for block in blocks:
        if isinstance(block, TextBlock) and block.text:
            parts.append(TextPart(safe_text(block.text)))
        elif isinstance(block, ImageBlock):
            image = ImagePart(safe_text(block.media_type), safe_text(block.data))
            parts.append(image)
    return UserMessage(tuple(parts)) if parts else None


def sendable_arguments(raw: str) -> str:
    """Return *raw* if it is a JSON object that can be sent again, else ``{}``."""
    text = safe_text(raw)
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return "{}"
    if not isinstance(value, dict):
        return "{}"
    if "\\u0000" not in text:
        return text
    # An escaped NUL is one again as soon as somebody reads the arguments.
    safe = safe_json(value)
    return text if safe == value else msgspec.json.encode(safe).decode()


def _sendable_name(name: str) -> str:
    plain = _plain(name)
    return plain if plain.strip("_-") else UNNAMED_TOOL


def _plain(word: str) -> str:
    return _NOT_PLAIN.sub("_", word)[:MAX_NAME]


def _safe_options(options: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if options is None else safe_json(options)


def _result(block: ToolCallBlock, call: ToolCall) -> ToolMessage:
    if block.response is None:
        return ToolMessage(
            call_id=call.id, name=call.name, text=NO_RESULT, is_error=True
        )
    return ToolMessage(
        call_id=call.id,
        name=call.name,
        text=safe_text(block.response),
        is_error=block.status == "error",
    )
