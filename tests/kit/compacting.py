"""A history to be compacted, and a tape in memory that anchors are written to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import trio

from greenroom.actors.context import BoundaryMovedError, Compactor, Strategy
from greenroom.protocol import (
    Fact,
    ItemId,
    MessageId,
    MessageRecord,
    SessionSettings,
    TextBlock,
)

SETTINGS = SessionSettings(
    agent_id="a", title="t", workspace="/w", provider="p", model="m"
)


def record(order: int, text: str = "", *blocks: Any) -> MessageRecord:
    """A message at *order*: the user's at odd places, the assistant's at even ones."""
    said = [TextBlock(id=ItemId(f"m{order}.0"), text=text)] if text else []
    return MessageRecord(
        id=MessageId(f"m{order}"),
        order_seq=order,
        role="user" if order % 2 else "assistant",
        status="sent",
        blocks=(*said, *blocks),
        created_at=0.0,
        updated_at=0.0,
    )


def history(*pairs: tuple[str, str]) -> list[MessageRecord]:
    """The messages of *pairs* of what was said and answered."""
    said = [text for pair in pairs for text in pair]
    return [record(n + 1, text) for n, text in enumerate(said)]


@attrs.define(eq=False)
class MemoryTape:
    """Facts in a list, appended all or none."""

    facts: list[Fact] = attrs.field(factory=list)
    entry: int | None = None
    """Of the boundary that is there."""
    gate: Callable[[str], Any] = lambda what: None
    """Called before a write; what it returns is awaited."""

    async def append(
        self,
        facts: Sequence[Fact],
        settles: Sequence[str] = (),
        *,
        before: Callable[[Any], object] | None = None,
    ) -> None:
        await trio.lowlevel.checkpoint()
        wait = self.gate(facts[0].name)
        if wait is not None:
            await wait
        if before is not None:
            before(self)
        self.facts += facts

    def append_soon(self, facts: Sequence[Fact]) -> None:
        self.facts += facts

    def named(self, prefix: str) -> list[Fact]:
        return [fact for fact in self.facts if fact.name.startswith(prefix)]


def expect(tape: MemoryTape, entry: int | None) -> None:
    """Refuse another boundary than *entry*."""
    if tape.entry != entry:
        raise BoundaryMovedError


def compactor(tape: MemoryTape, strategy: Strategy) -> Compactor:
    """A compactor on *tape* with numbered ids, at 7 seconds since the epoch."""
    ids = iter(range(1_000))
    return Compactor(strategy, tape, expect, lambda: f"id-{next(ids)}", lambda: 7.0)
