"""How what a compaction hides is told afterwards: the seam, and a way without a model.

A strategy gets what is to be hidden and returns a text that stands for it, or why there
is none. It decides nothing else: what is hidden, whether the text is worth it, and what
is written is the compactor's. `Summaries` asks a model; `SlidingWindow` asks nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol, final

import attrs

from greenroom.actors.providers import Provider, RateGate
from greenroom.protocol import (
    MessageRecord,
    SessionSettings,
    TextBlock,
    ToolCallBlock,
    Usage,
    redacted,
    safe_text,
)
from greenroom.protocol.context import Trigger

MAX_DIGEST: Final = 6_000
"""Characters of what a sliding window tells of what left it."""

_SAID: Final = 200
_TOOLS: Final = 8

CondenseFault = Literal["unavailable", "rejected"]
"""Why there is no text: nobody could make one in time, or what came is none."""


@attrs.frozen
class SummaryModel:
    """A model that can be asked, and what is known of it."""

    provider: Provider
    model: str
    window: int | None
    gate: RateGate | None = None


@attrs.frozen
class ModelCall:
    """One request that a strategy made, for the record (CTX-24)."""

    provider: str
    model: str
    status: Literal["completed", "failed", "aborted"]
    usage: Usage | None = None
    stop_reason: str | None = None
    error: str | None = None
    """The code of its failure."""


def unheard(provider: str, model: str) -> None:
    """Tell nobody of a request."""


@attrs.frozen
class CondenseJob:
    """What is to be told, and what with."""

    trigger: Trigger
    settings: SessionSettings
    records: Sequence[MessageRecord]
    """What is hidden and no text tells of yet, oldest first."""
    prior: str
    """The text so far, of what was hidden before."""
    focus: str
    """What the user finds important; mostly empty."""
    models: Sequence[SummaryModel]
    """Those that may be asked, the preferred one first."""
    note: Callable[[ModelCall], None]
    """Told of each request when it has ended, however."""
    begins: Callable[[str, str], None] = unheard
    """Told of each request before it is sent: its provider and its model. Of one that
    was not told there is no span."""


@attrs.frozen
class Condensed:
    """The text, or why there is none."""

    text: str = ""
    fault: CondenseFault | None = None
    why: str = ""
    """For people: what went wrong."""


class Strategy(Protocol):
    """Makes the text that stands for what a compaction hides."""

    async def condense(self, job: CondenseJob) -> Condensed:
        """Return the text for *job*.

        Bounded in time by itself; may be cancelled, and then nothing is hidden. What
        it raises counts as ``unavailable``.
        """
        ...


@final
@attrs.frozen
class SlidingWindow:
    """Tells what the user asked and which tools were called; asks no model.

    The newest turns are told first to have room; what is left of older digests stays
    as long as it fits.
    """

    async def condense(self, job: CondenseJob) -> Condensed:
        """See `Strategy.condense`; never fails and never waits."""
        return Condensed(digest(job.prior, job.records))


def digest(prior: str, records: Sequence[MessageRecord]) -> str:
    """Return what was asked and done, one line each, the newest that fit, in order."""
    lines = [*prior.splitlines(), *filter(None, map(_line, records))]
    room = MAX_DIGEST
    kept: list[str] = []
    for line in reversed(lines):
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join(reversed(kept))


def _line(record: MessageRecord) -> str:
    said = " ".join(b.text for b in record.blocks if isinstance(b, TextBlock))
    plain = " ".join(redacted(safe_text(said)).split())
    shown = plain if len(plain) <= _SAID else f"{plain[:_SAID]}…"
    if record.role == "user":
        return f"- user: {shown}" if shown else ""
    calls = [b.name[:64] for b in record.blocks if isinstance(b, ToolCallBlock)]
    more = f" and {len(calls) - _TOOLS} more" if len(calls) > _TOOLS else ""
    used = f" [called {', '.join(calls[:_TOOLS])}{more}]" if calls else ""
    return f"- assistant: {shown}{used}" if shown or used else ""
