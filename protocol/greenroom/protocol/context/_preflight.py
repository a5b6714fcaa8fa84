"""Whether a request leaves the model room to answer, and what gives way if not.

Estimates are estimates: they ask for recovery, and drop what can be had again, but the
system prompt, the user's words and the rounds of the turn are never dropped because of
one (CTX-08). A window that is not known is not assumed to be small (CTX-11).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

DEFAULT_OUTPUT: Final = 16_384
MAX_OUTPUT: Final = 32_768

MARGIN: Final = 256
MARGIN_OVER: Final = 1_024
"""Tokens of a window above which the margin is kept."""

CRAMPED: Final = 4_000
"""Output tokens below which an answer is cramped, if more was asked for."""


def output_cap(requested: int | None, context: int | None) -> int:
    """Return how many output tokens a request may ask for (CTX-10)."""
    wanted = min(DEFAULT_OUTPUT if requested is None else requested, MAX_OUTPUT)
    if context is not None:
        wanted = min(wanted, context // 2)
    return max(1, wanted)


@attrs.frozen
class Preflight:
    """The numbers of one request before it is sent, in tokens (CTX-07)."""

    context: int | None
    """The window that is in force; ``None``: there is none, so all of it fits."""
    requested: int
    input: int
    """An estimate."""
    tools: int
    """What the tools take that the input does not count."""

    @property
    def margin(self) -> int:
        """What is kept free because the input is an estimate."""
        known = self.context is not None and self.context > MARGIN_OVER
        return MARGIN if known else 0

    @property
    def remaining(self) -> int | None:
        """What is left for output; ``None``: no window is in force."""
        if self.context is None:
            return None
        return self.context - self.margin - self.input - self.tools

    @property
    def effective(self) -> int:
        """The output limit that fits; at least 1."""
        if self.remaining is None:
            return self.requested
        return max(1, min(self.requested, self.remaining))

    @property
    def fits(self) -> bool:
        """Whether anything is left for output."""
        return self.remaining is None or self.remaining >= 1

    @property
    def pressure(self) -> bool:
        """Whether something should give way before it is sent."""
        if self.remaining is None:
            return False
        left = min(self.requested, self.remaining)
        return left < 1 or (self.requested >= CRAMPED and left < CRAMPED)


def exceeds_window(context: int | None, tools: int, fixed: int) -> bool:
    """Whether what is never dropped can't be sent: *fixed* is system, pin and turn."""
    return context is not None and fixed > context - tools - 1


@attrs.frozen
class Weights:
    """What the parts of a request weigh that may give way, in tokens."""

    memory: int
    directives: int
    turns: Sequence[int]
    """The turns of the history, the oldest first."""


@attrs.frozen
class Drops:
    """What is left out."""

    memory: bool = False
    directives: bool = False
    turns: int = 0
    """The oldest so many."""


def drops(weights: Weights, excess: int) -> Drops:
    """Return what to leave out so that *excess* tokens are saved (CTX-08).

    Memory first, then directives, then whole turns, the oldest first; no more than
    needed, and everything if that is not enough.
    """
    memory = directives = False
    if excess > 0 and weights.memory:
        memory, excess = True, excess - weights.memory
    if excess > 0 and weights.directives:
        directives, excess = True, excess - weights.directives
    turns = 0
    while excess > 0 and turns < len(weights.turns):
        excess -= weights.turns[turns]
        turns += 1
    return Drops(memory, directives, turns)
