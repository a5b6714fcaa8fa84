"""Long results of tools, shortened in what is sent and nowhere else (CTX-30, CTX-31).

A *unit* is an assistant message with calls and all their results; it is closed when
every call has its result. Only results of closed units behind the user's last message
are shortened: what lies before it is the summary's affair. The shortening depends on
the result alone, so the same messages always give the same bytes, and what is short
stays as it is. The tape keeps the result whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs
import msgspec

from .._messages import AssistantMessage, ChatMessage, ToolMessage, UserMessage

STUB_OVER: Final = 8_192
"""Characters; a result of so many is sent whole."""

HEAD_CHARS: Final = 4_096
TAIL_CHARS: Final = 1_024

RECALL_TOOLS: Final = frozenset({"tape_search", "tape_context"})
"""Their results are what a shortened result is recalled with."""

_MAX_ID: Final = 200


@attrs.frozen
class Unit:
    """A closed unit: where it begins in the messages, and where it ends."""

    start: int
    stop: int


def closed_units(messages: Sequence[ChatMessage]) -> tuple[Unit, ...]:
    """Return the closed units behind the user's last message, oldest first."""
    return tuple(_units(messages, _after_user(messages)))


def stub_results(
    messages: Sequence[ChatMessage],
    *,
    newest: bool = False,
    protected: frozenset[str] = frozenset(),
) -> tuple[ChatMessage, ...]:
    """Return *messages* with long results of closed units shortened.

    Args:
        messages: of one request, in order.
        newest: whether the newest closed unit is shortened too; it is what the model
            is about to read, so it comes last (CTX-31).
        protected: names of tools whose results are never shortened, beside those
            that recall.
    """
    units = closed_units(messages)
    spared = protected | RECALL_TOOLS
    stubbed = list(messages)
    for unit in units if newest else units[:-1]:
        for place in range(unit.start + 1, unit.stop):
            stubbed[place] = _stubbed(stubbed[place], spared)
    return tuple(stubbed)


def stub_text(call_id: str, text: str) -> str:
    """Return what stands for the long *text* of the result of a call."""
    hint = (
        f"[result of call {call_id[:_MAX_ID]} shortened: {len(text)} characters, of "
        f"which the first {HEAD_CHARS} and the last {TAIL_CHARS} follow; if you need "
        "more, find the whole result with tape_search and read it with tape_context]"
    )
    return f"{hint}\n{text[:HEAD_CHARS]}\n[...]\n{text[-TAIL_CHARS:]}"


def _stubbed(message: ChatMessage, spared: frozenset[str]) -> ChatMessage:
    if not isinstance(message, ToolMessage) or message.name in spared:
        return message
    if len(message.text) <= STUB_OVER:
        return message
    return msgspec.structs.replace(
        message, text=stub_text(message.call_id, message.text)
    )


def _after_user(messages: Sequence[ChatMessage]) -> int:
    for place in range(len(messages) - 1, -1, -1):
        if isinstance(messages[place], UserMessage):
            return place + 1
    return 0


def _units(messages: Sequence[ChatMessage], start: int) -> Iterator[Unit]:
    place = start
    while place < len(messages):
        message = messages[place]
        stop = place + 1
        if isinstance(message, AssistantMessage) and message.calls:
            while stop < len(messages) and isinstance(messages[stop], ToolMessage):
                stop += 1
            if _is_closed(message, messages[place + 1 : stop]):
                yield Unit(place, stop)
        place = stop


def _is_closed(message: AssistantMessage, results: Sequence[ChatMessage]) -> bool:
    answered = [each.call_id for each in results if isinstance(each, ToolMessage)]
    return answered == [call.id for call in message.calls]
