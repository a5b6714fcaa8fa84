"""What a compaction hides, and whether it is worth it: pure arithmetic on whole pairs.

A *pair* is what the user said and all that was answered. The *retained tail* is the
newest pairs, which stay as they are; what lies before it is hidden behind a new
boundary and stands for itself only as a summary, or not at all. Nothing is ever cut
inside a pair, so that no call loses its result, and the turn that is worked on belongs
to no pair: it is never hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import attrs

from .._estimate import estimate_tokens
from .._messages import MessageRecord
from .._view import ViewBuilder
from ._boundary import Boundary, Reconstruction, ReconstructionName
from ._checkpoint import checkpoint_of
from ._tally import MESSAGE_TOKENS, message_tokens

Trigger = Literal["auto", "resume", "manual", "context_pressure"]
"""Why a compaction is made: before a turn, before a turn goes on, because the user
said so, or because a request was too large (CTX-25)."""

Outcome = Literal["summarized", "boundary_only", "unchanged"]
"""What came of it (CTX-22)."""

GapReason = Literal["summary_unavailable", "summary_rejected_larger"]
"""Why messages were hidden without a summary."""

MAX_TAIL_TOKENS: Final = 20_000
"""Of the retained tail beyond the pairs that are configured (CTX-26)."""


TRIGGER_NAMES: Final[Mapping[Trigger, ReconstructionName]] = {
    "auto": "compaction/auto",
    "resume": "compaction/resume",
    "manual": "compaction/manual",
    "context_pressure": "compaction/context_pressure",
}
"""The anchor that each trigger leaves (TAP-11)."""


@attrs.frozen
class Pair:
    """What the user said and what was answered, by its places in the transcript."""

    first: int
    last: int
    tokens: int


@attrs.frozen
class CompactionPlan:
    """What is to be hidden."""

    cursor: int
    """The new boundary: the first place that stays."""
    hidden: tuple[Pair, ...]
    """The pairs between the boundary so far and the new one, oldest first."""

    @property
    def hidden_tokens(self) -> int:
        """What the hidden pairs take in a request now."""
        return sum(pair.tokens for pair in self.hidden)


def pairs_of(
    records: Iterable[MessageRecord], tokens: Callable[[MessageRecord], int]
) -> tuple[Pair, ...]:
    """Return the pairs that *records* make up, oldest first.

    A message of the assistant that follows no user message belongs to the first pair.
    """
    pairs: list[Pair] = []
    for record in records:
        size, place = tokens(record), record.order_seq
        if record.role == "user" or not pairs:
            pairs.append(Pair(place, place, size))
        else:
            open_pair = pairs[-1]
            pairs[-1] = Pair(open_pair.first, place, open_pair.tokens + size)
    return tuple(pairs)


def trigger_tokens(context: int, reserve: int, tools: int, threshold: int) -> int:
    """Return how many projected tokens are still left alone (CTX-25).

    Args:
        context: the model's window.
        reserve: tokens for the answer.
        tools: tokens of the tool definitions.
        threshold: per cent of what is left of the window, less a fifth for safety.
    """
    # (context - reserve - tools) / 1.2 * threshold / 100, without rounding on the way.
    return max(0, (context - reserve - tools) * threshold // 120)


def retained_pairs(tokens: Sequence[int], at_least: int, input_budget: int) -> int:
    """Return how many of the newest pairs stay (CTX-26).

    Args:
        tokens: of each pair, oldest first.
        at_least: pairs that stay whatever they take.
        input_budget: tokens that a request may have; ``0``: nothing beyond *at_least*.
    """
    kept = min(at_least, len(tokens))
    room = min(MAX_TAIL_TOKENS, input_budget // 4)
    size = sum(tokens[len(tokens) - kept :])
    while kept < len(tokens) and size + tokens[-kept - 1] <= room:
        kept += 1
        size += tokens[-kept]
    return kept


def plan_compaction(
    pairs: Sequence[Pair], trigger: Trigger, pairs_kept: int, input_budget: int
) -> CompactionPlan | None:
    """Return what a compaction would hide; ``None``: nothing.

    Args:
        pairs: those behind the boundary so far, without the turn that is worked on.
        trigger: keeps no tail when the user asks, one pair more for a turn that goes
            on, and under pressure no pair that makes the tail too large.
        pairs_kept: the configured pairs of the tail.
        input_budget: tokens that a request may have.
    """
    sizes = [pair.tokens for pair in pairs]
    kept = _kept(sizes, trigger, pairs_kept, input_budget)
    hidden = tuple(pairs[: len(pairs) - kept])
    if not hidden:
        return None
    return CompactionPlan(hidden[-1].last + 1, hidden)


def _kept(
    sizes: Sequence[int], trigger: Trigger, pairs_kept: int, input_budget: int
) -> int:
    match trigger:
        case "manual":
            return 0
        case "resume":
            return retained_pairs(sizes, pairs_kept + 1, input_budget)
        case "auto":
            return retained_pairs(sizes, pairs_kept, input_budget)
        case "context_pressure":
            # Pressure comes again for a tail that is too large, or that leaves nothing
            # to hide: so the tail has to give way.
            fitting = retained_pairs(sizes, 0, input_budget)
            return min(fitting, pairs_kept, max(0, len(sizes) - 1))


def accepts_summary(checkpoint: int, before: int, hidden: int) -> bool:
    """Whether a new checkpoint makes a request smaller (CTX-23).

    Args:
        checkpoint: tokens of the new one.
        before: tokens of the one that it replaces; 0: there was none.
        hidden: tokens of the pairs that it newly hides, without the pinned message,
            which stays in the request.
    """
    return checkpoint < before + hidden


def record_tokens(record: MessageRecord, provider: str, model: str) -> int:
    """Return what *record* takes in a request to *model*, in tokens."""
    view = ViewBuilder(provider, model)
    view.add_record(record)
    return sum(map(message_tokens, view.messages))


def checkpoint_tokens(name: ReconstructionName, state: Reconstruction | None) -> int:
    """Return what the checkpoint of an anchor takes; ``None``: there is no anchor."""
    if state is None:
        return 0
    checkpoint = checkpoint_of(Boundary(name, 0, state))
    return (
        0 if checkpoint is None else MESSAGE_TOKENS + estimate_tokens(checkpoint.text)
    )


def merged_gaps(
    gaps: Iterable[tuple[int, int]], first: int, last: int
) -> tuple[tuple[int, int], ...]:
    """Return *gaps* and one more, from *first* to *last*, joined where they touch."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted([*gaps, (first, last)]):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    return tuple(merged)
